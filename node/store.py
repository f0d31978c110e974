"""Durable storage of a node: one SQLite file in WAL mode, written by one thread, read by another.

Rules of this file
- `apply(rows)` is one transaction: all rows or none. When it returns they are durable, and only then may anybody
  be told (protocol.md §1). It runs in the driver's worker thread; reads run on the event loop, on a connection of
  their own, and see what is committed, never a transaction in progress.
- A batch with a row marked `sync` (own ops, ops that get a receipt), meta or a seal vote is fsynced before the answer
  (`synchronous = FULL`). A batch of things
  that peers hold too or can give again (remote ops, redactions, records, receipts) is not (`NORMAL`): it survives
  SIGKILL, while a power cut may take it. What a power cut takes is always the newest end of the log of commits,
  and an fsynced batch carries everything before it to disk, so an op is never there without those it stands on.
  [measured, one virtual disk: 280 own ops/s one by one, 44k remote ops/s at 250 per batch.]
- Header, signature and body are kept as the bytes that came and given back as such; nothing is encoded again.
- A duplicate op changes nothing, whatever body it brings: a redacted body does not come back by a late copy.
- Bodies are kept once per hash and go with the last op that uses them, overwritten in the file (`secure_delete`).
- No read keeps a snapshot open between calls, so readers never hold up the truncation of the WAL.
"""

from __future__ import annotations

import sqlite3
import threading
from collections.abc import Iterator
from pathlib import Path
from types import TracebackType
from typing import Any, Final, Self, assert_never

from node.store_errors import CORRUPT_HINT, translated
from node.store_schema import SCHEMA_VERSION, file_version, migrate
from node.store_verify import VerifyReport, verify_file
from protocol.errors import DecodeError, StoreError
from protocol.identity import Verify, verify_raw
from protocol.op import Op, decode_op
from protocol.store import (
    BodyGone,
    MetaRow,
    OpRow,
    ReceiptRow,
    RecordGone,
    RecordRow,
    Row,
    SealVoteRow,
)

BUSY_S: Final = 5.0  # how long to wait for another process, such as a backup, that has the file locked
STATEMENTS_MAX: Final = 32  # prepared statements kept per connection; this file has fewer
PAGE_OPS_MAX: Final = 128  # ops read at a time: at most 8 MiB of bodies in memory
WAL_BYTES_MAX: Final = 16 * 2**20  # what the WAL file shrinks back to after a burst

_READ_OPS: Final = (
    "SELECT op.hlc, op.id, op.header, op.sig, op.body, body.data "
    "FROM op LEFT JOIN body ON body.hash = op.body "
    "WHERE op.space = ? AND (op.hlc, op.id) > (?, ?) ORDER BY op.hlc, op.id LIMIT ?"
)


