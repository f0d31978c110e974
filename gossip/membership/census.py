"""How large the swarm is while this machine stands down.

Above `members_max` members nobody is tracked, for a table of more would cost every node more than it is worth; all
say their presence as rarely as in the largest swarm that is tracked. Who said it within the last three such periods
is counted, up to one more than `members_max`; once they are few enough again (`members_return`, so that a swarm of
just that size does not flap), the machine stands up.
"""

from __future__ import annotations

from gossip.membership.config import MemberConfig
from protocol.peer import PeerID


class Census:
    """Signs of life of members that are not tracked. `counting`: the machine stands down."""

    def __init__(self, config: MemberConfig) -> None:
        self._config = config
        self._window_us = config.hold_us(config.standing_period_us)
        self.counting = False
        self._seen: dict[PeerID, tuple[int, int]] = {}  # statement's time in ms, and when it came; oldest first

    def start(self, peers: list[PeerID], now_us: int) -> None:
        """Begin with those who are known."""
        self.counting = True
        self._seen = dict.fromkeys(peers, (0, now_us))

    def is_news(self, peer: PeerID, at_ms: int) -> bool:
        """This word of a member was not counted yet."""
        return at_ms > self._seen.get(peer, (-1, 0))[0]

    def count(self, peer: PeerID, at_ms: int, now_us: int) -> None:
        """A member said that it lives."""
        self._seen.pop(peer, None)
        self._seen[peer] = (at_ms, now_us)
        if len(self._seen) > self._config.members_max + 1:
            del self._seen[next(iter(self._seen))]

    def ends(self, now_us: int) -> bool:
        """So few spoke of late that each can be tracked: the count is over."""
        if not self.counting:
            return False
        while self._seen:
            peer, (_, at_us) = next(iter(self._seen.items()))
            if now_us - at_us <= self._window_us:
                break
            del self._seen[peer]
        self.counting = len(self._seen) > self._config.members_return
        return not self.counting
