"""Two nodes with one key: every other node tells it, the second of the two stops, and no liar can make a node stop."""

from __future__ import annotations

import random
from typing import Any

from hypothesis import given, strategies as st

from gossip.config import GossipConfig
from gossip.context import Context
from gossip.events import Linked, Publish
from gossip.links import Links
from gossip.lives import LIVES_PER_PEER_MAX, TELL_EVERY_US, Lives
from gossip.record_map import RecordMap
from protocol.capability import RECORD_TTL_MS, PeerValue, make_record
from protocol.clock import SwarmClock
from protocol.errors import ConfigError
from protocol.identity import KeyPair
from protocol.machine import Boot, Effect, JobIds, Local, Notify, Persist, Received, Send
from protocol.messages import Records
from protocol.peer import PeerID
from tests.gossip_world import GENESIS, NOW_MS, MemoryStore, chain_of, hello, seconds, verify
from tests.strategies import keypair

ME, PEER, OTHER = (keypair(name) for name in ("me", "peer", "other"))
PEER_ID = PeerID(PEER.public)
HERE, THERE, ELSEWHERE = (f"/ip4/10.0.0.{host}/tcp/4001" for host in (1, 2, 3))


class Node:
    """Links and records of one node that has one link, to PEER; frames to it are in `sent`."""

    def __init__(self, addr: str, start_ms: int, store: MemoryStore | None = None) -> None:
        self.clock = SwarmClock(0)
        self.store = store or MemoryStore()
        config = GossipConfig()
        jobs = JobIds()
        ctx = Context(ME, GENESIS, chain_of(ME), self.clock, config, jobs, store=self.store, verify=verify)
        self.links = Links(PeerID(ME.public), GENESIS, self.clock, config, random.Random(1))
        self.records = RecordMap(ctx, random.Random(3))
        self.start_ms = start_ms
        self.stopped: ConfigError | None = None
        self.sent: list[bytes] = []
        self.clock.set_wall_offset(start_ms * 1000)
        self.tell(Boot(1, start_ms * 1000, clean=True), start_ms)
        self.tell(Publish(PeerValue(addrs=(addr,))), start_ms)
        self.tell(Linked(PEER_ID, hello(PEER)), start_ms)

    def tell(self, event: object, at_ms: int) -> None:
        queue = [event]
        while queue:
            inner = queue.pop(0)
            effects: list[Effect] = []
            for machine in (self.links, self.records):
                effects += machine.handle(inner, (at_ms - self.start_ms) * 1000)
            for effect in effects:
                match effect:
                    case Local(local):
                        queue.append(local)
                    case Persist(_, rows):
                        self.store.apply(rows)
                    case Send(_, _, Records(wires)):
                        self.sent += wires
                    case Notify("identity_clash", ConfigError() as error):
                        self.stopped = error
                    case _:
                        pass

    def get(self, *wires: bytes, at_ms: int) -> None:
        for wire in wires:
            self.tell(Received(PEER_ID, Records((wire,))), at_ms)

    @property
    def told(self) -> list[str]:
        return [refusal.reason for refusal in self.links.refusals if refusal.code == "identity_clash"]


def record(addr: str, at_ms: int, keys: KeyPair = ME, seq: int | None = None) -> bytes:
    return make_record(keys, PeerValue(addrs=(addr,)), seq=at_ms if seq is None else seq, issued_ms=at_ms)


def exchange(first: Node, second: Node, at_ms: int) -> int:
    """Both push what they have through their peer until nothing is new; the time after."""
    for _ in range(20):
        mine, yours = first.sent, second.sent
        first.sent, second.sent = [], []
        if not mine and not yours:
            break
        at_ms += 10
        first.get(*yours, at_ms=at_ms)
        if second.stopped is None:
            second.get(*mine, at_ms=at_ms)
    return at_ms


@given(later_ms=st.integers(1, RECORD_TTL_MS - 1000), lost_database=st.booleans())
def test_of_two_nodes_with_one_key_the_second_stops_and_the_first_says_so(
    *, later_ms: int, lost_database: bool
) -> None:
    first = Node(HERE, NOW_MS)
    copied = MemoryStore() if lost_database else first.store
    second = Node(THERE, NOW_MS + later_ms, copied)
    exchange(first, second, NOW_MS + later_ms)
    assert second.stopped is not None
    assert HERE in second.stopped.message
    assert "masos init" in second.stopped.hint
    assert first.stopped is None
    assert len(first.told) == 1
    assert THERE in first.told[0]


