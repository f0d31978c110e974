"""The private keys of a profile: the node's (who it is on the wire) and the user's (whose tasks these are).

One user may own several nodes: their profiles then hold copies of one user key, and a client key of that user names
one task on all of them. A node key is never copied: two nodes with one key burn each other (protocol.md §5).

A key file holds one line, `masos-seed-1 <64 hex digits>`: the Ed25519 seed. It is written once and never
replaced, because a lost key is a lost identity; it is readable by its owner only, and one that others can read
is refused, as ssh does. Seeds come from the caller: nothing here draws randomness.
"""

from __future__ import annotations

import stat
from pathlib import Path
from typing import Final

from node.profile import Profile, write_private
from protocol.errors import ConfigError
from protocol.identity import SEED_BYTES, KeyPair

_TAG: Final = "masos-seed-1 "
_FILE_BYTES_MAX: Final = 256


class Keystore:
    """The two keys of a profile."""

    def __init__(self, profile: Profile) -> None:
        self._profile = profile
        self.node_file = profile.identity / "node.key"
        self.user_file = profile.identity / "user.key"

    @property
    def complete(self) -> bool:
        """True iff both key files are there."""
        return self.node_file.exists() and self.user_file.exists()

    def create(self, node_seed: bytes, user_seed: bytes) -> None:
        """Write the keys that are missing; a first try that was cut short is completed.

        Raises:
            ConfigError: both are there already, or they cannot be written.
        """
        written = [_create(self.node_file, node_seed), _create(self.user_file, user_seed)]
        if not any(written):
            raise ConfigError(
                f"{self.node_file.parent} has its keys already", hint="a profile is made once; choose another folder"
            )

    def node(self) -> KeyPair:
        """The node's key.

        Raises:
            ConfigError: no such profile; the key is missing, readable by others, or damaged.
        """
        self._profile.check()
        return read_key(self.node_file)

    def user(self) -> KeyPair:
        """The user's key.

        Raises:
            ConfigError: no such profile; the key is missing, readable by others, or damaged.
        """
        self._profile.check()
        return read_key(self.user_file)


def _create(path: Path, seed: bytes) -> bool:
    assert len(seed) == SEED_BYTES
    try:
        write_private(path, f"{_TAG}{seed.hex()}\n".encode(), replace=False)
    except FileExistsError:
        return False
    except OSError as exc:
        raise ConfigError(f"cannot write {path}: {exc.strerror}") from exc
    return True


def read_key(path: Path) -> KeyPair:
    """The key in a file, of this profile or of another.

    Raises:
        ConfigError: missing, readable by others, or not one whole key.
    """
    try:
        mode = stat.S_IMODE(path.stat().st_mode)
        with path.open("rb") as file:
            data = file.read(_FILE_BYTES_MAX + 1)
    except FileNotFoundError as exc:
        raise ConfigError(f"there is no key {path}", hint="the keys of a profile are made by `masos init`") from exc
    except OSError as exc:
        raise ConfigError(f"cannot read {path}: {exc.strerror}") from exc
    if mode & 0o077:
        raise ConfigError(f"{path} can be read by others (mode {mode:04o})", hint=f"chmod 600 {path}")
    return KeyPair(_seed(path, data))


def _seed(path: Path, data: bytes) -> bytes:
    try:
        text = data.decode("ascii").rstrip("\n")
        seed = bytes.fromhex(text.removeprefix(_TAG))
    except ValueError:
        seed, text = b"", ""
    if len(seed) != SEED_BYTES or text != f"{_TAG}{seed.hex()}":
        raise ConfigError(
            f"{path} is no key, or a damaged one", hint="restore it from a backup: a new key is a new identity"
        )
    return seed
