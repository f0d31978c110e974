"""The tree of verbs: found by name, added by others, told apart by exit status, quick to start."""

from __future__ import annotations

import importlib.metadata
import json
import os
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import NoReturn

import pytest
import typer

from node.cli import EXIT_BUG, EXIT_INTERRUPTED, run
from node.cli.verbs import VERBS, added_verbs, own_verbs
from protocol.errors import Conflict, SwarmError, UsageError


class FakePoint:
    """An entry point of another distribution."""

    def __init__(self, name: str, target: object) -> None:
        self.name = name
        self._target = target

    def __lt__(self, other: FakePoint) -> bool:
        return self.name < other.name

    def load(self) -> object:
        if isinstance(self._target, Exception):
            raise self._target
        return self._target


class Points:
    """What the metadata of installed distributions says."""

    def __init__(self) -> None:
        self.points: list[FakePoint] = []
        self._real = importlib.metadata.entry_points

    def __call__(self, *, group: str) -> Iterable[object]:
        return self.points if group == "masos.verbs" else self._real(group=group)


@pytest.fixture
def points(monkeypatch: pytest.MonkeyPatch) -> Points:
    fake = Points()
    monkeypatch.setattr(importlib.metadata, "entry_points", fake)
    return fake


def bench(*, times: int = 1) -> None:
    """Measure something."""
    sys.stdout.write(f"measured {times}\n")


def test_an_added_verb_is_listed_and_called(points: Points, capsys: pytest.CaptureFixture[str]) -> None:
    points.points = [FakePoint("bench", bench)]
    assert run(["bench", "--times", "3"]) == 0
    assert capsys.readouterr().out == "measured 3\n"
    assert run(["--help"]) == 0
    assert "bench" in capsys.readouterr().out


def test_an_added_verb_may_be_a_group(points: Points, capsys: pytest.CaptureFixture[str]) -> None:
    app = typer.Typer()
    app.command("run")(bench)
    app.command("list")(bench)
    points.points = [FakePoint("sim", app)]
    assert run(["sim", "run"]) == 0
    assert capsys.readouterr().out == "measured 1\n"


def test_our_verbs_cannot_be_replaced(points: Points, capsys: pytest.CaptureFixture[str]) -> None:
    points.points = [FakePoint("version", bench)]
    assert run(["version"]) == 0
    assert "measured" not in capsys.readouterr().out
    assert added_verbs(own_verbs()) == {}


@pytest.mark.parametrize("target", [ImportError("torch is missing"), 3, ValueError("odd")])
def test_an_added_verb_that_does_not_load_costs_itself_only(
    points: Points, capsys: pytest.CaptureFixture[str], target: object
) -> None:
    points.points = [FakePoint("broken", target)]
    assert run(["broken"]) == 78
    assert "'broken' does not load" in capsys.readouterr().err
    assert run(["version"]) == 0


def test_every_verb_says_what_it_does(capsys: pytest.CaptureFixture[str]) -> None:
    for name in own_verbs():
        assert run([name, "--help"]) == 0, name
        out = capsys.readouterr().out
        assert out.startswith("Usage: masos"), name
    assert set(own_verbs()) <= set(VERBS)


def test_help_documents_the_exit_status_of_every_class(capsys: pytest.CaptureFixture[str]) -> None:
    assert run([]) == 0
    text = capsys.readouterr().out

    def codes(kind: type[SwarmError]) -> set[int]:
        return {kind.exit_code}.union(*(codes(child) for child in kind.__subclasses__()))

    for code in codes(SwarmError) | {0, 1, EXIT_BUG, EXIT_INTERRUPTED}:
        assert f"{code} " in text, code


