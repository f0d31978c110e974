"""The DHT as a machine among the others: what they tell each other, in its words. Pure.

    Linked, Unlinked, MemberDown        PeerSeen, PeerGone        only peers that speak the DHT
    RecordChanged of the own node       OwnRecord                 withdrawals too: no shard keeps offering what ended
    ReachabilityChanged                 Serving                   who cannot be dialled holds no record (complaint 15)

`dht/` and `gossip/` do not know each other; node/core.py composes this file between them.
"""

from __future__ import annotations

import random
from typing import Final

from dht.behaviour import Dht
from dht.config import DhtConfig
from dht.events import OwnRecord, PeerGone, PeerSeen, Serving, UseCodebook
from gossip.events import Linked, MemberDown, RecordChanged, Unlinked
from gossip.reach import ReachabilityChanged
from protocol import versions
from protocol.clock import SwarmClock
from protocol.identity import Verify
from protocol.machine import Boot, Effect
from protocol.peer import PeerID

GONE_FOR_GOOD: Final = frozenset(("dead", "left", "silent"))
"""Why a member is down so that it leaves the routing table at once; one that is only suspected stays."""


class DhtBridge:
    """The machine. `codebooks` are put in force at Boot, oldest first."""

    def __init__(
        self,
        me: PeerID,
        clock: SwarmClock,
        config: DhtConfig,
        rng: random.Random,
        *,
        verify: Verify,
        codebooks: tuple[bytes, ...] = (),
    ) -> None:
        self._me = me
        self._codebooks = codebooks
        self._speakers: dict[PeerID, None] = {}
        self.dht = Dht(me, clock, config, rng, verify=verify)

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
                self._speakers[peer] = None
                return [PeerSeen(peer)]
            case Unlinked(peer, in_order):
                return [PeerGone(peer, in_order)] if self._speakers.pop(peer, False) is None else []
            case MemberDown(peer, why):
                return [PeerGone(peer)] if why in GONE_FOR_GOOD and peer not in self._speakers else []
            case RecordChanged(record, _):
                return [OwnRecord(record)] if record.publisher == self._me else []
            case ReachabilityChanged():
                return [Serving(on=event.serving)]
            case _:
                return [event]
