"""Links to peers: who may stay, who is silent, whom to dial, and what time it is in the swarm.

A link counts only after the peer's Hello passed `_admitted`: common wire version, same swarm, a certificate chain
that is valid at swarm time, not denied. Otherwise a typed `Bye` says why, and both sides show it in `status`.

Addresses to dial come from local configuration (ticket) and from peer records signed by that peer; never from
what a third party claims. Every known peer that is not linked is dialled for ever, with exponential back-off and
jitter, so a dead bootstrap is no error and a peer that comes back is found (case D3, complaint 1).
"""

from __future__ import annotations

import random
from collections import deque
from dataclasses import dataclass

from gossip.config import GossipConfig
from gossip.events import Leaving, Linked, RecordChanged, Unlinked
from protocol import versions
from protocol.admission import Admission, Genesis, check_chain
from protocol.capability import PeerValue
from protocol.clock import SwarmClock
from protocol.errors import DecodeError
from protocol.machine import (
    Boot,
    ClockOffset,
    Count,
    Dial,
    DialFailed,
    Effect,
    Hangup,
    Local,
    Misbehaved,
    Notify,
    PeerDown,
    PeerUp,
    Received,
    Send,
    SetTimer,
    Stopping,
    TimerFired,
    TimerKey,
)
from protocol.messages import Bye, Frame, Hello, Ping, Pong
from protocol.peer import ADDRESSES_PER_PEER_MAX, Multiaddr, PeerID, PeerInfo, peer_text
from protocol.transport import Lane

MACHINE = "links"
REASON_CHARS_MAX = 300  # of a Bye (protocol/messages.py)


@dataclass(slots=True)
class _Link:
    hello: Hello
    exp_ms: int  # of the peer's certificate
    since_us: int
    heard_us: int


@dataclass(slots=True)
class _Known:
    """A peer that may be dialled."""

    addrs: tuple[str, ...]
    backoff_us: int
    configured: bool


@dataclass(frozen=True, slots=True)
class Refusal:
    """Why a link was refused or a dial failed; shown by `status`."""

    peer: str
    code: str
    reason: str
    wall_ms: int


