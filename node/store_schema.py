"""What the database file looks like, and how an older file becomes a current one.

`MIGRATIONS[n]` turns version n into n + 1, in one transaction together with `PRAGMA user_version`: a crash leaves
the old version or the new one. A new file goes through all of them, so a fresh and an upgraded file have the same
schema. Steps that were released are never edited; a change is a new step at the end.

The layout follows replication.md §11 with only what something reads back. The header of an op holds author, seq,
kind and refs already, so they are no columns: what the columns say besides the header is a key or it is nothing.
`hlc` is eight bytes, big-endian, because it is unsigned and 64 bits wide; bytes sort as the numbers do.
`op` and `body` keep their rowid: [measured, 20,000 ops of 250 + 430 B, 256 per transaction] 42k inserts/s against
11k/s with `WITHOUT ROWID` on the hash, 17k/s clustered by (space, hlc, id), all within 5 % of 1.15 kB per op.
`body.uses` counts the ops that refer to a body, so that redaction needs no index on the reference.
"""

from __future__ import annotations

import sqlite3
from typing import Final

from protocol.errors import StoreError

APPLICATION_ID: Final = 0x6D61736F  # "maso", in the file header: tells our file from any other SQLite file

_V1: Final = (
    "CREATE TABLE meta(key TEXT PRIMARY KEY, value BLOB NOT NULL) WITHOUT ROWID",
    """CREATE TABLE op(id BLOB NOT NULL UNIQUE, space BLOB NOT NULL, hlc BLOB NOT NULL, header BLOB NOT NULL,
        sig BLOB NOT NULL, body BLOB)""",  # body: hash of a row there; NULL once redacted
    "CREATE UNIQUE INDEX op_order ON op(space, hlc, id)",
    "CREATE TABLE body(hash BLOB NOT NULL UNIQUE, uses INTEGER NOT NULL, data BLOB NOT NULL)",
    "CREATE TABLE record(publisher BLOB, key BLOB, wire BLOB NOT NULL, PRIMARY KEY(publisher, key)) WITHOUT ROWID",
    "CREATE TABLE seal_vote(space BLOB PRIMARY KEY, done BLOB NOT NULL) WITHOUT ROWID",
)
_V2: Final = (
    """CREATE TABLE receipt(op_id BLOB, holder BLOB, level INTEGER NOT NULL, sig BLOB NOT NULL,
        PRIMARY KEY(op_id, holder)) WITHOUT ROWID""",
)

MIGRATIONS: Final[tuple[tuple[str, ...], ...]] = (_V1, _V2)
SCHEMA_VERSION: Final = len(MIGRATIONS)


def file_version(connection: sqlite3.Connection) -> int:
    """The schema version of a file; 0 for one without tables.

    Raises:
        StoreError: the file is not ours, or a newer masos wrote it.
        sqlite3.Error: it cannot be read.
    """
    version = _number(connection, "PRAGMA user_version")
    application = _number(connection, "PRAGMA application_id")
    blank = not _number(connection, "SELECT count(*) FROM sqlite_master")
    if (version, application) != (0, 0) or not blank:
        if application != APPLICATION_ID or version < 1:
            raise StoreError(
                "the database file was not made by masos", hint="move it away, or choose another profile folder"
            )
        if version > SCHEMA_VERSION:
            raise StoreError(
                f"the database has schema version {version}, this masos knows {SCHEMA_VERSION}",
                hint="start it with the newer masos that wrote it, or restore a backup made before the upgrade",
            )
    return version


def migrate(connection: sqlite3.Connection, steps: tuple[tuple[str, ...], ...] = MIGRATIONS) -> None:
    """Bring a file to the last version, step by step.

    The connection is in autocommit mode. After an error the file is as the last complete step left it.

    Raises:
        StoreError: as `file_version`.
        sqlite3.Error: a step failed.
    """
    for version in range(file_version(connection), len(steps)):
        connection.execute("BEGIN IMMEDIATE")
        try:
            for statement in steps[version]:
                connection.execute(statement)
            connection.execute(f"PRAGMA application_id = {APPLICATION_ID}")
            connection.execute(f"PRAGMA user_version = {version + 1}")
            connection.execute("COMMIT")
        finally:
            if connection.in_transaction:
                connection.execute("ROLLBACK")


def _number(connection: sqlite3.Connection, query: str) -> int:
    return int(connection.execute(query).fetchone()[0])
