"""The audit behind `masos memory verify`: is the file whole, and is what it holds what was signed?

Checked, over one snapshot: SQLite's own integrity check; per op that the header gives the id, the key columns and
the body hash, and that the signature is the author's; per space that every chain goes on from its `prev` (same
author, seq one less) and that every dep is there and stamped before (replication.md §14, invariants 4, 5 and 16);
that bodies are counted right. A fork is evidence, not damage. Nothing is changed, so a damaged file can still be
copied for rescue. Time is the signatures': about 6,000 ops/s; memory: about 250 bytes per op of the largest space.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from node.store_errors import store_error
from node.store_schema import file_version
from protocol.errors import DecodeError, StoreError
from protocol.identity import Verify, verify_raw
from protocol.op import Op, decode_op

PROBLEMS_MAX: Final = 50  # told one by one; more are only counted
BUSY_S: Final = 5.0

_ROWS: Final = (
    "SELECT op.space, op.hlc, op.id, op.header, op.sig, op.body, body.data "
    "FROM op LEFT JOIN body ON body.hash = op.body ORDER BY op.space, op.hlc, op.id"
)
_MISCOUNTED: Final = (
    "SELECT hex(body.hash), body.uses, coalesce(used.n, 0) FROM body "
    "LEFT JOIN (SELECT body AS hash, count(*) AS n FROM op WHERE body IS NOT NULL GROUP BY body) AS used "
    "ON used.hash = body.hash WHERE body.uses != coalesce(used.n, 0)"
)
_NOT_DAMAGE: Final = frozenset(
    (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_CANTOPEN, sqlite3.SQLITE_IOERR, sqlite3.SQLITE_NOMEM, sqlite3.SQLITE_PERM)
)


@dataclass(frozen=True, slots=True)
class VerifyReport:
    """What was looked at and what is wrong with it; `problems` holds the first PROBLEMS_MAX sentences."""

    spaces: int
    ops: int
    redacted: int
    problems: tuple[str, ...]
    problem_count: int

    @property
    def ok(self) -> bool:
        """True iff nothing is wrong."""
        return not self.problem_count


def verify_file(path: Path, check: Verify = verify_raw) -> VerifyReport:
    """Audit a database file, in use or not; damage is reported, not raised.

    Raises:
        StoreError: there is no such file, it cannot be opened, it is not ours, or a newer masos wrote it.
    """
    if not path.is_file():
        raise StoreError(f"{path}: there is no database", hint="the node makes it at its first start")
    audit = _Audit(check)
    try:
        with closing(_open(path)) as connection:
            file_version(connection)
            audit.run(connection)
    except sqlite3.DatabaseError as exc:
        if getattr(exc, "sqlite_errorcode", 0) & 0xFF in _NOT_DAMAGE:
            raise store_error(exc, path) from exc
        audit.problem(f"file: {exc}; the rest could not be read")
    return audit.report()


def _open(path: Path) -> sqlite3.Connection:
    uri = f"{path.absolute().as_uri()}?mode=ro"
    connection = sqlite3.connect(uri, uri=True, timeout=BUSY_S, isolation_level=None)
    connection.text_factory = bytes  # damage must not look like text that cannot be decoded
    return connection


def _all_bytes(cells: Iterable[object]) -> bool:
    return all(isinstance(cell, bytes) for cell in cells)


class _Audit:
    """What one pass over the rows has met so far."""

    def __init__(self, check: Verify) -> None:
        self._check = check
        self._problems: list[str] = []
        self._problem_count = 0
        self._spaces = self._ops = self._redacted = 0
        self._known: dict[bytes, tuple[bytes, int] | None] = {}  # id -> (author, seq); None: unreadable
        self._waiting: dict[bytes, str] = {}  # id not met yet -> the op that stands on it

    def report(self) -> VerifyReport:
        return VerifyReport(self._spaces, self._ops, self._redacted, tuple(self._problems), self._problem_count)

    def problem(self, text: str) -> None:
        self._problem_count += 1
        if len(self._problems) < PROBLEMS_MAX:
            self._problems.append(text)

    def run(self, connection: sqlite3.Connection) -> None:
        connection.execute("BEGIN")  # one snapshot for all that follows
        for (line,) in connection.execute(f"PRAGMA integrity_check({PROBLEMS_MAX})"):
            if line != b"ok":
                self.problem(f"file: {line.decode(errors='replace')}")
        space = None
        for row in connection.execute(_ROWS):
            self._ops += 1
            if not (_all_bytes(row[:5]) and _all_bytes(cell for cell in row[5:] if cell is not None)):
                self.problem(f"op {self._ops} in order: not all of its cells are bytes")
                continue
            if row[0] != space:
                self._end_space()
                space = row[0]
                self._spaces += 1
            self._row(*row)
        self._end_space()
        for body_hash, uses, used in connection.execute(_MISCOUNTED):
            self.problem(f"body {body_hash.decode().lower()[:16]}: counted {uses} times, used {used} times")

    def _end_space(self) -> None:
        for missing, name in self._waiting.items():
            stamped = "is not stamped before it" if missing in self._known else "is missing"
            self.problem(f"{name}: stands on {missing.hex()[:16]}, which {stamped}")
        self._waiting.clear()
        self._known.clear()

    def _row(self, space: bytes, hlc: bytes, op_id: bytes, header: bytes, sig: bytes, *kept: bytes | None) -> None:
        body_hash, body = kept
        self._redacted += body_hash is None
        name = f"op {op_id.hex()[:16]}"
        self._known[op_id] = None
        try:
            op = decode_op(header, sig, None)
        except DecodeError as exc:
            self.problem(f"{name}: {exc.message}")
            return
        if (op.id, op.space, op.hlc.to_bytes(8, "big")) != (op_id, space, hlc):
            self.problem(f"{name}: its header is not the one that was stored")
            return
        self._known[op_id] = (op.author, op.seq)
        self._contents(op, name, body_hash, body)
        self._refs(op, name)

    def _contents(self, op: Op, name: str, body_hash: bytes | None, body: bytes | None) -> None:
        if not op.signed_by_author(self._check):
            self.problem(f"{name}: the signature is not its author's")
        if body_hash is None:
            return
        if body is None or body_hash != op.body_hash:
            self.problem(f"{name}: its body is gone or another one")
            return
        try:
            decode_op(op.header, op.sig, body)
        except DecodeError as exc:
            self.problem(f"{name}: {exc.message}")

    def _refs(self, op: Op, name: str) -> None:
        for ref in op.refs:  # rows come by stamp, so what an op stands on was met before it
            if ref not in self._known:
                self._waiting.setdefault(ref, name)
        if op.prev is not None:
            before = self._known.get(op.prev)
            if before is not None and before != (op.author, op.seq - 1):
                self.problem(f"{name}: its chain does not go on from its prev")
