"""An acknowledgement is true: on disk before anybody hears of it, receipts only for what is on the holder's disk."""

from __future__ import annotations

import contextlib

import pytest
from hypothesis import given, strategies as st

from gossip.config import GossipConfig
from gossip.events import Acked, Arrived, Durable, Judged, SpaceChanged, SpaceOpened
from gossip.receipts import LEVEL_DISK, push
from gossip.replication import Draft
from protocol.errors import EngineError, Refused, StoreError
from protocol.machine import JobDone, JobId, Local, Persist, Received, Send
from protocol.messages import (
    BATCH_BYTES_MAX,
    BATCH_OPS_MAX,
    Fetched,
    GetLog,
    GetOps,
    Heads,
    OpBatch,
    Receipt,
    encode_frame,
    message_id,
    receipt_bytes,
)
from protocol.op import OP_BYTES_MAX, Op, OpKind, Position, decode_wire_op, make_op
from protocol.peer import PeerID
from protocol.records import Deny, Join, body_bytes, sign_body
from protocol.spaces import swarm_space
from protocol.store import OpRow
from tests.gossip_world import (
    ADMIN,
    GENESIS,
    NOW_MS,
    SPACE,
    MemoryStore,
    Node,
    World,
    chain_by,
    chain_of,
    hello,
    losing,
    losing_nothing,
    op_by,
    seconds,
    unit,
)
from tests.strategies import keypair, sized

SWARM_SPACE = swarm_space(GENESIS.swarm_id)


def linked(*names: str) -> World:
    world = World()
    for name in names:
        world.add(name)
    for at, a in enumerate(names):
        for b in names[at + 1 :]:
            world.link(a, b)
    world.run(seconds(1))
    return world


def batches(world: World, source: str) -> list[bytes]:
    return [decode_wire_op(wire).id for frame in world.frames(OpBatch, source) for wire in frame.ops]


# ---- the order that makes an acknowledgement true


def test_nothing_is_pushed_or_told_durable_before_it_is_on_disk() -> None:
    world = linked("A", "B")
    world.hold_writes = {"A"}
    op = world.write("A", unit("x"))
    world.run(seconds(0.5))
    a = world.nodes["A"]
    assert not a.heard(Durable)
    assert not world.frames(OpBatch)
    assert a.replication.log(SPACE) is not None  # but the own view has it at once
    world.release("A")
    world.run(seconds(0.5))
    assert [event.ids[-1] for event in a.heard(Durable)] == [op.id]
    assert batches(world, "A") == list(a.heard(Durable)[0].ids)


def test_a_peer_that_asks_gets_no_own_op_that_is_not_on_disk() -> None:
    """A crash may take the op, and another get its place: who knows both knows a fork."""
    world = linked("A", "B")
    first = world.write("A", unit("x"))
    world.run(seconds(1))
    world.hold_writes = {"A"}
    second = world.write("A", unit("y"))
    world.sent.clear()
    for ask in (
        GetLog(1, SPACE, first.author, 0, 9),
        GetLog(2, SPACE, first.author, second.seq, second.seq),
        GetOps(3, SPACE, (second.id,)),
    ):
        world.give("A", "B", ask)
    given = {decode_wire_op(wire).id for frame in world.frames(Fetched, "A") for wire in frame.ops}
    assert first.id in given
    assert second.id not in given
    world.release("A")
    world.give("A", "B", GetOps(4, SPACE, (second.id,)))
    assert [decode_wire_op(wire).id for wire in world.frames(Fetched, "A")[-1].ops] == [second.id]


def test_writes_of_one_step_are_one_persist_and_an_idle_step_writes_nothing() -> None:
    world = World()
    node = world.add("A")
    ops = [node.replication.append(SPACE, Draft(unit(f"{n}")), 0)[0] for n in range(3)]
    (persist,) = node.replication.flush()
    assert isinstance(persist, Persist)
    rows = [row for row in persist.rows if isinstance(row, OpRow)]
    assert [row.op.id for row in rows[1:]] == [op.id for op in ops]
    assert rows[0].op.kind == OpKind.JOIN
    assert all(row.sync for row in rows)
    assert node.replication.flush() == []


