"""The words of all who are alive, for a node that was alone: asked for once, instead of everybody speaking for it.

A newcomer, or a node that lost all its links for a while, asks the first `tables` neighbours, and as many again 10 s
and 30 s later, for those who started with it: `IWant` with an id that no statement has (`TABLE`). The mesh knows
nothing under it and gives nothing; this machine gives the newest signed `alive` of each member that is up here, in
`Spread` frames, like any other statement. That costs some hundred bytes per member for one newcomer; a word of
everybody would cost each node as much for each link of its mesh.

What an asked neighbour sends is applied like everything that comes, for it is signed by those whom it is about. But
old words are passed on to nobody: the newcomer is the one who lacked them (gossip/membership/hearsay.py).

A neighbour that does not answer costs nothing but time: the words come one by one within a period.
"""

from __future__ import annotations

from typing import Final

from gossip.membership.config import MemberConfig
from gossip.membership.neighbours import Neighbours
from gossip.membership.requests import MACHINE
from gossip.membership.roster import Roster
from gossip.membership.statement import TABLE, TOPIC
from gossip.mesh.batches import batches
from protocol.machine import Count, Effect, Send, SetTimer, TimerKey
from protocol.messages import IWant, message_id
from protocol.peer import PeerID
from protocol.transport import Lane

AGAIN: Final = "tables"  # what the timer of asking again is called
_AGAIN: Final = TimerKey(MACHINE, AGAIN)


class Tables:
    """What this node asked for, and whom it gave."""

    def __init__(self, config: MemberConfig, roster: Roster, neighbours: Neighbours) -> None:
        self._config = config
        self._roster = roster
        self._neighbours = neighbours
        self._left = 0  # how many more of the first links are asked
        self._later_us = 0  # between the second and the last asking; 0: that was planned
        self._asked: dict[PeerID, int] = {}  # when; of linked peers, as the next
        self._given: dict[PeerID, int] = {}

    def on_linked(self, peer: PeerID, now_us: int) -> list[Effect]:
        """A link began; the first ones after a time without any are asked."""
        effects: list[Effect] = []
        if len(self._neighbours) == 1:
            self._left, self._later_us = self._config.tables, 2 * self._config.table_again_us
            effects.append(SetTimer(_AGAIN, now_us + self._config.table_again_us))
        if self._left and self._neighbours.speaks(peer):
            self._left -= 1
            effects.append(self._ask(peer, now_us))
        return effects

    def on_unlinked(self, peer: PeerID) -> None:
        """A link ended."""
        self._asked.pop(peer, None)
        self._given.pop(peer, None)

    def ask_again(self, now_us: int) -> list[Effect]:
        """Some neighbours, of all that are linked by now; and a last time later."""
        later: list[Effect] = [SetTimer(_AGAIN, now_us + self._later_us)] if self._later_us else []
        self._later_us = 0
        return later + [self._ask(peer, now_us) for peer in self._neighbours.helpers(set(), self._config.tables)]

    def answers(self, peer: PeerID, now_us: int) -> bool:
        """Whether an old word that this peer sends now is an answer to this node."""
        asked_us = self._asked.get(peer)
        return asked_us is not None and now_us - asked_us <= self._config.table_wait_us

    def on_asked(self, peer: PeerID, now_us: int) -> list[Effect]:
        """A neighbour asks: give, unless it was given lately."""
        given_us = self._given.get(peer)
        if given_us is not None and now_us - given_us < self._config.table_gap_us:
            return [Count("member_tables_refused")]
        self._given[peer] = now_us
        up = [member for member in self._roster.members() if member.is_up and member.peer != peer]
        words = [member.word.wire for member in up if member.word is not None]
        return batches(peer, TOPIC, [(message_id(TOPIC, word), word) for word in words], wide=False)

    def _ask(self, peer: PeerID, now_us: int) -> Effect:
        self._asked[peer] = now_us
        return Send(peer, Lane.CONTROL, IWant(TOPIC, (TABLE,)))
