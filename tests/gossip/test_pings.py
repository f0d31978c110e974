"""Who asks for a round trip gets an answer, always, and only from the peer that was asked."""

from __future__ import annotations

import itertools
from typing import Any

import pytest

from gossip.links import MACHINE
from gossip.pings import PING_WAIT_US, PINGS_MAX, PingPeer
from protocol.errors import NotFound, PeerUnreachable, Refused, RequestTimeout, UsageError
from protocol.identity import KeyPair
from protocol.machine import (
    CancelTimer,
    Command,
    DialFailed,
    Effect,
    PeerDown,
    PeerUp,
    Received,
    Reply,
    Send,
    SendDropped,
    SetTimer,
    TimerFired,
    TimerKey,
)
from protocol.messages import Ping, Pong
from protocol.peer import PeerID, peer_text
from tests.gossip_world import NOW_MS, World, hello, seconds
from tests.strategies import keypair

PEER, OTHER = keypair("peer"), keypair("other")
PEER_ID = PeerID(PEER.public)


class Desk:
    """A node, and somebody who asks it."""

    def __init__(self) -> None:
        self.world = World()
        self.node = self.world.add("node")
        self.now_us = 0
        self._tickets = itertools.count(1)

    def tell(self, event: object, after_us: int = 0) -> list[Effect]:
        self.now_us += after_us
        return self.node.links.handle(event, self.now_us)

    def up(self, keys: KeyPair = PEER) -> None:
        self.tell(PeerUp(PeerID(keys.public), hello(keys)))

    def ask(self, name: str = peer_text(PEER.public)) -> list[Effect]:
        return self.tell(Command(next(self._tickets), PingPeer(name)))

    def pong(self, req: int, keys: KeyPair = PEER, after_us: int = 0) -> list[Effect]:
        return self.tell(Received(PeerID(keys.public), Pong(req, NOW_MS)), after_us)


def replies(effects: list[Effect]) -> list[Any]:
    return [effect.result for effect in effects if isinstance(effect, Reply)]


def pings(effects: list[Effect]) -> list[int]:
    return [effect.frame.req for effect in effects if isinstance(effect, Send) and isinstance(effect.frame, Ping)]


def test_a_round_trip_is_the_time_between_ping_and_pong() -> None:
    desk = Desk()
    desk.up()
    effects = desk.ask()
    (req,) = pings(effects)
    assert [e.at_us for e in effects if isinstance(e, SetTimer)] == [PING_WAIT_US]
    answered = desk.pong(req, after_us=1_234)
    assert replies(answered) == [{"peer": peer_text(PEER.public), "rtt_us": 1_234}]
    assert [e.key for e in answered if isinstance(e, CancelTimer)] == [TimerKey(MACHINE, "pong", req)]
    assert not replies(desk.pong(req))
    view = desk.node.links.view_of(PEER_ID)
    assert view is not None
    assert (view.rtt_us, view.heard_us) == (1_234, 1_234)


def test_only_the_peer_that_was_asked_can_answer() -> None:
    desk = Desk()
    desk.up()
    desk.up(OTHER)
    (req,) = pings(desk.ask())
    assert not replies(desk.pong(req, OTHER))
    assert not replies(desk.pong(req + 1))
    assert replies(desk.pong(req))


def test_silence_a_lost_link_and_a_full_queue_are_answers_too() -> None:
    for end, error in (
        (lambda req: TimerFired(TimerKey(MACHINE, "pong", req)), RequestTimeout),
        (lambda _: PeerDown(PEER_ID, "gone"), PeerUnreachable),
        (lambda req: SendDropped(PEER_ID, "Ping", req), PeerUnreachable),
    ):
        desk = Desk()
        desk.up()
        (req,) = pings(desk.ask())
        found = replies(desk.tell(end(req)))
        assert [type(each) for each in found] == [error]
        assert found[0].hint
        assert not replies(desk.tell(end(req)))
        desk.up()
        assert not replies(desk.pong(req))


def test_a_dropped_ping_of_the_timer_is_nobodys_answer() -> None:
    desk = Desk()
    desk.up()
    desk.ask()
    assert not replies(desk.tell(SendDropped(PEER_ID, "Ping", None)))


@pytest.mark.parametrize(
    ("name", "error"),
    [
        (peer_text(OTHER.public), NotFound),
        ("", NotFound),
        (peer_text(PEER.public)[-3:], NotFound),
        ("x" * 3000, NotFound),
        (peer_text(keypair("node").public), UsageError),
    ],
)
def test_who_cannot_be_meant_is_refused(name: str, error: type[Exception]) -> None:
    desk = Desk()
    desk.up()
    (found,) = replies(desk.ask(name))
    assert type(found) is error
    assert len(found.message) < 200


def test_the_end_of_an_id_is_enough_while_one_peer_has_it() -> None:
    desk = Desk()
    desk.up()
    assert pings(desk.ask(peer_text(PEER.public)[-8:]))
    by_end: dict[str, KeyPair] = {}
    for n in itertools.count():
        keys = keypair(f"many {n}")
        twin = by_end.setdefault(peer_text(keys.public)[-4:], keys)
        if twin is not keys:
            break
    desk.up(keys)
    assert pings(desk.ask(peer_text(keys.public)[-4:]))
    desk.up(twin)
    assert [type(each) for each in replies(desk.ask(peer_text(keys.public)[-4:]))] == [UsageError]


def test_a_known_peer_without_a_link_is_unreachable_with_the_last_reason() -> None:
    desk = Desk()
    desk.node.links.add_bootstrap((f"/ip4/10.0.0.2/tcp/4001/p2p/{peer_text(PEER.public)}",))
    desk.tell(DialFailed(PEER_ID, "connection refused"))
    (found,) = replies(desk.ask())
    assert type(found) is PeerUnreachable
    assert "connection refused" in found.message


def test_pings_on_their_way_are_bounded() -> None:
    desk = Desk()
    desk.up()
    sent = [req for _ in range(PINGS_MAX) for req in pings(desk.ask())]
    assert len(set(sent)) == PINGS_MAX
    assert [type(each) for each in replies(desk.ask())] == [Refused]
    desk.pong(sent[0])
    assert pings(desk.ask())


def test_round_trips_are_measured_without_being_asked_for_and_forgotten_with_the_link() -> None:
    world = World()
    for name in "AB":
        world.add(name)
    world.link("A", "B")
    other = world.nodes["B"].me
    first = world.nodes["A"].links.view_of(other)
    assert first is not None
    assert first.rtt_us is None
    world.run(seconds(20))
    later = world.nodes["A"].links.view_of(other)
    assert later is not None
    assert later.rtt_us is not None
    assert later.rtt_us > 0
    world.unlink("A", "B")
    assert world.nodes["A"].links.view_of(other) is None
