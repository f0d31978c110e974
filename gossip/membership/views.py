"""What the view of this node looks like from outside: plain data for the control API."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class MemberView:
    """A member as this node sees it. `why` is empty while it is alive."""

    state: str
    why: str
    since_us: int
    incarnation: int
    linked: bool


@dataclass(frozen=True, slots=True)
class MemberStatus:
    """The view in numbers; self is not counted.

    Attributes:
        incarnation: of this node.
        health: multiplier of own timeouts, 1 when all is well.
        standing_down: the swarm is too large for this machine: only links count.
    """

    alive: int
    suspect: int
    dead: int
    left: int
    linked: int
    incarnation: int
    health: int
    standing_down: bool
