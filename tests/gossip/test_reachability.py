"""The verdict follows what peers find, nobody can be made a weapon by asking, and a relay's place is kept while needed.

`Net` wires a few machines through encoded frames in virtual time; behind `nat` nobody gets through from outside.
"""

from __future__ import annotations

import heapq
import random
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given, settings, strategies as st

from gossip.events import Linked, Publish, Unlinked
from gossip.reach import (
    NOT_TRIED,
    RELAY_ROLE,
    InboundLink,
    ReachabilityChanged,
    ReachConfig,
    Reached,
    ReachTest,
    Reserve,
    Reserved,
    testable,
)
from gossip.reachability import FAILURES, INBOUND_MAX, MACHINE, Reachability
from protocol import versions
from protocol.admission import MEMBER
from protocol.capability import PeerValue
from protocol.errors import EngineError, PeerUnreachable
from protocol.machine import (
    AbortJob,
    Effect,
    JobDone,
    JobFailed,
    JobId,
    JobIds,
    Local,
    Received,
    Send,
    SendDropped,
    SetTimer,
    StartJob,
    Stopping,
    Suspended,
    TimerFired,
    TimerKey,
)
from protocol.messages import DialBack, DialedBack, decode_frame, encode_frame
from protocol.peer import Multiaddr, PeerID, peer_text, plain_ip
from protocol.transport import Lane
from tests.gossip_world import hello, seconds
from tests.strategies import keypair

testable.__test__ = False  # type: ignore[attr-defined]  # a rule of the product, not a test
KEYS = [keypair(f"reach {n}") for n in range(8)]
PEERS = [PeerID(keys.public) for keys in KEYS]
ASK = TimerKey(MACHINE, "ask")
FAST = seconds(0.01)


def addr_of(number: int) -> str:
    return f"/ip4/10.0.0.{number + 1}/tcp/4001"


def sends(effects: list[Effect], kind: type[Any]) -> list[Any]:
    return [e.frame for e in effects if isinstance(e, Send) and isinstance(e.frame, kind)]


def jobs_of(effects: list[Effect]) -> list[StartJob]:
    return [e for e in effects if isinstance(e, StartJob)]


def news(effects: list[Effect]) -> list[ReachabilityChanged]:
    return [e.event for e in effects if isinstance(e, Local) and isinstance(e.event, ReachabilityChanged)]


def made(config: ReachConfig | None = None) -> Reachability:
    jobs = JobIds()
    jobs.start(1)
    return Reachability(PEERS[0], config or ReachConfig(), random.Random(1), jobs)


def greeting(number: int, *roles: str, tests: bool = True) -> Linked:
    features = (versions.DIAL_BACK,) if tests else ()
    return Linked(PEERS[number], hello(KEYS[number], features=features, roles=(MEMBER, *roles)))


