"""What the gossip machines of one node share: identity, swarm, time, bounds, job ids, storage."""

from __future__ import annotations

from dataclasses import dataclass

from gossip.config import GossipConfig
from protocol.admission import Genesis
from protocol.clock import SwarmClock
from protocol.identity import KeyPair, Verify
from protocol.machine import JobIds
from protocol.peer import PeerID
from protocol.store import StoreReader


@dataclass(frozen=True, slots=True)
class Context:
    """Handed to every machine's constructor; nothing in it is global."""

    keys: KeyPair
    genesis: Genesis
    chain: tuple[bytes, ...]  # the own certificate chain
    clock: SwarmClock
    config: GossipConfig
    jobs: JobIds
    store: StoreReader
    verify: Verify

    @property
    def me(self) -> PeerID:
        """The own PeerID."""
        return PeerID(self.keys.public)
