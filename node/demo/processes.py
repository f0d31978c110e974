"""Ending daemons that an earlier run of a verb started: exactly those, and nobody who has got their number since.

A pid alone proves nothing, because the kernel gives numbers out again. A process is ended only if two witnesses name
it, the note of who started it and the lock of its profile, which the kernel takes back when a process ends. The
signal goes through a pidfd that was opened before the lock was looked at, so it cannot reach a successor.
"""

from __future__ import annotations

import os
import signal
import time
from contextlib import suppress
from dataclasses import dataclass
from typing import Final, Literal

from node.profile import Profile

STOP_S: Final = 15.0
"""For all daemons together to stop in order; what still runs then is killed."""
KILLED_S: Final = 5.0
_POLL_S: Final = 0.05

Ended = Literal["stopped", "killed", "not running", "not ours"]


@dataclass(frozen=True, slots=True)
class Started:
    """A daemon as its starter noted it; `pid` is None where none was started."""

    profile: Profile
    pid: int | None


def runs(started: Started) -> bool:
    """True while the very process that was started holds its profile."""
    return started.pid is not None and started.profile.holder() == started.pid


def stop_all(daemons: list[Started]) -> list[Ended]:
    """SIGTERM to all at once, and SIGKILL for those that take too long; what became of each, in the same order.

    A profile that is held by another process than the noted one is left alone.
    """
    handles = [_handle(daemon) for daemon in daemons]
    try:
        for handle in handles:
            _signal(handle, signal.SIGTERM)
        _wait(daemons, STOP_S)
        stubborn = [runs(daemon) for daemon in daemons]
        for handle, still in zip(handles, stubborn, strict=True):
            _signal(handle if still else None, signal.SIGKILL)
        _wait(daemons, KILLED_S)
    finally:
        for handle in handles:
            if handle is not None:
                os.close(handle)
    return [_ended(*each) for each in zip(daemons, handles, stubborn, strict=True)]


def _handle(daemon: Started) -> int | None:
    """A pidfd of the daemon; None when it does not run."""
    if daemon.pid is None:
        return None
    try:
        handle = os.pidfd_open(daemon.pid)
    except OSError:
        return None
    if runs(daemon):
        return handle
    os.close(handle)
    return None


def _signal(handle: int | None, number: signal.Signals) -> None:
    if handle is not None:
        with suppress(ProcessLookupError):
            signal.pidfd_send_signal(handle, number)


def _wait(daemons: list[Started], most_s: float) -> None:
    end = time.monotonic() + most_s
    while any(runs(daemon) for daemon in daemons) and time.monotonic() < end:
        time.sleep(_POLL_S)


def _ended(daemon: Started, handle: int | None, stubborn: bool) -> Ended:  # noqa: FBT001 - internal, one call
    if handle is not None:
        return "killed" if stubborn else "stopped"
    return "not running" if daemon.profile.holder() is None else "not ours"
