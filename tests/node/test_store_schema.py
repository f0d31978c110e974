"""An older file becomes a current one and keeps what it held; a newer or a foreign one is left alone."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import pytest

from node.store import SqliteStore
from node.store_schema import APPLICATION_ID, MIGRATIONS, SCHEMA_VERSION, file_version, migrate
from protocol.errors import StoreError
from protocol.identity import KeyPair
from protocol.op import OpKind, Position, make_op
from protocol.store import OpRow, ReceiptRow

SPACE = b"s" * 16
OP = make_op(KeyPair(b"\1" * 32), OpKind.UNIT, Position(SPACE, 1, 0, None, (), 7), b"old body")

# The first schema as it was, written out here so that nobody edits a released step unnoticed.
FIRST_SCHEMA = """
    CREATE TABLE meta(key TEXT PRIMARY KEY, value BLOB NOT NULL) WITHOUT ROWID;
    CREATE TABLE op(id BLOB NOT NULL UNIQUE, space BLOB NOT NULL, hlc BLOB NOT NULL, header BLOB NOT NULL,
        sig BLOB NOT NULL, body BLOB);
    CREATE UNIQUE INDEX op_order ON op(space, hlc, id);
    CREATE TABLE body(hash BLOB NOT NULL UNIQUE, uses INTEGER NOT NULL, data BLOB NOT NULL);
    CREATE TABLE record(publisher BLOB, key BLOB, wire BLOB NOT NULL, PRIMARY KEY(publisher, key)) WITHOUT ROWID;
    CREATE TABLE seal_vote(space BLOB PRIMARY KEY, done BLOB NOT NULL) WITHOUT ROWID;
    PRAGMA user_version = 1;
"""


@contextmanager
def opened(path: Path) -> Iterator[sqlite3.Connection]:
    with closing(sqlite3.connect(path, isolation_level=None)) as connection:
        yield connection


@pytest.fixture
def first(tmp_path: Path) -> Path:
    """A file of version 1 that holds something in every table."""
    path = tmp_path / "masos.db"
    with opened(path) as connection:
        connection.executescript(FIRST_SCHEMA)
        connection.execute(f"PRAGMA application_id = {APPLICATION_ID}")
        connection.execute(
            "INSERT INTO op(id, space, hlc, header, sig, body) VALUES (?, ?, ?, ?, ?, ?)",
            (OP.id, OP.space, OP.hlc.to_bytes(8, "big"), OP.header, OP.sig, OP.body_hash),
        )
        connection.execute("INSERT INTO body VALUES (?, 1, ?)", (OP.body_hash, OP.body))
        connection.execute("INSERT INTO meta VALUES ('life.inst', x'00000005')")
        connection.execute("INSERT INTO record VALUES (x'01', x'02', x'03')")
        connection.execute("INSERT INTO seal_vote VALUES (?, x'04')", (SPACE,))
    return path


def schema(path: Path) -> set[str]:
    with opened(path) as connection:
        texts = connection.execute("SELECT sql FROM sqlite_master WHERE sql IS NOT NULL")
        return {" ".join(text.split()) for (text,) in texts}


def test_a_file_of_version_1_opens_with_all_it_held_and_can_do_what_is_new(first: Path) -> None:
    with SqliteStore(first) as store:
        (back,) = store.ops(SPACE)
        assert back.wire() == OP.wire()
        assert store.meta("life.inst") == b"\0\0\0\5"
        assert list(store.records()) == [b"\3"]
        assert store.seal_vote(SPACE) == b"\4"
        assert store.receipts(OP.id) == []
        store.apply((ReceiptRow(OP.id, b"holder", 1, b"sig"),))
        assert store.receipts(OP.id) == [(b"holder", 1)]
        assert store.verify().ok


def test_an_upgraded_file_has_the_schema_of_a_new_one(first: Path, tmp_path: Path) -> None:
    SqliteStore(first).close()
    SqliteStore(tmp_path / "new.db").close()
    assert schema(first) == schema(tmp_path / "new.db")
    with opened(first) as connection:
        assert file_version(connection) == SCHEMA_VERSION


def test_a_step_that_fails_leaves_the_version_before_it(first: Path) -> None:
    broken = (*MIGRATIONS, ("CREATE TABLE extra(a)", "INSERT INTO absent VALUES (1)"))
    with opened(first) as connection:
        with pytest.raises(sqlite3.OperationalError, match="absent"):
            migrate(connection, broken)
        assert file_version(connection) == len(MIGRATIONS)
        assert not connection.in_transaction
    assert not any("extra" in text for text in schema(first))
    with SqliteStore(first) as store:
        assert [op.id for op in store.ops(SPACE)] == [OP.id]


def test_a_newer_file_is_refused_with_a_remedy_and_left_as_it_is(tmp_path: Path) -> None:
    path = tmp_path / "masos.db"
    with SqliteStore(path) as store:
        store.apply((OpRow(OP, sync=True),))
    with opened(path) as connection:
        connection.execute(f"PRAGMA user_version = {SCHEMA_VERSION + 1}")
    before = path.read_bytes()
    with pytest.raises(StoreError, match=f"version {SCHEMA_VERSION + 1}") as caught:
        SqliteStore(path)
    assert "newer masos" in caught.value.hint
    assert path.read_bytes() == before


@pytest.mark.parametrize("make", ["CREATE TABLE notes(a)", "PRAGMA user_version = 1", "PRAGMA application_id = 7"])
def test_a_database_of_another_program_is_refused_and_left_as_it_is(tmp_path: Path, make: str) -> None:
    path = tmp_path / "masos.db"
    with opened(path) as connection:
        connection.execute(make)
    before = path.read_bytes()
    with pytest.raises(StoreError, match="not made by masos"):
        SqliteStore(path)
    assert path.read_bytes() == before


@pytest.mark.parametrize("damage", ["garbage", "head", "cut"])
def test_a_damaged_file_is_refused_with_a_remedy(tmp_path: Path, damage: str) -> None:
    path = tmp_path / "masos.db"
    with SqliteStore(path) as store:
        store.apply((OpRow(OP, sync=True),))
    data = path.read_bytes()
    damaged = {
        "garbage": b"no database at all " * 1000,
        "head": b"\0" * 64 + data[64:],
        "cut": data[: len(data) // 2],
    }
    path.write_bytes(damaged[damage])
    with pytest.raises(StoreError) as caught, SqliteStore(path) as store:
        list(store.ops(SPACE))
    assert "masos memory verify" in caught.value.hint
    assert "restore" in caught.value.hint


def test_a_folder_that_is_not_there_is_said_to_be_so(tmp_path: Path) -> None:
    with pytest.raises(StoreError, match="cannot be opened") as caught:
        SqliteStore(tmp_path / "absent" / "masos.db")
    assert "folder" in caught.value.hint