def test_a_receipt_is_sent_only_after_the_receivers_disk_has_the_op() -> None:
    world = linked("A", "B")
    world.hold_writes = {"B"}
    op = world.write("A", unit("x"))
    world.run(seconds(1))
    assert world.nodes["B"].replication.log(SPACE) is not None
    assert not world.frames(Receipt)
    assert not world.nodes["A"].heard(Acked)
    world.release("B")
    assert world.nodes["B"].store.holds(op.id)
    world.run(seconds(1))
    assert [(event.holder, event.ids[-1]) for event in world.nodes["A"].heard(Acked)] == [
        (world.nodes["B"].keys.public, op.id)
    ]
    assert world.nodes["A"].store.receipts(op.id) == [(world.nodes["B"].keys.public, LEVEL_DISK)]


def test_a_receipt_goes_to_the_author_only() -> None:
    world = linked("A", "B", "C")
    world.write("A", unit("x"))
    world.run(seconds(1))
    assert {target for _, target, frame in world.sent if isinstance(frame, Receipt)} == {"A"}
    assert len(world.nodes["A"].heard(Acked)) == 2


def test_who_passes_on_the_ops_of_others_gets_no_receipt_for_them() -> None:
    world = linked("A", "B")
    world.give("A", "B", OpBatch(tuple(op.wire() for op in chain_by(keypair("C"), 3))))
    world.run(seconds(1))
    assert world.nodes["A"].store.spaces() == [SPACE]
    assert not world.frames(Receipt, "A")


@pytest.mark.parametrize("error", [StoreError("disk full"), EngineError("odd")])
def test_a_failed_write_is_told_and_nothing_is_acknowledged(error: StoreError | EngineError) -> None:
    world = linked("A", "B")
    world.hold_writes = {"A", "B"}
    world.write("A", unit("x"))
    world.release("A", error)
    world.run(seconds(1))
    a = world.nodes["A"]
    assert [topic for topic, _ in a.notices if topic == "store_failed"] == ["store_failed"]
    assert isinstance(dict(a.notices)["store_failed"], StoreError)
    assert not a.heard(Durable)
    assert not world.frames(OpBatch)


@pytest.mark.parametrize("error", [StoreError("disk full"), EngineError("odd")])
def test_a_failed_write_at_the_receiver_gives_no_receipt(error: StoreError | EngineError) -> None:
    world = linked("A", "B")
    world.hold_writes = {"A", "B"}
    world.write("A", unit("y"))
    world.release("A")
    world.run(seconds(1))
    world.release("B", error)
    assert "store_failed" in dict(world.nodes["B"].notices)
    world.run(seconds(1))
    assert not world.frames(Receipt)


def test_answers_to_jobs_that_nobody_started_do_nothing() -> None:
    world = World()
    node = world.add("A")
    assert node.handle(JobDone(JobId(1, 999), None), 0) == []


# ---- receipts


def receipt(holder: str, op: Op, *, sig: bytes | None = None, level: int = LEVEL_DISK, space: bytes = SPACE) -> Receipt:
    made = keypair(holder).sign("receipt", receipt_bytes(space, level, (op.id,)))
    return Receipt(space, level, (op.id,), made if sig is None else sig)


@given(sized(64))
def test_a_forged_receipt_is_refused(sig: bytes) -> None:
    world = linked("A", "B")
    world.cut = losing(Receipt)
    op = world.write("A", unit("x"))
    world.run(seconds(1))
    node = world.nodes["A"]
    good = receipt("B", op)
    signed_for = {
        "random": receipt("B", op, sig=sig),
        "by somebody else": receipt("C", op),
        "another space": Receipt(b"t" * 16, LEVEL_DISK, good.ids, good.sig),
        "another level": Receipt(SPACE, LEVEL_DISK + 1, good.ids, good.sig),
        "another op": Receipt(SPACE, LEVEL_DISK, (bytes(32),), good.sig),
        "one op more": Receipt(SPACE, LEVEL_DISK, (op.id, bytes(32)), good.sig),
    }
    for frame in signed_for.values():
        world.give("A", "B", frame)
    world.run(seconds(1))
    assert node.counters["receipts_refused"] == len(signed_for)
    assert not node.heard(Acked)
    assert node.store.receipts(op.id) == []
    world.give("A", "B", good)
    assert [event.holder for event in node.heard(Acked)] == [keypair("B").public]


