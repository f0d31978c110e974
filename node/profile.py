"""The folder of one node, and the lock that keeps it to one daemon.

    <profile>/identity/node.key, user.key    private keys (node/keystore.py)                       0600
             /swarm/                         genesis, certificate chain, swarm key (node/swarm.py)  0700
             /masos.db                       the database (node/store.py)
             /lock                           held by the running daemon: its pid and control address
             /control.json, control.token    where the daemon answers, and the secret that opens it  0600

The lock is the kernel's (`flock` on the open file), not the file's presence: it ends with the process, however
that ends, so a start after SIGKILL works at once (case C3). The file is opened close-on-exec, so that an engine
that outlives its daemon does not hold the profile. It is never removed: a second opener of a removed file would
lock another inode. What is in it is only for messages.
"""

from __future__ import annotations

import fcntl
import json
import os
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from protocol.errors import ConfigError

LOCK_BYTES_MAX: Final = 4096


def default_profile(environ: Mapping[str, str]) -> Path:
    """$MASOS_PROFILE; else masos in $XDG_DATA_HOME (if absolute, as XDG wants it); else ~/.local/share/masos."""
    if chosen := environ.get("MASOS_PROFILE"):
        return Path(chosen)
    data = Path(environ.get("XDG_DATA_HOME", ""))
    if not data.is_absolute():
        home = environ.get("HOME")
        data = (Path(home) if home else Path.home()) / ".local" / "share"
    return data / "masos"


class ProfileLock:
    """The held lock of a profile."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor

    def announce(self, address: str) -> None:
        """Leave a note in the lock file: our pid and the control address ('' while there is none)."""
        self._note(json.dumps({"pid": os.getpid(), "address": address}).encode())

    def release(self) -> None:
        """Take the note back and let the profile go."""
        self._note(b"")
        os.close(self._descriptor)

    def _note(self, note: bytes) -> None:
        with suppress(OSError):  # a full disk spoils a message, not the lock
            os.ftruncate(self._descriptor, 0)
            os.pwrite(self._descriptor, note, 0)


@dataclass(frozen=True, slots=True)
class Profile:
    """The paths of a profile folder. Making one touches nothing on disk."""

    path: Path

    @property
    def identity(self) -> Path:
        """Folder of the private keys."""
        return self.path / "identity"

    @property
    def swarm(self) -> Path:
        """Folder of what the node knows about its swarm."""
        return self.path / "swarm"

    @property
    def database(self) -> Path:
        """The database file."""
        return self.path / "masos.db"

    @property
    def lock_file(self) -> Path:
        """The file that the running daemon holds locked."""
        return self.path / "lock"

    @property
    def control_token(self) -> Path:
        """The secret that opens the control API."""
        return self.path / "control.token"

    @property
    def control_address(self) -> Path:
        """Where the control API answers."""
        return self.path / "control.json"

    def check(self) -> None:
        """Say so if there is none.

        Raises:
            ConfigError: there is no profile here.
        """
        if not self.identity.is_dir():
            raise ConfigError(f"there is no profile at {self.path}", hint="make it with `masos init`")

    def make(self) -> None:
        """Create the folders that are missing, readable by the owner only.

        Raises:
            ConfigError: a folder cannot be made.
        """
        try:
            for folder in (self.path, self.identity, self.swarm):
                folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        except OSError as exc:
            raise ConfigError(
                f"cannot make the profile {self.path}: {exc.strerror}", hint="choose another with MASOS_PROFILE"
            ) from exc

    @contextmanager
    def lock(self) -> Iterator[ProfileLock]:
        """Hold the profile for this process.

        Raises:
            ConfigError: another process holds it, there is no such folder, or its file system has no locks.
        """
        held = ProfileLock(self._take_lock())
        try:
            held.announce("")
            yield held
        finally:
            held.release()

    def holder(self) -> int | None:
        """Pid of the process that holds the profile now; None while nobody does.

        The lock is tried only where the noted process lives, so that a look does not get in the way of a start.
        """
        try:
            descriptor = os.open(self.lock_file, os.O_RDONLY | os.O_CLOEXEC)
        except OSError:
            return None
        try:
            pid, _ = _read_note(descriptor)
            return pid if pid and _lives(pid) and _is_locked(descriptor) else None
        finally:
            os.close(descriptor)

    def _take_lock(self) -> int:
        try:
            descriptor = os.open(self.lock_file, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        except FileNotFoundError as exc:
            raise ConfigError(f"there is no profile at {self.path}", hint="make it with `masos init`") from exc
        except OSError as exc:
            raise ConfigError(
                f"cannot open {self.lock_file}: {exc.strerror}", hint="the profile must be yours and writable"
            ) from exc
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as exc:
            refusal = self._in_use(descriptor) if isinstance(exc, BlockingIOError) else self._no_locks(exc)
            os.close(descriptor)
            raise refusal from exc
        return descriptor

    def _in_use(self, descriptor: int) -> ConfigError:
        pid, address = _read_note(descriptor)
        who = f"process {pid}" if pid else "another process"
        where = f" at {address}" if address else ""
        return ConfigError(
            f"the profile {self.path} is in use by {who}{where}",
            hint="one profile is one daemon: use that one, stop it, or choose another with MASOS_PROFILE",
        )

    def _no_locks(self, error: OSError) -> ConfigError:
        return ConfigError(f"cannot lock {self.lock_file}: {error.strerror}", hint="keep the profile on a local disk")


def _read_note(descriptor: int) -> tuple[int, str]:
    try:
        note = json.loads(os.pread(descriptor, LOCK_BYTES_MAX, 0))
        return int(note["pid"]), str(note["address"])
    except (ValueError, KeyError, TypeError):  # it holds the lock and has not written yet
        return 0, ""


def _is_locked(descriptor: int) -> bool:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except OSError:
        return True
    return False


def _lives(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:  # somebody else's, with our number
        return True
    return True


def write_private(path: Path, data: bytes, *, replace: bool = True) -> None:
    """Write a file that only its owner may read, durable, and there in full or not at all.

    Raises:
        FileExistsError: it is there already and `replace` is False.
        OSError: the disk or its permissions.
    """
    descriptor, name = tempfile.mkstemp(prefix=f".{path.name}.", dir=path.parent)  # mode 0600
    try:
        with os.fdopen(descriptor, "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        if replace:
            os.replace(name, path)
        else:
            os.link(name, path)
    finally:
        with suppress(FileNotFoundError):
            os.unlink(name)
    folder = os.open(path.parent, os.O_RDONLY)
    try:
        os.fsync(folder)  # the name too
    finally:
        os.close(folder)
