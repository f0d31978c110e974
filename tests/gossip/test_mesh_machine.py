"""One mesh machine among scripted peers: what it accepts, forwards, refuses, counts and bounds."""

from __future__ import annotations

import random
from collections.abc import Iterable
from typing import Any

import pytest
from hypothesis import given, settings, strategies as st

from gossip.events import Arrived, Broadcast, Judged, Linked, MemberUp, Unlinked, Verdict
from gossip.mesh.behaviour import Mesh
from gossip.mesh.config import MeshConfig
from protocol.machine import (
    Boot,
    Effect,
    Local,
    Misbehaved,
    Received,
    Send,
    SendDropped,
    SetTimer,
    TimerFired,
    TimerKey,
)
from protocol.messages import (
    BATCH_BYTES_MAX,
    BATCH_OPS_MAX,
    LANE_OF,
    Frame,
    Graft,
    IDontWant,
    IHave,
    IWant,
    Ping,
    Prune,
    Spread,
    Subscribe,
    encode_frame,
    message_id,
)
from protocol.op import OP_BYTES_MAX
from protocol.peer import PeerID, peer_text
from protocol.transport import FRAME_BYTES_MAX, Lane
from protocol.versions import DHT
from tests.gossip.mesh_world import SECOND, TOPIC, hello, judge, peer_of

A, B, C, D, E = (peer_of(n) for n in range(1, 6))
ME = peer_of(1000)
HEARTBEAT = TimerFired(TimerKey("mesh", "heartbeat"))
FLUSH = TimerFired(TimerKey("mesh", "flush"))


class Bench:
    """A machine, its clock, and what it sent."""

    def __init__(self, *peers: PeerID, config: MeshConfig | None = None, topics: tuple[str, ...] = (TOPIC,)) -> None:
        self.mesh = Mesh(ME, config or MeshConfig(), random.Random(1), topics)
        self.now_us = 0
        self.feed(Boot(1, 0, clean=True))
        for peer in peers:
            self.link(peer)

    def link(self, peer: PeerID, *, graft: bool = True) -> None:
        self.feed(Linked(peer, hello()))
        self.take(peer, Subscribe(((TOPIC, True),)))
        if graft:
            self.take(peer, Graft(TOPIC))

    def feed(self, event: object) -> list[Effect]:
        return self.mesh.handle(event, self.now_us)

    def take(self, peer: PeerID, frame: Frame) -> list[Effect]:
        return self.feed(Received(peer, frame))

    def spread(self, peer: PeerID, *items: bytes, wide: bool = False) -> list[bytes]:
        """A Spread from a peer; the items that the consumer is told of."""
        effects = self.take(peer, Spread(TOPIC, wide, items))
        arrived = [effect.event for effect in effects if isinstance(effect, Local)]
        assert len(arrived) <= 1
        return [item for event in arrived if isinstance(event, Arrived) for item in event.items]

    def judge(self, *items: bytes, verdict: Verdict = "accept") -> list[Effect]:
        return self.feed(Judged(TOPIC, tuple((mid(item), verdict) for item in items)))

    def beat(self, n: int = 1) -> list[Effect]:
        effects: list[Effect] = []
        for _ in range(n):
            self.now_us += SECOND
            effects += self.feed(HEARTBEAT)
        return effects

    def counter(self, name: str) -> int:
        return self.status["counters"].get(name, 0)  # type: ignore[no-any-return]

    @property
    def status(self) -> dict[str, Any]:
        return self.mesh.status()


def mid(item: bytes) -> bytes:
    return message_id(TOPIC, item)


def sent(effects: Iterable[Effect], kind: type[Any] = Spread) -> list[tuple[PeerID, Any]]:
    return [(e.peer, e.frame) for e in effects if isinstance(e, Send) and isinstance(e.frame, kind)]


# ---- what comes and goes on


def test_an_accepted_message_goes_to_the_mesh_but_not_to_its_sources() -> None:
    bench = Bench(A, B, C, D)
    assert bench.spread(A, b"x", b"y") == [b"x", b"y"]
    assert bench.spread(B, b"x") == []
    assert sent(bench.judge(b"x", b"y")) == [
        (B, Spread(TOPIC, wide=False, items=(b"y",))),
        (C, Spread(TOPIC, wide=False, items=(b"x", b"y"))),
        (D, Spread(TOPIC, wide=False, items=(b"x", b"y"))),
    ]
    assert bench.spread(C, b"x") == []
    assert bench.counter("mesh_duplicates") == 2


