"""Lifeguard's local health: a node that hears little doubts itself before it doubts others (arXiv 1707.00788 §3.1).

The score rises when a probe fails without the helpers' nacks that should have come, when this node had to refute,
and when its own timers fire late; it falls with each probe that is answered. Own timeouts grow with it, so an
overloaded node accuses ever more slowly; the lag of its own loop, if somebody measures it, is added.
"""

from __future__ import annotations

from collections.abc import Callable

from gossip.membership.config import MemberConfig


class Awareness:
    """The score of this node. `lag_us`: how late its loop runs, or None."""

    def __init__(self, config: MemberConfig) -> None:
        self._config = config
        self._score = 0
        self.lag_us: Callable[[], int] | None = None

    @property
    def multiplier(self) -> int:
        """1 in good health, up to `health_max`."""
        return self._score + 1

    def better(self) -> None:
        """A probe was answered."""
        self._score = max(0, self._score - 1)

    def worse(self, by: int = 1) -> None:
        """Signs that the fault may be here."""
        self._score = min(self._config.health_max - 1, self._score + by)

    def stretched(self, wait_us: int) -> int:
        """A wait for others, as long as this node's health asks for."""
        lag_us = self.lag_us() if self.lag_us is not None else 0
        return wait_us * self.multiplier + min(max(0, lag_us), self._config.lag_max_us)