class Links:
    """The machine. `clock` is shared with the other machines of the node; this one feeds it."""

    def __init__(
        self, me: PeerID, genesis: Genesis, clock: SwarmClock, config: GossipConfig, rng: random.Random
    ) -> None:
        self._me = me
        self._genesis = genesis
        self._clock = clock
        self._config = config
        self._rng = rng
        self._links: dict[PeerID, _Link] = {}
        self._known: dict[PeerID, _Known] = {}
        self._ping_req = 0
        self._stopping = False
        self.denied: frozenset[bytes] = frozenset()
        self.refusals: deque[Refusal] = deque(maxlen=config.refusals_max)

    @property
    def linked(self) -> list[PeerID]:
        """Linked peers in PeerID order."""
        return sorted(self._links)

    def hello_of(self, peer: PeerID) -> Hello | None:
        """What a linked peer said of itself."""
        link = self._links.get(peer)
        return link.hello if link else None

    def known(self) -> dict[PeerID, tuple[str, ...]]:
        """Every peer that may be dialled, with its addresses."""
        return {peer: self._known[peer].addrs for peer in sorted(self._known)}

    def add_bootstrap(self, addrs: tuple[str, ...]) -> None:
        """Addresses from local configuration; each ends in /p2p/<peer id>. Before Boot."""
        for text in addrs:
            addr = Multiaddr.parse(text)
            if addr.peer is not None and addr.peer != self._me:
                old = self._known.get(addr.peer)
                merged = tuple(dict.fromkeys((*(old.addrs if old else ()), text)))
                self._known[addr.peer] = _Known(merged[:ADDRESSES_PER_PEER_MAX], 0, configured=True)

    def handle(self, event: object, now_us: int) -> list[Effect]:
        """Events of links, records and time; everything else is nothing to this machine."""
        match event:
            case Boot():
                return self._on_boot(now_us)
            case ClockOffset(offset):
                self._clock.set_wall_offset(offset)
                return []
            case PeerUp(peer, hello):
                return self._on_peer_up(peer, hello, now_us)
            case PeerDown(peer, _):
                return self._on_peer_down(peer, now_us)
            case DialFailed(peer, reason):
                return self._on_dial_failed(peer, reason, now_us)
            case Misbehaved(peer, reason):
                return self._refuse(peer, "peer_misbehaved", reason, now_us)
            case Received(peer, frame):
                return self._on_frame(peer, frame, now_us)
            case RecordChanged(record, live) if isinstance(record.value, PeerValue) and live:
                return self._on_peer_record(PeerID(record.publisher), record.value, now_us)
            case TimerFired(TimerKey(_, "ping")):
                return self._on_ping_timer(now_us)
            case TimerFired(TimerKey(_, "dial", peer)) if isinstance(peer, bytes):
                return self._dial(PeerID(peer), now_us)
            case Stopping():
                self._stopping = True
                return []
            case Leaving():
                return [Send(peer, Lane.CONTROL, Bye("leaving", "node stops")) for peer in self.linked]
            case _:
                return []

    # ---- links

    def _on_boot(self, now_us: int) -> list[Effect]:
        effects: list[Effect] = [SetTimer(TimerKey(MACHINE, "ping"), now_us + self._config.ping_every_us)]
        for peer in sorted(self._known):
            effects += self._dial(peer, now_us)
        return effects

    def _on_peer_up(self, peer: PeerID, hello: Hello, now_us: int) -> list[Effect]:
        admission = self._admitted(peer, hello, now_us)
        if not isinstance(admission, Admission):
            return self._bye(peer, *admission, now_us)
        self._clock.sample(peer, hello.wall_ms, now_us)
        self._links[peer] = _Link(hello, admission.exp_ms, now_us, now_us)
        return [Local(Linked(peer, hello)), Notify("peers", ("up", peer))]

    def _admitted(self, peer: PeerID, hello: Hello, now_us: int) -> Admission | tuple[str, str]:
        """What the peer's certificate grants, or the code and reason of its refusal."""
        if hello.wire_min > versions.WIRE_MAX or hello.wire_max < versions.WIRE_MIN:
            ours = f"{versions.WIRE_MIN}..{versions.WIRE_MAX}"
            return "version", f"no common wire version: {hello.wire_min}..{hello.wire_max} there, {ours} here"
        if hello.swarm_id != self._genesis.swarm_id:
            return "other_swarm", "another swarm"
        try:
            admission = check_chain(self._genesis, hello.cert_chain, peer)
        except DecodeError as exc:
            return "certificate", exc.message
        if not admission.nbf_ms <= self._clock.now_ms(now_us) <= admission.exp_ms:
            return "certificate", "certificate is expired or not valid yet, by swarm time"
        if peer in self.denied:
            return "denied", "an admin denied this node"
        return admission

    def _bye(self, peer: PeerID, code: str, reason: str, now_us: int) -> list[Effect]:
        """Say why, then hang up. The reason may quote the peer, so it is cut."""
        said = Send(peer, Lane.CONTROL, Bye(code, reason[:REASON_CHARS_MAX]))
        return [said, *self._refuse(peer, code, reason[:REASON_CHARS_MAX], now_us)]

    def _refuse(self, peer: PeerID, code: str, reason: str, now_us: int) -> list[Effect]:
        self.refusals.append(Refusal(peer_text(peer), code, reason, self._clock.wall_ms(now_us)))
        return [Hangup(peer, reason), Count(f"refused_{code}")]

    def _on_peer_down(self, peer: PeerID, now_us: int) -> list[Effect]:
        effects: list[Effect] = []
        link, known = self._links.pop(peer, None), self._known.get(peer)
        if link is not None:
            if known is not None and now_us - link.since_us > self._config.silent_after_us:
                known.backoff_us = 0  # it lasted; a peer that links and refuses at once is dialled ever less often
            self._clock.forget(peer)
            effects += [Local(Unlinked(peer)), Notify("peers", ("down", peer))]
        return effects + self._schedule_dial(peer, now_us)

    def _on_frame(self, peer: PeerID, frame: Frame, now_us: int) -> list[Effect]:
        link = self._links.get(peer)
        if isinstance(frame, Bye):
            wall = self._clock.wall_ms(now_us)
            if frame.code != "leaving":
                self.refusals.append(Refusal(peer_text(peer), f"refused_by_peer_{frame.code}", frame.reason, wall))
            return [Hangup(peer, f"bye: {frame.code}")]
        if link is None:
            return []
        link.heard_us = now_us
        match frame:
            case Hello():
                return self._refuse(peer, "peer_misbehaved", "second Hello on one link", now_us)
            case Ping(req, wall_ms):
                self._clock.sample(peer, wall_ms, now_us)
                return [Send(peer, Lane.CONTROL, Pong(req, self._clock.wall_ms(now_us)))]
            case Pong(_, wall_ms):
                self._clock.sample(peer, wall_ms, now_us)
                return []
            case _:
                return []

    def _on_ping_timer(self, now_us: int) -> list[Effect]:
        effects: list[Effect] = [SetTimer(TimerKey(MACHINE, "ping"), now_us + self._config.ping_every_us)]
        self._ping_req = (self._ping_req + 1) % 2**32
        for peer, link in sorted(self._links.items()):
            if now_us - link.heard_us > self._config.silent_after_us:
                effects += [Hangup(peer, "silent"), Count("silent_peers")]
            elif peer in self.denied:
                effects += self._bye(peer, "denied", "an admin denied this node", now_us)
            elif self._clock.now_ms(now_us) > link.exp_ms:
                effects += self._bye(peer, "certificate", "certificate has run out, by swarm time", now_us)
            else:
                effects.append(Send(peer, Lane.CONTROL, Ping(self._ping_req, self._clock.wall_ms(now_us))))
        return effects

    # ---- dialling

    def _on_peer_record(self, peer: PeerID, value: PeerValue, now_us: int) -> list[Effect]:
        addrs = tuple(text for text in value.addrs if Multiaddr.parse(text).dialable)
        old = self._known.get(peer)
        if peer == self._me or not addrs or (old is not None and old.addrs[: len(addrs)] == addrs):
            return []
        if old is None and len(self._known) >= self._config.known_peers_max:
            return [Count("known_peers_full")]
        merged = tuple(dict.fromkeys((*addrs, *(old.addrs if old and old.configured else ()))))
        self._known[peer] = _Known(merged[:ADDRESSES_PER_PEER_MAX], 0, old is not None and old.configured)
        return self._dial(peer, now_us)

    def _dial(self, peer: PeerID, now_us: int) -> list[Effect]:
        known = self._known.get(peer)
        if known is None or peer in self._links or self._stopping:
            return []
        # An answer (PeerUp, DialFailed) moves this timer or makes it void; it covers a dial that is never answered.
        return [Dial(PeerInfo(peer, known.addrs)), *self._schedule_dial(peer, now_us)]

    def _schedule_dial(self, peer: PeerID, now_us: int) -> list[Effect]:
        known = self._known.get(peer)
        if known is None or self._stopping:
            return []
        low, high = self._config.dial_backoff_min_us, self._config.dial_backoff_max_us
        known.backoff_us = min(high, max(low, known.backoff_us * 2))
        wait = known.backoff_us // 2 + self._rng.randrange(known.backoff_us // 2 + 1)
        return [SetTimer(TimerKey(MACHINE, "dial", peer), now_us + wait)]

    def _on_dial_failed(self, peer: PeerID, reason: str, now_us: int) -> list[Effect]:
        if peer in self._links:
            return []
        self.refusals.append(Refusal(peer_text(peer), "unreachable", reason, self._clock.wall_ms(now_us)))
        return self._schedule_dial(peer, now_us)