def test_a_receipt_acknowledges_own_ops_only() -> None:
    world = linked("A", "B")
    foreign = world.write("B", unit("x"))
    world.run(seconds(1))
    world.give("A", "B", receipt("B", foreign))
    assert not world.nodes["A"].heard(Acked)


def test_a_receipt_of_a_peer_that_is_not_linked_does_nothing() -> None:
    world = linked("A")
    op = world.write("A", unit("x"))
    world.give("A", "C", receipt("C", op))
    assert not world.nodes["A"].heard(Acked)


def test_a_receipt_that_comes_again_is_not_written_again() -> None:
    world = linked("A", "B")
    op = world.write("A", unit("x"))
    world.run(seconds(1))
    for _ in range(20):
        world.give("A", "B", receipt("B", op))
    world.run(seconds(1))
    rows = [row for row in world.nodes["A"].store.receipt_rows if row.op_id == op.id]
    assert len(rows) == 1


def test_an_author_that_pushes_again_gets_its_receipt_again_once_the_op_is_on_disk() -> None:
    world = linked("A", "B", "C")
    world.hold_writes = {"B"}
    op = world.write("A", unit("x"))
    world.run(seconds(1))
    world.give("B", "A", OpBatch((op.wire(), op.wire())))
    assert not world.frames(Receipt, "B"), "the op is on its way to the disk"
    world.hold_writes = set()
    world.release("B")
    world.run(seconds(1))
    world.sent.clear()
    assert world.nodes["A"].replication.holders_of(op.id) == sorted(world.nodes[name].me for name in "BC")
    world.give("B", "C", OpBatch((op.wire(),)))
    assert not world.frames(Receipt, "B"), "not to who passes it on"
    world.give("B", "A", OpBatch((op.wire(), op.wire())))
    assert [(r.space, r.ids) for r in world.frames(Receipt, "B")] == [(SPACE, (op.id,))]


def test_ops_pushed_again_go_to_every_peer_and_only_from_the_disk() -> None:
    world = linked("A", "B", "C")
    stored = world.write("A", unit("x"))
    world.run(seconds(1))
    world.hold_writes = {"A"}
    fresh = world.write("A", unit("y"))
    again = world.nodes["A"].replication.repush(SPACE, (stored.id, fresh.id, bytes(32)))
    pushed = [(e.peer, [decode_wire_op(w).id for w in e.frame.ops]) for e in again if isinstance(e, Send)]  # type: ignore[union-attr]
    assert pushed == [(peer, [stored.id]) for peer in sorted(world.nodes[name].me for name in "BC")]


def test_the_next_stamp_is_after_everything_heard_or_written() -> None:
    world = linked("A", "B")
    a = world.nodes["A"].replication
    world.write("A", unit("x"))
    for at_ms in (NOW_MS + 30_000, NOW_MS - 30_000):
        told = op_by(keypair(f"C{at_ms}"), 0, None, at_ms=at_ms)
        world.give("A", "B", OpBatch((told.wire(),)))
        stamp = a.next_stamp(SPACE, world.now_us)
        assert stamp > told.hlc
        assert world.write("A", unit("y")).hlc == stamp


# ---- taking


