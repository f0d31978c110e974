"""Translation of SQLite's errors into `StoreError`: what happened, in which file, and what to do about it."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from protocol.errors import StoreError

CORRUPT_HINT: Final = (
    "stop the node and run `masos memory verify`; then restore the file from a backup "
    "(what is newer comes back from the peers)"
)

_CASES: Final[dict[int, tuple[str, str]]] = {
    sqlite3.SQLITE_FULL: ("the disk is full", "free some space; nothing was half-written"),
    sqlite3.SQLITE_CORRUPT: ("the database is damaged", CORRUPT_HINT),
    sqlite3.SQLITE_NOTADB: ("the file is no database or its head is damaged", CORRUPT_HINT),
    sqlite3.SQLITE_BUSY: ("another process has the database locked", "end the process that uses it"),
    sqlite3.SQLITE_LOCKED: ("another process has the database locked", "end the process that uses it"),
    sqlite3.SQLITE_READONLY: ("the database cannot be written", "make the file and its folder writable"),
    sqlite3.SQLITE_PERM: ("the database cannot be written", "make the file and its folder writable"),
    sqlite3.SQLITE_CANTOPEN: ("the database cannot be opened", "check that the folder exists and is writable"),
    sqlite3.SQLITE_IOERR: ("the disk fails", "check the disk and its file system"),
}


def store_error(error: sqlite3.Error, path: Path) -> StoreError:
    """The StoreError that says the same."""
    extended = getattr(error, "sqlite_errorcode", 0)  # absent when the library itself complains
    what, hint = _CASES.get(extended & 0xFF, ("the database failed", ""))
    return StoreError(f"{path}: {what} ({error})", hint=hint)


@contextmanager
def translated(path: Path) -> Iterator[None]:
    """Turn every SQLite error of the block into a StoreError."""
    try:
        yield
    except sqlite3.Error as exc:
        raise store_error(exc, path) from exc
