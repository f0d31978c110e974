"""Round trips over open links: measured on the pings that keep a link alive, and when somebody asks.

A Pong counts only under the number of a ping that this very peer was sent and has not answered. Everybody who asks
gets an answer: the time, that the link went down, that its queue is full, or that nothing came in `PING_WAIT_US`.
What a peer can make of it: it answers late and seems far, never nearer than it is, for numbers go up by one and it
could only guess a later one.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from protocol.errors import PeerUnreachable, Refused, RequestTimeout
from protocol.machine import CancelTimer, Effect, Reply, Send, SetTimer, TimerKey
from protocol.messages import Ping
from protocol.peer import PeerID, peer_text
from protocol.transport import Lane

PING_WAIT_US: Final = 5_000_000  # for the answer to a ping that somebody asked for
PINGS_MAX: Final = 64  # of those on their way
PONG: Final = "pong"  # what the timer of such a ping is called
REQS: Final = 2**30  # request ids of other machines' pings begin there (gossip/membership/, dht/)
SEE_PEERS: Final = "see `masos peers`"


@dataclass(frozen=True, slots=True)
class PingPeer:
    """Measure one round trip over the open link. `peer`: its text form, or an end of it that no other peer has."""

    peer: str


@dataclass(frozen=True, slots=True)
class _Asked:
    """A ping that somebody waits for."""

    request_id: int
    peer: PeerID
    sent_us: int


class Pings:
    """The pings on their way. `machine` is the name under which its timers come back."""

    def __init__(self, machine: str) -> None:
        self._machine = machine
        self._req = 0
        self._asked: dict[int, _Asked] = {}  # by the number of the ping
        self._kept: dict[PeerID, tuple[int, int]] = {}  # number and time of the last one that keeps a link alive
        self._rtt_us: dict[PeerID, int] = {}
        self._pinged_us: dict[PeerID, int] = {}

    def rtt_us(self, peer: PeerID) -> int | None:
        """The last round trip to a linked peer; None before the first."""
        return self._rtt_us.get(peer)

    def measured_since(self, peer: PeerID, since_us: int) -> bool:
        """True if the link was pinged since then."""
        return self._pinged_us.get(peer, since_us - 1) >= since_us

    def keep_alive(self, peer: PeerID, wall_ms: int, now_us: int) -> list[Effect]:
        """The ping that tells a silent peer from a quiet one."""
        req = self._next()
        self._kept[peer] = (req, now_us)
        self._pinged_us[peer] = now_us
        return [Send(peer, Lane.CONTROL, Ping(req, wall_ms))]

    def ask(self, request_id: int, peer: PeerID, wall_ms: int, now_us: int) -> list[Effect]:
        """A ping for somebody who waits.

        Raises:
            Refused: too many are on their way.
        """
        if len(self._asked) >= PINGS_MAX:
            raise Refused("too many pings at once on this node", hint="try again in a moment")
        req = self._next()
        self._asked[req] = _Asked(request_id, peer, now_us)
        return [Send(peer, Lane.CONTROL, Ping(req, wall_ms), req), SetTimer(self._timer(req), now_us + PING_WAIT_US)]

    def on_pong(self, peer: PeerID, req: int, now_us: int) -> list[Effect]:
        """A linked peer answered."""
        kept = self._kept.get(peer)
        if kept is not None and kept[0] == req:
            del self._kept[peer]
            self._rtt_us[peer] = now_us - kept[1]
        asked = self._asked.get(req)
        if asked is None or asked.peer != peer:
            return []
        self._rtt_us[peer] = now_us - asked.sent_us
        return self._answer(req, {"peer": peer_text(peer), "rtt_us": self._rtt_us[peer]})

    def on_late(self, req: object) -> list[Effect]:
        """Nothing came in time."""
        error = RequestTimeout(f"no answer within {PING_WAIT_US // 1_000_000} s", hint=SEE_PEERS)
        return self._answer(req, error)

    def on_dropped(self, req: object) -> list[Effect]:
        """The ping did not enter the queue of its link."""
        return self._answer(req, PeerUnreachable("the queue to this peer is full", hint="try again in a moment"))

    def on_down(self, peer: PeerID) -> list[Effect]:
        """The link is gone, and so is what was measured on it."""
        self._kept.pop(peer, None)
        self._rtt_us.pop(peer, None)
        self._pinged_us.pop(peer, None)
        error = PeerUnreachable("the link went down", hint=SEE_PEERS)
        waiting = [req for req, asked in self._asked.items() if asked.peer == peer]
        return [effect for req in waiting for effect in self._answer(req, error)]

    def _next(self) -> int:
        self._req = (self._req + 1) % REQS
        return self._req

    def _timer(self, req: int) -> TimerKey:
        return TimerKey(self._machine, PONG, req)

    def _answer(self, req: object, result: object) -> list[Effect]:
        asked = self._asked.pop(req, None) if isinstance(req, int) else None
        if asked is None or not isinstance(req, int):
            return []
        return [CancelTimer(self._timer(req)), Reply(asked.request_id, result)]
