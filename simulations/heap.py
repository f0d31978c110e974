"""Virtual time: what happens next, and on whose life it depends.

Entries are ordered by (time, tie, sequence). The tie is 0, or a random number from the seed: the latter explores
orders of simultaneous events. An entry belongs to a life of a node; once that life is over the entry does nothing, so
a timer, an answer of the disk or a job of a crashed node can never reach the life after it. The world (network and
nemesis) is a node of its own that lives as long as the heap.
"""

from __future__ import annotations

import heapq
import random
from collections.abc import Callable
from typing import Final, NamedTuple

WORLD: Final = -1
ENTRIES_MAX: Final = 5_000_000  # more at once is a leak of ours
Run = Callable[[], None]


class Entry(NamedTuple):
    """Something that happens at a virtual time, in microseconds from the start of the run; `seq` is unique."""

    at_us: int
    tie: int
    seq: int
    node: int
    life: int
    run: Run


class EventHeap:
    """The queue, the virtual clock and the book of lives."""

    def __init__(self, ties: random.Random | None = None) -> None:
        self.now_us = 0
        self.steps = 0
        self._ties = ties
        self._heap: list[Entry] = []
        self._seq = 0
        self._lives: dict[int, int] = {WORLD: 0}

    def begin(self, node: int, life: int) -> None:
        """A life begins."""
        assert node not in self._lives, f"node {node} lives already"
        self._lives[node] = life

    def end(self, node: int) -> None:
        """The life of a node is over, and everything that waited for it."""
        del self._lives[node]

    def life(self, node: int) -> int | None:
        """The number of the life that a node leads now."""
        return self._lives.get(node)

    def at(self, at_us: int, run: Run, node: int = WORLD) -> None:
        """Run something at a time, never before now, as part of the present life of a node."""
        assert len(self._heap) < ENTRIES_MAX, "more entries than a run can need"
        self._seq += 1
        tie = self._ties.getrandbits(32) if self._ties is not None else 0
        entry = Entry(max(at_us, self.now_us), tie, self._seq, node, self._lives[node], run)
        heapq.heappush(self._heap, entry)

    def after(self, wait_us: int, run: Run, node: int = WORLD) -> None:
        """Run something after a wait."""
        self.at(self.now_us + wait_us, run, node)

    @property
    def next_us(self) -> int | None:
        """When the next entry is due; it may be one that does nothing."""
        return self._heap[0].at_us if self._heap else None

    def step(self) -> bool:
        """Run the next entry; False when there is none."""
        if not self._heap:
            return False
        entry = heapq.heappop(self._heap)
        self.now_us = entry.at_us
        if self._lives.get(entry.node) == entry.life:
            self.steps += 1
            entry.run()
        return True
