"""Pings for others: who is asked to probe a peer pings it if it is linked, and says what it heard.

Any frame of the target after the question is an answer. A nack at 80 % of the timeout tells the asker that the way
to this helper works and the target is silent here too; where there is no link the nack comes at once.

**No reflector.** A question costs its asker one small frame, and would cost this node and the target three. So one ping
is under way to a target and answers all who ask meanwhile; each asker has a bucket of questions that may make a ping,
which outlives its link; and the table of those who wait is bounded. Above any of these the answer is a nack at once,
as if there were no link, and is counted: an honest asker goes on to the next helper.
"""

from __future__ import annotations

from dataclasses import dataclass

from gossip.membership.budget import Budget
from gossip.membership.config import MemberConfig
from gossip.membership.neighbours import Neighbours
from gossip.membership.requests import MACHINE, Requests
from protocol.machine import CancelTimer, Count, Effect, Send, SetTimer, TimerKey
from protocol.messages import Ping, ProbedFor, ProbeFor
from protocol.peer import PeerID
from protocol.transport import Lane

RELAY = "relay"  # what the timer of one is called


@dataclass(frozen=True, slots=True)
class _Relay:
    asker: PeerID
    req: int  # of the asker
    target: PeerID


class Relays:
    """The questions that wait, by own request id, and the pings that are under way for them."""

    def __init__(self, config: MemberConfig, neighbours: Neighbours, requests: Requests) -> None:
        self._config = config
        self._neighbours = neighbours
        self._requests = requests
        self._relays: dict[int, _Relay] = {}
        self._pings: dict[PeerID, tuple[int, int]] = {}  # of linked targets: own request id, and when it was sent
        askers_max = config.members_max + config.tombstones_max
        self._budget = Budget(config.relays_per_peer_max, config.relays_refill_us, askers_max)

    def on_asked(self, asker: PeerID, ask: ProbeFor, wall_ms: int, now_us: int) -> list[Effect]:
        """A neighbour got no answer from a peer."""
        relay = _Relay(asker, ask.req, PeerID(ask.target))
        if relay.target not in self._neighbours:
            return [self._answer(relay, alive=False)]
        if len(self._relays) >= self._config.relays_max or not self._budget.take(asker, 1, now_us):
            return [self._answer(relay, alive=False), Count("member_relays_full")]
        req = self._requests.next()
        self._relays[req] = relay
        wait_us = self._config.probe_timeout_us * self._config.nack_part // 100
        timer = SetTimer(_timer(req), now_us + wait_us)
        under_way = self._pings.get(relay.target)
        if under_way is not None and now_us - under_way[1] < wait_us:
            return [timer]
        self._pings[relay.target] = (req, now_us)
        return [Send(relay.target, Lane.CONTROL, Ping(req, wall_ms), req), timer]

    def on_heard(self, target: PeerID) -> list[Effect]:
        """A neighbour sent something: whoever asked for it hears of it."""
        return self._close_all(target, alive=True) if target in self._pings else []

    def on_silent(self, req: object) -> list[Effect]:
        """The time of a question is over."""
        if not isinstance(req, int) or req not in self._relays:
            return []
        relay, effects = self._relays[req], self._close(req, alive=False)
        if all(each.target != relay.target for each in self._relays.values()):
            self._pings.pop(relay.target, None)
        return effects

    def on_dropped(self, req: int) -> list[Effect]:
        """A ping found no room in its queue: nobody who waits for it can have an answer."""
        target = next((target for target, (ping, _) in self._pings.items() if ping == req), None)
        return self._close_all(target, alive=False) if target is not None else []

    def on_unlinked(self, peer: PeerID) -> list[Effect]:
        """A link ended: of an asker or of a target."""
        effects = self._close_all(peer, alive=False)
        for req in [req for req, relay in self._relays.items() if relay.asker == peer]:
            del self._relays[req]
            effects.append(CancelTimer(_timer(req)))
        return effects

    def drop_all(self) -> list[Effect]:
        """This node slept, or stops: nobody waits for these any more."""
        gone, self._relays, self._pings = list(self._relays), {}, {}
        return [CancelTimer(_timer(req)) for req in gone]

    def _close_all(self, target: PeerID, *, alive: bool) -> list[Effect]:
        self._pings.pop(target, None)
        found = [req for req, relay in self._relays.items() if relay.target == target]
        return [effect for req in found for effect in self._close(req, alive=alive)]

    def _close(self, req: int, *, alive: bool) -> list[Effect]:
        return [CancelTimer(_timer(req)), self._answer(self._relays.pop(req), alive=alive)]

    def _answer(self, relay: _Relay, *, alive: bool) -> Effect:
        return Send(relay.asker, Lane.CONTROL, ProbedFor(relay.req, relay.target, alive), relay.req)


def _timer(req: int) -> TimerKey:
    return TimerKey(MACHINE, RELAY, req)
