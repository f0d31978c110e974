"""`masos swarm local`: a swarm that stays, starts what is missing, and stops exactly what it started."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from node.cli import run
from node.demo.nodes import wait_for
from node.demo.playground import ENGINES_FEW, ENGINES_MAX, MARKER, Engines, Playground, default_folder
from node.demo.processes import Started, stop_all
from node.profile import Profile
from protocol.errors import ConfigError

COMMAND = [sys.executable, "-W", "ignore", "-m", "node.cli", "swarm", "local"]

# Holds a profile's lock like a daemon; "deaf" does not hear SIGTERM.
HOLDER = """
import signal, sys, time
from pathlib import Path
from node.profile import Profile

if sys.argv[2] == "deaf":
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
with Profile(Path(sys.argv[1])).lock() as lock:
    print("held", flush=True)
    time.sleep(600)
"""


class Local:
    """The verbs on one folder, as processes of their own: daemons must outlive them."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def run(self, *args: str, code: int = 0) -> Any:
        command = [*COMMAND, *args, "--json", "--folder", str(self.folder)]
        done = subprocess.run(command, capture_output=True, check=False, timeout=180)
        assert done.returncode == code, done.stdout + done.stderr
        value = json.loads(done.stdout)
        return value if code else value["nodes"]

    def up(self, count: int) -> list[dict[str, Any]]:
        rows: list[dict[str, Any]] = self.run("up", "-n", str(count), "--engine", "none")
        return rows


@pytest.fixture
def local(tmp_path: Path) -> Iterator[Local]:
    made = Local(tmp_path / "place")
    yield made
    if (made.folder / MARKER).exists():
        made.run("down")


@pytest.fixture
def profile(tmp_path: Path) -> Profile:
    made = Profile(tmp_path / "profile")
    made.make()
    return made


def hold(profile: Profile, ears: str = "good") -> subprocess.Popen[bytes]:
    process = subprocess.Popen([sys.executable, "-c", HOLDER, str(profile.path), ears], stdout=subprocess.PIPE)
    assert process.stdout is not None
    assert process.stdout.readline() == b"held\n"
    return process


def close(process: subprocess.Popen[bytes]) -> int:
    process.kill()
    assert process.stdout is not None
    process.stdout.close()
    return process.wait()


@pytest.mark.slow
@pytest.mark.libp2p
def test_it_stays_starts_what_is_missing_and_goes(local: Local) -> None:
    rows = local.up(2)
    assert [(row["state"], row["linked"], row["ours"]) for row in rows] == [("up", 1, True)] * 2
    assert len({row["address"] for row in rows}) == len({row["peer"] for row in rows}) == 2
    assert all(row["address"].startswith("/ip4/127.0.0.1/") for row in rows)
    pids = [row["pid"] for row in rows]

    again = local.up(3)
    assert [row["pid"] for row in again[:2]] == pids
    assert [row["linked"] for row in again] == [2, 2, 2]

    os.kill(pids[1], signal.SIGKILL)
    wait_for("its end", lambda: Profile(Path(rows[1]["profile"])).holder() is None, 10, [])
    assert [row["state"] for row in local.run("status")] == ["up", "down", "up"]
    back = local.run("up")
    assert [row["pid"] for row in back[::2]] == [row["pid"] for row in again[::2]]
    assert back[1]["pid"] not in pids
    assert [row["address"] for row in back] == [row["address"] for row in again]

    assert [row["ended"] for row in local.run("down")] == ["stopped"] * 3
    assert [row["ended"] for row in local.run("down")] == ["not running"] * 3
    assert [row["state"] for row in local.run("status")] == ["down"] * 3
    assert [row["linked"] for row in local.run("up")] == [2, 2, 2]  # they remember each other, with no one to ask

    (local.folder / "mine").write_text("kept")
    local.run("down", "--purge")
    assert [path.name for path in local.folder.iterdir()] == ["mine"]
    assert local.run("status", code=78)["code"] == "config_error"
    assert local.run("up", code=78)["code"] == "config_error"  # what is not ours is not taken over