def test_what_is_ignored_or_unknown_goes_nowhere() -> None:
    bench = Bench(A, B)
    bench.spread(A, b"x")
    assert not sent(bench.judge(b"x", verdict="ignore"))
    assert not sent(bench.judge(b"never came"))
    assert [peer for peer, _ in sent(bench.beat(3), IHave)] == [A]  # an echo to who brought it, no offer to others
    assert bench.spread(B, b"x") == []
    assert bench.status["cached"] == 0


def test_a_wide_message_is_only_offered_and_only_once() -> None:
    bench = Bench(A, B, C)
    bench.spread(A, b"x", wide=True)
    assert not sent(bench.judge(b"x"))
    assert sent(bench.beat(4), IHave) == [(B, IHave(TOPIC, (mid(b"x"),))), (C, IHave(TOPIC, (mid(b"x"),)))]


def test_one_copy_that_is_not_wide_makes_it_forwarded() -> None:
    bench = Bench(A, B, C)
    bench.spread(A, b"x", wide=True)
    bench.spread(B, b"x")
    assert [peer for peer, _ in sent(bench.judge(b"x"))] == [C]


def test_what_is_accepted_soon_after_shares_a_frame() -> None:
    bench = Bench(A, B)
    bench.spread(A, b"1", b"2", b"3")
    assert len(sent(bench.judge(b"1"))) == 1
    bench.now_us += 1_000
    effects = bench.judge(b"2")
    assert effects == [SetTimer(TimerKey("mesh", "flush"), 50_000)]
    assert bench.judge(b"3") == []
    bench.now_us = 50_000
    assert sent(bench.feed(FLUSH)) == [(B, Spread(TOPIC, wide=False, items=(b"2", b"3")))]


def test_own_messages_go_to_every_subscriber_in_frames_that_fit() -> None:
    bench = Bench(A)
    bench.link(B, graft=False)
    bench.feed(Linked(C, hello(DHT)))
    items = (*(b"%d" % n for n in range(600)), bytes(OP_BYTES_MAX), *(bytes([n]) * 30_000 for n in range(5)))
    frames = sent(bench.feed(Broadcast(TOPIC, items)))
    for peer in (A, B):
        mine = [frame for other, frame in frames if other == peer]
        assert [item for frame in mine for item in frame.items] == list(items)
        for frame in mine:
            assert len(frame.items) <= BATCH_OPS_MAX
            assert len(frame.items) == 1 or sum(map(len, frame.items)) <= BATCH_BYTES_MAX
            assert len(encode_frame(frame)) <= FRAME_BYTES_MAX[Lane.BULK]
    assert not [frame for peer, frame in frames if peer == C]
    assert not sent(bench.feed(Broadcast(TOPIC, (b"1",))))
    assert bench.counter("mesh_broadcast_again") == 1


def test_own_messages_are_wide_only_if_every_living_member_gets_them() -> None:
    bench = Bench(A, B)
    assert not any(frame.wide for _, frame in sent(bench.feed(Broadcast(TOPIC, (b"no members known",)))))
    for peer in (ME, A, B):
        bench.feed(MemberUp(peer))
    assert all(frame.wide for _, frame in sent(bench.feed(Broadcast(TOPIC, (b"all",)))))
    bench.feed(MemberUp(C))
    assert not any(frame.wide for _, frame in sent(bench.feed(Broadcast(TOPIC, (b"not C",)))))


def test_large_messages_are_announced_and_announced_ones_are_not_sent() -> None:
    bench = Bench(A, B, C)
    large = bytes(1024)
    effects = bench.take(A, Spread(TOPIC, wide=False, items=(large, b"small")))
    assert sent(effects, IDontWant) == [(peer, IDontWant(TOPIC, (mid(large),))) for peer in (B, C)]
    bench.take(B, IDontWant(TOPIC, (mid(large), mid(b"small"))))
    assert [peer for peer, _ in sent(bench.judge(large, b"small"))] == [C]


def test_peers_without_the_feature_and_strangers_are_nothing() -> None:
    bench = Bench()
    assert bench.feed(Linked(A, hello(DHT))) == []
    for frame in (Subscribe(((TOPIC, True),)), Graft(TOPIC), Spread(TOPIC, wide=False, items=(b"x",))):
        assert bench.take(A, frame) == []
        assert bench.take(B, frame) == []
    assert bench.take(A, Ping(1, 1)) == []
    assert bench.status["topics"][TOPIC]["subscribers"] == 0


# ---- case S2