def test_ops_that_are_none_do_not_stop_the_others_of_their_batch() -> None:
    """Case S2: and a forged copy first does not keep the true op out."""
    world = linked("A", "B")
    ops = chain_by(keypair("C"), 4)
    forged = decode_wire_op(ops[2].wire().replace(ops[2].sig, bytes(64)))
    frame = OpBatch(
        (b"", b"\xc1", ops[0].wire(), forged.wire(), bytes(100), ops[1].wire(), ops[2].wire(), b"\x93", ops[3].wire())
    )
    world.give("A", "B", frame)
    log = world.nodes["A"].replication.log(SPACE)
    assert log is not None
    assert log.head(keypair("C").public) == (3, ops[3].id)
    assert world.nodes["A"].counters["ops_refused_decode_error"] == 4
    assert world.nodes["A"].counters["ops_rejected"] == 1


def test_ops_of_a_peer_that_is_not_linked_are_not_taken() -> None:
    world = linked("A")
    world.give("A", "C", OpBatch(tuple(op.wire() for op in chain_by(keypair("C"), 2))))
    assert world.nodes["A"].replication.spaces() == []


def test_a_space_is_not_kept_for_ops_that_nobody_admitted() -> None:
    """Case S3: a million names chosen by a peer leave no state, and keep no honest task out."""
    config = GossipConfig(spaces_max=20)
    world = World(config)
    world.add("A")
    world.add("B")
    world.link("A", "B")
    stranger = keypair("stranger")
    for n in range(60):
        space = n.to_bytes(16, "big")
        true = op_by(keypair("C"), 0, None, space=space)
        forged = decode_wire_op(true.wire().replace(true.sig, bytes(64)))
        uncertified = op_by(stranger, 0, None, record=Join(cert=(b"",)), space=(1000 + n).to_bytes(16, "big"))
        waiting = op_by(stranger, 1, op_by(stranger, 0, None), record=unit("x"), space=(2000 + n).to_bytes(16, "big"))
        world.give("A", "B", OpBatch((forged.wire(), uncertified.wire(), waiting.wire())))
    world.write("B", unit("honest"))
    world.run(seconds(1))
    assert SPACE in world.nodes["A"].replication.spaces()
    assert world.nodes["A"].digest() == world.nodes["B"].digest()


def test_spaces_are_bounded() -> None:
    world = World(GossipConfig(spaces_max=5))
    world.add("A")
    world.add("B")
    world.link("A", "B")
    for n in range(9):
        world.give("A", "B", OpBatch((op_by(keypair("C"), 0, None, space=n.to_bytes(16, "big")).wire(),)))
    assert len(world.nodes["A"].replication.spaces()) == 5
    assert world.nodes["A"].counters["ops_refused_refused"] == 4
    with pytest.raises(Refused):
        world.write("A", unit("x"), space=b"z" * 16)


def test_an_op_from_the_future_waits_and_is_taken_in_its_time() -> None:
    """Case C4: it is delayed, never refused, and a causally later honest write is not held up by it."""
    world = linked("A", "B")
    early = op_by(keypair("C"), 0, None, at_ms=NOW_MS + 100_000)
    world.give("A", "B", OpBatch((early.wire(),)))
    assert world.nodes["A"].counters["ops_quarantined"] == 1
    world.run(seconds(13))
    world.write("A", unit("now"))
    world.run(seconds(17))
    log = world.nodes["A"].replication.log(SPACE)
    assert log is not None
    assert log.get(early.id) is None
    world.run(seconds(20))
    assert log.get(early.id) is not None
    assert world.nodes["A"].store.holds(early.id)


@pytest.mark.parametrize("off_ms", [-600_000, 600_000])
def test_a_node_whose_clock_is_ten_minutes_off_is_heard_and_hears(off_ms: int) -> None:
    """Complaint: a wrong clock mutes or deafens its node. Three nodes, so that a median can tell."""
    world = World()
    world.add("wrong", wall_off_ms=off_ms)
    world.add("B")
    world.add("C")
    for a, b in (("wrong", "B"), ("B", "C"), ("wrong", "C")):
        world.link(a, b)
    world.run(seconds(6))  # one round of pings
    ops = [world.write(name, unit(name)) for name in ("wrong", "B", "C", "wrong")]
    world.run(seconds(1))
    for node in world.nodes.values():
        log = node.replication.log(SPACE)
        assert log is not None
        assert all(log.get(op.id) is not None for op in ops), node.name
    assert world.nodes["wrong"].clock.skewed