@pytest.mark.slow
@pytest.mark.libp2p
def test_a_daemon_that_somebody_else_started_on_a_profile_is_left_alone(local: Local) -> None:
    (row,) = local.up(1)
    local.run("down")
    process = hold(Profile(Path(row["profile"])))
    try:
        assert local.run("status")[0]["ours"] is False
        assert local.run("down")[0]["ended"] == "not ours"
        assert local.run("down", "--purge", code=70)["code"] == "local_error"
        assert process.poll() is None
        assert Profile(Path(row["profile"])).control_token.exists()
    finally:
        close(process)


def test_only_the_process_that_was_noted_and_holds_the_profile_is_stopped(profile: Profile) -> None:
    process = hold(profile)
    try:
        wrong = [Started(profile, None), Started(profile, os.getpid())]
        assert stop_all(wrong) == ["not ours", "not ours"]
        assert process.poll() is None
        assert profile.holder() == process.pid
        assert stop_all([Started(profile, process.pid)]) == ["stopped"]
        assert process.wait(10) == -signal.SIGTERM
        assert stop_all([Started(profile, process.pid)]) == ["not running"]
    finally:
        close(process)


def test_one_that_does_not_listen_is_killed(profile: Profile, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("node.demo.processes.STOP_S", 0.3)
    process = hold(profile, "deaf")
    try:
        assert stop_all([Started(profile, process.pid)]) == ["killed"]
        assert process.wait(10) == -signal.SIGKILL
    finally:
        close(process)


def test_nobody_holds_a_profile_whose_holder_died_or_never_was(profile: Profile) -> None:
    assert profile.holder() is None
    process = hold(profile)
    assert profile.holder() == process.pid
    close(process)
    assert profile.lock_file.read_bytes()  # its note is still there
    assert profile.holder() is None
    profile.lock_file.write_text(json.dumps({"pid": os.getpid(), "address": ""}))  # the number was given out again
    assert profile.holder() is None


def test_which_nodes_run_an_engine_when_nothing_is_said() -> None:
    assert [Engines().of(position, ENGINES_MAX) for position in range(ENGINES_MAX)] == ["embedded"] * ENGINES_MAX
    kinds = [Engines().of(position, 8) for position in range(8)]
    assert kinds == ["embedded"] * ENGINES_FEW + ["none"] * (8 - ENGINES_FEW)
    assert {Engines("none").of(position, 3) for position in range(3)} == {"none"}


def test_it_lives_beside_the_default_profile_whatever_profile_is_chosen() -> None:
    environ = {"XDG_DATA_HOME": "/data", "MASOS_PROFILE": "/elsewhere/p"}
    assert default_folder(environ) == Path("/data/masos-local")


def folder_of_others(path: Path) -> None:
    (path / "file").write_text("mine")


def damaged(path: Path) -> None:
    (path / MARKER).write_text("{")


def foreign_names(path: Path) -> None:
    (path / MARKER).write_text(json.dumps({"nodes": {"../../etc": None}}))


@pytest.mark.parametrize("spoil", [folder_of_others, damaged, foreign_names])
def test_a_folder_that_is_no_playground_is_not_touched(tmp_path: Path, spoil: Any) -> None:
    spoil(tmp_path)
    before = {path: path.read_bytes() for path in tmp_path.iterdir()}
    place = Playground(tmp_path, bytes, lambda _line: None)
    with pytest.raises(ConfigError):
        place.up(1, Engines("none"), 0)
    with pytest.raises(ConfigError):
        place.down(purge=True)
    assert {path: path.read_bytes() for path in tmp_path.iterdir()} == before


@pytest.mark.parametrize(
    "args",
    [("--engine", "magic"), ("--engine", "openai"), ("--model", "x"), ("--engine", "none", "--base-url", "http://x")],
)
def test_an_impossible_engine_is_refused_and_nothing_is_started(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], args: tuple[str, ...]
) -> None:
    place = tmp_path / "place"
    assert run(["swarm", "local", "up", "-n", "1", *args, "--json", "--folder", str(place)]) in {64, 78}
    assert json.loads(capsys.readouterr().out)["hint"]
    assert not list(place.glob("node*"))
