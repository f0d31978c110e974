"""What a node may rely on: what `apply` answered is there, whole, byte for byte, and nothing else is."""

from __future__ import annotations

import json
import resource
import sqlite3
import tempfile
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import settings, strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from node.store import PAGE_OPS_MAX, SqliteStore
from protocol.clock import HLC_MAX
from protocol.errors import StoreError
from protocol.identity import KeyPair, verify_raw
from protocol.op import Op, OpKind, Position, decode_op, make_op
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

CASE_S1 = Path(__file__).parents[3] / "shared" / "cases" / "files" / "S1_reencode.jsonl"
SPACE = b"s" * 16


def chain(count: int, *, seed: int = 1, space: bytes = SPACE, bodies: list[bytes] | None = None) -> list[Op]:
    """A chain of one author; without `bodies` every op has one of its own."""
    keys = KeyPair(bytes([seed]) * 32)
    ops: list[Op] = []
    for seq in range(count):
        at = Position(space, 1, seq, ops[-1].id if ops else None, (), (seq + 1) * 1000 + seed)
        body = bodies[seq] if bodies else b"body %d of %d" % (seq, seed)
        ops.append(make_op(keys, OpKind.UNIT, at, body))
    return ops


def rows(ops: list[Op], *, sync: bool = False) -> tuple[Row, ...]:
    return tuple(OpRow(op, sync) for op in ops)


def body_hashes(store: SqliteStore) -> set[bytes]:
    return {row[0] for row in store._reader.execute("SELECT hash FROM body")}


@pytest.fixture
def store(tmp_path: Path) -> Iterator[SqliteStore]:
    with SqliteStore(tmp_path / "masos.db") as opened:
        yield opened


# ---- the whole, against a model in memory


POOL = [
    *chain(8, seed=1, bodies=[b"same"] * 8),
    *chain(6, seed=2, space=b"t" * 16, bodies=[b"same", b"", b"x", b"same", b"y" * 5000, b"x"]),
]
KEYS = st.sampled_from([b"a", b"b"])
VALUES = st.binary(max_size=8)


@settings(max_examples=40, stateful_step_count=25)  # nearly every step is an fsync
class StoreMachine(RuleBasedStateMachine):
    """Any history of batches, duplicates and restarts reads as the same history of plain dicts."""

    @initialize()
    def begin(self) -> None:
        self.folder = tempfile.TemporaryDirectory()
        self.store = SqliteStore(Path(self.folder.name) / "masos.db")
        self.ops: dict[bytes, Op] = {}
        self.meta: dict[bytes, bytes] = {}
        self.wires: dict[tuple[bytes, bytes], bytes] = {}
        self.receipts: dict[tuple[bytes, bytes], int] = {}
        self.votes: dict[bytes, bytes] = {}

    def teardown(self) -> None:
        self.store.close()
        self.folder.cleanup()

    @rule(index=st.integers(0, len(POOL) - 1), sync=st.booleans())
    def put(self, *, index: int, sync: bool) -> None:
        upto = [op for op in POOL[: index + 1] if op.space == POOL[index].space]
        self.store.apply(rows(upto, sync=sync))
        for op in upto:
            self.ops.setdefault(op.id, op)

    @rule(index=st.integers(0, len(POOL) - 1))
    def redact(self, index: int) -> None:
        op = POOL[index]
        self.store.apply((BodyGone(op.id),))
        if op.id in self.ops:
            self.ops[op.id] = decode_op(op.header, op.sig, None)

    @rule(publisher=KEYS, key=KEYS, wire=st.none() | VALUES)
    def record(self, publisher: bytes, key: bytes, wire: bytes | None) -> None:
        if wire is None:
            self.store.apply((RecordGone(publisher, key),))
            self.wires.pop((publisher, key), None)
        else:
            self.store.apply((RecordRow(publisher, key, wire),))
            self.wires[publisher, key] = wire

    @rule(holder=KEYS, level=st.integers(1, 3), op=st.sampled_from(POOL))
    def receipt(self, holder: bytes, level: int, op: Op) -> None:
        self.store.apply((ReceiptRow(op.id, holder, level, b"sig"),))
        self.receipts[op.id, holder] = max(level, self.receipts.get((op.id, holder), 0))

    @rule(space=KEYS, done=VALUES, key=KEYS, value=VALUES)
    def vote_and_meta(self, space: bytes, done: bytes, key: bytes, value: bytes) -> None:
        self.store.apply((SealVoteRow(space, done), MetaRow(key.decode(), value)))
        self.votes[space] = done
        self.meta[key] = value

    @rule()
    def restart(self) -> None:
        self.store.close()
        self.store = SqliteStore(self.store.path)

    @invariant()
    def reads_as_the_model(self) -> None:
        spaces = sorted({op.space for op in self.ops.values()})
        assert self.store.spaces() == spaces
        for space in spaces:
            mine = [op for op in self.ops.values() if op.space == space]
            assert list(self.store.ops(space)) == sorted(mine, key=lambda op: (op.hlc, op.id))
        assert list(self.store.records()) == [self.wires[key] for key in sorted(self.wires)]
        for op in POOL:
            holders = sorted((h, level) for (of, h), level in self.receipts.items() if of == op.id)
            assert self.store.receipts(op.id) == holders
        for key in (b"a", b"b"):
            assert self.store.meta(key.decode()) == self.meta.get(key)
            assert self.store.seal_vote(key) == self.votes.get(key)

    @invariant()
    def bodies_are_those_in_use(self) -> None:
        kept = {op.body_hash for op in self.ops.values() if op.body is not None}
        assert body_hashes(self.store) == kept

    @rule()
    def audit(self) -> None:
        report = self.store.verify()
        assert report.ok, report.problems
        assert report.ops == len(self.ops)
        assert report.redacted == sum(op.body is None for op in self.ops.values())


