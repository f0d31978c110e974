"""One profile, one daemon: a second one is told who is there, and no dead one stands in the way (case C3)."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from node.profile import Profile, default_profile
from protocol.errors import ConfigError

ADDRESS = "http://127.0.0.1:7171"

# Holds the lock, and has a child of its own that outlives it, as an embedded engine may.
HOLDER = """
import subprocess, sys
from pathlib import Path
from node.profile import Profile

with Profile(Path(sys.argv[1])).lock() as lock:
    lock.announce(sys.argv[2])
    engine = subprocess.Popen([sys.executable, "-c", "import sys; sys.stdin.read()"], stdin=sys.stdin)
    print(engine.pid, flush=True)
    engine.wait()
"""


@pytest.fixture
def profile(tmp_path: Path) -> Profile:
    made = Profile(tmp_path / "p")
    made.make()
    return made


@contextmanager
def holder(profile: Profile) -> Iterator[tuple[subprocess.Popen[str], int]]:
    """A process with the lock, and the pid of its child, which ends when our end of stdin closes."""
    process = subprocess.Popen(
        [sys.executable, "-c", HOLDER, str(profile.path), ADDRESS],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    with process:
        assert process.stdout is not None
        yield process, int(process.stdout.readline())


def snapshot(folder: Path) -> dict[str, bytes]:
    return {str(path): path.read_bytes() for path in sorted(folder.rglob("*")) if path.is_file()}


def test_a_second_daemon_is_told_who_holds_the_profile_and_changes_nothing(profile: Profile) -> None:
    with holder(profile) as (process, _):
        before = snapshot(profile.path)
        with (
            pytest.raises(ConfigError, match=f"in use by process {process.pid} at {ADDRESS}") as caught,
            profile.lock(),
        ):
            pass
        assert "one daemon" in caught.value.hint
        assert snapshot(profile.path) == before


def test_after_sigkill_a_start_works_at_once_though_a_child_lives_on(profile: Profile) -> None:
    with holder(profile) as (process, engine):
        process.kill()
        process.wait(timeout=10)
        assert profile.lock_file.exists()
        os.kill(engine, 0)  # still there
        with profile.lock():
            pass


def test_an_orderly_end_lets_the_next_one_in(profile: Profile) -> None:
    for _ in range(2):
        with profile.lock() as lock:
            lock.announce(ADDRESS)
            with pytest.raises(ConfigError, match=f"process {os.getpid()} at {ADDRESS}"), profile.lock():
                pass
    assert profile.lock_file.read_bytes() == b""


def test_a_lock_that_an_error_ends_is_let_go(profile: Profile) -> None:
    with pytest.raises(ZeroDivisionError), profile.lock():
        raise ZeroDivisionError
    with profile.lock():
        pass


@pytest.mark.parametrize("note", [b"", b"{", b"[]", b"7", b'{"pid": null, "address": 1}', b"\xff"])
def test_a_note_that_says_nothing_still_gives_a_clear_refusal(profile: Profile, note: bytes) -> None:
    with profile.lock():
        profile.lock_file.write_bytes(note)
        with pytest.raises(ConfigError, match="in use by another process"), profile.lock():
            pass


def test_a_short_note_leaves_nothing_of_a_long_one(profile: Profile) -> None:
    with profile.lock() as lock:
        lock.announce("http://" + "long" * 100)
        lock.announce("http://short")
        with pytest.raises(ConfigError, match=r"at http://short$"), profile.lock():
            pass


def test_a_profile_that_is_not_there_names_the_remedy(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="no profile at") as caught, Profile(tmp_path / "p").lock():
        pass
    assert "masos init" in caught.value.hint
    assert not (tmp_path / "p").exists()


def test_a_profile_that_cannot_be_made_is_said_to_be_so(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(ConfigError, match="cannot make the profile"):
        Profile(tmp_path / "file" / "p").make()


def test_the_layout_of_a_profile(profile: Profile) -> None:
    root = profile.path
    assert profile.identity == root / "identity"
    assert profile.swarm == root / "swarm"
    assert profile.database == root / "masos.db"
    assert profile.lock_file == root / "lock"
    assert profile.control_token == root / "control.token"
    assert profile.control_address == root / "control.json"
    assert {path.stat().st_mode & 0o777 for path in (root, profile.identity, profile.swarm)} == {0o700}


@pytest.mark.parametrize(
    ("environ", "expected"),
    [
        ({"MASOS_PROFILE": "/a/b", "XDG_DATA_HOME": "/x", "HOME": "/h"}, "/a/b"),
        ({"MASOS_PROFILE": "", "XDG_DATA_HOME": "/x", "HOME": "/h"}, "/x/masos"),
        ({"XDG_DATA_HOME": "relative", "HOME": "/h"}, "/h/.local/share/masos"),
        ({"HOME": "/h"}, "/h/.local/share/masos"),
        ({}, str(Path.home() / ".local/share/masos")),
    ],
)
def test_the_default_profile(environ: dict[str, str], expected: str) -> None:
    assert default_profile(environ) == Path(expected)