class SqliteStore:
    """The `StoreReader` of a node, and the hands of its `Persist` effects. Opening creates or upgrades the file.

    Raises:
        StoreError: from every method; the disk is full or fails, the file is damaged, locked or too new.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._write_lock = threading.Lock()
        self._read_lock = threading.Lock()
        with translated(path):
            self._writer = _connect(path)
            try:
                _prepare(self._writer, path)
                self._reader = _connect(path)
                self._reader.execute("PRAGMA query_only = ON")
                self._reader.text_factory = bytes  # all values are bytes; damage must not look like text
            except BaseException:
                self._writer.close()
                raise

    # ---- writing

    def apply(self, rows: tuple[Row, ...]) -> None:
        """Make all rows durable, or none of them.

        Raises:
            StoreError: nothing of the batch was written; the store goes on when the cause is gone.
        """
        if not rows:
            return
        sync = any(_wants_sync(row) for row in rows)
        with self._write_lock, translated(self.path):
            self._writer.execute(f"PRAGMA synchronous = {'FULL' if sync else 'NORMAL'}")
            self._writer.execute("BEGIN IMMEDIATE")
            try:
                before = self._writer.total_changes
                for row in rows:
                    self._put(row)
                if sync and self._writer.total_changes == before:
                    # All there already, perhaps by a batch without fsync, and an empty commit syncs nothing.
                    self._writer.execute(f"PRAGMA user_version = {SCHEMA_VERSION}")
                self._writer.execute("COMMIT")
            finally:
                if self._writer.in_transaction:
                    self._writer.execute("ROLLBACK")

    def _put(self, row: Row) -> None:
        match row:
            case OpRow():
                self._put_op(row.op)
            case BodyGone():
                self._drop_body(row.op_id)
            case RecordRow():
                self._writer.execute(
                    "INSERT INTO record(publisher, key, wire) VALUES (?, ?, ?) "
                    "ON CONFLICT(publisher, key) DO UPDATE SET wire = excluded.wire",
                    (row.publisher, row.key, row.wire),
                )
            case RecordGone():
                self._writer.execute("DELETE FROM record WHERE publisher = ? AND key = ?", (row.publisher, row.key))
            case MetaRow():
                self._writer.execute(
                    "INSERT INTO meta(key, value) VALUES (?, ?) ON CONFLICT(key) DO UPDATE SET value = excluded.value",
                    (row.key, row.value),
                )
            case ReceiptRow():  # of two receipts of one holder the higher level stands
                self._writer.execute(
                    "INSERT INTO receipt(op_id, holder, level, sig) VALUES (?, ?, ?, ?) "
                    "ON CONFLICT(op_id, holder) DO UPDATE SET level = excluded.level, sig = excluded.sig "
                    "WHERE excluded.level > level",
                    (row.op_id, row.holder, row.level, row.sig),
                )
            case SealVoteRow():  # one row per space: a later vote on the same chain takes its place
                self._writer.execute(
                    "INSERT INTO seal_vote(space, done) VALUES (?, ?) "
                    "ON CONFLICT(space) DO UPDATE SET done = excluded.done",
                    (row.space, row.done),
                )
            case _:
                assert_never(row)

    def _put_op(self, op: Op) -> None:
        new = self._writer.execute(
            "INSERT INTO op(id, space, hlc, header, sig, body) VALUES (?, ?, ?, ?, ?, ?) ON CONFLICT DO NOTHING",
            (
                *(op.id, op.space, op.hlc.to_bytes(8, "big"), op.header, op.sig),
                op.body_hash if op.body is not None else None,
            ),
        ).rowcount
        if new and op.body is not None:
            self._writer.execute(
                "INSERT INTO body(hash, uses, data) VALUES (?, 1, ?) ON CONFLICT(hash) DO UPDATE SET uses = uses + 1",
                (op.body_hash, op.body),
            )

    def _drop_body(self, op_id: bytes) -> None:
        found = self._writer.execute("SELECT body FROM op WHERE id = ?", (op_id,)).fetchone()
        if found is None or found[0] is None:
            return
        self._writer.execute("UPDATE op SET body = NULL WHERE id = ?", (op_id,))
        self._writer.execute("UPDATE body SET uses = uses - 1 WHERE hash = ?", found)
        self._writer.execute("DELETE FROM body WHERE hash = ? AND uses = 0", found)

    # ---- reading

    def meta(self, key: str) -> bytes | None:
        """The value last persisted under a key."""
        return self._one("SELECT value FROM meta WHERE key = ?", key)

    def spaces(self) -> list[bytes]:
        """Every space with at least one op, in byte order."""
        spaces: list[bytes] = []
        following: bytes | None = b""
        while following is not None:  # one index seek per space: DISTINCT would walk all ops
            following = self._one("SELECT min(space) FROM op WHERE space > ?", following)
            if following is not None:
                spaces.append(following)
        return spaces

    def ops(self, space: bytes) -> Iterator[Op]:
        """All ops of a space, ordered by (hlc, id), bodies included unless redacted.

        Read in pages: every op committed before the first `next` comes once, a later one comes or does not.
        """
        last = (b"", b"")
        while page := self._many(_READ_OPS, space, *last, PAGE_OPS_MAX):
            yield from (self._op(*row[1:]) for row in page)
            last = page[-1][:2]

    def records(self) -> Iterator[bytes]:
        """All records in wire form, ordered by (publisher, key); they are few and small, so read at once."""
        rows = self._many("SELECT wire FROM record ORDER BY publisher, key")
        return (self._bytes(wire) for (wire,) in rows)

    def receipts(self, op_id: bytes) -> list[tuple[bytes, int]]:
        """(holder, level) of the receipts kept for an op, in byte order."""
        return self._many("SELECT holder, level FROM receipt WHERE op_id = ? ORDER BY holder", op_id)

    def seal_vote(self, space: bytes) -> bytes | None:
        """The done that this node sealed in a space."""
        return self._one("SELECT done FROM seal_vote WHERE space = ?", space)

    def size_bytes(self) -> int:
        """Bytes on disk: the database and its write-ahead log."""
        files = (self.path, self.path.with_name(f"{self.path.name}-wal"))
        return sum(file.stat().st_size for file in files if file.exists())

    def verify(self, check: Verify = verify_raw) -> VerifyReport:
        """Check everything that is committed, on a connection of its own: see `verify_file`."""
        return verify_file(self.path, check)

    def _op(self, op_id: object, header: object, sig: object, body_hash: object, body: object) -> Op:
        try:
            op = decode_op(_blob(header), _blob(sig), None if body is None else _blob(body))
        except DecodeError as exc:
            raise self._damaged(exc.message) from exc
        if op.id != op_id or (None if body is None else op.body_hash) != body_hash:
            raise self._damaged(f"{op!r} or its body is not what was stored")
        return op

    def _one(self, query: str, parameter: object) -> bytes | None:
        rows = self._many(query, parameter)
        if not rows or rows[0][0] is None:
            return None
        return self._bytes(rows[0][0])

    def _bytes(self, value: object) -> bytes:
        try:
            return _blob(value)
        except DecodeError as exc:
            raise self._damaged(exc.message) from exc

    def _many(self, query: str, *parameters: object) -> list[Any]:
        with self._read_lock, translated(self.path):
            return self._reader.execute(query, parameters).fetchall()

    def _damaged(self, why: str) -> StoreError:
        return StoreError(f"{self.path}: the database is damaged: {why}", hint=CORRUPT_HINT)

    # ---- end

    def close(self) -> None:
        """Write the WAL back and close the file; closing twice is allowed."""
        with self._write_lock, self._read_lock, translated(self.path):
            self._reader.close()
            self._writer.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def _wants_sync(row: Row) -> bool:
    """True for what only this node can know; the rest peers hold too or can give again."""
    match row:
        case OpRow(_, sync):
            return sync
        case MetaRow() | SealVoteRow():
            return True
        case BodyGone() | RecordRow() | RecordGone() | ReceiptRow():
            return False
        case _:
            assert_never(row)


def _blob(value: object) -> bytes:
    if not isinstance(value, bytes):
        raise DecodeError(f"{type(value).__name__} in place of bytes")  # a damaged page can show any type
    return value


def _connect(path: Path) -> sqlite3.Connection:
    return sqlite3.connect(
        path,
        timeout=BUSY_S,
        isolation_level=None,  # BEGIN and COMMIT are ours
        check_same_thread=False,  # the locks of SqliteStore keep threads apart
        cached_statements=STATEMENTS_MAX,
    )


def _prepare(writer: sqlite3.Connection, path: Path) -> None:
    file_version(writer)  # refuses a foreign or newer file before anything in it changes
    (mode,) = writer.execute("PRAGMA journal_mode = WAL").fetchone()
    if mode != "wal":
        raise StoreError(
            f"{path}: this file system cannot hold a write-ahead log",
            hint="keep the profile on a local disk, not on a network share",
        )
    writer.execute("PRAGMA synchronous = FULL")
    writer.execute("PRAGMA secure_delete = ON")
    writer.execute(f"PRAGMA journal_size_limit = {WAL_BYTES_MAX}")
    migrate(writer)
