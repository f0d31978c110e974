"""Repair: whatever two replicas hold, a few exchanges make it equal; no peer can make a node ask for ever."""

from __future__ import annotations

import itertools
import random
from collections import Counter
from typing import Any

import pytest
from hypothesis import given, settings, strategies as st

from gossip.config import GossipConfig
from gossip.events import Missing
from gossip.space_log import LogRules, SpaceLog
from protocol.admission import check_chain
from protocol.errors import DecodeError
from protocol.machine import Received, TimerFired, TimerKey
from protocol.messages import (
    BATCH_OPS_MAX,
    DIGESTS_MAX,
    IDS_MAX,
    Digests,
    Fetched,
    GetIds,
    GetLog,
    GetOps,
    Heads,
    IdList,
    OpBatch,
    Ping,
    Pong,
)
from protocol.op import Op
from protocol.peer import PeerID
from tests.gossip_world import (
    GENESIS,
    NOW_MS,
    SPACE,
    World,
    chain_by,
    losing,
    op_by,
    seconds,
    unit,
    verify,
)
from tests.strategies import keypair

AUTHORS = "CDE"
FORKER = "F"
SYNCS_MAX = 16  # measured over 6,114 histories of up to 40 ops: 0 in 57 %, at most 3 in 97 %, 8 once
D12 = bytes(12)


def reference(ops: list[Op]) -> SpaceLog:
    """A log that was given everything."""

    def check_join(author: bytes, chain: tuple[bytes, ...]) -> tuple[int, int] | None:
        try:
            admission = check_chain(GENESIS, chain, author)
        except DecodeError:
            return None
        return admission.nbf_ms, admission.exp_ms

    log = SpaceLog(SPACE, rules=LogRules(check_join=check_join, check_open=lambda _s, _o: False, verify=verify))
    for op in ops:
        log.add(op, swarm_ms=NOW_MS + 10**9, verified=True)
    return log


def history(rng: random.Random, count: int) -> list[Op]:
    """Ops of three honest authors and one that forks, each standing on some earlier ones."""
    made: list[Op] = []
    chains: dict[str, list[Op]] = {}
    for _ in range(count):
        name = rng.choice([*AUTHORS, FORKER])
        chain = chains.setdefault(name, [])
        prev = None
        if chain:
            prev = rng.choice(chain) if name == FORKER and rng.random() < 0.4 else chain[-1]
        others = [op for op in made[-8:] if op is not prev]
        deps = tuple(rng.sample(others, min(len(others), rng.randrange(3))))
        seq = prev.seq + 1 if prev else 0
        record = unit(f"{name} {len(made)}") if prev else None
        op = op_by(keypair(name), seq, prev, deps, record=record, at_ms=NOW_MS + len(made))
        chain.append(op)
        made.append(op)
    return made


def feed(world: World, name: str, ops: list[Op]) -> None:
    """Ops come from a peer that then leaves, in any order."""
    world.add("source")
    world.link("source", name)
    world.run(seconds(0.1))
    for start in range(0, len(ops), BATCH_OPS_MAX):
        world.give(name, "source", OpBatch(tuple(op.wire() for op in ops[start : start + BATCH_OPS_MAX])))
    world.run(seconds(0.1))
    world.stop("source")


def sync(world: World, *names: str) -> None:
    for name in names:
        world.tell(name, TimerFired(TimerKey("repair", "sync")))
    world.run(seconds(2))


def repairing(world: World, since: int) -> set[type[Any]]:
    """Kinds of frames that were sent, pings left out."""
    return {type(frame) for _, _, frame in world.sent[since:]} - {Ping, Pong}


def two(config: GossipConfig | None = None) -> World:
    world = World(config or GossipConfig())
    world.add("A")
    world.add("B")
    return world


# ---- convergence


@given(st.integers(0, 2**32), st.integers(1, 40), st.floats(0, 1), st.floats(0, 1))
def test_any_two_subsets_of_any_history_become_equal_in_a_few_exchanges(
    seed: int, count: int, share_a: float, share_b: float
) -> None:
    rng = random.Random(seed)
    ops = history(rng, count)
    subsets = [[op for op in ops if rng.random() < share] for share in (share_a, share_b)]
    world = two()
    for name, subset in zip("AB", subsets, strict=True):
        rng.shuffle(subset)
        feed(world, name, subset)
    expected = reference([op for op in ops if op in subsets[0] or op in subsets[1]]).digest()
    world.link("A", "B")
    world.run(seconds(2))
    for _ in range(SYNCS_MAX):
        if digests(world) == [expected] * 2:
            break
        sync(world, "A", "B")
    assert digests(world) == [expected] * 2