def test_a_forged_copy_that_comes_first_hides_nothing() -> None:
    bench = Bench(A, B, C)
    assert bench.spread(A, b"forged") == [b"forged"]
    bench.judge(b"forged", verdict="reject")
    assert bench.spread(B, b"real") == [b"real"]
    assert [peer for peer, _ in sent(bench.judge(b"real"))] == [A, C]
    assert bench.mesh.scores()[A] == -20_000
    assert bench.mesh.scores()[B] > 0


def test_another_split_of_the_same_bytes_is_another_message() -> None:
    bench = Bench(topics=("ab", "abc"))
    bench.feed(Linked(A, hello()))
    bench.take(A, Spread("abc", wide=False, items=(b"d",)))
    bench.feed(Judged("abc", ((message_id("abc", b"d"), "reject"),)))
    assert any(isinstance(effect, Local) for effect in bench.take(A, Spread("ab", wide=False, items=(b"cd",))))
    assert message_id("ab", b"cd") != message_id("abc", b"d")


def test_everybody_who_brings_what_is_rejected_is_blamed_and_it_is_judged_once() -> None:
    bench = Bench(A, B, C)
    bench.spread(A, b"bad")
    bench.spread(B, b"bad")
    bench.judge(b"bad", verdict="reject")
    assert bench.spread(C, b"bad") == []
    assert [bench.mesh.scores()[peer] for peer in (A, B, C)] == [-20_000] * 3
    assert not sent(bench.beat(), IHave)


def test_an_unjudged_message_is_not_seen_and_can_come_again() -> None:
    bench = Bench(A, B)
    assert bench.spread(A, b"x") == [b"x"]
    bench.beat(31)
    assert bench.status["unjudged"] == 0
    assert bench.counter("mesh_unjudged_expired") == 1
    assert bench.spread(B, b"x") == [b"x"]


# ---- case S3


def test_a_flood_stays_within_its_bounds_and_goes_with_its_link() -> None:
    config = MeshConfig()
    bench = Bench(A, B)
    for n in range(2_000):
        bench.take(A, Subscribe(tuple((f"topic {n} {k}", True) for k in range(32))))
        bench.take(A, IHave(TOPIC, tuple(b"%020d" % (n * 100 + k) for k in range(100))))
        bench.take(A, IDontWant(TOPIC, tuple(b"%020d" % (n * 100 + k) for k in range(100))))
        bench.take(A, Spread(TOPIC, wide=False, items=tuple(b"%d %d" % (n, k) for k in range(8))))
        bench.take(A, Graft(f"topic {n}"))
    for n in range(100):
        bench.take(A, Spread(TOPIC, wide=False, items=(n.to_bytes(2, "big") * 25_000,)))
    record = bench.mesh._state.peers[A]
    assert list(record.topics) == [TOPIC]
    assert len(record.has) <= config.dont_want_max
    assert bench.status["asked"] <= config.iwant_ids_max
    assert bench.status["unjudged"] <= config.unjudged_per_peer_max
    assert bench.status["unjudged_bytes"] <= config.unjudged_per_peer_bytes_max
    assert bench.counter("mesh_unjudged_full") > 0
    assert bench.spread(B, b"an honest message has room") != []
    bench.feed(Unlinked(A))
    assert bench.status["unjudged"] == 1
    assert bench.status["asked"] <= config.iwant_ids_max
    bench.beat(2)
    assert bench.status["asked"] == 0
    assert A not in bench.mesh._state.peers


def test_the_next_source_carries_what_the_first_one_brought() -> None:
    bench = Bench(A, B, C)
    bench.spread(A, b"only A")
    bench.spread(A, b"A and B")
    bench.spread(B, b"A and B")
    bench.feed(Unlinked(A))
    assert bench.status["unjudged"] == 1
    assert sent(bench.judge(b"only A", b"A and B")) == [(C, Spread(TOPIC, wide=False, items=(b"A and B",)))]


def test_cache_and_seen_are_bounded_and_age() -> None:
    config = MeshConfig(cache_max=10, cache_bytes_max=100, seen_max=20, rejected_max=5)
    bench = Bench(A, config=config)
    for n in range(50):
        bench.spread(A, b"%10d" % n, b"r%10d" % n)
        bench.judge(b"%10d" % n)
        bench.judge(b"r%10d" % n, verdict="reject")
        bench.mesh._state.scores._linked[A].invalid = 0
        assert bench.status["cached"] <= 10
        assert bench.status["cached_bytes"] <= 100
        assert bench.status["seen"] <= 25
    bench.beat(config.history)
    assert bench.status["cached"] == 0
    bench.now_us += config.seen_us
    bench.beat()
    assert bench.status["seen"] == 0