def test_the_first_ones_address_is_the_one_that_stays_published() -> None:
    first = Node(HERE, NOW_MS)
    second = Node(THERE, NOW_MS + 60_000)
    at_ms = exchange(first, second, NOW_MS + 60_000)
    own = [each for each in first.records.live((at_ms - NOW_MS) * 1000) if each.publisher == ME.public]
    assert [each.value for each in own] == [PeerValue(addrs=(HERE,))]


@given(st.lists(st.tuples(st.integers(1, 50), st.sampled_from((HERE, THERE, ELSEWHERE))), min_size=1, max_size=6))
def test_a_restarted_node_never_takes_its_earlier_lives_for_another_node(lives: list[tuple[int, str]]) -> None:
    """Whatever addresses they had, and whichever of their records its peers still tell, in any order and often."""
    store, at_ms, wires = MemoryStore(), NOW_MS, []
    for gap_ms, addr in lives:
        at_ms += gap_ms
        node = Node(addr, at_ms, store)
        wires += node.sent
    node.get(*reversed(wires), *wires, *wires, at_ms=at_ms + 100)
    assert node.stopped is None
    assert node.told == []


def test_a_clock_that_was_set_back_between_two_lives_stops_nobody() -> None:
    store = MemoryStore()
    before = Node(HERE, NOW_MS, store)
    after = Node(THERE, NOW_MS - 300_000, store)
    after.get(*before.sent, *before.sent, at_ms=NOW_MS - 299_000)
    assert (after.stopped, after.told) == (None, [])


@given(st.lists(st.tuples(st.sampled_from((HERE, THERE)), st.integers(-1000, 100_000)), max_size=8))
def test_nobody_without_the_key_can_make_a_node_stop(records: list[tuple[str, int]]) -> None:
    node = Node(HERE, NOW_MS)
    forged = [record(addr, NOW_MS + at_ms, OTHER) for addr, at_ms in records]
    mixed = [bytes(own[:40] + lie[40:]) for own, lie in zip([record(THERE, NOW_MS)] * len(forged), forged, strict=True)]
    node.get(*forged, *mixed, at_ms=NOW_MS + 100_000)
    assert (node.stopped, node.told) == (None, [])


def test_two_that_both_count_as_first_do_not_publish_against_each_other_without_end() -> None:
    """Apart at their starts, each is given only what the other signed since."""
    node = Node(HERE, NOW_MS)
    node.sent.clear()
    for second in range(120):
        node.get(
            record(THERE, NOW_MS + 1000 * (second + 1), seq=NOW_MS + 10**6 * (second + 1)), at_ms=NOW_MS + 1000 * second
        )
    assert node.stopped is None
    assert len(node.told) == 2
    assert len(node.sent) == 2


# ---- others


def heard(lives: Lives, inst: int, addr: str, at_us: int = 0, **changes: Any) -> object:
    return lives.heard(PEER_ID, hello(PEER, inst=inst, listen_addrs=(addr,), **changes), at_us)


def test_a_life_that_comes_back_is_told_once_a_minute() -> None:
    lives = Lives(10)
    assert heard(lives, 1, HERE) is None
    assert heard(lives, 1, HERE) is None  # the same link, lost and found
    assert heard(lives, 7, THERE) is None  # a restart, as far as anybody can tell
    assert heard(lives, 1, HERE) == (7, (THERE,))
    assert heard(lives, 7, THERE) is None  # told a moment ago
    assert heard(lives, 1, HERE, TELL_EVERY_US) == (7, (THERE,))


def test_equal_incarnations_at_two_addresses_are_two_lives() -> None:
    lives = Lives(10)
    assert [heard(lives, 4, addr) for addr in (HERE, THERE, HERE)] == [None, None, (4, (THERE,))]


@given(st.lists(st.sampled_from((HERE, THERE, ELSEWHERE)), max_size=30))
def test_restarts_are_never_told(addrs: list[str]) -> None:
    lives = Lives(10)
    assert all(heard(lives, inst, addr, seconds(inst)) is None for inst, addr in enumerate(addrs, 1))


def test_memory_of_lives_is_bounded() -> None:
    lives = Lives(3)
    for number in range(50):
        peer = PeerID(bytes([number]) * 32)
        for inst in range(20):
            lives.heard(peer, hello(PEER, inst=inst), 0)
    assert len(lives._lives) == 3
    assert all(len(each) == LIVES_PER_PEER_MAX for each in lives._lives.values())