class Net:
    """Machines on links; `nat` refuse dials, `dark` never answer a frame."""

    def __init__(self, nat: set[int] | None = None, config: ReachConfig | None = None) -> None:
        self.now_us = 0
        self.nat = nat or set()
        self.config = config or ReachConfig()
        self.nodes: dict[int, Reachability] = {}
        self.news: dict[int, list[ReachabilityChanged]] = {}
        self.jobs: list[tuple[int, object]] = []
        self.cut: Callable[[int, int, object], bool] = lambda *_: False
        self.places: dict[int, int] = {}
        self._agenda: list[tuple[int, int, int, object]] = []
        self._timers: dict[tuple[int, TimerKey], int] = {}
        self._ticket = 0

    def add(self, number: int, *addrs: str, relay: str = "off") -> Reachability:
        config = ReachConfig(**{**vars_of(self.config), "relay": relay})
        ids = JobIds()
        ids.start(1)
        self.nodes[number] = Reachability(PEERS[number], config, random.Random(number), ids)
        self.news[number] = []
        self.tell(number, Publish(PeerValue(addrs=addrs or (addr_of(number),), cert=())))
        return self.nodes[number]

    def link(self, dialler: int, listener: int, *roles: str) -> None:
        """Roles are the listener's."""
        self.tell(dialler, greeting(listener, *roles))
        self.tell(listener, greeting(dialler))
        self.tell(listener, InboundLink(PEERS[dialler]))

    def unlink(self, a: int, b: int) -> None:
        self.tell(a, Unlinked(PEERS[b]))
        self.tell(b, Unlinked(PEERS[a]))

    def run(self, us: int) -> None:
        end_us = self.now_us + us
        while self._agenda and self._agenda[0][0] <= end_us:
            self.now_us, _, number, event = heapq.heappop(self._agenda)
            if isinstance(event, TimerFired):
                if self._timers.get((number, event.key)) != self.now_us:
                    continue
                del self._timers[number, event.key]
            self.tell(number, event)
        self.now_us = end_us

    def tell(self, number: int, event: object) -> None:
        for effect in self.nodes[number].handle(event, self.now_us):
            self._carry_out(number, effect)

    def _carry_out(self, number: int, effect: Effect) -> None:
        match effect:
            case Send(peer, Lane.CONTROL, frame):
                if not self.cut(number, PEERS.index(peer), frame):
                    told = Received(PEERS[number], decode_frame(encode_frame(frame), Lane.CONTROL))
                    self._later(FAST, PEERS.index(peer), told)
            case SetTimer(key, at_us):
                self._timers[number, key] = at_us
                self._later(at_us - self.now_us, number, TimerFired(key))
            case StartJob(job, ReachTest(peer, addrs) as spec):
                self.jobs.append((number, spec))
                found = () if PEERS.index(peer) in self.nat else addrs
                self._later(FAST, number, JobDone(job, Reached(found, "" if found else "no answer")))
            case StartJob(job, Reserve(relay)):
                self.jobs.append((number, effect.spec))
                place = f"/ip4/10.0.0.9/tcp/1/p2p/{peer_text(relay)}/p2p-circuit/p2p/{peer_text(PEERS[number])}"
                self._later(FAST, number, JobDone(job, Reserved((place,), seconds(600))))
            case Local(ReachabilityChanged() as said):
                self.news[number].append(said)
            case _:
                pass

    def _later(self, us: int, number: int, event: object) -> None:
        self._ticket += 1
        heapq.heappush(self._agenda, (self.now_us + us, self._ticket, number, event))


def vars_of(config: ReachConfig) -> dict[str, Any]:
    return {name: getattr(config, name) for name in config.__dataclass_fields__}


# ---- verdicts


def test_a_node_that_a_peer_reached_is_direct() -> None:
    net = Net()
    net.add(0), net.add(1)
    net.link(0, 1)
    assert net.nodes[0].verdict == "unknown"
    net.run(seconds(2))
    assert net.nodes[0].verdict == "direct"
    assert net.news[0] == [ReachabilityChanged("direct", 1)]


def test_who_was_dialled_is_direct_at_once() -> None:
    net = Net()
    net.add(0), net.add(1)
    net.link(0, 1)
    assert net.nodes[1].verdict == "direct"


def test_behind_nat_a_node_is_outbound_only_after_two_peers_failed() -> None:
    net = Net(nat={0})
    for number in range(3):
        net.add(number)
    net.cut = lambda source, _target, frame: source == 2 and isinstance(frame, DialedBack)
    net.link(0, 1)
    net.link(0, 2)
    net.run(seconds(5))
    assert net.nodes[0].verdict == "unknown"
    net.cut = lambda *_: False
    net.run(seconds(120))
    assert net.nodes[0].verdict == "outbound-only"
    assert not net.nodes[0].serving
    assert net.nodes[0].status(net.now_us)["reasons"]


def test_one_peer_is_enough_where_there_is_only_one() -> None:
    net = Net(nat={0})
    net.add(0), net.add(1)
    net.link(0, 1)
    net.run(seconds(3))
    assert net.nodes[0].verdict == "outbound-only"


def test_without_an_address_there_is_nothing_to_ask() -> None:
    net = Net()
    net.add(1)
    net.nodes[0] = made()
    net.news[0] = []
    net.tell(0, Publish(PeerValue(addrs=(), cert=())))
    net.link(0, 1)
    net.run(seconds(100))
    assert net.nodes[0].verdict == "outbound-only"
    assert net.jobs == [(0, ReachTest(PEERS[1], (addr_of(1),)))]


def test_an_inbound_link_outweighs_failed_tests() -> None:
    net = Net(nat={0})
    for number in range(4):
        net.add(number)
    for number in (1, 2):
        net.link(0, number)
    net.link(3, 0)
    net.run(seconds(60))
    assert net.nodes[0].verdict == "direct"


def test_peers_without_the_feature_are_never_asked() -> None:
    node = made()
    node.handle(Publish(PeerValue(addrs=(addr_of(0),), cert=())), 0)
    node.handle(greeting(1, tests=False), 0)
    assert sends(node.handle(TimerFired(ASK), seconds(1)), DialBack) == []
    assert node.verdict == "unknown"