def test_stamps_of_a_node_grow_over_restarts_though_the_clock_fell_back() -> None:
    world = linked("A")
    first = world.write("A", unit("x"))
    world.run(seconds(1))
    store = world.stop("A")
    world.add("A", store=store, inst=2, wall_off_ms=-7_200_000)
    world.run(seconds(4))
    second = world.write("A", unit("y"))
    assert second.hlc > first.hlc
    assert (second.seq, second.prev, second.inst) == (first.seq + 1, first.id, 2)
    world.run(seconds(1))
    store = world.stop("A")
    world.add("A", store=store, inst=3, wall_off_ms=-7_200_000)
    world.run(seconds(4))
    assert world.write("A", unit("z"), space=b"t" * 16).hlc > second.hlc  # in every space


# ---- writing


def test_the_first_op_of_a_node_in_a_space_is_its_join() -> None:
    world = linked("A")
    op = world.write("A", unit("x"))
    log = world.nodes["A"].replication.log(SPACE)
    assert log is not None
    assert op.seq == 1
    (join,) = log.log(op.author, 0, 0)
    assert join.kind == OpKind.JOIN
    assert [event.added.ops[0].id for event in world.nodes["A"].heard(SpaceChanged)] == [join.id, op.id]


def test_an_op_names_what_its_draft_names_and_is_stamped_after_the_floor() -> None:
    world = linked("A", "B")
    seen = world.write("B", unit("x"))
    world.run(seconds(4))
    floor = (NOW_MS + 5_000) << 16
    op = world.write("A", unit("y"), named=(seen.id,), votes=(seen.id,), floor=floor)
    assert seen.id in op.deps
    assert op.votes == (seen.id,)
    assert op.hlc >= floor


def test_a_node_outside_its_certificate_is_refused_with_a_hint() -> None:
    world = World()
    world.add("A", chain=chain_of(keypair("A"), NOW_MS - 200 * 86_400_000))
    with pytest.raises(Refused) as refused:
        world.write("A", unit("x"))
    assert refused.value.hint


def test_a_burnt_node_does_not_write_what_has_no_effect() -> None:
    world = linked("A", "B")
    world.write("A", unit("x"))
    node = world.nodes["A"]
    log = node.replication.log(SPACE)
    assert log is not None
    (join,) = log.log(node.keys.public, 0, 0)
    twin = op_by(node.keys, 1, join, record=unit("fork"))
    world.give("A", "B", OpBatch((twin.wire(),)))
    assert log.burnt(node.keys.public)
    with pytest.raises(Refused):
        world.write("A", unit("y"))


def test_a_denial_in_the_swarms_own_space_is_known_and_stays_known() -> None:
    world = linked("A", "B")
    deny = sign_body(ADMIN, SWARM_SPACE, Deny(author=keypair("evil").public, keep=0, by=bytes(32), sig=bytes(64)))
    world.write("B", deny, space=SWARM_SPACE)
    by_nobody = sign_body(keypair("x"), SPACE, Deny(author=keypair("good").public, keep=0, by=bytes(32), sig=bytes(64)))
    with pytest.raises(Refused):
        world.write("B", by_nobody, space=SPACE)
    world.run(seconds(1))
    assert world.nodes["A"].replication.denied == {keypair("evil").public}
    store = world.stop("A")
    assert world.add("A", store=store, inst=2).replication.denied == {keypair("evil").public}


def test_a_denial_in_another_space_denies_no_link() -> None:
    world = linked("A")
    deny = sign_body(ADMIN, SPACE, Deny(author=keypair("evil").public, keep=0, by=bytes(32), sig=bytes(64)))
    world.write("A", deny)
    assert world.nodes["A"].replication.denied == frozenset()


# ---- start after a stop


def own_head(node: Node, space: bytes = SPACE) -> tuple[int, bytes]:
    log = node.replication.log(space)
    assert log is not None
    head = log.head(node.keys.public)
    assert head is not None
    return head


