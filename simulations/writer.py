"""The writing half of a simulated node: Persists in order, several waiting ones in one transaction, answers after it.

A transaction takes its time and is on disk at the end of it, which is when the answers go out. What a crash finds in
flight is on disk or not; what waits behind it is not.
"""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Callable
from typing import Final

from protocol.errors import StoreError
from protocol.machine import JobDone, JobFailed, Persist
from protocol.store import Row
from simulations.store import DiskConfig, SimDisk, wants_sync

PERSIST_MERGE_MAX: Final = 64  # as node/driver.py
PERSISTS_MAX: Final = 4_096

Later = Callable[[Callable[[], None], int], None]


class Writer:
    """The writer of one life.

    Attributes:
        factor: how much slower than configured the disk is.
    """

    def __init__(
        self,
        disk: SimDisk,
        config: DiskConfig,
        rng: random.Random,
        *,
        later: Later,
        answer: Callable[[object], None],
    ) -> None:
        """`later(run, wait_us)` runs something in this life; `answer` takes JobDone and JobFailed."""
        self.factor = 1
        self._disk = disk
        self._config = config
        self._rng = rng
        self._later = later
        self._answer = answer
        self._waiting: deque[Persist] = deque()
        self._batch: tuple[Persist, ...] = ()

    @property
    def unanswered(self) -> int:
        """Persists that wait or are being written."""
        return len(self._waiting) + len(self._batch)

    def write(self, persist: Persist) -> None:
        """Take a Persist."""
        assert len(self._waiting) < PERSISTS_MAX, "the disk is too slow: too many writes wait"
        self._waiting.append(persist)
        if not self._batch:
            self._begin()

    def crash(self) -> None:
        """The life is over: the transaction in flight is on disk or not, as a coin falls."""
        if self._batch and self._rng.random() < 0.5:
            self._apply(self._batch)
        self._waiting.clear()
        self._batch = ()

    def _begin(self) -> None:
        count = min(PERSIST_MERGE_MAX, len(self._waiting))
        self._batch = tuple(self._waiting.popleft() for _ in range(count))
        wait_us = self._config.write_us + self._rng.randrange(self._config.jitter_us + 1)
        if wants_sync(_rows(self._batch)):
            wait_us += self._config.sync_us
        self._later(self._end, wait_us * self.factor)

    def _end(self) -> None:
        batch, self._batch = self._batch, ()
        error = self._apply(batch)
        for persist in batch:
            self._answer(JobDone(persist.job, None) if error is None else JobFailed(persist.job, error))
        if self._waiting:
            self._begin()

    def _apply(self, batch: tuple[Persist, ...]) -> StoreError | None:
        try:
            self._disk.apply(_rows(batch))
        except StoreError as exc:
            return exc
        return None


def _rows(batch: tuple[Persist, ...]) -> tuple[Row, ...]:
    return tuple(row for persist in batch for row in persist.rows)
