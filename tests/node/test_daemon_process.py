"""Real daemons in real processes: started, asked, stopped in order, killed, started again."""

from __future__ import annotations

import json
import logging
import os
import signal
import sqlite3
import stat
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import httpx
import pytest

import node.selftest
from node.cli import run
from node.control.client import ControlClient
from node.profile import Profile
from protocol.errors import DaemonUnreachable

pytestmark = [pytest.mark.slow, pytest.mark.libp2p]

WAIT_S = 40.0
COMMAND = [sys.executable, "-W", "ignore", "-m", "node.cli"]


class Daemon:
    """One profile, and the processes that a test starts on it. Verbs run in this process, which is faster."""

    def __init__(self, folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
        self.profile = Profile(folder)
        self._capsys = capsys
        self.processes: list[subprocess.Popen[bytes]] = []

    def masos(self, *args: str) -> tuple[int, Any, str]:
        """Exit status, the object on stdout, stderr of a verb in JSON."""
        self._capsys.readouterr()
        status = run([*args, "--json", "--profile", str(self.profile.path)])
        captured = self._capsys.readouterr()
        return status, json.loads(captured.out) if captured.out else None, captured.err

    def process(self, *args: str) -> subprocess.Popen[bytes]:
        """A verb as a real process; its log goes to a file."""
        command = [*COMMAND, *args, "--json", "--profile", str(self.profile.path)]
        with (self.profile.path / "log").open("ab") as log:
            self.processes.append(subprocess.Popen(command, stdout=subprocess.PIPE, stderr=log))
        return self.processes[-1]

    def start(self) -> dict[str, Any]:
        """Start the daemon and wait for the object that says where it answers."""
        process = self.process("up", "--engine", "none")
        assert process.stdout is not None
        started: dict[str, Any] = json.loads(process.stdout.readline() or "{}")
        return started

    def stop(self, number: int, which: int = -1) -> int:
        """Send a signal; the exit status."""
        self.processes[which].send_signal(number)
        return self.processes[which].wait(WAIT_S)

    def log(self) -> list[dict[str, Any]]:
        """The lines of the log."""
        return [json.loads(line) for line in (self.profile.path / "log").read_text().splitlines()]

    def clean_mark(self) -> bool:
        """Whether the last life is marked as ended in order."""
        with closing(sqlite3.connect(f"{self.profile.database.as_uri()}?mode=ro", uri=True)) as connection:
            meta = dict(connection.execute("SELECT key, value FROM meta").fetchall())
        return bool(meta.get("life.clean") == meta["life.inst"])

    def end(self) -> None:
        """Nothing of it stays."""
        for process in self.processes:
            process.kill()
            process.wait()
            if process.stdout is not None:
                process.stdout.close()


@pytest.fixture(autouse=True)
def surroundings(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """The environment of all verbs and daemons; `up` sets up the log of its process, which is this one."""
    for name in [name for name in os.environ if name.startswith("MASOS_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("MASOS_MODELS", str(tmp_path / "no-models"))
    monkeypatch.setenv("MASOS_NODE_LISTEN", "/ip4/127.0.0.1/tcp/0")
    monkeypatch.setenv("MASOS_TIMING_OWN_HEAD_WAIT_S", "0.5")
    monkeypatch.setenv("MASOS_NODE_SELF_TEST", "false")  # a second of each start; one test has it on
    root = logging.getLogger()
    handlers, level = root.handlers[:], root.level
    yield
    root.handlers[:], root.level = handlers, level


@pytest.fixture
def daemon(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Iterator[Daemon]:
    made = Daemon(tmp_path / "profile", capsys)
    assert made.masos("init")[0] == 0
    assert made.masos("swarm", "create", "lab")[0] == 0
    try:
        yield made
    finally:
        made.end()


def until(check: Callable[[], bool]) -> None:
    """Processes know no event of ours: look, up to a bound."""
    for _ in range(round(WAIT_S / 0.1)):
        if check():
            return
        time.sleep(0.1)
    raise AssertionError("not in time")


def test_a_life_from_start_to_ordered_stop(daemon: Daemon) -> None:
    started = daemon.start()
    assert started["incarnation"] == 1
    assert started["control"].startswith("http://127.0.0.1:")
    control = daemon.profile.control_address
    assert json.loads(control.read_text()) == {"address": started["control"], "pid": daemon.processes[0].pid}
    assert stat.S_IMODE(control.stat().st_mode) == 0o600

    code, status, _ = daemon.masos("status")
    assert code == 0
    assert (status["swarm"], status["ready"], status["offer"]) == ("lab", True, None)
    assert status["listen"] == started["listen"]
    assert httpx.get(f"{started['control']}/v1/status").status_code == 401
    assert httpx.get(f"{started['control']}/healthz").status_code == 200

    code, error, _ = daemon.masos("task", "submit", "When does it close?", "--ack", "local")
    assert (code, error["code"]) == (77, "refused")
    assert "engine" in error["hint"]
    code, error, _ = daemon.masos("task", "show", "abcd1234")
    assert (code, error["code"]) == (66, "not_found")

    second = daemon.process("up", "--engine", "none")
    out, _ = second.communicate(timeout=WAIT_S)
    assert (second.returncode, json.loads(out)["code"]) == (78, "config_error")
    assert str(daemon.processes[0].pid) in json.loads(out)["message"]
    code, error, _ = daemon.masos("swarm", "create", "other")
    assert code == 78

    code, ticket, _ = daemon.masos("swarm", "invite")
    assert ticket["bootstrap"] == [f"{started['listen'][0].split('/p2p/')[0]}/p2p/{started['peer']}"]
    code, report, _ = daemon.masos("memory", "verify")
    assert (code, report["ok"], report["daemon"]) == (0, True, True)

    assert daemon.stop(signal.SIGTERM, 0) == 0
    assert daemon.clean_mark()
    assert not control.exists()
    assert daemon.masos("status")[0] == 69
    code, report, _ = daemon.masos("memory", "verify")
    assert (code, report["ok"], report["daemon"]) == (0, True, False)
    assert all({"ts", "level", "event", "node"} <= set(line) for line in daemon.log())


def test_after_a_kill_it_starts_without_a_hand(daemon: Daemon) -> None:
    daemon.start()
    assert daemon.stop(signal.SIGKILL) == -signal.SIGKILL
    assert not daemon.clean_mark()
    assert daemon.profile.control_address.exists()  # nobody was there to take it away
    code, error, _ = daemon.masos("status")
    assert (code, error["code"]) == (69, "daemon_unreachable")

    started = daemon.start()
    assert (started["incarnation"], started["clean"]) == (2, False)
    assert daemon.masos("status")[0] == 0
    assert daemon.stop(signal.SIGINT) == 0
    assert daemon.clean_mark()
    assert daemon.start()["clean"] is True


def test_told_twice_it_stops_at_once_and_as_after_a_crash(daemon: Daemon) -> None:
    daemon.start()
    process = daemon.processes[0]
    process.send_signal(signal.SIGTERM)
    until(lambda: any("stopping" in line["event"] for line in daemon.log()))
    process.send_signal(signal.SIGTERM)
    status = process.wait(WAIT_S)
    assert status in (0, 130)  # 0 when the first stop was faster
    assert daemon.clean_mark() is (status == 0)


def test_what_keeps_it_from_starting_is_one_error_without_a_traceback(
    daemon: Daemon, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    started = daemon.start()
    other = Daemon(tmp_path / "other", capsys)
    assert other.masos("init")[0] == 0
    settings = other.profile.path / "config.toml"
    up = ("up", "--engine", "none")

    refusals = {"in use": daemon.masos("up"), "in no swarm": other.masos(*up)}
    assert other.masos("swarm", "create", "x")[0] == 0
    taken = started["listen"][0].split("/p2p/")[0]
    refusals["cannot listen on /ip4"] = other.masos(*up, "--listen", taken)
    refusals["listen address"] = other.masos(*up, "--listen", "here")
    settings.write_text("[node]\nlsiten = []\n")
    refusals["lsiten"] = other.masos(*up)
    settings.write_text(f"[control]\nport = {started['control'].rpartition(':')[2]}\n")
    refusals["control API cannot listen"] = other.masos(*up)
    for what, (code, error, log) in refusals.items():
        assert code == 78, (what, error)
        assert what in error["message"], (what, error)
        assert error["hint"], what
        assert "Traceback" not in log, what
    with ControlClient.for_profile(daemon.profile) as client:
        assert client.ready()["ready"] is True


def test_a_model_that_is_missing_is_told_with_the_verb_that_fetches_it(daemon: Daemon) -> None:
    code, error, _ = daemon.masos("up")
    assert code == 78
    assert "masos model pull" in error["hint"]


def test_a_library_that_fails_the_self_test_starts_nothing(daemon: Daemon, monkeypatch: pytest.MonkeyPatch) -> None:
    async def broken() -> None:
        raise AttributeError("set_stream_handler is gone")

    monkeypatch.setattr(node.selftest, "_plaintext_refused", broken)
    monkeypatch.setenv("MASOS_NODE_SELF_TEST", "true")
    code, error, log = daemon.masos("up", "--engine", "none")
    assert (code, error["code"]) == (78, "config_error")
    assert "row 3" in error["message"]
    assert "set_stream_handler" in error["message"]
    assert "Traceback" not in log
    assert not daemon.profile.control_address.exists()
    assert not daemon.profile.database.exists()


def test_with_the_self_test_the_daemon_starts(daemon: Daemon, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("MASOS_NODE_SELF_TEST")
    assert daemon.start()["incarnation"] == 1
    assert daemon.stop(signal.SIGTERM) == 0


def test_a_token_that_others_can_read_or_that_is_gone_starts_nothing(daemon: Daemon) -> None:
    daemon.profile.control_token.chmod(0o644)
    code, error, _ = daemon.masos("up", "--engine", "none")
    assert code == 78
    assert "chmod 600" in error["hint"]


def test_a_stranger_at_the_old_address_is_no_daemon(daemon: Daemon) -> None:
    started = daemon.start()
    daemon.stop(signal.SIGTERM)
    daemon.profile.control_address.write_text(json.dumps({"address": started["control"], "pid": 1}))
    with pytest.raises(DaemonUnreachable), ControlClient.for_profile(daemon.profile) as client:
        client.status()