TestStoreMachine = pytest.mark.slow(StoreMachine.TestCase)


# ---- exact bytes (case S1)


def test_what_comes_back_after_a_restart_is_what_came_in_byte_for_byte(tmp_path: Path) -> None:
    ops = chain(5)
    with SqliteStore(tmp_path / "masos.db") as store:
        store.apply(rows(ops))
    with SqliteStore(tmp_path / "masos.db") as store:
        back = list(store.ops(SPACE))
    assert [op.wire() for op in back] == [op.wire() for op in ops]
    assert all(op.signed_by_author(verify_raw) for op in back)


def test_a_record_is_never_encoded_again(store: SqliteStore) -> None:
    if not CASE_S1.exists():
        pytest.skip("needs ../shared/cases: the case files are not part of the repository")
    lines = [json.loads(line) for line in CASE_S1.read_text().splitlines()]
    wires = [bytes.fromhex(line["resent_hex"]) for line in lines if "resent_hex" in line]
    assert wires
    store.apply(tuple(RecordRow(b"p", b"%d" % n, wire) for n, wire in enumerate(wires)))
    assert list(store.records()) == wires


def test_the_order_of_stamps_is_numeric_up_to_the_last_bit(store: SqliteStore) -> None:
    keys = KeyPair(b"\7" * 32)
    stamps = [1, 255, 256, 2**31, 2**63 - 1, 2**63, HLC_MAX]
    ops: list[Op] = []
    for seq, stamp in enumerate(stamps):
        at = Position(SPACE, 1, seq, ops[-1].id if ops else None, (), stamp)
        ops.append(make_op(keys, OpKind.UNIT, at, b""))
    store.apply(rows(ops[::-1]))
    assert [op.hlc for op in store.ops(SPACE)] == stamps


def test_a_space_of_several_pages_is_read_once_and_whole(store: SqliteStore) -> None:
    ops = chain(2 * PAGE_OPS_MAX + 1)
    store.apply(rows(ops))
    assert [op.id for op in store.ops(SPACE)] == [op.id for op in ops]


# ---- duplicates and redaction


def test_a_duplicate_changes_nothing_on_disk(store: SqliteStore) -> None:
    store.apply(rows(chain(3)))
    before = store.size_bytes()
    store.apply(rows(chain(3)))
    assert store.size_bytes() == before
    assert store.verify().ok


def test_a_late_copy_does_not_bring_a_redacted_body_back(store: SqliteStore) -> None:
    (op,) = chain(1)
    store.apply(rows([op]))
    store.apply((BodyGone(op.id),))
    store.apply(rows([op]))
    assert [kept.body for kept in store.ops(SPACE)] == [None]
    assert not body_hashes(store)


def test_a_redacted_body_is_no_longer_in_the_file(tmp_path: Path) -> None:
    secret = b"the number of the account is 12345678" * 300
    ops = chain(3, bodies=[b"first", secret, b"last"])
    path = tmp_path / "masos.db"
    with SqliteStore(path) as store:
        store.apply(rows(ops))
        store.apply((BodyGone(ops[1].id),))
    assert secret[:37] not in path.read_bytes()


# ---- durability and atomicity


@pytest.mark.parametrize(
    ("row", "synced"),
    [
        (OpRow(chain(1)[0], sync=True), True),
        (MetaRow("k", b"v"), True),
        (SealVoteRow(SPACE, b"done"), True),
        (OpRow(chain(1)[0], sync=False), False),
        (BodyGone(b"id"), False),
        (RecordRow(b"p", b"k", b"w"), False),
        (RecordGone(b"p", b"k"), False),
        (ReceiptRow(b"id", b"holder", 1, b"sig"), False),
    ],
)
def test_what_only_this_node_knows_is_synced(store: SqliteStore, row: Row, *, synced: bool) -> None:
    store.apply((OpRow(chain(1, seed=9)[0], sync=False), row))
    (level,) = store._writer.execute("PRAGMA synchronous").fetchone()
    assert (level == 2) is synced


