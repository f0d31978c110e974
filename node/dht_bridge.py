"""The DHT as a machine among the others: what they tell each other, in its words. Pure.

    Linked, Unlinked, MemberDown        PeerSeen, PeerGone        only peers that speak the DHT
    RecordChanged of the own node       OwnRecord                 withdrawals too: no shard keeps offering what ended
    ReachabilityChanged                 Serving                   who cannot be dialled holds no record (complaint 15)

Membership tells once that a member is down, when it comes to suspect it, whatever becomes of the suspicion. A peer that
speaks the DHT over a link of this node stays a contact until the link ends, in order or not. Any other leaves the
routing table at once: it comes back by being heard, and the dead are asked by nobody meanwhile.

`dht/` and `gossip/` do not know each other; node/core.py composes this file between them.
"""

from __future__ import annotations

import random

from dht.behaviour import Dht
from dht.config import DhtConfig
from dht.events import OwnRecord, PeerGone, PeerSeen, Serving, UseCodebook
from dht.terms import Terms
from gossip.events import Linked, MemberDown, MemberUp, RecordChanged, Unlinked
from gossip.reach import ReachabilityChanged
from protocol import versions
from protocol.clock import SwarmClock
from protocol.machine import Boot, Effect
from protocol.peer import PeerID


class DhtBridge:
    """The machine. `codebooks` are put in force at Boot, oldest first."""

    def __init__(
        self,
        me: PeerID,
        clock: SwarmClock,
        config: DhtConfig,
        rng: random.Random,
        *,
        terms: Terms,
        codebooks: tuple[bytes, ...] = (),
    ) -> None:
        self._me = me
        self._codebooks = codebooks
        self._speakers: dict[PeerID, bool] = {}  # linked; whether membership has it up
        self.dht = Dht(me, clock, config, rng, terms=terms)

    def handle(self, event: object, now_us: int) -> list[Effect]:
        """Give the DHT what concerns it."""
        return [effect for told in self._told(event) for effect in self.dht.handle(told, now_us)]

    def _told(self, event: object) -> list[object]:
        match event:
            case Boot():
                return [event, *(UseCodebook(wire) for wire in self._codebooks)]
            case Linked(peer, hello):
                if versions.DHT not in hello.features:
                    return []
                self._speakers[peer] = True
                return [PeerSeen(peer)]
            case Unlinked(peer, in_order):
                is_up = self._speakers.pop(peer, None)
                return [PeerGone(peer, in_order and is_up)] if is_up is not None else []
            case MemberDown(peer, _) if peer not in self._speakers:
                return [PeerGone(peer)]
            case MemberUp(peer) | MemberDown(peer, _):
                if peer in self._speakers:
                    self._speakers[peer] = isinstance(event, MemberUp)
                return []
            case RecordChanged(record, _):
                return [OwnRecord(record)] if record.publisher == self._me else []
            case ReachabilityChanged():
                return [Serving(on=event.serving)]
            case _:
                return [event]