def test_after_a_clean_stop_writing_goes_on_soon_though_nobody_is_there_to_ask() -> None:
    world = linked("A")
    op = world.write("A", unit("x"))
    world.run(seconds(1))
    store = world.stop("A")
    world.add("A", store=store, inst=2, clean=True)
    with pytest.raises(Refused):
        world.write("A", unit("too early: a backup may carry the mark of a clean stop"))
    world.run(seconds(4))
    assert world.write("A", unit("y")).prev == op.id


def test_after_an_unclean_stop_nothing_is_written_before_the_wait_is_over() -> None:
    world = linked("A")
    world.write("A", unit("x"))
    world.run(seconds(1))
    node = world.add("A", store=world.stop("A"), inst=2, clean=False)
    wait_us = world.config.own_head_wait_us
    while world.nodes["A"].replication.unsure():
        with pytest.raises(Refused):
            world.write("A", unit("y"))
        assert not node.heard(SpaceOpened)
        world.run(seconds(1))
        assert world.now_us <= wait_us + seconds(3)
    assert node.counters["own_head_unasked"] == 1
    assert [event.space for event in node.heard(SpaceOpened)] == [SPACE]
    world.write("A", unit("y"))


def test_after_an_unclean_stop_a_peers_word_opens_the_space_soon() -> None:
    world = linked("A", "B")
    op = world.write("A", unit("x"))
    world.run(seconds(1))
    world.add("A", store=world.stop("A"), inst=2, clean=False)
    assert not world.nodes["A"].replication.writable(SPACE)
    world.link("A", "B")
    world.run(seconds(3))
    assert world.write("A", unit("y")).prev == op.id
    assert world.nodes["A"].counters["own_head_unasked"] == 0


def rolled_back(world: World, writes: int = 3) -> tuple[MemoryStore, Op]:
    """A's disk as it was before its last writes, and the last of these; B holds them, and A is stopped."""
    world.write("A", unit("kept"))
    world.run(seconds(1))
    backup = world.nodes["A"].store.backup()
    last = [world.write("A", unit(f"lost {n}")) for n in range(writes)][-1]
    world.run(seconds(1))
    world.stop("A")
    return backup, last


def test_a_rolled_back_store_does_not_fork() -> None:
    world = linked("A", "B")
    backup, last = rolled_back(world)
    node = world.add("A", store=backup, inst=2, clean=False)
    world.link("A", "B")
    world.run(seconds(2))
    assert own_head(node) == (last.seq, last.id)
    assert world.write("A", unit("after")).prev == last.id
    world.run(seconds(1))
    assert all(node.store.holds(op.id) for op in node.replication.log(SPACE).kept())  # type: ignore[union-attr]


def test_a_rolled_back_store_does_not_fork_when_the_lost_ops_stand_on_lost_ops_of_others() -> None:
    """The own ops that the peer sends first wait for the other's; their place in the chain is taken all the same."""
    world = linked("A", "B")
    kept = world.write("A", unit("kept"))
    world.run(seconds(4))
    backup = world.nodes["A"].store.backup()
    last = kept
    for _ in range(3):
        other = world.write("B", unit("also lost"))
        world.run(seconds(1))
        last = world.write("A", unit("lost"), named=(other.id,))
        world.run(seconds(1))
    world.stop("A")
    node = world.add("A", store=backup, inst=2, clean=False)
    asked: list[bool] = []

    def slow(source: str, _target: str, frame: object) -> bool:
        """Everything about B's own chain is lost for the first exchange."""
        lost = type(frame).__name__ == "GetOps" or getattr(frame, "author", None) == world.nodes["B"].keys.public
        asked.append(lost)
        return lost and source == "A"

    world.cut = slow
    world.link("A", "B")
    for _ in range(30):
        world.run(seconds(1))
        if world.now_us > seconds(20):
            world.cut = losing_nothing
        if node.replication.writable(SPACE):
            break
    assert any(asked)
    if node.replication.writable(SPACE):
        assert own_head(node) == (last.seq, last.id)
        world.write("A", unit("after"))
    world.run(seconds(60))
    assert node.replication.writable(SPACE)
    world.write("A", unit("after all"))
    world.run(seconds(30))
    for each in world.nodes.values():
        log = each.replication.log(SPACE)
        assert log is not None
        assert not log.burnt(node.keys.public), each.name


