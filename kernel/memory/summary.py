"""The global summary of a space: a multi-value register keyed by the causal frontier that a text covers.

A summary op carries {frontier, text, ...}. It covers the units in the past of its frontier, the frontier included. S1
dominates S2 iff the frontier of S2 lies in the past of the frontier of S1 (replication.md §3.3). Reading takes one of
the maximal elements, by (units covered, clock, smaller id), and adds the units that it does not cover as they are. So:

- lossless (invariant 12): chosen text + tail = all live units, whoever wrote which summary, and while two race;
- equal for equal sets: text is data here and never merged, so that a language model's moods cannot split replicas;
- `rivals` > 0 tells the machine that a merge is due.

The number of covered units is counted here, from the log. The figure in the body is its author's word; a peer that
claims to cover 2^63 units gains nothing. A frontier may name an op that has not come yet; it covers nothing until then.

Cost: a new summary is compared with the maximal ones only (frontier ids are bits, pool.py); a read costs the bits of
the tail. Every summary is read again only when a named op arrives late, or after a refold or a redaction.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from kernel.memory.pool import Added, LogView, Pool, UnitView
from protocol.op import Op, OpKind
from protocol.records import Summary

PROMPT_CHARS_MAX: Final = 1_200
"""Of a summary with its tail in a prompt: three to four times the 80 words of the text itself."""


@dataclass(frozen=True, slots=True)
class SummaryRead:
    """What a space knows about its work now.

    Attributes:
        id: the summary op that was chosen, None when there is none yet.
        text: its text, empty when there is none.
        tail: the live units that it does not cover, in causal order, document parts among them.
        covered: how many units it covers.
        rivals: how many other maximal summaries there are.
    """

    id: bytes | None
    text: str
    tail: tuple[UnitView, ...]
    covered: int
    rivals: int

    def text_for_prompt(self, chars_max: int = PROMPT_CHARS_MAX) -> str:
        """The text and one line per uncovered working unit; when that is too long the oldest lines go first."""
        lines = [f"{view.agent}: {view.summary}" for view in self.tail if not view.is_document and view.summary]
        head = self.text[:chars_max]
        room = chars_max - len(head)
        kept: list[str] = []
        for line in reversed(lines):
            room -= len(line) + 1
            if room < 0:
                break
            kept.append(line)
        return "\n".join([*([head] if head else []), *reversed(kept)])


@dataclass(frozen=True, slots=True)
class _Version:
    """A summary op with what it covers."""

    id: bytes
    hlc: int
    frontier: tuple[bytes, ...]
    text: str
    bits: int


class Summaries:
    """The register of one space, beside its pool. Update the pool first."""

    def __init__(self, log: LogView, pool: Pool) -> None:
        self._log = log
        self._pool = pool
        self.rebuild()

    def rebuild(self) -> None:
        """Derives the register from the log again."""
        self._maximal: list[_Version] = []
        self._awaited: set[bytes] = set()  # frontier ids that no op here has; membership only
        for op in self._log.kept():
            self._add(op)

    def update(self, added: Added) -> None:
        """Takes in what the log has just kept, after `Pool.update`."""
        if added.refold or any(op.kind == OpKind.REDACT or op.id in self._awaited for op in added.ops):
            self.rebuild()
            return
        for op in added.ops:
            self._add(op)

    def read(self) -> SummaryRead:
        """One maximal summary, chosen the same way everywhere, and the units that it does not cover."""
        best = min(self._maximal, key=_rank, default=None)
        if best is None:
            return SummaryRead(None, "", self._pool.uncovered(0), 0, 0)
        tail = self._pool.uncovered(best.bits)
        return SummaryRead(best.id, best.text, tail, best.bits.bit_count(), len(self._maximal) - 1)

    def maximal(self) -> tuple[bytes, ...]:
        """The summaries that no other dominates, best first."""
        return tuple(version.id for version in sorted(self._maximal, key=_rank))

    def _add(self, op: Op) -> None:
        record = self._log.record(op.id) if op.kind == OpKind.SUMMARY else None
        if not isinstance(record, Summary) or self._pool.redacted(op):
            return
        if any(old.id == op.id for old in self._maximal):
            return
        self._awaited.update(ref for ref in record.frontier if not self._pool.knows(ref))
        new = _Version(op.id, op.hlc, record.frontier, record.text, self._pool.covered(record.frontier))
        if any(self._dominates(old, new) for old in self._maximal):
            return
        self._maximal = [old for old in self._maximal if not self._dominates(new, old)] + [new]

    def _dominates(self, upper: _Version, lower: _Version) -> bool:
        """Strictly: two summaries of one frontier stand side by side."""
        return self._within(lower, upper) and not self._within(upper, lower)

    def _within(self, lower: _Version, upper: _Version) -> bool:
        return all(self._pool.precedes(ref, upper.frontier) for ref in lower.frontier)


def _rank(version: _Version) -> tuple[int, int, bytes]:
    return (-version.bits.bit_count(), -version.hlc, version.id)
