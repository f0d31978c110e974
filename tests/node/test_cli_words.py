"""Small words of the command line: what is refused says what to give instead, and a ticket may be a file."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from node.cli import run


@pytest.mark.parametrize(
    ("argv", "words"),
    [
        (["ping", "CX5"], ("too short", "4 characters")),
        (["ping", "…"], ("too short",)),
        (["find", ""], ("no word", "masos find")),
        (["find", " \t"], ("no word",)),
    ],
)
def test_too_little_is_refused_in_words_before_the_daemon_is_asked(
    argv: list[str], words: tuple[str, ...], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run([*argv, "--profile", str(tmp_path)]) == 64
    error = capsys.readouterr().err
    assert all(word in error for word in words)
    assert "min_length" not in error


@pytest.mark.parametrize("addr", ["0.0.0.0:1", "/ip4/0.0.0.0/udp/1", "/dns4/x/tcp/1"])
def test_init_refuses_an_address_that_is_none_and_makes_nothing(
    addr: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["init", "--listen", addr, "--profile", str(tmp_path / "p")]) == 78
    assert "listen address" in capsys.readouterr().err
    assert not (tmp_path / "p").exists()


def test_init_takes_the_use_of_relays(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    place = ["--profile", str(tmp_path / "p")]
    assert run(["init", "--relay", "perhaps", *place]) == 78
    assert run(["init", "--relay", "serve", *place]) == 0
    assert '\nrelay = "serve"\n' in (tmp_path / "p" / "config.toml").read_text()
    capsys.readouterr()


def test_a_ticket_may_be_the_file_that_holds_it(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    host, guest = (["--profile", str(tmp_path / name)] for name in ("host", "guest"))
    for place in (host, guest):
        assert run(["init", "--listen", "/ip4/127.0.0.1/tcp/27421", *place]) == 0
    assert run(["swarm", "create", "lab", "--open", *host]) == 0
    file = tmp_path / "lab.ticket"
    assert run(["swarm", "publish", str(file), "--once", *host]) == 0
    capsys.readouterr()
    assert run(["swarm", "inspect", str(file), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["swarm"] == "lab"
    assert run(["swarm", "join", str(file), *guest]) == 0
    (tmp_path / "text").write_text("no ticket")
    for wrong in (str(tmp_path / "text"), str(tmp_path / "missing"), "x" * 5_000):
        assert run(["swarm", "join", wrong, *guest]) == 78
    capsys.readouterr()


def test_one_address_is_one(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    place = ["--profile", str(tmp_path / "p")]
    assert run(["init", "--listen", "/ip4/127.0.0.1/tcp/27421", *place]) == 0
    assert run(["swarm", "create", "lab", *place]) == 0
    assert run(["swarm", "invite", *place]) == 0
    assert "names 1 address;" in capsys.readouterr().err