def digests(world: World) -> list[bytes]:
    """What A and B hold; of a space that is not here, the digest of nothing."""
    return [world.nodes[name].digest() or reference([]).digest() for name in "AB"]


@given(st.integers(0, 2**32))
@settings(max_examples=15)
def test_equal_replicas_exchange_digests_and_nothing_else(seed: int) -> None:
    ops = history(random.Random(seed), 25)
    world = two()
    for name in "AB":
        feed(world, name, ops)
    assert world.nodes["A"].digest() == world.nodes["B"].digest()
    before = len(world.sent)
    world.link("A", "B")
    for _ in range(3):
        sync(world, "A", "B")
    assert repairing(world, before) == {Digests}


def test_a_fork_that_each_side_knows_half_of_is_known_to_both_after_one_exchange() -> None:
    trunk = chain_by(keypair("F"), 5)
    left = op_by(keypair("F"), 5, trunk[-1], record=unit("left"))
    right = op_by(keypair("F"), 5, trunk[-1], record=unit("right"))
    world = two()
    feed(world, "A", [*trunk, left])
    feed(world, "B", [*trunk, right])
    world.link("A", "B")
    sync(world, "A", "B")
    for node in world.nodes.values():
        log = node.replication.log(SPACE)
        assert log is not None
        assert log.burnt(keypair("F").public), node.name
    assert world.nodes["A"].digest() == world.nodes["B"].digest()


def test_what_pushing_lost_comes_with_the_next_exchange() -> None:
    world = two()
    world.link("A", "B")
    world.run(seconds(0.1))
    world.cut = losing(OpBatch)
    world.write("A", unit("lost on the way"))
    world.run(seconds(1))
    assert world.nodes["B"].digest() is None
    world.run(2 * world.config.sync_every_us)
    assert world.nodes["A"].digest() == world.nodes["B"].digest()


def test_a_missing_op_is_asked_for_at_once() -> None:
    world = two()
    world.link("A", "B")
    world.run(seconds(0.1))
    ops = chain_by(keypair("C"), 3)
    feed(world, "B", ops)
    world.give("A", "B", OpBatch((ops[2].wire(),)))
    world.run(seconds(0.5))
    assert world.nodes["A"].heard(Missing)
    assert world.nodes["A"].digest() == world.nodes["B"].digest()


@pytest.mark.parametrize("frame", [GetLog, GetOps, Heads, Fetched])
def test_a_lost_frame_only_delays(frame: type[Any]) -> None:
    world = two()
    feed(world, "A", chain_by(keypair("C"), 30))
    lost: list[object] = []

    def cut(_source: str, _target: str, sent: object) -> bool:
        if isinstance(sent, frame) and not lost:
            lost.append(sent)
            return True
        return False

    world.cut = cut
    world.link("A", "B")
    world.run(4 * world.config.sync_every_us)
    assert world.nodes["A"].digest() == world.nodes["B"].digest()


# ---- paging


@pytest.mark.parametrize(("count", "size"), [(3 * BATCH_OPS_MAX + 5, 0), (12, 47_000), (BATCH_OPS_MAX, 0)])
def test_a_long_or_heavy_chain_comes_over_in_pages_of_one_exchange(count: int, size: int) -> None:
    world = two()
    feed(world, "A", chain_by(keypair("C"), count, text="x" * size))
    world.link("A", "B")
    world.run(seconds(2))
    assert world.nodes["A"].digest() == world.nodes["B"].digest()
    asked = [frame.first for frame in world.frames(GetLog, "B")]
    assert len(asked) > 1 or count <= BATCH_OPS_MAX
    assert asked == sorted(set(asked))
    assert all(len(frame.ops) <= BATCH_OPS_MAX for frame in world.frames(Fetched))


def test_many_heavy_ops_asked_by_id_come_over_in_one_exchange() -> None:
    """A forked author's chain is asked by id; a cut answer must be asked on."""
    trunk = chain_by(keypair("F"), 14, text="x" * 47_000)
    twin = op_by(keypair("F"), 13, trunk[12], record=unit("twin"))
    world = two()
    feed(world, "A", [*trunk, twin])
    feed(world, "B", trunk[:2])
    world.link("A", "B")
    world.run(seconds(2))
    assert world.nodes["A"].digest() == world.nodes["B"].digest()


