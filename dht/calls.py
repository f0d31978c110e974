"""Requests to other nodes: linked first if need be, each ended by exactly one answer or failure.

A peer that is not linked is dialled, and its requests wait for the link, bounded in number and time. How a request
ended is put on `outcomes`, which the owner of the machine drains; nothing here knows what a request was for. A peer
that is busy for a short while is asked again, at most so often; one that is busy for long has failed, but is no worse
for it. Links are bounded by who owns them (gossip/dialling.py), which lets those that are too many go in order.

Request ids start at 2^31, so that a Ping of the DHT is told from those of the links.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from dht.config import DhtConfig
from dht.routing_table import Contact
from protocol.machine import CancelTimer, Count, Dial, Effect, Send, SetTimer, TimerKey
from protocol.messages import Busy, FoundNodes, FoundValue, Frame, Pong, Stored
from protocol.peer import PeerID, PeerInfo
from protocol.transport import Lane

MACHINE: Final = "dht"
_FIRST_REQ: Final = 2**31

Owner = tuple[str, int]
Make = Callable[[int], Frame]  # request id -> the request
Answer = FoundNodes | FoundValue | Stored | Pong


class Why(StrEnum):
    """How a request failed."""

    UNREACHABLE = "unreachable"  # no address gave a link
    TIMEOUT = "timeout"
    GONE = "gone"  # the link ended
    BUSY = "busy"  # it said so, or our own queue to it is full
    FULL = "full"  # of our own requests, too many are open


@dataclass(frozen=True, slots=True)
class Answered:
    """A request was answered."""

    owner: Owner
    contact: Contact
    frame: Answer


@dataclass(frozen=True, slots=True)
class Failed:
    """A request came to nothing; `retry_after_ms` above 0 if the peer named a time."""

    owner: Owner
    contact: Contact
    why: Why
    retry_after_ms: int = 0


@dataclass(frozen=True, slots=True)
class Slow:
    """A request has no answer yet, and may still get one."""

    owner: Owner
    contact: Contact


Outcome = Answered | Failed | Slow


@dataclass(slots=True)
class _Call:
    owner: Owner
    contact: Contact
    make: Make
    retries: int = 0
    sent: bool = False
    late_us: int | None = None  # when a request that was found slow is given up


class Calls:
    """All requests without an answer."""

    def __init__(self, config: DhtConfig) -> None:
        self._config = config
        self._calls: dict[int, _Call] = {}
        self._of_peer: dict[PeerID, dict[int, None]] = {}
        self._req = _FIRST_REQ
        self._dialling: dict[PeerID, None] = {}
        self.linked: dict[PeerID, None] = {}
        self.outcomes: deque[Outcome] = deque()

    def __len__(self) -> int:
        return len(self._calls)

    def call(self, owner: Owner, contact: Contact, make: Make, now_us: int) -> list[Effect]:
        """Send a request as soon as there is a link."""
        peer = contact.peer
        of_peer = self._of_peer.get(peer, {})
        if len(self._calls) >= self._config.calls_max or len(of_peer) >= self._config.calls_per_peer_max:
            self.outcomes.append(Failed(owner, contact, Why.FULL))
            return [Count("dht_calls_full")]
        req = self._next_req()
        self._calls[req] = _Call(owner, contact, make)
        self._of_peer.setdefault(peer, {})[req] = None
        if peer in self.linked:
            return self._send(req, now_us)
        effects: list[Effect] = [SetTimer(_timer(req), now_us + self._config.slow_us)]
        if peer not in self._dialling:
            self._dialling[peer] = None
            effects.append(Dial(PeerInfo(peer, contact.addrs)))
        return effects

    def _next_req(self) -> int:
        self._req = _FIRST_REQ + (self._req - _FIRST_REQ + 1) % _FIRST_REQ
        return self._req

    def _send(self, req: int, now_us: int) -> list[Effect]:
        call = self._calls[req]
        call.sent = True
        call.late_us = None
        peer = call.contact.peer
        return [
            Send(peer, Lane.CONTROL, call.make(req), ref=(MACHINE, req)),
            SetTimer(_timer(req), now_us + self._config.slow_us),
        ]

    # ---- links

    def on_linked(self, peer: PeerID, now_us: int) -> list[Effect]:
        """A link is open: what waited for it is sent."""
        self.linked[peer] = None
        self._dialling.pop(peer, None)
        effects: list[Effect] = []
        for req in list(self._of_peer.get(peer, {})):
            if not self._calls[req].sent:
                effects += self._send(req, now_us)
        return effects

    def on_unlinked(self, peer: PeerID, *, in_order: bool) -> list[Effect]:
        """A link is gone. What was asked over one that was let go in order failed as if the peer were busy."""
        self.linked.pop(peer, None)
        return self._fail_all(peer, Why.BUSY if in_order else Why.GONE)

    def on_dial_failed(self, peer: PeerID) -> list[Effect]:
        """No address of a peer gave a link."""
        self._dialling.pop(peer, None)
        return self._fail_all(peer, Why.UNREACHABLE) if peer not in self.linked else []

    def _fail_all(self, peer: PeerID, why: Why) -> list[Effect]:
        return [effect for req in list(self._of_peer.get(peer, {})) for effect in self._fail(req, why)]

    # ---- ends

    def _end(self, req: int) -> _Call:
        call = self._calls.pop(req)
        of_peer = self._of_peer[call.contact.peer]
        del of_peer[req]
        if not of_peer:
            del self._of_peer[call.contact.peer]
        return call

    def _fail(self, req: int, why: Why, retry_after_ms: int = 0) -> list[Effect]:
        call = self._end(req)
        self.outcomes.append(Failed(call.owner, call.contact, why, retry_after_ms))
        return [CancelTimer(_timer(req)), Count(f"dht_calls_{why}")]

    def on_answer(self, peer: PeerID, frame: Answer) -> list[Effect]:
        """An answer counts once, and only from who was asked."""
        call = self._calls.get(frame.req)
        if call is None or call.contact.peer != peer or not call.sent:
            return [] if isinstance(frame, Pong) else [Count("dht_answers_unasked")]
        self._end(frame.req)
        self.outcomes.append(Answered(call.owner, call.contact, frame))
        return [CancelTimer(_timer(frame.req))]

    def on_busy(self, peer: PeerID, frame: Busy, now_us: int) -> list[Effect]:
        """Ask again after a short wait, or take it as failed."""
        call = self._calls.get(frame.req)
        if call is None or call.contact.peer != peer or not call.sent:
            return [Count("dht_answers_unasked")]
        wait_us = frame.retry_after_ms * 1000
        if call.retries >= self._config.busy_retries_max or wait_us > self._config.busy_wait_max_us:
            return self._fail(frame.req, Why.BUSY, frame.retry_after_ms)
        call.retries += 1
        call.sent = False
        return [SetTimer(_timer(frame.req), now_us + max(1, wait_us)), Count("dht_calls_retried")]

    def on_dropped(self, req: int) -> list[Effect]:
        """The own queue to the peer is full."""
        return self._fail(req, Why.BUSY) if req in self._calls else []

    def on_timer(self, req: int, now_us: int) -> list[Effect]:
        """An answer or a link did not come in time, or the time to ask again has come."""
        call = self._calls.get(req)
        if call is None:
            return []
        if not call.sent and call.contact.peer in self.linked:
            return self._send(req, now_us)
        if call.late_us is None:
            limit_us = self._config.rpc_timeout_us if call.sent else self._config.dial_timeout_us
            call.late_us = now_us + limit_us - self._config.slow_us
            self.outcomes.append(Slow(call.owner, call.contact))
            return [SetTimer(_timer(req), call.late_us)]
        if not call.sent:
            self._dialling.pop(call.contact.peer, None)
        return self._fail(req, Why.TIMEOUT if call.sent else Why.UNREACHABLE)


def _timer(req: int) -> TimerKey:
    return TimerKey(MACHINE, "call", req)
