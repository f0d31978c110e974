"""Who may be given work, who is down, and who was never heard: what the kernel knows of the nodes behind the records.

A record outlives its node by hours. Who was there when the node died knows it from membership; who joined or restarted
later holds the record and hears nothing, and would take a ghost for an agent (case D2).

Rules of this file
- Up is what membership says (`MemberUp`), down is what it says (`MemberDown`), this node itself is up.
- Of others only silence is known. A publisher whose record was held here for longer than a word of any member stands,
  without one from it, shows no sign of life: it counts as down. Time without a link does not count, for then nothing
  could be heard; neither does time before this life.
- Where membership stands down or the index is not complete, silence says nothing: whether such a node lives is unknown,
  and stays so.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final

from gossip.events import MemberDown, MemberUp
from protocol.peer import PeerID

DOWN_MAX: Final = 4_096  # members that are down, remembered
SILENT: Final = "no sign of life"


class Liveness:
    """`silence_us` says how long a live member of a swarm of so many may be silent; None where that says nothing."""

    def __init__(self, me: PeerID, silence_us: Callable[[int], int | None]) -> None:
        self._me = me
        self._silence_us = silence_us
        self._alive: dict[PeerID, None] = {}  # members that may be given work, linked or not
        self._down: dict[bytes, str] = {}  # members that are not, with the reason; the longest down goes first
        self._held: dict[bytes, int] = {}  # publisher of records -> boot time since when; bounded as the records are
        self._linked_us = 0  # since when this node is not alone

    def note(self, event: MemberUp | MemberDown) -> None:
        """Membership says whether a member lives."""
        self._down.pop(event.peer, None)
        match event:
            case MemberUp(peer):
                self._alive[peer] = None
            case MemberDown(peer, why):
                self._alive.pop(peer, None)
                self._down[peer] = why
                if len(self._down) > DOWN_MAX:
                    del self._down[next(iter(self._down))]

    def on_first_link(self, now_us: int) -> None:
        """This node was alone until now."""
        self._linked_us = now_us

    def hold(self, publisher: bytes, now_us: int) -> None:
        """There is a record of it."""
        self._held.setdefault(publisher, now_us)

    def release(self, publisher: bytes) -> None:
        """There is none any more."""
        self._held.pop(publisher, None)

    def workers(self) -> frozenset[bytes]:
        """This node and every member that is up."""
        return frozenset((self._me, *self._alive))

    def not_alive(self, now_us: int) -> Mapping[bytes, str]:
        """Who is down, and why; those without a sign of life included."""
        silence_us = self._silence_us(max(len(self._held), len(self._alive) + 1))
        if silence_us is None:
            return self._down
        silent = {
            publisher: SILENT
            for publisher, held_us in self._held.items()
            if now_us - max(held_us, self._linked_us) > silence_us and publisher not in self._alive
        }
        silent.pop(self._me, None)
        return silent | self._down