def test_a_forked_chain_of_more_than_a_page_is_answered_within_bounds() -> None:
    """At the fork one seq holds two ops, so a page of seqs holds more ops than an answer may."""
    trunk = chain_by(keypair("F"), BATCH_OPS_MAX)
    twin = op_by(keypair("F"), BATCH_OPS_MAX - 1, trunk[-2], record=unit("twin"))
    world = two()
    feed(world, "A", [*trunk, twin])
    world.link("A", "B")
    for _ in range(3):
        sync(world, "A", "B")
    assert world.nodes["A"].digest() == world.nodes["B"].digest()
    world.give("A", "B", GetLog(7, SPACE, keypair("F").public, 0, BATCH_OPS_MAX))


def test_the_two_ops_of_a_fork_on_either_side_of_a_page_of_ids_both_come_over() -> None:
    trunk = chain_by(keypair("F"), IDS_MAX)
    twin = op_by(keypair("F"), IDS_MAX - 1, trunk[-2], record=unit("twin"))
    world = two()
    feed(world, "A", [*trunk, twin])
    for kept in (trunk, [*trunk[:-1], twin]):
        world.add("B")
        feed(world, "B", kept)
        world.link("A", "B")
        for _ in range(4):
            sync(world, "A", "B")
        assert world.nodes["A"].digest() == world.nodes["B"].digest()
        world.stop("B")


def test_more_spaces_than_fit_one_frame_of_digests_are_exchanged() -> None:
    world = two(GossipConfig(requests_per_peer_max=1000))
    ops = [op_by(keypair("C"), 0, None, space=n.to_bytes(16, "big")) for n in range(DIGESTS_MAX + 20)]
    feed(world, "A", ops)
    world.link("A", "B")
    world.run(seconds(3))
    assert world.nodes["B"].replication.spaces() == world.nodes["A"].replication.spaces()
    before = len(world.sent)
    sync(world, "A", "B")
    assert repairing(world, before) == {Digests}


def test_a_list_of_spaces_in_several_frames_does_not_make_the_own_head_certain_too_early() -> None:
    """A rolled-back A meets a B of 276 spaces: the second frame lacks the spaces of the first."""
    world = two()
    world.link("A", "B")
    world.run(seconds(0.1))
    kept = world.write("A", unit("kept"), space=bytes(16))
    world.run(seconds(1))
    backup = world.nodes["A"].store.backup()
    last = world.write("A", unit("lost"), space=bytes(16))
    world.run(seconds(1))
    world.stop("A")
    feed(world, "B", [op_by(keypair("C"), 0, None, space=n.to_bytes(16, "big")) for n in range(1, DIGESTS_MAX + 20)])
    node = world.add("A", store=backup, inst=2, clean=False)
    # the answer to A's question is slow: every Heads of B is lost at first
    world.cut = losing(Heads, source="B")
    world.link("A", "B")
    world.run(seconds(1))
    assert not node.replication.writable(bytes(16))
    assert kept.seq < last.seq


# ---- hostile and broken peers


class Alone:
    """A node A with one linked peer B that the test speaks for."""

    def __init__(self, config: GossipConfig | None = None) -> None:
        self.world = two(config)
        self.world.link("A", "B")
        self.world.run(seconds(0.1))
        self.b = PeerID(keypair("B").public)
        self.world.cut = losing(source="B")  # the test speaks for B
        self.world.sent.clear()

    def give(self, frame: Any) -> None:
        self.world.give("A", "B", frame)

    def asks(self, kind: type[Any]) -> list[Any]:
        return self.world.frames(kind, "A")

    @property
    def counters(self) -> Counter[str]:
        return self.world.nodes["A"].counters


def head(author: bytes, seq: int, count: int | None = None, digest: bytes = D12) -> tuple[bytes, int, int, bytes]:
    return (author, seq, seq + 1 if count is None else count, digest)


C = keypair("C").public