def test_three_distinct_peers_are_asked_of_many() -> None:
    net = Net()
    for number in range(7):
        net.add(number)
    for number in range(1, 7):
        net.link(0, number)
    net.run(seconds(30))
    asked = [spec.peer for number, spec in net.jobs if isinstance(spec, ReachTest) and spec.peer == PEERS[0] and number]
    assert len(asked) == ReachConfig().asked_max
    assert net.nodes[0].status(net.now_us)["seen_from"] == 3


def test_the_verdict_is_looked_at_again() -> None:
    net = Net()
    net.add(0), net.add(1)
    net.link(0, 1)
    net.run(seconds(5))
    net.nat.add(0)
    net.run(seconds(2_000))
    assert net.nodes[0].verdict == "outbound-only"
    assert [said.verdict for said in net.news[0]] == ["direct", "outbound-only"]


def test_other_addresses_are_another_question() -> None:
    net = Net(nat={0})
    for number in range(3):
        net.add(number)
    net.link(0, 1), net.link(0, 2)
    net.run(seconds(30))
    assert net.nodes[0].verdict == "outbound-only"
    net.nat.clear()
    net.tell(0, Publish(PeerValue(addrs=("/ip4/10.0.9.9/tcp/1",), cert=())))
    assert net.nodes[0].verdict == "unknown"
    net.run(seconds(60))
    assert net.nodes[0].verdict == "direct"


def test_evidence_grows_old() -> None:
    net = Net()
    net.add(0), net.add(1)
    net.link(1, 0)
    net.unlink(0, 1)
    assert net.nodes[0].verdict == "direct"
    net.run(2 * ReachConfig().evidence_us)
    assert net.nodes[0].verdict == "unknown"


def test_a_refusal_to_test_is_no_failure_and_is_asked_again() -> None:
    node = made()
    node.handle(Publish(PeerValue(addrs=(addr_of(0),), cert=())), 0)
    node.handle(greeting(1), 0)
    (frame,) = sends(node.handle(TimerFired(ASK), seconds(1)), DialBack)
    node.handle(Received(PEERS[1], DialedBack(frame.req, (), f"{NOT_TRIED}: busy")), seconds(2))
    assert node.verdict == "unknown"
    assert len(sends(node.handle(TimerFired(ASK), seconds(40)), DialBack)) == 1


def test_only_the_asked_peer_answers_and_only_for_what_was_asked() -> None:
    node = made()
    node.handle(Publish(PeerValue(addrs=(addr_of(0),), cert=())), 0)
    node.handle(greeting(1), 0), node.handle(greeting(2), 0)
    asked = {
        effect.peer: effect.frame
        for effect in node.handle(TimerFired(ASK), seconds(1))
        if isinstance(effect, Send) and isinstance(effect.frame, DialBack)
    }
    node.handle(Received(PEERS[3], DialedBack(asked[PEERS[1]].req, (addr_of(0),), "")), seconds(2))
    node.handle(Received(PEERS[2], DialedBack(asked[PEERS[1]].req, (addr_of(0),), "")), seconds(2))
    assert node.verdict == "unknown"
    node.handle(Received(PEERS[1], DialedBack(asked[PEERS[1]].req, (addr_of(7),), "")), seconds(2))
    node.handle(Received(PEERS[2], DialedBack(asked[PEERS[2]].req, (addr_of(7),), "")), seconds(2))
    assert node.verdict == "outbound-only"


def test_a_dropped_question_is_asked_again() -> None:
    node = made()
    node.handle(Publish(PeerValue(addrs=(addr_of(0),), cert=())), 0)
    node.handle(greeting(1), 0)
    (frame,) = sends(node.handle(TimerFired(ASK), seconds(1)), DialBack)
    node.handle(SendDropped(PEERS[1], "DialBack", frame.req), seconds(1))
    assert len(sends(node.handle(TimerFired(ASK), seconds(40)), DialBack)) == 1


def test_stopping_ends_it_all() -> None:
    node = made()
    node.handle(Stopping(0), 0)
    assert node.handle(greeting(1), 0) == []
    assert node.handle(Received(PEERS[1], DialBack(1, (addr_of(1),))), 0) == []


def test_after_a_sleep_it_asks_again() -> None:
    node = made()
    assert any(isinstance(effect, SetTimer) for effect in node.handle(Suspended(seconds(60)), seconds(100)))