def test_what_has_to_wait_is_asked_about_anew_after_a_heartbeat() -> None:
    bench = Bench(A, B, C)
    assert bench.spread(A, b"x") == [b"x"]
    assert not sent(bench.judge(b"x", verdict="later"))
    assert bench.spread(B, b"x") == []  # not again at once: every neighbour brings a copy
    bench.beat()
    assert bench.status["unjudged"] == 0
    assert bench.counter("mesh_put_off") == 1
    assert sent(bench.take(C, IHave(TOPIC, (mid(b"x"),))), IWant) == [(C, IWant(TOPIC, (mid(b"x"),)))]
    assert bench.spread(C, b"x") == [b"x"]
    assert [peer for peer, _ in sent(bench.judge(b"x"))] == [A, B]


def test_what_has_to_wait_can_be_accepted_until_the_heartbeat() -> None:
    bench = Bench(A, B)
    bench.spread(A, b"x")
    bench.judge(b"x", verdict="later")
    assert [peer for peer, _ in sent(bench.judge(b"x"))] == [B]


def test_who_brings_more_than_its_allowance_has_the_surplus_ignored_and_no_blame() -> None:
    """As a relay does in a burst that somebody else began. What it brought too much is news with the next peer."""
    config = MeshConfig(bring_burst=200, bring_per_s=10)
    bench = Bench(A, B, config=config)
    burst = [b"%d" % n for n in range(300)]
    told: list[bytes] = []
    for at in range(0, 300, 50):
        told += (some := bench.spread(A, *burst[at : at + 50]))
        bench.judge(*some)
    assert told == burst[:200]
    assert bench.counter("mesh_surplus") == 100
    assert bench.spread(A, *burst[:200]) == []  # copies are free, known ones as well
    assert not sent(bench.take(A, IHave(TOPIC, (mid(b"offered"),))), IWant)
    assert bench.mesh.scores()[A] > 0
    assert bench.spread(B, *burst[200:]) == burst[200:]
    bench.beat(3)
    assert len(bench.spread(A, *(b"later %d" % n for n in range(50)))) == 30
    assert A in bench.mesh.mesh(TOPIC)


def test_a_new_link_is_no_new_allowance() -> None:
    bench = Bench(A, config=MeshConfig(bring_burst=5, bring_per_s=1))
    bench.spread(A, *(b"%d" % n for n in range(9)))
    bench.link(A)
    bench.feed(Unlinked(A))
    bench.link(B)
    bench.feed(Unlinked(B))
    bench.link(A)
    assert bench.spread(A, b"again") == []
    bench.now_us += 2 * SECOND
    assert len(bench.spread(A, *(b"later %d" % n for n in range(9)))) == 2


def test_the_allowance_of_one_topic_is_not_spent_on_another() -> None:
    bench = Bench(topics=(TOPIC, "other"), config=MeshConfig(bring_burst=5))
    bench.link(A)
    assert len(bench.spread(A, *(b"%d" % n for n in range(9)))) == 5
    (arrived,) = bench.take(A, Spread("other", wide=False, items=(b"1",)))
    assert arrived == Local(Arrived(A, "other", (b"1",)))


# ---- lazy pull


def test_offers_go_outside_the_mesh_for_three_heartbeats_and_are_answered_for_five() -> None:
    bench = Bench(A, B)
    bench.spread(A, b"x")
    bench.judge(b"x")
    bench.link(C, graft=False)
    bench.take(C, Prune(TOPIC, 60))
    offers = [[peer for peer, _ in sent(bench.beat(), IHave)].count(C) for _ in range(4)]
    assert offers == [1, 1, 1, 0]
    assert sent(bench.take(C, IWant(TOPIC, (mid(b"x"),)))) == [(C, Spread(TOPIC, wide=False, items=(b"x",)))]
    bench.beat()
    assert not sent(bench.take(C, IWant(TOPIC, (mid(b"x"),))))


def test_an_answer_is_given_three_times_and_within_the_bytes_of_a_heartbeat() -> None:
    bench = Bench(A, config=MeshConfig(answer_bytes_max=100_000))
    items = tuple(bytes([n]) * 40_000 for n in range(3))
    bench.feed(Broadcast(TOPIC, (b"x", *items)))
    asks = [len(sent(bench.take(A, IWant(TOPIC, (mid(b"x"),))))) for _ in range(5)]
    assert asks == [1, 1, 1, 0, 0]
    assert len(sent(bench.take(A, IWant(TOPIC, tuple(map(mid, items)))))) == 2
    assert bench.counter("mesh_answers_cut") == 1
    bench.beat()
    assert len(sent(bench.take(A, IWant(TOPIC, (mid(items[2]),))))) == 1