def test_answers_that_nobody_asked_for_are_dropped_and_counted() -> None:
    peer = Alone()
    ops = tuple(op.wire() for op in chain_by(keypair("C"), 2))
    peer.give(Fetched(77, SPACE, ops, (), (), more=False))
    peer.give(IdList(78, SPACE, C, (bytes(32),), None))
    assert peer.counters["answers_unasked"] == 2
    assert peer.world.nodes["A"].replication.spaces() == []
    assert not peer.world.sent


def test_an_answer_of_another_space_or_type_is_dropped_and_an_answer_counts_once() -> None:
    peer = Alone()
    ops = tuple(op.wire() for op in chain_by(keypair("C"), 2))
    for n in range(3):
        peer.give(Heads(1, SPACE, want=False, authors=(head(C, 1),)))
        ask = peer.asks(GetLog)[-1]
        wrong = (
            Fetched(ask.req, b"t" * 16, ops, (), (), more=False),
            IdList(ask.req, SPACE, C, (bytes(32),), None),
        )
        if n < 2:
            peer.give(wrong[n])
    assert peer.counters["answers_unasked"] == 2
    assert peer.world.nodes["A"].digest() is None
    peer.give(Fetched(peer.asks(GetLog)[-1].req, SPACE, ops, (), (), more=False))
    assert peer.world.nodes["A"].digest() is not None
    peer.give(Fetched(peer.asks(GetLog)[-1].req, SPACE, ops, (), (), more=False))
    assert peer.counters["answers_unasked"] == 3


def test_requests_in_flight_are_bounded_and_given_up_after_their_time() -> None:
    peer = Alone()
    bound = peer.world.config.requests_per_peer_max
    heads = tuple(head(n.to_bytes(32, "big"), 3) for n in range(500))
    peer.give(Heads(1, SPACE, want=False, authors=heads))
    peer.give(Heads(2, SPACE, want=False, authors=heads))
    assert len(peer.asks(GetLog)) == bound
    assert peer.counters["repair_requests_full"] > 0
    peer.world.run(peer.world.config.request_timeout_us + seconds(3))
    assert peer.counters["repair_timeouts"] == bound
    peer.world.sent.clear()
    peer.give(Heads(3, SPACE, want=False, authors=heads))
    assert len(peer.asks(GetLog)) == bound


def test_the_same_thing_is_not_asked_twice_while_it_is_asked() -> None:
    peer = Alone()
    op = op_by(keypair("C"), 1, op_by(keypair("C"), 0, None), record=unit("x"))
    for _ in range(5):
        peer.give(OpBatch((op.wire(),)))
        peer.give(Heads(1, b"t" * 16, want=False, authors=(head(C, 1),)))
    assert len(peer.asks(GetOps)) == 1
    assert len(peer.asks(GetLog)) == 1


def answer_until_silent(peer: Alone, answer: Any, rounds: int = 400) -> int:
    """Answer every question of A as `answer` says, in virtual time below one exchange; how many were asked."""
    done = 0
    for _ in range(rounds):
        asked = [frame for frame in peer.world.sent if isinstance(frame[2], (GetLog, GetOps, GetIds))]
        if done == len(asked):
            break
        for _, _, ask in asked[done:]:
            peer.give(answer(ask))
        done = len(asked)
    return done


def test_a_peer_that_answers_nothing_but_more_is_not_asked_for_ever() -> None:
    peer = Alone()
    peer.give(Heads(1, SPACE, want=False, authors=(head(C, 10**6),)))
    asked = answer_until_silent(peer, lambda ask: Fetched(ask.req, ask.space, (), (), (), more=True))
    assert asked <= 3


def test_a_peer_that_sends_the_same_page_again_and_again_is_not_asked_for_ever() -> None:
    peer = Alone()
    page = tuple(op.wire() for op in chain_by(keypair("C"), 5))
    peer.give(Heads(1, SPACE, want=False, authors=(head(C, 10**6),)))
    asked = answer_until_silent(peer, lambda ask: Fetched(ask.req, ask.space, page, (), (), more=True))
    assert asked <= 3


@pytest.mark.parametrize("ids", [(), (bytes(32),)])
@pytest.mark.parametrize("step", [0, 1])
def test_a_peer_whose_list_of_ids_never_ends_is_not_asked_for_ever(ids: tuple[bytes, ...], step: int) -> None:
    peer = Alone()
    feed(peer.world, "A", chain_by(keypair("C"), 3))
    peer.give(Heads(1, SPACE, want=False, authors=(head(C, 2, count=7),)))
    assert peer.asks(GetIds)

    def answer(ask: Any) -> Any:
        if isinstance(ask, GetIds):
            return IdList(ask.req, ask.space, ask.author, ids, ask.first + step)
        return Fetched(ask.req, ask.space, (), (), (), more=True)

    assert answer_until_silent(peer, answer) <= 5