# ---- testing for others


def test_who_is_not_linked_gets_nothing_tested() -> None:
    assert made().handle(Received(PEERS[1], DialBack(1, (addr_of(1),))), 0) == []


def test_one_test_at_a_time_and_everybody_is_answered() -> None:
    node = made()
    effects: list[Effect] = []
    for number in range(1, 8):
        node.handle(greeting(number), 0)
        effects += node.handle(Received(PEERS[number], DialBack(number, (addr_of(number),))), 0)
    assert len(jobs_of(effects)) == 1
    answered = sends(effects, DialedBack)
    assert all(frame.reason.startswith(NOT_TRIED) for frame in answered)
    running = jobs_of(effects)
    while running:
        more = node.handle(JobDone(running[0].job, Reached((), "no answer")), 0)
        answered += sends(more, DialedBack)
        running = jobs_of(more)
    assert sorted(frame.req for frame in answered) == list(range(1, 8))


def test_a_peer_that_asks_too_often_is_put_off() -> None:
    node = made()
    node.handle(greeting(1), 0)
    (job,) = jobs_of(node.handle(Received(PEERS[1], DialBack(1, (addr_of(1),))), 0))
    node.handle(JobDone(job.job, Reached((), "")), 1)
    again = node.handle(Received(PEERS[1], DialBack(2, (addr_of(1),))), seconds(1))
    assert jobs_of(again) == []
    node.handle(Unlinked(PEERS[1]), seconds(2)), node.handle(greeting(1), seconds(2))
    assert jobs_of(node.handle(Received(PEERS[1], DialBack(3, (addr_of(1),))), seconds(3))) == []
    later = node.handle(Received(PEERS[1], DialBack(4, (addr_of(1),))), seconds(11))
    assert len(jobs_of(later)) == 1


def test_tests_in_all_are_bounded_by_the_minute() -> None:
    config = ReachConfig(serve_every_us=0, served_per_min_max=5)
    node = made(config)
    node.handle(greeting(1), 0)
    done = 0
    for n in range(100):
        effects = node.handle(Received(PEERS[1], DialBack(n, (addr_of(1),))), seconds(n / 10))
        for job in jobs_of(effects):
            done += 1
            node.handle(JobDone(job.job, Reached((), "")), seconds(n / 10))
    assert done == 5


def test_a_test_ends_with_the_link_of_its_asker() -> None:
    node = made()
    node.handle(greeting(1), 0), node.handle(greeting(2), 0)
    (first,) = jobs_of(node.handle(Received(PEERS[1], DialBack(1, (addr_of(1),))), 0))
    node.handle(Received(PEERS[2], DialBack(2, (addr_of(2),))), 0)
    effects = node.handle(Unlinked(PEERS[1]), 1)
    assert AbortJob(first.job) in effects
    assert [job.spec for job in jobs_of(effects)] == [ReachTest(PEERS[2], (addr_of(2),))]


def test_a_test_that_fails_here_says_nothing_about_the_peer() -> None:
    node = made()
    node.handle(greeting(1), 0)
    (job,) = jobs_of(node.handle(Received(PEERS[1], DialBack(1, (addr_of(1),))), 0))
    (frame,) = sends(node.handle(JobFailed(job.job, EngineError("too much work")), 0), DialedBack)
    assert frame.reason.startswith(NOT_TRIED)


