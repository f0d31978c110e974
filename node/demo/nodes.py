"""Real daemons as child processes: started, asked over their control API, killed, started again, stopped.

Every process started here is ended here, by its pid, whatever happens in between.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from node.control.client import ControlClient
from node.control.credentials import read_address
from node.profile import Profile
from protocol.errors import DaemonUnreachable, LocalError, SwarmError

STOP_S: Final = 10.0
POLL_S: Final = 0.1
LOG_LINES: Final = 15

View = dict[str, Any]

OF_ONE_NODE: Final = ("MASOS_NODE_", "MASOS_CONTROL_", "MASOS_PROFILE")
"""Settings that fit one node; taken from the environment of a shell they would make all nodes collide."""


@dataclass(slots=True)
class DemoNode:
    """One daemon with its own profile.

    Attributes:
        environ: settings that stand above the environment of this process.
        unset: beginnings of names that are not taken from that environment.
        process: None while this process has not started the daemon; another may have.
    """

    name: str
    profile: Profile
    environ: dict[str, str]
    unset: tuple[str, ...] = OF_ONE_NODE
    process: subprocess.Popen[bytes] | None = None
    peer: str = ""
    addrs: list[str] = field(default_factory=list)

    def masos(self, *args: str) -> View:
        """Run a verb on this profile with `--json` and give back its object.

        Raises:
            LocalError: the verb failed; its own message is in it.
        """
        command = [sys.executable, "-m", "node.cli", *args, "--json"]
        done = subprocess.run(command, env=self._env(), capture_output=True, check=False, timeout=60)  # noqa: S603 - own verbs
        if done.returncode != 0:
            raise LocalError(f"masos {args[0]} failed: {(done.stdout + done.stderr).decode(errors='replace').strip()}")
        result: View = json.loads(done.stdout)
        return result

    def start(self) -> None:
        """Start the daemon; its log goes to a file in the profile."""
        with self._log_path().open("ab") as log:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "node.cli", "up"],
                env=self._env(),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )

    def _env(self) -> dict[str, str]:
        shared = {name: value for name, value in os.environ.items() if not name.startswith(self.unset)}
        return {**shared, **self.environ, "MASOS_PROFILE": str(self.profile.path)}

    def _log_path(self) -> Path:
        return self.profile.path / "daemon.log"

    @property
    def running(self) -> bool:
        """True while the process lives."""
        return self.process is not None and self.process.poll() is None

    @property
    def pid(self) -> int | None:
        """Of the running daemon."""
        return self.process.pid if self.process is not None and self.running else None

    def kill(self) -> None:
        """SIGKILL: no chance to say goodbye."""
        assert self.process is not None
        self.process.send_signal(signal.SIGKILL)
        self.process.wait()

    def stop(self) -> None:
        """SIGTERM, and SIGKILL if that is not enough."""
        if self.process is None or not self.running:
            return
        self.process.terminate()
        try:
            self.process.wait(STOP_S)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()

    def client(self) -> ControlClient:
        """A client of the running daemon.

        Raises:
            DaemonUnreachable: it does not answer (yet).
        """
        return ControlClient.for_profile(self.profile)

    def status(self) -> View | None:
        """The daemon's status, None while it does not answer."""
        try:
            with self.client() as client:
                return client.status()
        except DaemonUnreachable:
            return None

    def control(self) -> str:
        """Where the daemon's control API answers.

        Raises:
            DaemonUnreachable: no daemon has told its address.
        """
        return read_address(self.profile).url

    def task(self, task: str) -> View | None:
        """The task as this node sees it, None while the node or the task is not there."""
        try:
            with self.client() as client:
                return client.show(task)
        except SwarmError:
            return None

    def digests(self) -> list[View] | None:
        """What the node holds, None while it does not answer."""
        try:
            with self.client() as client:
                return client.memory()
        except DaemonUnreachable:
            return None

    def log_tail(self) -> str:
        """The end of the daemon's log, for a failure's message."""
        try:
            lines = self._log_path().read_text(errors="replace").splitlines()
        except OSError:
            return ""
        return "\n".join(lines[-LOG_LINES:])


def wait_for(what: str, check: Callable[[], bool], timeout_s: float, nodes: list[DemoNode]) -> float:
    """Poll until `check` holds; the seconds it took.

    Raises:
        LocalError: not in time, or a daemon that should run has died; the message ends with its log.
    """
    begun = time.monotonic()
    while not check():
        dead = [node for node in nodes if node.process is not None and not node.running]
        if dead:
            raise LocalError(f"node {dead[0].name} died while waiting for: {what}\n{dead[0].log_tail()}")
        if time.monotonic() - begun > timeout_s:
            logs = "\n".join(f"--- {node.name}\n{node.log_tail()}" for node in nodes)
            raise LocalError(f"no {what} within {timeout_s:.0f} s\n{logs}")
        time.sleep(POLL_S)
    return time.monotonic() - begun