@pytest.mark.parametrize("step", [0, IDS_MAX])
def test_a_peer_that_makes_up_full_pages_of_ids_is_not_asked_for_ever(step: int) -> None:
    peer = Alone()
    feed(peer.world, "A", chain_by(keypair("C"), 3))
    peer.give(Heads(1, SPACE, want=False, authors=(head(C, 2, count=7),)))
    made_up = itertools.count()

    def answer(ask: Any) -> Any:
        if isinstance(ask, GetIds):
            page = tuple(next(made_up).to_bytes(32, "big") for _ in range(IDS_MAX))
            return IdList(ask.req, ask.space, ask.author, page, ask.first + step)
        return Fetched(ask.req, ask.space, (), (), (), more=False)

    assert answer_until_silent(peer, answer) <= 50


@pytest.mark.parametrize("step", [0, IDS_MAX])
def test_a_peer_that_lists_again_and_again_what_is_here_is_not_asked_for_ever(step: int) -> None:
    peer = Alone()
    ops = chain_by(keypair("C"), IDS_MAX)
    feed(peer.world, "A", ops)
    peer.give(Heads(1, SPACE, want=False, authors=(head(C, IDS_MAX - 1, count=9999),)))
    page = tuple(op.id for op in ops)
    asked = answer_until_silent(peer, lambda ask: IdList(ask.req, ask.space, ask.author, page, ask.first + step))
    assert 0 < asked <= 3


def test_a_head_that_nobody_can_prove_is_asked_for_once_an_exchange() -> None:
    peer = Alone()
    for n in range(5):
        peer.give(Heads(n, SPACE, want=False, authors=(head(C, 2**63 - 2),)))
        answer_until_silent(peer, lambda ask: Fetched(ask.req, ask.space, (), (), (), more=False))
    assert len(peer.asks(GetLog)) == 5


def test_ops_that_wait_are_not_asked_for_again_and_again() -> None:
    """replication.md §2.3: never re-request pending or quarantined ids."""
    peer = Alone()
    future = op_by(keypair("C"), 0, None, at_ms=NOW_MS + 10**9)
    unproved = op_by(keypair("D"), 1, op_by(keypair("D"), 0, None), record=unit("x"))
    peer.give(OpBatch((future.wire(), unproved.wire())))

    def answer(ask: Any) -> Any:
        return Fetched(ask.req, ask.space, (future.wire(), unproved.wire()), (), (), more=False)

    assert answer_until_silent(peer, answer) <= 2
    for n in range(4):
        peer.world.sent.clear()
        peer.give(Heads(n, SPACE, want=False, authors=(head(C, 0), head(keypair("D").public, 1))))
        assert answer_until_silent(peer, answer) <= 4
    asked = {op_id for frame in peer.asks(GetOps) for op_id in frame.ids}
    assert not asked & {future.id, unproved.id}


def test_ids_that_are_held_aside_or_waiting_are_not_fetched_once_more() -> None:
    peer = Alone()
    trunk = chain_by(keypair("F"), 3)
    twins = sorted((op_by(keypair("F"), 2, trunk[1], record=unit(f"{n}")) for n in range(5)), key=lambda op: op.id)
    feed(peer.world, "A", [*trunk[:2], *twins])
    waiting = op_by(keypair("F"), 9, op_by(keypair("F"), 8, trunk[2], record=unit("x")), record=unit("y"))
    feed(peer.world, "A", [waiting])
    peer.world.sent.clear()
    peer.give(Heads(1, SPACE, want=False, authors=(head(keypair("F").public, 9, count=40),)))
    ids = tuple(op.id for op in [*trunk[:2], *twins, waiting])
    for ask in peer.asks(GetIds):
        peer.give(IdList(ask.req, ask.space, ask.author, ids, None))
    asked = {op_id for frame in peer.asks(GetOps) for op_id in frame.ids}
    assert not asked & set(ids)


