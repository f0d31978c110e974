"""What is held against one incarnation of a member, and how long it has to refute it.

The wait is 5 · max(1, log10 N) periods: a refutation must cross the swarm, whose diameter grows with log N. Each
further accuser of its own shortens it, on Lifeguard's curve, to two fifths at `confirmations`: who is missed by many
needs no long hearing. Nobody is declared dead on the word of others before this wait is over here: a `dead` that
comes is one more accuser. So a member that hears of it can always answer in time, whatever a liar signs.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field

from gossip.membership.config import MemberConfig
from protocol.peer import PeerID


@dataclass(slots=True)
class Suspicion:
    """Accusations of one incarnation.

    Attributes:
        accused_ms: swarm time of the newest of them; what the subject says of a later time answers it.
        noted_us: since when it is known here.
        began_us: since when the wait runs; None where the member is linked and seen alive all the same.
        timer_us: when it is looked at again.
        announced: this node accuses it as well, and said so.
        dead_told: somebody signed `dead` already; it needs not be said again.
        echoes: own statements of the subject since, of whatever time, each `echo_gap_us` after the one before.
        echo_us: when the last was counted.
    """

    accused_ms: int
    noted_us: int
    began_us: int | None = None
    timer_us: int = 0
    announced: bool = False
    dead_told: bool = False
    echoes: int = 0
    echo_us: int = 0
    accusers: dict[PeerID, None] = field(default_factory=dict)

    def full(self, config: MemberConfig) -> bool:
        """As many accusers as make a difference."""
        return len(self.accusers) > config.confirmations

    def due_us(self, config: MemberConfig, swarm_size: int) -> int:
        """When the wait ends; only for one that runs."""
        assert self.began_us is not None
        longest = config.suspicion_periods * config.probe_every_us * max(1.0, math.log10(swarm_size))
        least = longest * config.suspicion_least_percent / 100
        confirmed = min(max(0, len(self.accusers) - 1), config.confirmations)
        saved = (longest - least) * math.log(confirmed + 1) / math.log(config.confirmations + 1)
        return self.began_us + int(longest - saved)
