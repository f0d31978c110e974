"""How a program of this machine's user finds the control API of a profile, and proves that it may use it.

    <profile>/control.token   64 hex digits, made by `masos init`; who can read the file may command the node   0600
             /control.json    {"address", "pid"} of the running daemon; taken away when it stops in order       0600

A daemon that was killed leaves its control.json behind. That is harmless: nobody answers there, and the next start
writes a new one. Nothing here draws randomness or opens a connection.
"""

from __future__ import annotations

import json
import stat
from contextlib import suppress
from dataclasses import dataclass
from typing import Final

from node.profile import Profile, write_private
from protocol.errors import ConfigError, DaemonUnreachable

TOKEN_BYTES: Final = 32
_FILE_BYTES_MAX: Final = 4096


@dataclass(frozen=True, slots=True)
class Address:
    """Where a daemon answers: `http://127.0.0.1:PORT`, and its process."""

    url: str
    pid: int


def make_token(profile: Profile, raw: bytes) -> bool:
    """Write the token unless there is one; `raw` is fresh randomness. True iff it was written.

    Raises:
        ConfigError: it cannot be written.
    """
    assert len(raw) == TOKEN_BYTES
    try:
        write_private(profile.control_token, f"{raw.hex()}\n".encode(), replace=False)
    except FileExistsError:
        return False
    except OSError as exc:
        raise ConfigError(f"cannot write {profile.control_token}: {exc.strerror}") from exc
    return True


def read_token(profile: Profile) -> str:
    """The token of a profile.

    Raises:
        ConfigError: no such profile; the token is missing, readable by others, or damaged.
    """
    profile.check()
    path = profile.control_token
    try:
        mode = stat.S_IMODE(path.stat().st_mode)
        token = path.read_bytes()[:_FILE_BYTES_MAX].decode("ascii", "replace").strip()
    except FileNotFoundError as exc:
        raise ConfigError(f"there is no {path}", hint="make the profile with `masos init`") from exc
    except OSError as exc:
        raise ConfigError(f"cannot read {path}: {exc.strerror}") from exc
    if mode & 0o077:
        raise ConfigError(f"{path} can be read by others (mode {mode:04o})", hint=f"chmod 600 {path}")
    if len(token) != 2 * TOKEN_BYTES or not set(token) <= set("0123456789abcdef"):
        raise ConfigError(f"{path} is damaged", hint="remove it and run `masos init` again")
    return token


def write_address(profile: Profile, address: Address) -> None:
    """Tell where the daemon answers.

    Raises:
        ConfigError: it cannot be written.
    """
    data = json.dumps({"address": address.url, "pid": address.pid}).encode() + b"\n"
    try:
        write_private(profile.control_address, data)
    except OSError as exc:
        raise ConfigError(f"cannot write {profile.control_address}: {exc.strerror}") from exc


def remove_address(profile: Profile) -> None:
    """Nobody answers any more."""
    with suppress(OSError):
        profile.control_address.unlink()


def read_address(profile: Profile) -> Address:
    """Where the daemon answers, if it runs.

    Raises:
        DaemonUnreachable: none does, as far as its file says.
    """
    try:
        value = json.loads(profile.control_address.read_bytes()[:_FILE_BYTES_MAX])
        return Address(str(value["address"]), int(value["pid"]))
    except FileNotFoundError as exc:
        raise DaemonUnreachable(f"no daemon runs for the profile {profile.path}") from exc
    except (OSError, ValueError, KeyError, TypeError) as exc:
        raise DaemonUnreachable(f"{profile.control_address} cannot be read: {exc}") from exc