def test_an_own_op_that_was_there_unsynced_is_synced_by_its_duplicate(store: SqliteStore) -> None:
    ops = chain(1)
    store.apply(rows(ops, sync=False))
    before = store.size_bytes()
    store.apply(rows(ops, sync=True))
    assert store.size_bytes() > before  # a frame in the log, so that the commit has something to sync


def fail_then_recover(store: SqliteStore, kept: list[Op], batch: list[Op]) -> None:
    with pytest.raises(StoreError) as caught:
        store.apply((*rows(batch), MetaRow("half", b"written")))
    assert caught.value.hint
    assert [op.id for op in store.ops(SPACE)] == [op.id for op in kept]
    assert store.meta("half") is None
    assert store.verify().ok


def test_a_full_disk_leaves_nothing_half_written_and_the_store_usable(store: SqliteStore) -> None:
    ops = chain(60, bodies=[bytes([n]) * 9000 for n in range(60)])
    store.apply(rows(ops[:5]))
    (pages,) = store._writer.execute("PRAGMA page_count").fetchone()
    store._writer.execute(f"PRAGMA max_page_count = {pages + 20}")
    fail_then_recover(store, ops[:5], ops[5:])
    store._writer.execute("PRAGMA max_page_count = 1000000")
    store.apply(rows(ops[5:], sync=True))
    assert [op.id for op in store.ops(SPACE)] == [op.id for op in ops]


def test_a_write_that_the_kernel_refuses_leaves_nothing_half_written(store: SqliteStore) -> None:
    ops = chain(60, bodies=[bytes([n]) * 9000 for n in range(60)])
    store.apply(rows(ops[:5]))
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (store.size_bytes() + 50_000, hard))
    try:
        fail_then_recover(store, ops[:5], ops[5:])
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    store.apply(rows(ops[5:], sync=True))
    assert [op.id for op in store.ops(SPACE)] == [op.id for op in ops]
    assert store.verify().ok


def test_a_row_that_cannot_be_written_takes_its_batch_with_it(store: SqliteStore) -> None:
    ops = chain(3)
    with pytest.raises(StoreError):
        store.apply((*rows(ops), MetaRow("k", object())))  # type: ignore[arg-type]
    assert store.spaces() == []
    store.apply(rows(ops))
    assert [op.id for op in store.ops(SPACE)] == [op.id for op in ops]


def test_a_file_locked_by_another_process_is_said_to_be_so(store: SqliteStore) -> None:
    store._writer.execute("PRAGMA busy_timeout = 20")
    other = sqlite3.connect(store.path, isolation_level=None)
    other.execute("BEGIN IMMEDIATE")
    with pytest.raises(StoreError, match="another process"):
        store.apply((MetaRow("k", b"v"),))
    other.execute("ROLLBACK")
    other.close()
    store.apply((MetaRow("k", b"v"),))
    assert store.meta("k") == b"v"


def test_a_reader_sees_a_batch_whole_or_not_at_all(store: SqliteStore) -> None:
    """Writes in one thread, reads in another: neither waits for the other nor sees it halfway."""
    batches = [chain(3, seed=1, space=bytes([n]) * 16) for n in range(60)]

    def write() -> None:
        for batch in batches:
            store.apply(rows(batch))

    writer = threading.Thread(target=write)
    writer.start()
    looked = 0
    while writer.is_alive():
        for space in store.spaces():
            assert len(list(store.ops(space))) == 3
            looked += 1
    writer.join()
    assert looked
    assert len(store.spaces()) == 60


def test_an_abandoned_reader_holds_no_snapshot(store: SqliteStore) -> None:
    """A snapshot that stays open would show old values to every later read and let the WAL grow for ever."""
    store.apply(rows(chain(PAGE_OPS_MAX + 5)))
    abandoned = store.ops(SPACE)
    next(abandoned)
    store.apply((MetaRow("k", b"new"),))
    assert store.meta("k") == b"new"
    busy, log, done = store._writer.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchone()
    assert (busy, log, done) == (0, 0, 0)


def test_reads_use_the_indexes(store: SqliteStore) -> None:
    plans = {
        "SELECT min(space) FROM op WHERE space > x'00'": "USING COVERING INDEX op_order (space>?)",
        "SELECT id FROM op WHERE space = x'00' AND (hlc, id) > (x'00', x'00') ORDER BY hlc, id": (
            "USING COVERING INDEX op_order (space=? AND (hlc,id)>(?,?))"
        ),
    }
    for query, expected in plans.items():
        plan = " ".join(row[3] for row in store._writer.execute(f"EXPLAIN QUERY PLAN {query}"))
        assert expected in plan
        assert "TEMP B-TREE" not in plan


def test_an_empty_batch_is_no_transaction(store: SqliteStore) -> None:
    before = store.size_bytes()
    store.apply(())
    assert store.size_bytes() == before


def test_the_sizes_of_file_and_log_are_counted(store: SqliteStore) -> None:
    store.apply(rows(chain(1, bodies=[b"x" * 60_000])))
    assert store.size_bytes() > 60_000
