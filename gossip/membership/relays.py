"""Pings for others: who is asked to probe a peer pings it if it is linked, and says what it heard.

Any frame of the target after the question is an answer. A nack at 80 % of the timeout tells the asker that the way
to this helper works and the target is silent here too; where there is no link the nack comes at once. The table is
bounded, in all and per asker; above it the answer is a nack at once as well, and is counted.
"""

from __future__ import annotations

from dataclasses import dataclass

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
    """The pings for others that are on their way, by own request id."""

    def __init__(self, config: MemberConfig, neighbours: Neighbours, requests: Requests) -> None:
        self._config = config
        self._neighbours = neighbours
        self._requests = requests
        self._relays: dict[int, _Relay] = {}

    def on_asked(self, asker: PeerID, ask: ProbeFor, wall_ms: int, now_us: int) -> list[Effect]:
        """A neighbour got no answer from a peer."""
        target = PeerID(ask.target)
        if target not in self._neighbours:
            return [self._answer(_Relay(asker, ask.req, target), alive=False)]
        of_asker = sum(relay.asker == asker for relay in self._relays.values())
        if len(self._relays) >= self._config.relays_max or of_asker >= self._config.relays_per_peer_max:
            return [self._answer(_Relay(asker, ask.req, target), alive=False), Count("member_relays_full")]
        req = self._requests.next()
        self._relays[req] = _Relay(asker, ask.req, target)
        wait_us = self._config.probe_timeout_us * self._config.nack_part // 100
        return [Send(target, Lane.CONTROL, Ping(req, wall_ms), req), SetTimer(_timer(req), now_us + wait_us)]

    def on_heard(self, target: PeerID) -> list[Effect]:
        """A neighbour sent something: whoever asked for it hears of it."""
        if not self._relays:
            return []
        found = [req for req, relay in self._relays.items() if relay.target == target]
        return [effect for req in found for effect in self._close(req, alive=True)]

    def on_silent(self, req: object) -> list[Effect]:
        """The time is over, or the ping found no room in its queue."""
        return self._close(req, alive=False) if isinstance(req, int) else []

    def on_unlinked(self, peer: PeerID) -> list[Effect]:
        """A link ended: of an asker or of a target."""
        effects: list[Effect] = []
        for req, relay in list(self._relays.items()):
            if relay.asker == peer:
                del self._relays[req]
                effects.append(CancelTimer(_timer(req)))
            elif relay.target == peer:
                effects += self._close(req, alive=False)
        return effects

    def drop_all(self) -> list[Effect]:
        """This node slept, or stops: nobody waits for these any more."""
        gone, self._relays = list(self._relays), {}
        return [CancelTimer(_timer(req)) for req in gone]

    def _close(self, req: int, *, alive: bool) -> list[Effect]:
        relay = self._relays.pop(req, None)
        return [CancelTimer(_timer(req)), self._answer(relay, alive=alive)] if relay is not None else []

    def _answer(self, relay: _Relay, *, alive: bool) -> Effect:
        return Send(relay.asker, Lane.CONTROL, ProbedFor(relay.req, relay.target, alive), relay.req)


def _timer(req: int) -> TimerKey:
    return TimerKey(MACHINE, RELAY, req)