def test_an_op_that_is_none_does_not_stop_the_others_of_an_answer() -> None:
    peer = Alone()
    ops = chain_by(keypair("C"), 3)
    peer.give(Heads(1, SPACE, want=False, authors=(head(C, 2),)))
    (ask,) = peer.asks(GetLog)
    wires = (b"", ops[0].wire(), b"\xc1" * 9, ops[1].wire(), ops[2].wire()[:-1], ops[2].wire())
    peer.give(Fetched(ask.req, SPACE, wires, (), (), more=False))
    log = peer.world.nodes["A"].replication.log(SPACE)
    assert log is not None
    assert log.head(C) == (2, ops[2].id)


def test_questions_about_what_is_not_here_are_answered_with_nothing() -> None:
    peer = Alone()
    top = 2**63 - 1
    for ask in (
        GetLog(1, SPACE, C, 0, top),
        GetLog(2, SPACE, C, top, 0),
        GetOps(3, SPACE, (bytes(32),)),
        GetIds(4, SPACE, C, top),
    ):
        peer.give(ask)
    answers = [frame for _, _, frame in peer.world.sent]
    assert [frame.req for frame in answers] == [1, 2, 3, 4]  # type: ignore[union-attr]
    assert all(not (frame.ops if isinstance(frame, Fetched) else frame.ids) for frame in answers)  # type: ignore[union-attr]
    assert peer.world.nodes["A"].replication.spaces() == []


def test_a_dropped_op_is_answered_with_the_fork_that_burnt_its_author() -> None:
    peer = Alone()
    trunk = chain_by(keypair("F"), 2)
    twins = sorted((op_by(keypair("F"), 2, trunk[1], record=unit(f"{n}")) for n in range(3)), key=lambda op: op.id)
    feed(peer.world, "A", [*trunk, *twins])
    peer.world.sent.clear()
    peer.give(GetOps(5, SPACE, (twins[2].id,)))
    (answer,) = peer.asks(Fetched)
    assert answer.forks == ((twins[0].wire(), twins[1].wire()),)


@pytest.mark.parametrize("equal", [False, True], ids=["digests_differ", "digests_are_equal"])
def test_what_is_aside_at_one_replica_comes_to_another_where_a_kept_op_waits_for_it(*, equal: bool) -> None:
    """C's op stands on the third twin of a fork; C is gone, its op is not lost."""
    trunk = chain_by(keypair("F"), 2)
    twins = sorted((op_by(keypair("F"), 2, trunk[1], record=unit(f"{n}")) for n in range(3)), key=lambda op: op.id)
    join = op_by(keypair("C"), 0, None)
    honest = op_by(keypair("C"), 1, join, (twins[2],), record=unit("honest"))
    world = two()
    feed(world, "A", [*trunk, *twins, *([join] if equal else [])])
    feed(world, "B", [*trunk, *(twins[:2] if equal else []), join, honest])
    assert (world.nodes["A"].digest() == world.nodes["B"].digest()) == equal
    world.link("A", "B")
    for _ in range(3):
        sync(world, "A", "B")
    for node in world.nodes.values():
        log = node.replication.log(SPACE)
        assert log is not None
        assert log.get(honest.id) is not None, node.name
        assert log.get(twins[2].id) is not None, node.name


def test_a_peer_that_left_is_owed_and_asked_nothing() -> None:
    peer = Alone()
    peer.give(Heads(1, SPACE, want=False, authors=(head(C, 5),)))
    (ask,) = peer.asks(GetLog)
    peer.world.unlink("A", "B")
    peer.world.sent.clear()
    node = peer.world.nodes["A"]
    assert node.handle(Received(peer.b, Fetched(ask.req, SPACE, (), (), (), more=True)), peer.world.now_us) == []
    assert node.handle(Missing(peer.b, SPACE, (bytes(32),)), peer.world.now_us) == []
    peer.world.run(seconds(60))
    assert "repair_timeouts" not in peer.counters


def test_an_author_without_a_certificate_is_not_taken_from_an_answer() -> None:
    peer = Alone()
    stranger = keypair("stranger")
    forged = op_by(stranger, 0, None, record=unit("no join"))
    peer.give(Heads(1, SPACE, want=False, authors=(head(stranger.public, 0),)))
    (ask,) = peer.asks(GetLog)
    peer.give(Fetched(ask.req, SPACE, (forged.wire(),), (), (), more=False))
    log = peer.world.nodes["A"].replication.log(SPACE)
    assert log is None or len(log) == 0