@pytest.mark.parametrize(
    ("addr", "link_host", "ok"),
    [
        ("/ip4/203.0.113.7/tcp/1", "203.0.113.7", True), ("/ip4/203.0.114.7/tcp/1", "8.8.8.8", False),
        ("/ip4/10.0.0.1/tcp/1", "192.168.1.5", False), ("/ip4/10.0.0.1/tcp/1", "8.8.8.8", False),
        ("/ip4/192.168.1.5/tcp/1", "192.168.1.5", True), ("/ip4/192.168.1.1/tcp/80", "192.168.1.5", False),
        ("/ip4/192.168.1.1/tcp/80", "10.8.0.7", False), ("/ip4/172.17.0.1/tcp/2375", "10.8.0.7", False),
        ("/ip6/fd00::1/tcp/1", "fd00::9", True), ("/ip6/fd00:0:0:1::1/tcp/1", "fd00::9", False),
        ("/ip6/fd00::1/tcp/1", "10.8.0.7", False), ("/ip6/::1/tcp/1", "fd00::9", False),
        ("/ip6/2606:4700::1/tcp/1", "2606:4700::2", False), ("/ip6/2606:4700::1/tcp/1", "2606:4700::1", True),
        ("/ip4/8.8.8.8/tcp/1", "10.0.0.1", False), ("/ip4/127.0.0.1/tcp/1", "127.0.0.1", True),
        ("/ip4/127.0.0.2/tcp/1", "127.0.0.1", True), ("/ip4/127.0.0.1/tcp/1", "10.0.0.1", False),
        ("/ip4/10.0.0.1/tcp/1", "127.0.0.1", False), ("/ip4/8.8.8.8/tcp/1", "::ffff:8.8.8.8", True),
        ("/ip6/::1/tcp/1", "127.0.0.1", True), ("/ip4/0.0.0.0/tcp/1", "127.0.0.1", False),
        ("/ip4/127.0.0.1/tcp/0", "127.0.0.1", False), ("/dns4/example.org/tcp/1", "127.0.0.1", False),
        (f"/ip4/127.0.0.1/tcp/1/p2p/{peer_text(PEERS[1])}", "127.0.0.1", True),
        (f"/ip4/127.0.0.1/tcp/1/p2p/{peer_text(PEERS[2])}", "127.0.0.1", False),
        (f"/ip4/127.0.0.1/tcp/1/p2p/{peer_text(PEERS[2])}/p2p-circuit/p2p/{peer_text(PEERS[1])}", "127.0.0.1", False),
        ("/ip4/127.0.0.1/tcp/1", None, False),
    ],
)  # fmt: skip
def test_a_node_dials_only_where_the_asker_is(addr: str, link_host: str | None, *, ok: bool) -> None:
    found = testable(PEERS[1], (addr,), link_host)
    assert [text for text, _ in found.addrs] == ([addr] if ok else [])
    assert bool(found.refused) is not ok


@given(st.lists(st.ip_addresses(v=4), max_size=8), st.ip_addresses(v=4).filter(lambda ip: not ip.is_loopback))
def test_nobody_makes_a_node_dial_a_third_party(hosts: list[Any], link: Any) -> None:
    addrs = tuple(f"/ip4/{host}/tcp/80" for host in [*hosts, link])
    assert {addr.host for _, addr in testable(PEERS[1], addrs, str(link)).addrs} <= {str(link)}


@given(st.lists(st.ip_addresses(), max_size=8), st.ip_addresses(network="127.0.0.0/8"))
def test_a_loopback_link_makes_a_node_dial_itself_at_most(hosts: list[Any], link: Any) -> None:
    addrs = tuple(f"/ip{host.version}/{host}/tcp/80" for host in [*hosts, link])
    assert all(plain_ip(addr.host).is_loopback for _, addr in testable(PEERS[1], addrs, str(link)).addrs)


# ---- a place at a relay


def relayed(net: Net) -> None:
    net.add(1), net.add(2), net.add(0, relay="client")
    net.link(0, 1, RELAY_ROLE)
    net.link(0, 2)


def test_an_outbound_only_client_takes_a_place_and_keeps_it() -> None:
    net = Net(nat={0})
    relayed(net)
    net.run(seconds(10))
    node = net.nodes[0]
    assert node.verdict == "relay"
    assert not node.serving
    (addr,) = net.news[0][-1].relay_addrs
    assert Multiaddr.parse(addr).relay == PEERS[1]
    net.run(seconds(3_000))
    asked = [spec for _, spec in net.jobs if isinstance(spec, Reserve)]
    assert 10 <= len(asked) <= 12
    assert node.verdict == "relay"


def test_the_announced_circuit_is_no_new_address() -> None:
    net = Net(nat={0})
    relayed(net)
    net.run(seconds(10))
    net.tell(0, Publish(PeerValue(addrs=(addr_of(0), *net.news[0][-1].relay_addrs), cert=())))
    assert net.nodes[0].verdict == "relay"


def test_a_place_goes_with_its_link_and_another_relay_is_taken() -> None:
    net = Net(nat={0})
    relayed(net)
    net.add(3)
    net.link(0, 3, RELAY_ROLE)
    net.run(seconds(20))
    first = net.nodes[0].status(net.now_us)["relay"]
    place = Multiaddr.parse(net.news[0][-1].relay_addrs[0]).relay
    assert place is not None
    net.unlink(0, PEERS.index(place))
    net.run(seconds(1))
    assert net.nodes[0].verdict == "relay"
    assert net.nodes[0].status(net.now_us)["relay"] != first