@pytest.mark.parametrize(
    "argv",
    [
        ["taks"],
        ["--nonsense"],
        ["task"],
        ["task", "nonsense"],
        ["task", "submit"],
        ["status", "--nonsense"],
        ["status", "-o", "yaml"],
        ["swarm", "invite", "--life", "soon"],
        ["task", "submit", "x", "--tokens", "many"],
        ["task", "submit", "x", "--ack", "w7"],
        ["task", "watch", "abcd", "--timeout", "soon"],
        ["version", "--json", "-o", "jsonl"],
    ],
)
def test_usage_errors_exit_64_with_one_line_and_a_hint(argv: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert run(argv) == 64
    captured = capsys.readouterr()
    if "jsonl" in argv:
        return
    lines = captured.err.splitlines()
    assert [line.split(":")[0] for line in lines] in (["error", "hint"], ["error"])
    assert "Traceback" not in captured.err


def test_usage_errors_in_json_are_json(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["task", "submit", "--json"]) == 64
    captured = capsys.readouterr()
    assert set(json.loads(captured.out)) == {"code", "message", "hint"}
    assert captured.err == ""


def test_a_near_miss_is_recognised(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["statsu"]) == 64
    assert "status" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("error", "status"), [(Conflict("m"), 73), (UsageError("m"), 64), (KeyboardInterrupt(), 130), (KeyError("bug"), 70)]
)
def test_the_exit_status_is_that_of_the_class(
    points: Points, capsys: pytest.CaptureFixture[str], error: BaseException, status: int
) -> None:
    def verb() -> NoReturn:
        raise error

    points.points = [FakePoint("odd", verb)]
    assert run(["odd"]) == status
    assert ("Traceback" in capsys.readouterr().err) is (status == 70)


@pytest.mark.parametrize("argv", [["status"], ["task", "ls"], ["task", "show", "abcd"], ["task", "watch", "abcd"]])
def test_without_a_profile_or_a_daemon_it_says_what_to_start(
    argv: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run([*argv, "--profile", str(tmp_path / "none")]) == 78
    assert "masos init" in capsys.readouterr().err
    assert run(["init", "--profile", str(tmp_path)]) == 0
    capsys.readouterr()
    assert run([*argv, "--profile", str(tmp_path), "--json"]) == 69
    assert json.loads(capsys.readouterr().out)["hint"] == "start it with `masos up`"


def test_a_profile_is_made_once_and_an_interrupted_one_is_completed(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    argv = ["init", "--profile", str(tmp_path), "--json"]
    assert run(argv) == 0
    first = json.loads(capsys.readouterr().out)
    assert run(argv) == 78
    assert json.loads(capsys.readouterr().out)["code"] == "config_error"
    (tmp_path / "control.token").unlink()
    assert run(argv) == 0
    assert json.loads(capsys.readouterr().out) == first
    for private in ("identity/node.key", "identity/user.key", "control.token", "config.toml"):
        assert (tmp_path / private).stat().st_mode & 0o077 == 0


def test_an_impossible_setting_makes_no_profile(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["init", "--profile", str(tmp_path / "p"), "--engine", "magic"]) == 78
    assert "magic" in capsys.readouterr().err
    assert not (tmp_path / "p").exists()


def test_a_ticket_goes_from_one_profile_to_another(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    host, guest = (["--profile", str(tmp_path / name), "--json"] for name in ("host", "guest"))
    for place in (host, guest):
        assert run(["init", "--listen", "/ip4/127.0.0.1/tcp/27421", *place]) == 0
    assert run(["swarm", "create", "lab", *host]) == 0
    capsys.readouterr()
    assert run(["swarm", "invite", "--life", "2h", *host]) == 0
    ticket = json.loads(capsys.readouterr().out)["ticket"]
    assert run(["swarm", "inspect", ticket, "--json"]) == 0
    seen = json.loads(capsys.readouterr().out)
    assert (seen["swarm"], len(seen["bootstrap"])) == ("lab", 1)
    assert run(["swarm", "join", ticket, *guest]) == 0
    assert json.loads(capsys.readouterr().out)["swarm_id"] == seen["swarm_id"]
    assert run(["swarm", "join", ticket, *guest]) == 0  # the same swarm again: a new certificate
    assert run(["swarm", "create", "other", *guest]) == 78


def test_a_document_that_is_no_text_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    binary = tmp_path / "x.bin"
    binary.write_bytes(b"\xff\xfe\x00")
    for path in (binary, tmp_path / "missing"):
        assert run(["task", "submit", "q", "--document", str(path), "--profile", str(tmp_path)]) == 64
        assert "error:" in capsys.readouterr().err


def test_version_loads_next_to_nothing() -> None:
    code = (
        "import sys; from node.cli import run; assert run(['version']) == 0; "
        "heavy = {'libp2p', 'numpy', 'trio', 'httpx', 'starlette', 'hypercorn', 'cryptography', 'rich'}; "
        "print(sorted(heavy & {name.partition('.')[0] for name in sys.modules}))"
    )
    environ = {**os.environ, "PYTHONWARNINGS": "ignore"}
    command = [sys.executable, "-c", code]
    done = subprocess.run(command, capture_output=True, text=True, timeout=30, env=environ, check=False)
    assert done.stdout.splitlines()[-1] == "[]", done
