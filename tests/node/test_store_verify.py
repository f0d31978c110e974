"""The audit finds whatever was done to the file; what it calls whole reads as it was written."""

from __future__ import annotations

import random
import sqlite3
from contextlib import closing
from functools import cache
from pathlib import Path

import pytest

from node.store import SqliteStore
from node.store_verify import PROBLEMS_MAX, verify_file
from protocol.errors import StoreError
from protocol.identity import KeyPair, verify_raw
from protocol.op import Op, OpKind, Position, make_op
from protocol.store import BodyGone, OpRow

SPACES = (b"s" * 16, b"t" * 16)
known_signature = cache(verify_raw)  # the same few signatures are checked in every round


def two_authors(space: bytes, count: int) -> list[Op]:
    """Two chains that stand on each other."""
    authors = [KeyPair(bytes([n]) * 32) for n in (1, 2)]
    heads: list[Op | None] = [None, None]
    ops: list[Op] = []
    for n in range(count):
        mine, other = heads[n % 2], heads[1 - n % 2]
        at = Position(
            space,
            1,
            mine.seq + 1 if mine else 0,
            mine.id if mine else None,
            (other.id,) if other else (),
            n + 1,
        )
        heads[n % 2] = op = make_op(authors[n % 2], OpKind.UNIT, at, b"body %d" % (n // 2))
        ops.append(op)
    return ops


OPS = [op for space in SPACES for op in two_authors(space, 12)]


@pytest.fixture
def path(tmp_path: Path) -> Path:
    with SqliteStore(tmp_path / "masos.db") as store:
        store.apply(tuple(OpRow(op, sync=False) for op in OPS))
        store.apply((BodyGone(OPS[4].id),))
    return tmp_path / "masos.db"


def tamper(path: Path, statement: str, *parameters: object) -> None:
    with closing(sqlite3.connect(path, isolation_level=None)) as connection:
        assert connection.execute(statement, parameters).rowcount > 0


def test_a_whole_file_is_whole_and_is_not_touched(path: Path) -> None:
    before = path.read_bytes()
    report = verify_file(path)
    assert report.ok, report.problems
    assert (report.spaces, report.ops, report.redacted) == (2, 24, 1)
    assert path.read_bytes() == before


def test_a_file_in_use_is_audited_as_committed(path: Path) -> None:
    (late,) = two_authors(b"u" * 16, 1)
    with SqliteStore(path) as store:
        store.apply((OpRow(late, sync=True),))
        report = store.verify()
    assert report.ok, report.problems
    assert (report.spaces, report.ops) == (3, 25)


def test_a_fork_is_evidence_and_not_damage(path: Path) -> None:
    first, second = OPS[2], OPS[4]  # of one author
    at = Position(first.space, 2, second.seq, first.id, (), 500)
    fork = make_op(KeyPair(b"\1" * 32), OpKind.UNIT, at, b"another")
    with SqliteStore(path) as store:
        store.apply((OpRow(fork, sync=False),))
    report = verify_file(path)
    assert report.ok, report.problems


OTHER = make_op(KeyPair(b"\3" * 32), OpKind.UNIT, Position(SPACES[0], 1, 0, None, (), 9), b"")
TAMPERINGS = {
    "body changed": ("UPDATE body SET data = ? WHERE hash = ?", (b"forged", OPS[0].body_hash), "body does not match"),
    "body gone": ("DELETE FROM body WHERE hash = ?", (OPS[0].body_hash,), "body is gone"),
    "body exchanged": ("UPDATE op SET body = ? WHERE id = ?", (OPS[2].body_hash, OPS[0].id), "another one"),
    "body miscounted": ("UPDATE body SET uses = 9 WHERE hash = ?", (OPS[0].body_hash,), "counted 9 times"),
    "redacted by hand": ("UPDATE op SET body = NULL WHERE id = ?", (OPS[0].id,), "counted"),
    "signature": ("UPDATE op SET sig = ? WHERE id = ?", (OPS[1].sig, OPS[0].id), "signature"),
    "signature cut": ("UPDATE op SET sig = x'00' WHERE id = ?", (OPS[0].id,), "signature"),
    "header": ("UPDATE op SET header = ? WHERE id = ?", (OTHER.header, OPS[0].id), "not the one that was stored"),
    "header broken": ("UPDATE op SET header = x'c1' WHERE id = ?", (OPS[0].id,), "canonical"),
    "stamp": ("UPDATE op SET hlc = ? WHERE id = ?", (b"\1" * 8, OPS[0].id), "not the one that was stored"),
    "space": ("UPDATE op SET space = ? WHERE id = ?", (b"x" * 16, OPS[0].id), "not the one that was stored"),
    "op gone": ("DELETE FROM op WHERE id = ?", (OPS[3].id,), "is missing"),
    "wrong type": ("UPDATE op SET header = 5 WHERE id = ?", (OPS[0].id,), "not all of its cells"),
}  # fmt: skip


@pytest.mark.parametrize("name", TAMPERINGS)
def test_every_tampering_is_found_and_named(path: Path, name: str) -> None:
    statement, parameters, expected = TAMPERINGS[name]
    tamper(path, statement, *parameters)
    report = verify_file(path)
    assert not report.ok
    assert any(expected in problem for problem in report.problems), report.problems


@pytest.mark.parametrize(
    ("author", "at", "expected"),
    [
        (1, Position(SPACES[0], 1, 6, OPS[8].id, (), 99), "chain does not go on"),  # seq 4 comes before
        (3, Position(SPACES[0], 1, 5, OPS[8].id, (), 99), "chain does not go on"),  # another's op comes before
        (3, Position(SPACES[0], 1, 0, None, (OPS[11].id,), 3), "not stamped before"),
        (3, Position(SPACES[0], 1, 0, None, (OPS[12].id,), 99), "is missing"),  # it is there, in another space
    ],
)
def test_an_op_that_does_not_fit_what_it_stands_on_is_found(
    path: Path, author: int, at: Position, expected: str
) -> None:
    misfit = make_op(KeyPair(bytes([author]) * 32), OpKind.UNIT, at, b"")
    with SqliteStore(path) as store:
        store.apply((OpRow(misfit, sync=False),))
    report = verify_file(path)
    assert [expected in problem for problem in report.problems] == [True], report.problems


def test_problems_are_bounded_and_still_counted(tmp_path: Path) -> None:
    path = tmp_path / "masos.db"
    ops = two_authors(SPACES[0], PROBLEMS_MAX + 20)
    with SqliteStore(path) as store:
        store.apply(tuple(OpRow(op, sync=False) for op in ops))
    tamper(path, "UPDATE op SET sig = ?", ops[0].sig)
    report = verify_file(path)
    assert len(report.problems) == PROBLEMS_MAX
    assert report.problem_count == PROBLEMS_MAX + 19


@pytest.mark.parametrize(
    "cell", ["x'c1'", "CAST(x'ff' AS TEXT)", "7", "(SELECT header FROM op WHERE space != ? LIMIT 1)"]
)
def test_a_damaged_header_is_refused_on_reading_with_a_remedy(path: Path, cell: str) -> None:
    parameters = (SPACES[0],) if "?" in cell else ()
    tamper(path, f"UPDATE op SET header = {cell} WHERE id = ?", *parameters, OPS[0].id)
    with SqliteStore(path) as store, pytest.raises(StoreError, match="damaged") as caught:
        list(store.ops(SPACES[0]))
    assert "masos memory verify" in caught.value.hint


def contents(path: Path) -> list[bytes]:
    with SqliteStore(path) as store:
        return [op.wire() for space in store.spaces() for op in store.ops(space)]


def test_no_flipped_byte_passes_unnoticed(path: Path, tmp_path: Path) -> None:
    """Whatever byte of the file turns: the store and the audit raise nothing but StoreError, and ops that read
    differently from what was written are never called whole."""
    whole, expected = path.read_bytes(), contents(path)
    rng = random.Random(7)
    broken = tmp_path / "broken.db"
    noticed = 0
    for _ in range(150):
        data = bytearray(whole)
        data[rng.randrange(len(data))] ^= 1 << rng.randrange(8)
        broken.write_bytes(data)
        try:
            ok = verify_file(broken, known_signature).ok
        except StoreError:
            ok = False
        try:
            same = contents(broken) == expected
        except StoreError:
            same = False
        assert same or not ok
        noticed += not ok
        for suffix in ("-wal", "-shm"):
            broken.with_name(f"broken.db{suffix}").unlink(missing_ok=True)
    assert noticed > 20


def test_a_file_that_is_not_there_is_no_empty_memory(tmp_path: Path) -> None:
    with pytest.raises(StoreError, match="no database"):
        verify_file(tmp_path / "masos.db")
    assert not (tmp_path / "masos.db").exists()


def test_garbage_is_reported_and_not_raised(tmp_path: Path) -> None:
    path = tmp_path / "masos.db"
    path.write_bytes(b"no database at all " * 1000)
    report = verify_file(path)
    assert report.problem_count == 1
    assert "not a database" in report.problems[0]
