"""Keys are written once, come back the same, and are refused when others could have read them."""

from __future__ import annotations

from pathlib import Path

import pytest

from node.keystore import Keystore
from node.profile import Profile, write_private
from protocol.errors import ConfigError
from protocol.identity import KeyPair

NODE, USER = bytes(range(32)), b"\xff" * 32


@pytest.fixture
def keys(tmp_path: Path) -> Keystore:
    profile = Profile(tmp_path / "p")
    profile.make()
    return Keystore(profile)


def mode(path: Path) -> int:
    return path.stat().st_mode & 0o777


def test_the_keys_come_back_the_same(keys: Keystore) -> None:
    keys.create(NODE, USER)
    assert keys.node().public == KeyPair(NODE).public
    assert keys.user().public == KeyPair(USER).public


def test_only_the_owner_can_read_keys_and_folders(keys: Keystore) -> None:
    keys.create(NODE, USER)
    assert [mode(keys.node_file), mode(keys.user_file)] == [0o600, 0o600]
    assert mode(keys.node_file.parent) == 0o700
    assert sorted(path.name for path in keys.node_file.parent.iterdir()) == ["node.key", "user.key"]


def test_a_key_is_never_replaced(keys: Keystore) -> None:
    keys.create(NODE, USER)
    with pytest.raises(ConfigError, match="has its keys already"):
        keys.create(USER, NODE)
    assert keys.node().public == KeyPair(NODE).public


def test_a_creation_that_was_cut_short_is_completed(keys: Keystore) -> None:
    keys.create(NODE, USER)
    assert keys.complete
    keys.user_file.unlink()
    keys.create(b"\1" * 32, b"\2" * 32)
    assert keys.node().public == KeyPair(NODE).public
    assert keys.user().public == KeyPair(b"\2" * 32).public


def test_a_missing_key_names_the_remedy(keys: Keystore) -> None:
    assert not keys.complete
    with pytest.raises(ConfigError, match=r"no key .*node\.key") as caught:
        keys.node()
    assert "masos init" in caught.value.hint


@pytest.mark.parametrize("readable", [0o640, 0o604, 0o660, 0o611])
def test_a_key_that_others_can_touch_is_refused(keys: Keystore, readable: int) -> None:
    keys.create(NODE, USER)
    keys.node_file.chmod(readable)
    with pytest.raises(ConfigError, match="by others") as caught:
        keys.node()
    assert "chmod 600" in caught.value.hint


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"masos-seed-1 \n",
        b"masos-seed-1 " + NODE.hex().encode()[:-2] + b"\n",
        b"masos-seed-2 " + NODE.hex().encode() + b"\n",
        NODE.hex().encode(),
        NODE,
        b"\xff" * 4000,
        b"masos-seed-1 " + NODE.hex().encode() * 2 + b"\n",
    ],
)
def test_a_damaged_key_is_refused_and_not_shown(keys: Keystore, content: bytes) -> None:
    write_private(keys.node_file, content)
    with pytest.raises(ConfigError, match="damaged") as caught:
        keys.node()
    assert NODE.hex()[:16] not in str(caught.value)


def test_a_folder_that_cannot_be_written_is_said_to_be_so(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="cannot write"):
        Keystore(Profile(tmp_path / "absent")).create(NODE, USER)


def test_a_private_file_is_there_in_full_or_not_at_all(tmp_path: Path) -> None:
    path = tmp_path / "control.token"
    write_private(path, b"first")
    with pytest.raises(FileExistsError):
        write_private(path, b"second", replace=False)
    assert path.read_bytes() == b"first"
    write_private(path, b"third")
    assert path.read_bytes() == b"third"
    assert mode(path) == 0o600
    assert [file.name for file in tmp_path.iterdir()] == ["control.token"]
