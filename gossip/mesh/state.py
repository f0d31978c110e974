"""What the parts of the mesh share: linked peers, scores, messages, and what is counted."""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass, field

from gossip.mesh.allowance import Allowance
from gossip.mesh.cache import Cache, Seen
from gossip.mesh.config import MeshConfig
from gossip.mesh.scores import Scores
from gossip.mesh.unjudged import Unjudged
from protocol.machine import Count, Effect
from protocol.peer import PeerID


@dataclass(slots=True)
class Peer:
    """A linked peer that speaks the mesh. What it can make grow is bounded; all of it goes with the link."""

    topics: dict[str, bool] = field(default_factory=dict)  # what it said of topics of this node; no others are kept
    told: bool = True  # the own Subscribe was not refused by its queue
    has: dict[bytes, None] = field(default_factory=dict)  # ids that it said it has, the oldest first
    owed: dict[bytes, None] = field(default_factory=dict)  # ids that its full queue refused: offered at the heartbeat
    drops: int = 0
    owes: int = 0  # ids that it was asked for and has not delivered yet
    allowances: dict[str, Allowance] = field(default_factory=dict)  # per topic, what it may bring
    unechoed: dict[str, int] = field(default_factory=dict)  # per topic, heartbeats since an echo in which it brought
    # since the last heartbeat
    brought: dict[str, deque[bytes]] = field(default_factory=dict)  # per topic, the last few ids
    given: dict[str, None] = field(default_factory=dict)  # topics in which it was given or offered something
    ihave_frames: int = 0
    answered_ids: int = 0
    answered_bytes: int = 0

    def heartbeat(self) -> None:
        """What counts per heartbeat begins anew."""
        self.brought.clear()
        self.given.clear()
        self.ihave_frames = self.answered_ids = self.answered_bytes = 0


class State:
    """One per machine."""

    def __init__(self, config: MeshConfig, topics: tuple[str, ...], rng: random.Random) -> None:
        self.config = config
        self.topics = topics
        self.rng = rng
        self.peers: dict[PeerID, Peer] = {}
        self.scores = Scores(config)
        self.cache = Cache(config)
        self.seen = Seen(config)
        self.unjudged = Unjudged(config)
        self.counters: dict[str, int] = {}
        self._spent: dict[PeerID, dict[str, Allowance]] = {}  # of peers that left, in the order of leaving

    def count(self, name: str, n: int = 1) -> list[Effect]:
        """Count something, for the node and for `status`; nothing if n is 0."""
        if not n:
            return []
        self.counters[name] = self.counters.get(name, 0) + n
        return [Count(name, n)]

    def subscribers(self, topic: str, least_milli: int) -> list[PeerID]:
        """Linked peers that want a topic and have a score of at least so much, in order."""
        return [
            peer
            for peer in sorted(self.peers)
            if self.peers[peer].topics.get(topic) and self.scores.of(peer) >= least_milli
        ]

    def link(self, peer: PeerID) -> None:
        """A peer is there, with the score and the allowances that are remembered of it."""
        self.peers[peer] = Peer(allowances=self._spent.pop(peer, {}))
        self.scores.link(peer)

    def unlink(self, peer: PeerID, now_us: int) -> None:
        """A linked peer is gone. What it used up stays used up: a new link is no new allowance."""
        self._spent[peer] = self.peers.pop(peer).allowances
        if len(self._spent) > self.config.retained_max:
            del self._spent[next(iter(self._spent))]
        self.unjudged.forget(peer)
        self.cache.forget(peer)
        self.scores.unlink(peer, now_us)

    def allowance(self, peer: PeerID, topic: str, now_us: int) -> Allowance:
        """What a linked peer may bring of a topic of this node."""
        allowances = self.peers[peer].allowances
        if topic not in allowances:
            allowances[topic] = Allowance(self.config, now_us)
        return allowances[topic]

    def knows(self, mid: bytes) -> bool:
        """Whether there is nothing to ask for: judged, held, or waiting for its verdict."""
        return self.seen.get(mid) is not None or self.cache.get(mid) is not None or self.unjudged.get(mid) is not None

    def sample(self, peers: list[PeerID], most: int) -> list[PeerID]:
        """So many of these at most, drawn by chance, in order."""
        return sorted(self.rng.sample(peers, most)) if most < len(peers) else peers


def remember(table: dict[bytes, None], ids: Iterable[bytes], most: int) -> None:
    """Add ids as the newest; the oldest give way."""
    for mid in ids:
        table.pop(mid, None)
        table[mid] = None
    while len(table) > most:
        del table[next(iter(table))]