def test_one_is_asked_and_then_the_next_who_offered() -> None:
    bench = Bench(A, B, C)
    ids = (mid(b"x"),)
    assert sent(bench.take(A, IHave(TOPIC, ids)), IWant) == [(A, IWant(TOPIC, ids))]
    assert not sent(bench.take(B, IHave(TOPIC, ids)), IWant)
    assert sent(bench.beat(), IWant) == [(B, IWant(TOPIC, ids))]
    assert bench.spread(B, b"x") == [b"x"]
    bench.judge(b"x")
    assert not sent(bench.take(C, IHave(TOPIC, ids)), IWant)


def test_who_offers_and_never_delivers_is_asked_no_more() -> None:
    bench = Bench(A, B)
    for n in range(60):
        bench.take(A, IHave(TOPIC, (b"%020d" % n,)))
        bench.beat()
    assert bench.counter("mesh_promises_broken") > 15
    assert bench.counter("mesh_ihaves_ignored") > 15
    assert bench.mesh.scores()[A] < MeshConfig().gossip_milli
    assert bench.mesh.mesh(TOPIC) == [B]


def test_who_delivers_what_it_offered_owes_nothing() -> None:
    bench = Bench(A)
    for n in range(60):
        bench.take(A, IHave(TOPIC, (mid(b"%d" % n),)))
        bench.spread(A, b"%d" % n)
        bench.judge(b"%d" % n)
        bench.beat()
    assert bench.counter("mesh_promises_broken") == 0
    assert bench.mesh._state.peers[A].owes == 0
    assert bench.mesh.scores()[A] > 0


def test_a_request_that_a_full_queue_refused_is_no_promise() -> None:
    bench = Bench(A)
    bench.take(A, IHave(TOPIC, (mid(b"x"),)))
    bench.feed(SendDropped(A, "IWant", (mid(b"x"),)))
    bench.beat(15)
    assert bench.counter("mesh_promises_broken") == 0
    assert bench.status["asked"] == 0


# ---- drops


def test_what_a_full_queue_refused_is_counted_and_said_again() -> None:
    bench = Bench(A, B)
    effects = bench.feed(Broadcast(TOPIC, (b"x",)))
    ref = next(effect.ref for effect in effects if isinstance(effect, Send) and effect.peer == A)
    bench.feed(SendDropped(A, "Spread", ref))
    bench.feed(SendDropped(B, "Subscribe", None))
    bench.feed(SendDropped(B, "Graft", TOPIC))
    bench.feed(SendDropped(B, "Ping", None))
    assert bench.counter("mesh_drops") == 3
    assert bench.status["peers"][peer_text(A)]["drops"] == 1
    assert bench.status["peers"][peer_text(B)]["drops"] == 2
    assert bench.mesh.mesh(TOPIC) == [A]
    effects = bench.beat()
    assert sent(effects, IHave) == [(A, IHave(TOPIC, (mid(b"x"),)))]
    assert sent(effects, Subscribe) == [(B, Subscribe(((TOPIC, True),)))]
    assert not sent(bench.beat(3), IHave)


# ---- the overlay


def test_nobody_grafts_during_back_off() -> None:
    bench = Bench(A)
    bench.take(A, Prune(TOPIC, 60))
    assert not sent(bench.beat(61), Graft)
    assert sent(bench.beat(2), Graft) == [(A, Graft(TOPIC))]


def test_a_graft_during_back_off_is_refused_and_blamed_also_on_a_new_link() -> None:
    bench = Bench(*(peer_of(n) for n in range(1, 14)))
    late = peer_of(13)
    assert late not in bench.mesh.mesh(TOPIC)
    for _ in range(3):
        assert sent(bench.take(late, Graft(TOPIC)), Prune) == [(late, Prune(TOPIC, 60))]
    assert bench.counter("mesh_grafts_in_backoff") == 3
    assert bench.mesh.scores()[late] == 0  # six are an accident
    bench.feed(Unlinked(late))
    bench.feed(Linked(late, hello()))
    assert sent(bench.take(late, Graft(TOPIC)), Prune)
    assert bench.mesh.scores()[late] == -10_000
    bench.beat(75)
    assert bench.mesh.scores()[late] == 0


