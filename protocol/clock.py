"""Time: swarm time, and the hybrid logical clock that stamps ops (protocol.md §4).

An HLC is one integer, milliseconds · 2^16 + counter. It orders for display and ends leases; causality comes
from hashes. The clock never goes back, never stands still, and stays close to swarm time: a stamp is
max(swarm time, last stamp + 1, every dependency + 1).

Swarm time is the wall clock plus the median of the peers' offsets, own sample included, so that a clock wrong
by minutes neither mutes nor deafens its node. Peers may move it by `OFFSET_MS_MAX` and no further: whoever makes
up more than half of a node's links could else end every record and every certificate that it holds by naming a day
in the next year. A node whose own clock is wrong by more is warned (`skewed`), and has to set it.
"""

from __future__ import annotations

import statistics
from typing import Final

HLC_PER_MS: Final = 1 << 16
HLC_MAX: Final = 2**64 - 1
QUARANTINE_MS: Final = 60_000  # an op stamped further ahead waits, it is never rejected (replication.md §2.3)
SKEW_WARN_MS: Final = 5_000
OFFSET_SAMPLES_MAX: Final = 64
OFFSET_MS_MAX: Final = 15 * 60_000
"""How far peers may move swarm time from the own wall clock. Above the ten minutes by which a clock may be wrong
(complaint 14); not above the lead that certificates are given, so that no peer makes a fresh one look too young. The
records of a node that was moved forward by all of it are taken by others five minutes late (`FUTURE_MS_MAX`)."""


def hlc_from_ms(ms: int) -> int:
    """The first HLC of a millisecond."""
    return ms * HLC_PER_MS


def hlc_to_ms(hlc: int) -> int:
    """The millisecond of an HLC."""
    return hlc // HLC_PER_MS


class HybridClock:
    """Stamps that grow strictly; `high_water` is the last stamp this node ever used."""

    def __init__(self, high_water: int = 0) -> None:
        self.high_water = high_water

    def stamp(self, swarm_ms: int, floor: int = 0) -> int:
        """The next stamp: not before swarm time, after every earlier one and after `floor`."""
        self.high_water = max(hlc_from_ms(swarm_ms), self.high_water + 1, floor + 1)
        return self.high_water


class SwarmClock:
    """Swarm time from boot time: an own wall offset and the peers' offsets against the own wall clock."""

    def __init__(self, wall_offset_us: int, floor_ms: int = 0) -> None:
        """`floor_ms`: it is later than this for sure (the own certificate had begun); who says otherwise is wrong."""
        self._wall_offset_us = wall_offset_us
        self._floor_ms = floor_ms
        self._peers: dict[bytes, int] = {}
        self._median_ms = 0

    def set_wall_offset(self, wall_offset_us: int) -> None:
        """The wall clock was set: wall = boot + offset from now on. What peers told stays where it was."""
        step_ms = (wall_offset_us - self._wall_offset_us) // 1000
        self._peers = {peer: offset_ms - step_ms for peer, offset_ms in self._peers.items()}
        self._wall_offset_us = wall_offset_us
        self._count()

    def wall_ms(self, now_us: int) -> int:
        """The own wall clock, in milliseconds since the epoch."""
        return (now_us + self._wall_offset_us) // 1000

    def sample(self, peer: bytes, peer_wall_ms: int, now_us: int) -> None:
        """A peer said what its wall clock shows; the newest sample of each of the last peers counts."""
        self._peers.pop(peer, None)
        if peer_wall_ms >= self._floor_ms:  # of two clocks the earlier leads: an impossible one would mute its partner
            self._peers[peer] = peer_wall_ms - self.wall_ms(now_us)
        if len(self._peers) > OFFSET_SAMPLES_MAX:
            del self._peers[next(iter(self._peers))]
        self._count()

    def forget(self, peer: bytes) -> None:
        """Drop a peer's sample."""
        self._peers.pop(peer, None)
        self._count()

    def _count(self) -> None:
        """The time is asked for far more often than a sample comes."""
        self._median_ms = int(statistics.median_low([0, *self._peers.values()]))

    @property
    def median_ms(self) -> int:
        """What the peers say of the own wall clock, however much it is: how far it lies behind theirs."""
        return self._median_ms

    @property
    def offset_ms(self) -> int:
        """Swarm time minus own wall time, OFFSET_MS_MAX at most either way."""
        return max(-OFFSET_MS_MAX, min(OFFSET_MS_MAX, self._median_ms))

    @property
    def skewed(self) -> bool:
        """True when the peers' clocks are off from the own by more than SKEW_WARN_MS; worth a warning."""
        return abs(self._median_ms) > SKEW_WARN_MS

    def now_ms(self, now_us: int) -> int:
        """Swarm time in milliseconds."""
        return self.wall_ms(now_us) + self.offset_ms
