"""Who is there: contacts come by their own signed record, and go as soon as they are known to be gone.

A contact is a member: its record carries the certificate that admits it, or nobody is dialled for it. A serving node
introduces itself on each link. Whoever speaks is heard (`Table.offer`); whoever is merely named by others is asked
before it becomes a contact, so answers cannot fill a table. A contact is evicted when its link ends, when no address of
it gives a link, after a request and then a ping came to nothing, when it says that it serves nobody, and when it
answers with what is forged. Who just failed is asked by no look-up for a while, whatever others still say of it; one
word of its own ends that.
"""

from __future__ import annotations

from dht.calls import Calls, Failed, Why
from dht.config import DhtConfig
from dht.key import node_id
from dht.publisher import Publisher
from dht.routing_table import Contact, Table
from dht.server import CLIENT_RETRY_MS
from dht.verified import VerifiedRecords
from protocol.capability import SignedRecord
from protocol.clock import SwarmClock
from protocol.errors import DecodeError
from protocol.machine import Count, Effect
from protocol.messages import Ping
from protocol.peer import PeerID


class Neighbourhood:
    """Keeps the routing table. What it learns before `settled` is new to this node only, and no change of others."""

    def __init__(
        self,
        table: Table,
        calls: Calls,
        publisher: Publisher,
        verified: VerifiedRecords,
        clock: SwarmClock,
        config: DhtConfig,
    ) -> None:
        self._table = table
        self._calls = calls
        self._publisher = publisher
        self._verified = verified
        self._config = config
        self._clock = clock
        self._introduced: dict[PeerID, Contact] = {}  # by linked peers; gone with the link
        self._shunned: dict[PeerID, int] = {}
        self._pinged: dict[PeerID, None] = {}
        self.settled = False

    # ---- hearing

    def on_link(self, peer: PeerID) -> None:
        """A link is open: nothing is held against the peer."""
        self._shunned.pop(peer, None)

    def on_introduction(self, peer: PeerID, wire: bytes, now_us: int, now_ms: int) -> list[Effect]:
        """A linked peer says that it serves, and where."""
        try:
            contact = self._verified.contact(wire, now_ms)
        except DecodeError:
            contact = None
        if contact is None or contact.peer != peer:
            return [Count("dht_introductions_refused")]
        self._introduced[peer] = contact
        return self.heard(contact, now_us)

    def on_request(self, peer: PeerID, now_us: int) -> list[Effect]:
        """A linked peer asked something; if it serves, it is heard."""
        contact = self._introduced.get(peer)
        return self.heard(contact, now_us) if contact is not None else []

    def heard(self, contact: Contact, now_us: int) -> list[Effect]:
        """A contact spoke: it is in the table, or waits for a place there."""
        self._shunned.pop(contact.peer, None)
        offer = self._table.offer(contact, now_us)
        if offer.is_new and self.settled:
            self._publisher.came(contact)
        if offer.ping is None:
            return []
        if offer.ping.peer in self._calls.linked:  # it is there: its link would be gone
            self._table.offer(offer.ping, now_us)
            return []
        return self._ping(offer.ping, now_us)

    def _ping(self, contact: Contact, now_us: int) -> list[Effect]:
        if contact.peer in self._pinged:
            return []
        self._pinged[contact.peer] = None
        wall_ms = self._clock.wall_ms(now_us)  # the other side takes it as a sample of this clock

        def make(req: int) -> Ping:
            return Ping(req, wall_ms)

        return self._calls.call(("ping", 0), contact, make, now_us)

    def named(self, wires: tuple[bytes, ...], now_us: int, now_ms: int) -> list[Contact] | None:
        """Whom an answer names and a look-up may ask, members alone; None if a record is forged."""
        try:
            contacts = [self._verified.contact(wire, now_ms) for wire in wires[: self._config.k]]
        except DecodeError:
            return None
        return [contact for contact in contacts if contact is not None and not self.shuns(contact.peer, now_us)]

    # ---- losing

    def on_link_end(self, peer: PeerID, *, in_order: bool) -> list[Effect]:
        """A link is gone; a peer that was let go in order stays a contact."""
        self._introduced.pop(peer, None)
        return [] if in_order else self._evict(peer)

    def on_pong(self, peer: PeerID) -> None:
        """A ping ended, one way or the other."""
        self._pinged.pop(peer, None)

    def on_failed(self, failed: Failed, now_us: int) -> list[Effect]:
        """A request came to nothing."""
        contact = failed.contact
        match failed.why:
            case Why.UNREACHABLE | Why.GONE:
                return self.distrust(contact.peer, now_us)
            case Why.TIMEOUT if failed.owner[0] == "ping":
                return self.distrust(contact.peer, now_us)
            case Why.TIMEOUT:
                return self._ping(contact, now_us)
            case Why.BUSY if failed.retry_after_ms >= CLIENT_RETRY_MS:
                return self.distrust(contact.peer, now_us)
            case Why.BUSY | Why.FULL:
                return []

    def distrust(self, peer: PeerID, now_us: int) -> list[Effect]:
        """Evict a peer and ask it nothing for a while."""
        self._shun(peer, now_us)
        return self._evict(peer)

    def expire(self, now_ms: int) -> list[Effect]:
        """Evict whose record or certificate has run out: who was not spoken to while it lived is no use to anybody."""
        gone = [each.peer for each in self._table.contacts() if not self._is_good(each.record, now_ms)]
        return [effect for peer in gone for effect in self._evict(peer)]

    def _is_good(self, record: SignedRecord, now_ms: int) -> bool:
        return record.live(now_ms) and self._verified.certified(record, now_ms)

    def _evict(self, peer: PeerID) -> list[Effect]:
        if not self._table.remove(peer):
            return []
        self._publisher.left(node_id(peer))
        return [Count("dht_evicted")]

    def _shun(self, peer: PeerID, now_us: int) -> None:
        self._shunned.pop(peer, None)
        self._shunned[peer] = now_us + self._config.shun_us
        if len(self._shunned) > self._config.shunned_max:
            del self._shunned[next(iter(self._shunned))]

    def shuns(self, peer: PeerID, now_us: int) -> bool:
        """True while a peer is passed over."""
        return self._shunned.get(peer, 0) > now_us