def test_a_mesh_that_grew_too_large_is_cut_to_the_best_and_some() -> None:
    bench = Bench(*(peer_of(n) for n in range(1, 13)))
    for n in range(12):
        bench.spread(A, b"%d" % n)
        bench.judge(b"%d" % n)
    bench.mesh._overlay._graft(peer_of(20), TOPIC, 0)
    bench.link(peer_of(20), graft=False)
    pruned = sent(bench.beat(), Prune)
    assert len(bench.mesh.mesh(TOPIC)) == 6
    assert len(pruned) == 7
    assert A in bench.mesh.mesh(TOPIC)


def test_who_wants_a_topic_no_more_leaves_its_mesh() -> None:
    bench = Bench(A, B)
    bench.take(A, Subscribe(((TOPIC, False),)))
    assert bench.mesh.mesh(TOPIC) == [B]
    assert [peer for peer, _ in sent(bench.feed(Broadcast(TOPIC, (b"x",))))] == [B]


def test_a_silent_mesh_peer_is_pruned_only_if_two_others_gave_what_it_did_not() -> None:
    bench = Bench(A, B, C)
    for n in range(30):
        bench.spread(A, b"one witness %d" % n)
        bench.judge(b"one witness %d" % n)
        bench.beat()
    assert bench.mesh.mesh(TOPIC) == [A, B, C]
    for n in range(15):
        bench.spread(A, b"two %d" % n)
        bench.spread(B, b"two %d" % n)
        bench.judge(b"two %d" % n)
        bench.beat()
    assert bench.mesh.mesh(TOPIC) == [A, B]
    assert bench.mesh.scores()[C] < 0
    assert bench.counter("mesh_silent_pruned") == 1


def test_an_offer_is_a_sign_of_life_and_wide_messages_ask_for_none() -> None:
    bench = Bench(A, B, C, D)
    for n in range(40):
        item, wide = b"%d" % n, n % 2 == 0
        bench.spread(A, item, wide=wide)
        bench.spread(B, item, wide=wide)
        bench.judge(item)
        bench.beat()
        if n % 8 == 1:
            bench.take(C, IHave(TOPIC, (mid(item),)))
    assert C in bench.mesh.mesh(TOPIC)
    assert D not in bench.mesh.mesh(TOPIC)
    wide_only = Bench(A, B, C)
    for n in range(40):
        for peer in (A, B):
            wide_only.spread(peer, b"%d" % n, wide=True)
        wide_only.judge(b"%d" % n)
        wide_only.beat()
    assert wide_only.mesh.mesh(TOPIC) == [A, B, C]


def test_who_brought_messages_and_got_none_hears_an_echo() -> None:
    bench = Bench(A, B)
    bench.spread(A, b"x")
    bench.judge(b"x")
    assert sent(bench.beat(), IHave) == [(A, IHave(TOPIC, (mid(b"x"),)))]
    assert not sent(bench.beat(3), IHave)


def test_who_brings_messages_hears_an_echo_though_it_is_given_others() -> None:
    """What it was given may be no news to it; then the echo is the only sign of life that it gets."""
    bench, config = Bench(A, B), MeshConfig()
    echoes = []
    for n in range(4 * config.echo_heartbeats):
        for peer, name in ((A, b"a%d"), (B, b"b%d")):
            bench.spread(peer, name % n)
            bench.judge(name % n)
            bench.now_us += config.flush_us
        bench.feed(FLUSH)
        echoes += [(n, frame.ids) for peer, frame in sent(bench.beat(), IHave) if peer == A]
    due = range(config.echo_heartbeats - 1, 4 * config.echo_heartbeats, config.echo_heartbeats)
    assert echoes == [(n, (mid(b"a%d" % n),)) for n in due]


@pytest.mark.parametrize("copy", [False, True])
def test_a_message_that_was_ignored_is_a_sign_of_life(copy: bool) -> None:  # noqa: FBT001 - a parameter
    """It was news where it came from; who steers what reaches whom first cannot make its bringer look silent."""
    bench = Bench(A, B, C, D)
    for n in range(30):
        for peer in (A, B):
            bench.spread(peer, b"new %d" % n)
        bench.judge(b"new %d" % n)
        bench.spread(A if copy else C, b"old %d" % n)
        bench.judge(b"old %d" % n, verdict="ignore")
        if copy:
            bench.spread(C, b"old %d" % n)
        bench.beat()
    assert C in bench.mesh.mesh(TOPIC)
    assert D not in bench.mesh.mesh(TOPIC)


