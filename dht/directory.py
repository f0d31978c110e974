"""Finding agents by meaning through the DHT: which shards, how many of them, and how answers are merged.

Two codebooks are live while the swarm moves from one to the next. Nodes move one by one, so at any time some know only
the older of two and some only the newer of the next two: records are published under both, named in them, and searches
ask under both, so that neighbours in age find each other. A search merges what the holders of its shards know, the
greatest version of each slot. Scores are computed here, over signed vectors: a holder can withhold, but not promote.

Of the newest codebook a search asks `probes` shards, or `probes_wide` when that codebook is old; and further ones up to
`PROBES_MAX`, all at once, when the best score is low or when it found fewer than it was asked for (replication.md §8
has two and four). Sixteen are for swarms that are small beside their codebook, whose shards are nearly empty, and for
callers who filter. Of the five hits that an index shows for a question, a search finds with the codebook of 256
centroids of kernel/codebook.py, by the most shards that it may ask [measured, synthetic texts]:

    agents      64    128    700    2,000   8,192
    4 shards   .42    .46    .70    .79     .78       shards asked on average: 4, 4, 4, 3, 3
    16         .75    .77    .86    .89     .83                               16, 16, 13, 9, 6
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final

from dht.config import DhtConfig
from dht.placement import Codebook, scores_ppm
from dht.record_store import Slot
from protocol.capability import AgentValue, SignedRecord

CODEBOOKS_MAX: Final = 2
PROBES_MAX: Final = 16
"""Shards of the newest codebook that a search asks at most."""


class Directory:
    """The codebooks in force."""

    def __init__(self, config: DhtConfig) -> None:
        self._config = config
        self._codebooks: list[Codebook] = []  # newest first
        self._shards: dict[bytes, tuple[Codebook, int]] = {}

    @property
    def codebooks(self) -> tuple[bytes, ...]:
        """Ids of the live codebooks, newest first."""
        return tuple(codebook.id for codebook in self._codebooks)

    def use(self, codebook: Codebook) -> bool:
        """Put a codebook in force; False if it is the newest already."""
        if self._codebooks and self._codebooks[0].id == codebook.id:
            return False
        rest = [other for other in self._codebooks if other.id != codebook.id]
        self._codebooks = [codebook, *rest][:CODEBOOKS_MAX]
        self._shards = {
            live.key(index): (live, index) for live in self._codebooks for index in range(len(live.centroids))
        }
        return True

    def is_shard(self, key: bytes) -> bool:
        """True for the key of a centroid of a live codebook."""
        return key in self._shards

    def keys_for(self, value: AgentValue) -> list[bytes]:
        """The shards under which an agent is published."""
        if value.vector is None:
            return []
        fitting = [codebook for codebook in self._codebooks if codebook.encoder == value.encoder]
        count = self._config.centroids_per_record
        return [key for codebook in fitting for key in codebook.keys_for(value.vector, count)]

    def may_hold(self, key: bytes, value: AgentValue) -> bool:
        """Whether an agent's record belongs under a key other than its own slot.

        Under an unknown key an agent with a vector may stand only if it names a codebook that is not known here: its
        publisher is ahead, or behind. What such keys can hold is bounded by the quotas of the store, and readers judge
        by the vector.
        """
        shard = self._shards.get(key)
        if value.vector is None:
            return False
        if shard is None:
            known = [codebook.name for codebook in self._codebooks]
            return any(name not in known for name in value.codebooks)
        codebook, index = shard
        fits = codebook.encoder == value.encoder
        return fits and index in codebook.nearest(value.vector, self._config.centroids_per_record)

    def shards_for(self, encoder: str, probe: bytes, now_ms: int) -> tuple[list[bytes], list[bytes]]:
        """The shards that a search asks at once, and those it asks if these are not enough."""
        fitting = [book for book in self._codebooks if book.encoder == encoder and book.dim == len(probe)]
        if not fitting:
            return [], []
        newest, *others = fitting
        keys = newest.keys_for(probe, PROBES_MAX)
        is_old = now_ms - newest.made_ms > self._config.codebook_old_ms
        first = self._config.probes_wide if is_old else self._config.probes
        older = [key for book in others for key in book.keys_for(probe, self._config.probes)]
        return [*keys[:first], *older], keys[first:]


def tie(record: SignedRecord) -> tuple[bool, bytes, bytes]:
    """What orders records of one score: standard before demo, then publisher and key."""
    is_demo = isinstance(record.value, AgentValue) and record.value.quality == "demo"
    return (is_demo, record.publisher, record.key)


@dataclass(slots=True)
class Search:
    """One search: what it asks for, what it has found, what is still open."""

    request: int
    encoder: str
    probe: bytes
    limit: int
    later: list[bytes]
    open: int = 0
    rpcs: int = 0
    rounds: int = 0
    heard: bool = False
    found: dict[Slot, SignedRecord] = field(default_factory=dict)

    def take(self, records: list[SignedRecord]) -> None:
        """Merge what one shard knows; the greatest version of each slot stays, a withdrawal too."""
        for record in records:
            slot = (record.publisher, record.key)
            old = self.found.get(slot)
            if old is None or record.version > old.version:
                self.found[slot] = record

    def result(self, now_ms: int) -> tuple[tuple[int, SignedRecord], ...]:
        """(score, record) of the best live ones, best first; ties as `find` of the kernel orders them."""
        usable = [
            (record, record.value.vector)
            for record in self.found.values()
            if isinstance(record.value, AgentValue) and record.live(now_ms)
            if record.value.encoder == self.encoder
            if record.value.vector is not None and len(record.value.vector) == len(self.probe)
        ]
        scores = scores_ppm(self.probe, [vector for _, vector in usable])
        scored = [(score, record) for score, (record, _) in zip(scores, usable, strict=True)]
        return tuple(sorted(scored, key=lambda pair: (-pair[0], *tie(pair[1])))[: self.limit])

    def wants_more(self, low_score_ppm: int, now_ms: int) -> bool:
        """True if the wider shards should be asked."""
        best = self.result(now_ms)
        return bool(self.later) and (not best or len(best) < self.limit or best[0][0] < low_score_ppm)
