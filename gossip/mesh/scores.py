"""What a peer is worth, from what this node saw of it itself (replication.md §7); integers, in thousandths of a point.

    time in a mesh       +0.01 per heartbeat, at most +60, gone with its mesh
    first deliveries     +1 each, at most +2 per heartbeat and +50 in all
    invalid messages     -20 each
    silence              -20 per time that it was pruned for taking and never giving (gossip/mesh/overlay.py)
    misbehaviour         -5 each above six: broken promises, grafts during back-off, bytes that are no frame
    worth                -50 to +20 for verified outcomes, from outside this package

All but the last decay with each heartbeat. Nothing is believed that another peer says of a third one. Messages that
replace each other are cheap to sign, so it counts in how many heartbeats a peer was first with some, hardly with how
many: a flood earns what a good relay earns.

gossipsub's rule against many peers of one address is left out. The address would have to be one that this node sees
itself, for those in a Hello are the peer's own claim, and the links do not say it; behind a relay there is none. And
people who share a public address, such as an office, would pay for each other. Keys are admitted one by one instead.

A bad score outlives its link for an hour, so that a new link is no pardon; a good one does not.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

from gossip.mesh.config import MeshConfig
from protocol.peer import PeerID

_POINT = 1_000
_DUST = 10  # thousandths below which a decaying value is nothing
WORTH_POINTS_MIN = -50
WORTH_POINTS_MAX = 20


@dataclass(slots=True)
class _Record:
    mesh: int = 0
    first: int = 0
    firsts: int = 0  # counted since the last heartbeat
    invalid: int = 0  # of the three faults: thousandths of a count
    silent: int = 0
    misbehaved: int = 0
    left_us: int = 0


class Scores:
    """The table of linked peers, and of bad ones that left."""

    def __init__(self, config: MeshConfig) -> None:
        self._config = config
        self._linked: dict[PeerID, _Record] = {}
        self._left: dict[PeerID, _Record] = {}  # in the order of leaving
        self.worth: Callable[[PeerID], int] = lambda _: 0

    def __len__(self) -> int:
        return len(self._linked) + len(self._left)

    def link(self, peer: PeerID) -> None:
        """A peer is there, with what is remembered of it."""
        left = self._left.pop(peer, None)
        self._linked[peer] = _Record() if left is None else left

    def unlink(self, peer: PeerID, now_us: int) -> None:
        """A peer is gone; only faults are remembered."""
        record = self._linked.pop(peer, None)
        if record is None or not (record.invalid or record.silent or record.misbehaved):
            return
        self._left[peer] = _Record(
            invalid=record.invalid, silent=record.silent, misbehaved=record.misbehaved, left_us=now_us
        )
        if len(self._left) > self._config.retained_max:
            del self._left[next(iter(self._left))]

    def of(self, peer: PeerID) -> int:
        """The score of a peer in thousandths; 0 for one that is not linked."""
        record, config = self._linked.get(peer), self._config
        if record is None:
            return 0
        worth = min(WORTH_POINTS_MAX, max(WORTH_POINTS_MIN, self.worth(peer)))
        return (
            record.mesh
            + record.first
            + worth * _POINT
            - record.invalid * config.invalid_points
            - record.silent * config.silent_points
            - max(0, record.misbehaved - config.misbehaviour_free * _POINT) * config.misbehaviour_points
        )

    def first(self, peer: PeerID) -> None:
        """It brought an accepted message first."""
        record = self._linked.get(peer)
        if record is not None and record.firsts < self._config.first_heartbeat_max:
            record.firsts += 1
            record.first = min(self._config.first_milli_max, record.first + self._config.first_milli)

    def invalid(self, peer: PeerID) -> None:
        """It brought a message that was rejected."""
        if (record := self._linked.get(peer)) is not None:
            record.invalid = self._more(record.invalid)

    def silent(self, peer: PeerID) -> None:
        """It was pruned for silence."""
        if (record := self._linked.get(peer)) is not None:
            record.silent = self._more(record.silent)

    def misbehaved(self, peer: PeerID, n: int = 1) -> None:
        """It broke a rule of the protocol."""
        if (record := self._linked.get(peer)) is not None:
            record.misbehaved = self._more(record.misbehaved, n)

    def pruned(self, peer: PeerID) -> None:
        """It left a mesh: its time there is void."""
        if (record := self._linked.get(peer)) is not None:
            record.mesh = 0

    def heartbeat(self, meshed: Iterable[PeerID], now_us: int) -> None:
        """One heartbeat passed. `meshed`: the peers in any mesh, each once."""
        config = self._config
        for peer in meshed:
            record = self._linked[peer]
            record.mesh = min(config.mesh_milli_max, record.mesh + config.mesh_milli)
        for record in [*self._linked.values(), *self._left.values()]:
            record.firsts = 0
            record.first = _decayed(record.first, config.first_decay_percent)
            record.invalid = _decayed(record.invalid, config.invalid_decay_percent)
            record.silent = _decayed(record.silent, config.silent_decay_percent)
            record.misbehaved = _decayed(record.misbehaved, config.misbehaviour_decay_percent)
        while self._left and self._left[oldest := next(iter(self._left))].left_us + config.retained_us <= now_us:
            del self._left[oldest]

    def _more(self, count: int, n: int = 1) -> int:
        return min(self._config.faults_max * _POINT, count + n * _POINT)


def _decayed(value: int, percent: int) -> int:
    less = value * percent // 100
    return less if less >= _DUST else 0