def test_a_mesh_of_peers_that_give_little_takes_in_better_ones() -> None:
    bench = Bench(A, B, C, D, E)
    better, same = peer_of(6), peer_of(7)
    for peer in (better, same):
        bench.link(peer, graft=False)
    bench.spread(better, b"x")
    bench.judge(b"x")
    assert sent(bench.beat(10), Graft) == [(better, Graft(TOPIC))]
    assert bench.mesh.mesh(TOPIC) == [A, B, C, D, E, better]


# ---- scores


def test_scores_stay_within_their_caps_and_fade() -> None:
    bench = Bench(A)
    bench.mesh.worth = lambda _: 1_000
    for n in range(200):
        bench.spread(A, b"%d" % n)
        bench.judge(b"%d" % n)
        bench.mesh._state.scores._linked[A].firsts = 0
    assert bench.mesh.scores()[A] == 50_000 + 20_000
    bench.mesh.worth = lambda _: -1_000
    assert bench.mesh.scores()[A] == 50_000 - 50_000
    bench.mesh.worth = lambda _: 0
    bench.beat(400)
    assert bench.mesh.scores()[A] == 400 * 10
    for _ in range(5_000):
        bench.feed(Misbehaved(A, "bytes"))
    assert bench.mesh.scores()[A] == 4_000 - 5 * 94_000


def test_below_the_thresholds_a_peer_gets_no_messages_and_is_not_heard() -> None:
    bench = Bench(A, B)
    bench.spread(A, b"bad")
    bench.judge(b"bad", verdict="reject")
    assert [peer for peer, _ in sent(bench.feed(Broadcast(TOPIC, (b"1",))))] == [A, B]  # at the threshold
    bench.spread(A, b"bad too")
    bench.judge(b"bad too", verdict="reject")
    assert [peer for peer, _ in sent(bench.feed(Broadcast(TOPIC, (b"2",))))] == [B]
    assert not sent(bench.take(A, IWant(TOPIC, (mid(b"1"),))))
    assert not sent(bench.take(A, IHave(TOPIC, (mid(b"3"),))), IWant)
    assert [peer for peer, _ in sent(bench.beat(), Prune)] == [A]
    bench.spread(A, b"bad again")
    bench.judge(b"bad again", verdict="reject")
    assert bench.spread(A, b"good") == []
    bench.feed(Unlinked(A))
    bench.link(A)
    assert bench.mesh.scores()[A] < -50_000


def test_a_flood_of_first_deliveries_earns_no_more_than_a_few_in_each_heartbeat() -> None:
    bench, config = Bench(A, B), MeshConfig()
    for beat in range(60):
        for n in range(50):
            bench.spread(A, b"replacement %d %d" % (beat, n))
            bench.judge(b"replacement %d %d" % (beat, n))
        for n in range(config.first_heartbeat_max):
            bench.spread(B, b"relayed %d %d" % (beat, n))
            bench.judge(b"relayed %d %d" % (beat, n))
        assert bench.mesh.scores()[A] == bench.mesh.scores()[B]
        if beat == 0:
            assert bench.mesh.scores()[A] == config.first_heartbeat_max * config.first_milli
        bench.beat()


# ---- anything at all

