"""What happened in a run: a digest over every step, and rows for people and for checkers.

Every event that a node takes goes into one running blake2b, with its time, node and life, and every frame with its
bytes; so two runs with equal digests did the same things in the same order. A mark every MARK_EVERY steps lets a
mismatch be narrowed to the steps between two marks (simulation.md §6).

Rows are the operations of users and the deeds of the nemesis, in the form of simulation.md §11:
invoke, then ok, fail, or info where the outcome is not known.
"""

from __future__ import annotations

import hashlib
import json
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final, Literal

from simulations.heap import WORLD

MARK_EVERY: Final = 4_096
TAIL_MAX: Final = 400  # steps kept for a failure report
RowType = Literal["invoke", "ok", "fail", "info"]


@dataclass(frozen=True, slots=True)
class HistoryRow:
    """One operation of a user, or one deed of the nemesis."""

    t_us: int
    node: str
    life: int
    f: str
    type: RowType
    value: str


class History:
    """The book of one run."""

    def __init__(self) -> None:
        self._digest = hashlib.blake2b(digest_size=16)
        self.steps = 0
        self.marks: list[str] = []
        self.rows: list[HistoryRow] = []
        self._tail: deque[str] = deque(maxlen=TAIL_MAX)

    def step(self, t_us: int, node: int, life: int, what: str, raw: bytes = b"") -> None:
        """A node takes an event; `raw` are the bytes behind it."""
        line = f"{t_us} {node}.{life} {what}"
        data = line.encode("utf-8", "backslashreplace")
        self._digest.update(len(data).to_bytes(4, "big"))
        self._digest.update(data)
        if raw:
            self._digest.update(raw)
        self.steps += 1
        self._tail.append(line if len(line) < 240 else line[:240] + "…")
        if self.steps % MARK_EVERY == 0:
            self.marks.append(self.digest())

    def row(self, row: HistoryRow) -> None:
        """An operation or a deed."""
        self.rows.append(row)
        self.step(row.t_us, WORLD, row.life, f"{row.node} {row.f} {row.type} {row.value}")

    def nemesis(self, t_us: int, deed: str, value: str = "") -> None:
        """Something is done to the swarm."""
        self.row(HistoryRow(t_us, "nemesis", 0, deed, "info", value))

    def digest(self) -> str:
        """Hex, over everything so far."""
        return self._digest.copy().hexdigest()

    def tail(self, count: int = 40) -> list[str]:
        """The last steps, for a person."""
        return list(self._tail)[-count:]

    def lines(self) -> Iterator[str]:
        """The rows as JSON lines."""
        for number, row in enumerate(self.rows):
            yield json.dumps(
                {
                    "i": number,
                    "t_us": row.t_us,
                    "node": row.node,
                    "inc": row.life,
                    "f": row.f,
                    "type": row.type,
                    "v": row.value,
                },
                sort_keys=True,
            )
