"""The links of this node as membership sees them: who can help, when each was heard, whose turn it is."""

from __future__ import annotations

import random
from dataclasses import dataclass

from protocol import versions
from protocol.messages import Hello
from protocol.peer import PeerID


@dataclass(slots=True)
class _Neighbour:
    speaks: bool  # the frames of membership
    life: int
    heard_us: int
    parting: bool = False  # a Bye was said: the end of this link is no sign of death


class Neighbours:
    """Linked peers. The order of turns is random and each has one turn per round (SWIM §4.3)."""

    def __init__(self, rng: random.Random) -> None:
        self._rng = rng
        self._links: dict[PeerID, _Neighbour] = {}
        self._round: list[PeerID] = []

    def __contains__(self, peer: object) -> bool:
        return peer in self._links

    def __len__(self) -> int:
        return len(self._links)

    def add(self, peer: PeerID, hello: Hello, now_us: int) -> None:
        """A link began; its turn is somewhere in the round that runs."""
        self._links[peer] = _Neighbour(versions.MEMBERS in hello.features, hello.inst, now_us)
        if peer not in self._round:
            self._round.insert(self._rng.randrange(len(self._round) + 1), peer)

    def remove(self, peer: PeerID) -> bool:
        """A link ended; True where a Bye had announced it."""
        link = self._links.pop(peer, None)
        if peer in self._round:
            self._round.remove(peer)
        return link is not None and link.parting

    def speaks(self, peer: PeerID) -> bool:
        """It is linked and knows the frames of membership."""
        link = self._links.get(peer)
        return link is not None and link.speaks

    def heard(self, peer: PeerID, now_us: int) -> None:
        """Any frame is a sign of life."""
        self._links[peer].heard_us = now_us

    def heard_us(self, peer: PeerID) -> int:
        """When a linked peer was heard last."""
        return self._links[peer].heard_us

    def life(self, peer: PeerID) -> int | None:
        """The life that a linked peer told in its Hello; None where there is no link."""
        link = self._links.get(peer)
        return link.life if link is not None else None

    def part(self, peer: PeerID) -> None:
        """This link is about to end on purpose."""
        if peer in self._links:
            self._links[peer].parting = True

    def heard_since(self, since_us: int, besides: PeerID) -> bool:
        """Some other neighbour was heard: so the fault is not on this node's side altogether."""
        return any(link.heard_us >= since_us for peer, link in self._links.items() if peer != besides)

    def next(self) -> PeerID | None:
        """Whose turn it is."""
        if not self._round:
            self._round = sorted(self._links)
            self._rng.shuffle(self._round)
        return self._round.pop() if self._round else None

    def helpers(self, besides: set[PeerID], count: int) -> list[PeerID]:
        """Random neighbours that can be asked to ping another."""
        able = [peer for peer in sorted(self._links) if self._links[peer].speaks and peer not in besides]
        return self._rng.sample(able, min(count, len(able)))
