"""The local view: every known member with its state, and the flips between up and down.

`alive` is up; `suspect`, `dead` and `left` are down. Each flip gives exactly one `MemberUp` or `MemberDown`, so the
two alternate for each member; what goes on below (a suspect that dies) is told to watchers only.

Members that are down stay as tombstones for longer than any old statement is taken, so that nothing old revives
them; the tables of both kinds are bounded, and of tombstones the oldest goes first.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import Literal

from gossip.events import MemberDown, MemberUp
from gossip.membership.config import MemberConfig
from gossip.membership.requests import MACHINE
from gossip.membership.statement import Statement, life_of
from gossip.membership.suspicion import Suspicion
from protocol.machine import Effect, Local, Notify
from protocol.peer import PeerID

State = Literal["alive", "suspect", "dead", "left"]


@dataclass(slots=True)
class Member:
    """Another member, as this node sees it.

    Attributes:
        inc: the greatest incarnation that its owner told; nobody else raises it.
        at_ms: swarm time of its newest statement about itself in this incarnation.
        floor_ms: the latest time of all that it told of itself, Hellos included; an earlier life must be later still.
        fresh_us: its last own sign of life, a statement or a frame on a link; no word of others counts.
        left_told: its signed `left` came, not only the Bye of its link.
        word: its newest `alive`, to be handed on to who asks.
        hold_us: how long its words stand.
        returned: it was up before in the life in which it came up last, so one of the two nodes was cut off.
    """

    peer: PeerID
    inc: int
    state: State
    why: str
    since_us: int
    fresh_us: int
    at_ms: int = 0
    floor_ms: int = 0
    left_told: bool = False
    suspicion: Suspicion | None = None
    word: Statement | None = None
    hold_us: int = 0
    returned: bool = False
    up_life: int | None = None

    @property
    def is_up(self) -> bool:
        """Work may be given to it."""
        return self.state == "alive"

    def ttl_us(self, config: MemberConfig) -> int:
        """How long its last own sign of life stands."""
        return max(self.hold_us, config.presence_ttl_us)


class Roster:
    """The table of members, self not included."""

    def __init__(self, config: MemberConfig) -> None:
        self._config = config
        self._members: dict[PeerID, Member] = {}
        self._tombstones: dict[PeerID, None] = {}  # dead and left, oldest first

    def get(self, peer: PeerID) -> Member | None:
        """A member, up or down."""
        return self._members.get(peer)

    def members(self) -> list[Member]:
        """All of them in PeerID order."""
        return [self._members[peer] for peer in sorted(self._members)]

    def present(self) -> int:
        """How many are alive or suspect."""
        return len(self._members) - len(self._tombstones)

    def counts(self) -> Counter[str]:
        """How many are in each state."""
        return Counter(member.state for member in self._members.values())

    def add(self, peer: PeerID, inc: int, now_us: int) -> Member:
        """A member that was not known; it is down until a state is set."""
        member = Member(peer, inc, "dead", "unknown", now_us, now_us)
        self._members[peer] = member
        self._tombstones[peer] = None
        return member

    def set(self, member: Member, state: State, why: str, now_us: int) -> list[Effect]:
        """Change a state; nothing if it is the same."""
        if state == member.state:
            return []
        was_up = member.is_up
        member.state, member.why, member.since_us = state, why, now_us
        if member.is_up:
            life = life_of(member.inc)
            member.returned, member.up_life = member.up_life == life, life
        self._tombstones.pop(member.peer, None)
        if state in ("dead", "left"):
            member.suspicion = None if state == "left" else member.suspicion
            self._tombstones[member.peer] = None
            if len(self._tombstones) > self._config.tombstones_max:
                self.forget(next(iter(self._tombstones)))
        effects: list[Effect] = [Notify(MACHINE, (state, member.peer))]
        if member.is_up != was_up:
            effects.append(Local(MemberUp(member.peer) if member.is_up else MemberDown(member.peer, why)))
        return effects

    def forget(self, peer: PeerID) -> None:
        """Drop a member that is down."""
        assert not self._members[peer].is_up
        del self._members[peer]
        self._tombstones.pop(peer, None)