ids = st.lists(st.integers(0, 30).map(lambda n: mid(b"%d" % n)), min_size=1, max_size=6).map(tuple)
items = st.lists(
    st.integers(0, 30).map(lambda n: (b"bad%d" if n % 7 == 6 else b"meh%d" if n % 7 == 5 else b"%d") % n)
    | st.integers(0, 8).map(lambda n: bytes([n]) * 1_500),
    min_size=1,
    max_size=6,
).map(tuple)
topics = st.sampled_from([TOPIC, "other", "foreign"])
peers = st.sampled_from([A, B, C, D, E])
frames = (
    st.builds(Subscribe, st.lists(st.tuples(topics, st.booleans()), min_size=1, max_size=4).map(tuple))
    | st.builds(Graft, topics)
    | st.builds(Prune, topics, st.integers(0, 2**32 - 1))
    | st.builds(IHave, topics, ids)
    | st.builds(IWant, topics, ids)
    | st.builds(IDontWant, topics, ids)
    | st.builds(Spread, topics, st.booleans(), items)
    | st.builds(Ping, st.just(1), st.just(1))
)
kinds = st.sampled_from(["Spread", "IWant", "Graft", "Prune", "Subscribe", "Ping"])
events: st.SearchStrategy[object] = (
    st.builds(Received, peers, frames)
    | st.builds(Linked, peers, st.sampled_from([hello(), hello(DHT)]))
    | st.builds(Unlinked, peers)
    | st.builds(Broadcast, topics, items)
    | st.builds(SendDropped, peers, kinds, ids | st.none() | topics | st.integers())
    | st.builds(Misbehaved, peers, st.just(""))
    | st.builds(MemberUp, peers)
    | st.just(HEARTBEAT)
    | st.just(FLUSH)
    | st.builds(
        lambda mids, verdict: Judged(TOPIC, tuple((m, verdict) for m in mids)),
        ids,
        st.sampled_from(["accept", "ignore", "reject", "later"]),
    )
)
TIGHT = MeshConfig(
    cache_max=8, cache_bytes_max=6_000, seen_max=12, rejected_max=4, unjudged_max=6, unjudged_bytes_max=5_000,
    unjudged_per_peer_max=3, unjudged_per_peer_bytes_max=3_500, wants_max=8, iwant_ids_max=4, dont_want_max=5,
    owed_max=4, backoffs_max=3, bring_burst=20, degree=2, degree_low=1, degree_high=3, degree_score=1, members_max=3,
    silent_heartbeats=4, opportunistic_heartbeats=3, retained_max=2,
)  # fmt: skip


@settings(max_examples=150, deadline=None)
@given(st.lists(st.tuples(events, st.integers(0, 3 * SECOND), st.booleans()), max_size=80), st.integers(0, 2**32))
def test_nothing_that_peers_do_raises_or_breaks_a_bound(steps: list[tuple[object, int, bool]], seed: int) -> None:
    mesh = Mesh(ME, TIGHT, random.Random(seed), (TOPIC, "other"))
    mesh.handle(Boot(1, 0, clean=True), 0)
    now_us = 0
    linked: set[PeerID] = set()
    for peer in (A, B, C):
        linked.add(peer)
        mesh.handle(Linked(peer, hello()), 0)
    for event, wait_us, judged in steps:
        now_us += wait_us
        match event:
            case Linked(peer, said):
                linked = linked | {peer} if said == hello() else linked - {peer}
            case Unlinked(peer):
                linked -= {peer}
            case _:
                pass
        effects = mesh.handle(event, now_us)
        for effect in effects:
            match effect:
                case Send(peer, lane, frame):
                    assert peer in linked
                    assert lane is LANE_OF[type(frame)]
                    assert len(encode_frame(frame)) <= FRAME_BYTES_MAX[lane]
                case Local(Arrived() as arrived) if judged:
                    mesh.handle(judge(arrived), now_us)
                case _:
                    pass
        check_bounds(mesh, linked)


def check_bounds(mesh: Mesh, linked: set[PeerID]) -> None:
    status: Any = mesh.status()
    assert status["cached"] <= TIGHT.cache_max
    assert status["cached_bytes"] <= TIGHT.cache_bytes_max
    assert status["seen"] <= TIGHT.seen_max + TIGHT.rejected_max
    assert status["unjudged"] <= TIGHT.unjudged_max
    assert status["unjudged_bytes"] <= TIGHT.unjudged_bytes_max
    assert status["asked"] <= TIGHT.wants_max
    assert status["members"] <= TIGHT.members_max
    assert set(mesh.scores()) == linked
    unjudged, total = mesh._state.unjudged, [0, 0]
    for peer in linked:
        count, size = unjudged.charged(peer)
        assert count <= TIGHT.unjudged_per_peer_max
        assert size <= TIGHT.unjudged_per_peer_bytes_max
        total = [total[0] + count, total[1] + size]
        record = mesh._state.peers[peer]
        assert len(record.has) <= TIGHT.dont_want_max
        assert len(record.owed) <= TIGHT.owed_max
        assert 0 <= record.owes <= TIGHT.iwant_ids_max
        assert set(record.topics) <= {TOPIC, "other"}
        assert set(record.allowances) | set(record.unechoed) <= {TOPIC, "other"}
    assert total == [len(unjudged), unjudged.bytes]
    assert len(mesh._state.scores) <= len(linked) + TIGHT.retained_max
    assert len(mesh._state._spent) <= TIGHT.retained_max
    for topic in (TOPIC, "other"):
        assert set(mesh.mesh(topic)) <= linked
        assert len(mesh.mesh(topic)) <= TIGHT.degree_high
        assert status["topics"][topic]["backoffs"] <= TIGHT.backoffs_max