def test_a_peer_that_holds_nothing_does_not_make_the_own_head_certain() -> None:
    """A new and empty C links first; B, who holds what A lost, a second later."""
    world = linked("A", "B")
    backup, last = rolled_back(world)
    world.add("C")
    node = world.add("A", store=backup, inst=2, clean=False)
    world.link("A", "C")
    world.run(seconds(1))
    with contextlib.suppress(Refused):
        world.write("A", unit("too early"))
    world.link("A", "B")
    world.run(seconds(5))
    log = world.nodes["B"].replication.log(SPACE)
    assert log is not None
    assert not log.burnt(node.keys.public)
    assert own_head(node) == (last.seq, last.id)


def test_a_space_that_the_backup_does_not_know_at_all_is_not_begun_again() -> None:
    """The link breaks after B told of the space and before it sent A's own ops there."""
    world = linked("A", "B")
    backup = world.nodes["A"].store.backup()
    world.run(seconds(4))
    world.write("B", unit("the task"))
    world.run(seconds(1))
    last = world.write("A", unit("lost"))
    world.run(seconds(1))
    world.stop("A")
    node = world.add("A", store=backup, inst=2, clean=False)
    own = node.keys.public
    world.cut = lambda _source, _target, frame: isinstance(frame, GetLog) and frame.author == own
    world.link("A", "B")
    world.run(seconds(1))
    assert node.replication.log(SPACE) is not None
    with contextlib.suppress(Refused):
        world.write("A", unit("too early"))
    world.cut = losing_nothing
    world.unlink("A", "B")
    world.link("A", "B")
    world.run(seconds(3))
    assert own_head(node) == (last.seq, last.id)
    assert world.write("A", unit("in time")).prev == last.id
    world.run(seconds(1))
    log = world.nodes["B"].replication.log(SPACE)
    assert log is not None
    assert not log.burnt(own)


# ---- batches


@given(st.lists(st.sampled_from((0, 100, 5_000, 40_000, 65_000)), max_size=12), st.integers(0, 600))
def test_batches_hold_all_ops_in_order_within_bounds(sizes: list[int], many: int) -> None:
    sized_ops = [_op_of(size) for size in sizes]
    ops = [*sized_ops, *([_op_of(0)] * many)]
    effects = push(PeerID(bytes(32)), ops)
    frames = [effect.frame for effect in effects if isinstance(effect, Send) and isinstance(effect.frame, OpBatch)]
    assert len(frames) == len(effects)
    assert [wire for frame in frames for wire in frame.ops] == [op.wire() for op in ops]
    for frame in frames:
        encode_frame(frame)
        assert len(frame.ops) <= BATCH_OPS_MAX
        size = sum(len(wire) for wire in frame.ops)
        assert size <= BATCH_BYTES_MAX or (len(frame.ops) == 1 and size <= OP_BYTES_MAX)


_CACHE: dict[int, Op] = {}


def _op_of(size: int) -> Op:
    if size not in _CACHE:
        at = Position(SPACE, 0, 1, bytes(32), (), 1)
        _CACHE[size] = make_op(keypair("C"), OpKind.UNIT, at, bytes(size))
    return _CACHE[size]