def test_who_becomes_reachable_needs_no_relay() -> None:
    net = Net(nat={0})
    relayed(net)
    net.run(seconds(10))
    net.add(4)
    net.link(4, 0)
    assert net.news[0][-1] == ReachabilityChanged("direct", 1)


def test_without_the_flag_no_relay_is_asked() -> None:
    net = Net(nat={0})
    net.add(1), net.add(0)
    net.link(0, 1, RELAY_ROLE)
    net.run(seconds(100))
    assert net.nodes[0].verdict == "outbound-only"
    assert not [spec for _, spec in net.jobs if isinstance(spec, Reserve)]


def test_a_relay_that_refuses_is_left_alone_for_a_while() -> None:
    node = made(ReachConfig(relay="client"))
    node.handle(Publish(PeerValue(addrs=(), cert=())), 0)
    (job,) = jobs_of(node.handle(greeting(1, RELAY_ROLE), 0))
    assert job.spec == Reserve(PEERS[1])
    effects = node.handle(JobFailed(job.job, PeerUnreachable("full")), seconds(1))
    assert jobs_of(effects) == []
    assert jobs_of(node.handle(greeting(2), seconds(2))) == []
    (timer,) = [e for e in effects if isinstance(e, SetTimer)]
    assert timer.at_us == seconds(61)
    assert len(jobs_of(node.handle(TimerFired(timer.key), timer.at_us))) == 1


# ---- whatever comes

ROLES = ((MEMBER, True), (MEMBER, False), (RELAY_ROLE, True), (RELAY_ROLE, False))

greetings = [greeting(number, role, tests=tests) for number in range(1, 8) for role, tests in ROLES]
events = st.one_of(
    st.sampled_from(greetings),
    st.builds(Unlinked, st.sampled_from(PEERS[1:])),
    st.builds(InboundLink, st.sampled_from(PEERS[1:])),
    st.builds(
        Received,
        st.sampled_from(PEERS[1:]),
        st.builds(DialBack, st.integers(0, 9), st.just((addr_of(1), "nonsense")))
        | st.builds(DialedBack, st.integers(0, 9), st.sampled_from([(), (addr_of(0),), (addr_of(5),)]), st.just("x")),
    ),
    st.builds(TimerFired, st.sampled_from((ASK, TimerKey(MACHINE, "relay")))),
    st.builds(
        JobDone, st.builds(JobId, st.just(1), st.integers(1, 9)),
        st.sampled_from([Reached((addr_of(1),), ""), Reserved((), 5), Reserved(("x",), 10**9), None]),
    ),
    st.builds(lambda n: Publish(PeerValue(addrs=tuple(addr_of(i) for i in range(n)), cert=())), st.integers(0, 2)),
)  # fmt: skip


@settings(max_examples=200)
@given(st.lists(st.tuples(events, st.integers(0, seconds(400))), max_size=60))
def test_any_history_keeps_the_bounds(history: list[tuple[object, int]]) -> None:
    config = ReachConfig(relay="client")
    node, now_us = made(config), 0
    linked: set[PeerID] = set()
    running: dict[JobId, object] = {}
    last = ReachabilityChanged("unknown", 0)
    for event, after_us in history:
        now_us += after_us
        match event:
            case Linked(peer, _):
                linked.add(peer)
            case Unlinked(peer):
                linked.discard(peer)
            case JobDone(job):
                running.pop(job, None)
            case _:
                pass
        effects = node.handle(event, now_us)
        for effect in effects:
            match effect:
                case StartJob(job, spec):
                    assert spec.peer in linked if isinstance(spec, ReachTest) else spec.relay in linked  # type: ignore[attr-defined]
                    running[job] = spec
                case AbortJob(job):
                    running.pop(job, None)
                case Send(peer, _, DialBack(_, addrs)):
                    assert peer in linked
                    assert addrs
                case SetTimer(_, at_us):
                    assert at_us > now_us
                case _:
                    pass
        for said in news(effects):
            assert (said.verdict, said.relay_addrs) != (last.verdict, last.relay_addrs)
            last = said
        assert last.verdict == node.verdict
        assert sum(isinstance(spec, ReachTest) for spec in running.values()) <= 1
        assert sum(isinstance(spec, Reserve) for spec in running.values()) <= 1
        assert len(node.status(now_us)["reasons"]) <= config.asked_max + INBOUND_MAX + 1  # type: ignore[arg-type]
    assert config.asked_max >= FAILURES
