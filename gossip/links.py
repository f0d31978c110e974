"""Links to peers: who may stay, who is silent, whom to dial, and what time it is in the swarm.

A link counts only after the peer's Hello passed `_admitted`: common wire version, same swarm, a certificate chain
that is valid at swarm time, not denied. Otherwise a typed `Bye` says why, and both sides show it in `status`.

Addresses to dial come from local configuration (ticket) and from peer records signed by that peer; never from
what a third party claims. Every known peer that is not linked is dialled for ever, with exponential back-off and
jitter, so a dead bootstrap is no error and a peer that comes back is found (case D3, complaint 1).

Two nodes with one key are told by every peer that hears both, and the second one stops (gossip/lives.py).
"""

from __future__ import annotations

import random
from collections import deque
from dataclasses import dataclass

from gossip.config import GossipConfig
from gossip.dialling import Dialling
from gossip.events import Leaving, Linked, OwnRecord, Publish, RecordChanged, Unlinked
from gossip.lives import Life, Lives, OwnKey
from gossip.pings import SEE_PEERS, PingPeer, Pings
from protocol import versions
from protocol.admission import Admission, Genesis, check_chain
from protocol.capability import PeerValue, SignedRecord
from protocol.clock import SwarmClock
from protocol.errors import ConfigError, DecodeError, NotFound, PeerUnreachable, SwarmError, UsageError
from protocol.machine import (
    Boot,
    ClockOffset,
    Command,
    Count,
    DialFailed,
    Effect,
    Hangup,
    Local,
    Misbehaved,
    Notify,
    PeerDown,
    PeerUp,
    Received,
    Reply,
    Send,
    SendDropped,
    SetTimer,
    Stopping,
    TimerFired,
    TimerKey,
)
from protocol.messages import Bye, Frame, Hello, Ping, Pong
from protocol.peer import Multiaddr, PeerID, peer_text
from protocol.transport import Lane

MACHINE = "links"
ENOUGH, LEAVING = "enough", "leaving"  # codes of a Bye that blames nobody
REASON_CHARS_MAX = 300  # of a Bye (protocol/messages.py)
PEER_CHARS_MIN = 4  # of a peer's text form, to name it by its end


@dataclass(slots=True)
class _Link:
    hello: Hello
    exp_ms: int  # of the peer's certificate
    since_us: int
    heard_us: int


@dataclass(frozen=True, slots=True)
class Refusal:
    """Why a link was refused or a dial failed; shown by `status`."""

    peer: str
    code: str
    reason: str
    wall_ms: int


@dataclass(frozen=True, slots=True)
class PeerView:
    """A link as the operator sees it: since when, when something was heard, the last round trip."""

    since_us: int
    heard_us: int
    rtt_us: int | None