def test_pending_bytes_of_one_peer_are_bounded() -> None:
    """Ops that wait for made-up refs: 1 MiB of a peer is kept (replication.md §2.3), in however many spaces."""
    config = GossipConfig()
    world = World(config)
    world.add("A")
    world.add("B")
    world.link("A", "B")
    for n in range(40):
        space = bytes([n % 4]) * 16
        at = Position(space, 1, 1, n.to_bytes(32, "big"), (), NOW_MS << 16)
        big = make_op(keypair("B"), OpKind.UNIT, at, body_bytes(unit("x" * 48_000)))
        world.give("A", "B", OpBatch((big.wire(),)))
    waiting = sum(log._pending._bytes for log in world.nodes["A"].replication._logs.values())
    bound = config.pending_bytes_per_peer_max
    assert bound - 100_000 < waiting <= bound
    at = Position(bytes(16), 1, 1, bytes(31) + b"x", (), NOW_MS << 16)
    surplus = make_op(keypair("B"), OpKind.UNIT, at, body_bytes(unit("x" * 48_000))).wire()
    node = world.nodes["A"].replication
    judged = [
        effect.event
        for effect in node.handle(Arrived(PeerID(keypair("B").public), "ops", (surplus,)), 0)
        if isinstance(effect, Local) and isinstance(effect.event, Judged)
    ]
    assert judged == [Judged("ops", ((message_id("ops", surplus), "later"),))], (
        "a copy of it may come when there is room"
    )


def test_a_peer_that_was_never_up_is_not_sent_to() -> None:
    world = linked("A")
    world.write("A", unit("x"))
    world.run(seconds(1))
    assert not world.frames(OpBatch)
    assert not world.frames(Heads)
    assert world.nodes["A"].handle(Received(PeerID(keypair("C").public), hello(keypair("C"))), 0) == []


def test_one_author_cannot_take_every_space() -> None:
    """Valid admissions in ever new spaces: what one member begins is bounded, and others still find room."""
    world = World(GossipConfig(spaces_max=8, spaces_per_author_max=5))
    world.add("A")
    world.add("B")
    world.link("A", "B")
    for n in range(9):
        world.give("A", "B", OpBatch((op_by(keypair("C"), 0, None, space=n.to_bytes(16, "big")).wire(),)))
    assert len(world.nodes["A"].replication.spaces()) == 5
    world.give("A", "B", OpBatch((op_by(keypair("D"), 0, None, space=b"d" * 16).wire(),)))
    assert b"d" * 16 in world.nodes["A"].replication.spaces()
    world.run(seconds(1))
    store = world.nodes["A"].store
    world.stop("A")
    again = world.add("A", store=store, inst=2, clean=True)
    world.link("A", "B")
    world.give("A", "B", OpBatch((op_by(keypair("C"), 0, None, space=b"n" * 16).wire(),)))
    assert b"n" * 16 not in again.replication.spaces(), "a restart does not begin the count anew"


def test_a_space_that_began_in_the_future_is_kept_once_its_time_has_come() -> None:
    """Its log must not be dropped under the task that was told of it."""
    world = World(GossipConfig(spaces_unproved_max=3))
    world.add("A")
    world.add("B")
    world.link("A", "B")
    early = op_by(keypair("C"), 0, None, at_ms=NOW_MS + 100_000)
    world.give("A", "B", OpBatch((early.wire(),)))
    world.run(seconds(50))
    node = world.nodes["A"]
    log = node.replication.log(SPACE)
    assert SPACE in node.replication.spaces()
    for n in range(9):  # each waits for an op that nobody has
        orphan = op_by(keypair("C"), 1, op_by(keypair("C"), 0, None, space=n.to_bytes(16, "big")))
        world.give("A", "B", OpBatch((orphan.wire(),)))
    assert node.replication.log(SPACE) is log
    assert node.store.holds(early.id)


def test_a_backup_with_the_mark_of_a_clean_stop_asks_all_the_same() -> None:
    world = linked("A", "B")
    world.write("A", unit("kept"))
    world.run(seconds(4))
    backup = world.nodes["A"].store.backup()
    lost = world.write("A", unit("lost"))
    world.run(seconds(4))
    world.stop("A")
    node = world.add("A", store=backup, inst=2, clean=True)
    world.link("A", "B")
    world.run(seconds(5))
    assert world.write("A", unit("after")).prev == lost.id
    assert not world.nodes["B"].replication.log(SPACE).burnt(node.keys.public)  # type: ignore[union-attr]
