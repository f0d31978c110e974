"""Whether the own head in a space is certain: a restored backup must not write where it wrote before.

Two ops of one author with one seq burn it (protocol.md §5), and nobody can tell from a disk alone whether it is the
newest one: a backup may even carry the mark of a clean stop. So every stored space, and every space that peers tell
of soon after boot, is *unsure* until each linked peer has told what it knows of the own chain and one of them holds
exactly what is here; who knows less may simply be behind. When nobody can be asked it opens after a wait (short after
a clean stop), and never while an own op is known that waits for others.
"""

from __future__ import annotations

from collections.abc import Collection

from gossip.config import GossipConfig
from protocol.peer import PeerID


class OwnHeads:
    """The unsure spaces; all times are boot microseconds."""

    def __init__(self, config: GossipConfig) -> None:
        self._config = config
        self._since: dict[bytes, int] = {}
        self._told: dict[bytes, dict[PeerID, bool]] = {}  # space -> who said all it knows, and whether it agrees
        self._ahead: dict[bytes, int] = {}  # highest seq of an own op that waits for others: its place is taken
        self._boot_us = 0
        self._clean = False
        self.new_unsure = False

    def boot(self, spaces: Collection[bytes], now_us: int, *, clean: bool) -> None:
        """A life begins with these spaces stored."""
        self._boot_us, self._clean, self.new_unsure = now_us, clean, True
        self._since = dict.fromkeys(spaces, now_us)

    def __contains__(self, space: bytes) -> bool:
        return space in self._since

    def all(self) -> list[bytes]:
        """Every unsure space, in byte order."""
        return sorted(self._since)

    @property
    def pending(self) -> bool:
        """Something has still to be settled, or may come to be."""
        return bool(self._since) or self.new_unsure

    def doubt(self, space: bytes, now_us: int) -> None:
        """Peers tell of a space that the store does not know."""
        self._since.setdefault(space, now_us)

    def forget(self, space: bytes) -> None:
        """The space is not kept."""
        self._since.pop(space, None)

    def ahead(self, space: bytes, seq: int, now_us: int) -> None:
        """An own op came back that cannot be accepted yet: the store was rolled back."""
        self._ahead[space] = max(seq, self._ahead.get(space, -1))
        self.doubt(space, now_us)

    def told(self, space: bytes, peer: PeerID, *, agrees: bool) -> None:
        """A peer said all it knows of the own head. `agrees`: it holds exactly what is here."""
        if space in self._since:
            told = self._told.setdefault(space, {})
            told[peer] = agrees or told.get(peer, False)

    def tick(self, now_us: int) -> None:
        """Time passes: after a while, spaces that peers tell of are simply new."""
        wait_us = self._config.own_head_min_us if self._clean else self._config.own_head_wait_us
        self.new_unsure = self.new_unsure and now_us - self._boot_us < wait_us

    def settle(self, space: bytes, head_seq: int, linked: Collection[PeerID], now_us: int) -> bool | None:
        """None while unsure; else the space opens, and True iff somebody agreed."""
        told = self._told.get(space, {})
        agreed = any(told.values())
        asked = agreed and all(peer in told for peer in linked)
        short = asked or (self._clean and not linked)
        wait_us = self._config.own_head_min_us if short else self._config.own_head_wait_us
        if now_us - self._since[space] < wait_us or head_seq < self._ahead.get(space, -1):
            return None
        del self._since[space]
        self._told.pop(space, None)
        return agreed