class Links:
    """The machine. `clock` is shared with the other machines of the node; this one feeds it."""

    def __init__(
        self, me: PeerID, genesis: Genesis, clock: SwarmClock, config: GossipConfig, rng: random.Random
    ) -> None:
        self._me = me
        self._genesis = genesis
        self._clock = clock
        self._config = config
        self._links: dict[PeerID, _Link] = {}
        self._dialling = Dialling(me, config, rng, MACHINE)
        self._pings = Pings(MACHINE)
        self._lives = Lives(config.known_peers_max)
        self._own_key = OwnKey()
        self.refusals: deque[Refusal] = deque(maxlen=config.refusals_max)

    @property
    def denied(self) -> frozenset[bytes]:
        """Keys that an admin denied: neither linked nor dialled."""
        return self._dialling.denied

    @denied.setter
    def denied(self, denied: frozenset[bytes]) -> None:
        if denied != self._dialling.denied:
            self._dialling.deny(denied)

    @property
    def linked(self) -> list[PeerID]:
        """Linked peers in PeerID order."""
        return sorted(self._links)

    def hello_of(self, peer: PeerID) -> Hello | None:
        """What a linked peer said of itself."""
        link = self._links.get(peer)
        return link.hello if link else None

    def view_of(self, peer: PeerID) -> PeerView | None:
        """How the link to a peer stands; None where there is none."""
        link = self._links.get(peer)
        return PeerView(link.since_us, link.heard_us, self._pings.rtt_us(peer)) if link else None

    def known(self) -> dict[PeerID, tuple[str, ...]]:
        """Every peer that may be dialled, with its addresses."""
        return self._dialling.known()

    def add_bootstrap(self, addrs: tuple[str, ...]) -> None:
        """Addresses from local configuration; each ends in /p2p/<peer id>. Before Boot."""
        self._dialling.add_bootstrap(addrs)

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
            case Publish(PeerValue() as value):
                self._own_key.published = value
                return []
            case OwnRecord(record, newer):
                return self._on_own_record(record, newer, now_us)
            case RecordChanged(record, live) if isinstance(record.value, PeerValue):
                return self._on_peer_record(PeerID(record.publisher), record.value, now_us, live=live)
            case TimerFired(key) if key.machine == MACHINE:
                return self._on_timer(event, now_us)
            case Command() | SendDropped(_, "Ping", _):
                return self._on_ping_asked(event, now_us)
            case Stopping():
                self._dialling.stopping = True
                return []
            case Leaving():
                return [Send(peer, Lane.CONTROL, Bye(LEAVING, "node stops")) for peer in self.linked]
            case _:
                return []

    def _on_timer(self, event: TimerFired, now_us: int) -> list[Effect]:
        match event.key:
            case TimerKey(_, "ping"):
                return self._on_ping_timer(now_us)
            case TimerKey(_, "dial", peer) if isinstance(peer, bytes):
                return self._dialling.on_timer(PeerID(peer), now_us)
            case TimerKey(_, "topology"):
                return self._on_topology_timer(now_us)
            case _:
                return self._on_ping_asked(event, now_us)

    # ---- links

    def _on_boot(self, now_us: int) -> list[Effect]:
        self._own_key.begin(self._clock.now_ms(now_us))
        effects: list[Effect] = [SetTimer(TimerKey(MACHINE, "ping"), now_us + self._config.ping_every_us)]
        return effects + self._dialling.start(now_us)

    def _on_peer_up(self, peer: PeerID, hello: Hello, now_us: int) -> list[Effect]:
        admission = self._admitted(peer, hello, now_us)
        if not isinstance(admission, Admission):
            return self._bye(peer, *admission, now_us)
        self._clock.sample(peer, hello.wall_ms, now_us)
        self._links[peer] = _Link(hello, admission.exp_ms, now_us, now_us)
        self._dialling.on_up(peer, now_us)
        other = self._lives.heard(peer, hello, now_us)
        told = self._tell_clash(peer, (hello.inst, hello.listen_addrs), other, now_us) if other is not None else []
        return [Local(Linked(peer, hello)), Notify("peers", ("up", peer)), *told]

    def _tell_clash(self, peer: PeerID, one: Life, other: Life, now_us: int) -> list[Effect]:
        both = " and ".join(f"life {inst} at {', '.join(addrs[:2]) or 'no address'}" for inst, addrs in (one, other))
        reason = f"two nodes use this key by turns, or a database was set back: {both}"
        return self._note(peer, "identity_clash", reason, now_us)

    def _note(self, peer: PeerID, code: str, reason: str, now_us: int) -> list[Effect]:
        self.refusals.append(Refusal(peer_text(peer), code, reason[:REASON_CHARS_MAX], self._clock.wall_ms(now_us)))
        return [Count(code)]

    def _on_own_record(self, record: SignedRecord, newer: bool, now_us: int) -> list[Effect]:  # noqa: FBT001 - internal
        """Another node may use the own key; the second of the two stops, the first says again where it is."""
        verdict, published = self._own_key.judge(record, newer, now_us), self._own_key.published
        if verdict == "nothing" or published is None or not isinstance(record.value, PeerValue):
            return []
        where = ", ".join(record.value.addrs[:2])
        if verdict == "second":
            hint = "one profile is one node: stop one of the two and make it a profile of its own with `masos init`"
            error = ConfigError(f"another node runs with this node's key already, at {where}", hint=hint)
            return [Notify("identity_clash", error)]
        reason = f"another node was started with this node's key, at {where}: stop one of the two"
        return [*self._note(self._me, "identity_clash", reason, now_us), Local(Publish(published))]

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
        link = self._links.pop(peer, None)
        redial, in_order = self._dialling.on_down(peer, now_us)
        if link is None:
            return redial
        self._clock.forget(peer)
        return [
            Local(Unlinked(peer, in_order)), Notify("peers", ("down", peer)), *self._pings.on_down(peer), *redial
        ]  # fmt: skip

    def _let_go(self, peer: PeerID) -> list[Effect]:
        """End a link that is one too many; the peer is told, so that it neither worries nor calls back at once."""
        self._dialling.let_go(peer)
        said = Send(peer, Lane.CONTROL, Bye(ENOUGH, "this link is not needed any more"))
        return [said, Hangup(peer, ENOUGH), Count("links_let_go")]

    def _on_topology_timer(self, now_us: int) -> list[Effect]:
        effects, surplus = self._dialling.on_topology_timer(now_us)
        return effects + [effect for peer in surplus for effect in self._let_go(peer)]

    def _on_frame(self, peer: PeerID, frame: Frame, now_us: int) -> list[Effect]:
        link = self._links.get(peer)
        if isinstance(frame, Bye):
            wall = self._clock.wall_ms(now_us)
            if frame.code == ENOUGH:
                self._dialling.let_go(peer)
            elif frame.code != LEAVING:
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
            case Pong(req, wall_ms):
                self._clock.sample(peer, wall_ms, now_us)
                return self._pings.on_pong(peer, req, now_us)
            case _:
                return []

    def _on_ping_timer(self, now_us: int) -> list[Effect]:
        effects: list[Effect] = [SetTimer(TimerKey(MACHINE, "ping"), now_us + self._config.ping_every_us)]
        for peer, link in sorted(self._links.items()):
            if now_us - link.heard_us > self._config.silent_after_us:
                effects += [Hangup(peer, "silent"), Count("silent_peers")]
            elif peer in self.denied:
                effects += self._bye(peer, "denied", "an admin denied this node", now_us)
            elif self._clock.now_ms(now_us) > link.exp_ms:
                effects += self._bye(peer, "certificate", "certificate has run out, by swarm time", now_us)
            elif self._is_quiet(peer, link, now_us):
                effects += self._pings.keep_alive(peer, self._clock.wall_ms(now_us), now_us)
        return effects

    def _is_quiet(self, peer: PeerID, link: _Link, now_us: int) -> bool:
        """Whether a link needs a ping: nothing came for a while, or its round trip was not measured for long."""
        measured = self._pings.measured_since(peer, now_us - self._config.measure_every_us)
        return now_us - link.heard_us >= self._config.ping_every_us or not measured

    # ---- round trips

    def _on_ping_asked(self, event: Command | SendDropped | TimerFired, now_us: int) -> list[Effect]:
        match event:
            case Command(request_id, PingPeer(name)):
                return self._on_ask(request_id, name, now_us)
            case SendDropped(_, _, req):
                return self._pings.on_dropped(req)
            case TimerFired(key):
                return self._pings.on_late(key.ref)
            case _:
                return []

    def _on_ask(self, request_id: int, name: str, now_us: int) -> list[Effect]:
        try:
            peer = self._named(name)
            if peer in self._links:
                return self._pings.ask(request_id, peer, self._clock.wall_ms(now_us), now_us)
            reason = next((each.reason for each in reversed(self.refusals) if each.peer == peer_text(peer)), "")
            raise PeerUnreachable(f"not linked to it{': ' if reason else ''}{reason}", hint=SEE_PEERS)
        except SwarmError as exc:
            return [Reply(request_id, exc)]

    def _named(self, name: str) -> PeerID:
        """The linked or known peer of this text form, or whose form alone ends so.

        Raises:
            UsageError: too short, this node itself, or several peers.
            NotFound: no peer.
        """
        if len(name) >= PEER_CHARS_MIN and peer_text(self._me).endswith(name):
            raise UsageError("that is this node itself", hint=SEE_PEERS)
        peers = sorted({**self.known(), **self._links})
        hits = [peer for peer in peers if peer_text(peer).endswith(name)]
        if len(name) < PEER_CHARS_MIN or not hits:
            raise NotFound(f"no peer {name[:64]!r} is known here", hint=SEE_PEERS)
        if len(hits) > 1:
            raise UsageError(f"{name[:64]!r} is the end of {len(hits)} peers", hint="give more of the id")
        return hits[0]

    # ---- dialling

    def _on_peer_record(self, peer: PeerID, value: PeerValue, now_us: int, *, live: bool) -> list[Effect]:
        if not live:
            self._dialling.on_gone(peer)
            return []
        if not self._is_member(peer, value, now_us):
            return [Count("peer_records_of_strangers")]
        addrs = tuple(text for text in value.addrs if Multiaddr.parse(text).dialable)
        effects = self._dialling.on_addresses(peer, addrs, now_us)
        return [Count("known_peers_full")] if effects is None else effects

    def _is_member(self, peer: PeerID, value: PeerValue, now_us: int) -> bool:
        """True iff the record carries a certificate that admits its publisher now: keys are free, admission is not."""
        try:
            admission = check_chain(self._genesis, value.cert, peer)
        except DecodeError:
            return False
        return admission.nbf_ms <= self._clock.now_ms(now_us) <= admission.exp_ms

    def _on_dial_failed(self, peer: PeerID, reason: str, now_us: int) -> list[Effect]:
        if peer in self._links:
            return []
        self.refusals.append(Refusal(peer_text(peer), "unreachable", reason, self._clock.wall_ms(now_us)))
        return self._dialling.on_failed(peer, now_us)
