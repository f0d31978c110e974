"""The global summary of a space: a register keyed by the causal frontier that a text covers.

A summary op carries {frontier, text, ...}. It covers the units in the past of its frontier, the frontier included.
Reading takes the one that covers most units, then the later clock, then the smaller id, and adds the units that it
does not cover as they are. So:

- lossless (invariant 12): chosen text + tail = all live units, whoever wrote which summary, and while two race;
- equal for equal sets: text is data here and never merged, so that a language model's moods cannot split replicas;
- maximal: a summary whose frontier lies in the past of another's (replication.md §3.3: it is dominated) covers no more
  units than that one, and where it covers as many these are the same. So nobody has to ask which dominates which.

The number of covered units is counted here, from the log. The figure in the body is its author's word; a peer that
claims to cover 2^63 units gains nothing. A frontier may name an op that has not come yet; it covers nothing until then.

Cost: a new summary is one `or` per frontier id and one count of bits, whatever else is there, and only the best one is
kept. One that waits for named ops is counted anew when each of them comes, 16 times at most. Everything is read again
after a refold or a redaction.
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
    """

    id: bytes | None
    text: str
    tail: tuple[UnitView, ...]
    covered: int

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
    text: str
    bits: int

    @property
    def rank(self) -> tuple[int, int, bytes]:
        """The smallest is read."""
        return (-self.bits.bit_count(), -self.hlc, self.id)


class Summaries:
    """The register of one space, beside its pool. Update the pool first."""

    def __init__(self, log: LogView, pool: Pool) -> None:
        self._log = log
        self._pool = pool
        self.rebuild()

    def rebuild(self) -> None:
        """Derives the register from the log again."""
        self._best: _Version | None = None
        self._waiting: dict[bytes, list[Op]] = {}  # frontier id that no op here has -> summaries that name it
        for op in self._log.kept():
            self._add(op)

    def update(self, added: Added) -> None:
        """Takes in what the log has just kept, after `Pool.update`."""
        if added.refold or any(op.kind == OpKind.REDACT for op in added.ops):
            self.rebuild()
            return
        for op in added.ops:
            self._add(op)
            for summary in self._waiting.pop(op.id, ()):
                self._weigh(summary)

    def read(self) -> SummaryRead:
        """The best summary, chosen the same way everywhere, and the units that it does not cover."""
        best = self._best
        if best is None:
            return SummaryRead(None, "", self._pool.uncovered(0), 0)
        return SummaryRead(best.id, best.text, self._pool.uncovered(best.bits), best.bits.bit_count())

    def _add(self, op: Op) -> None:
        record = self._log.record(op.id) if op.kind == OpKind.SUMMARY else None
        if not isinstance(record, Summary) or self._pool.redacted(op):
            return
        for ref in dict.fromkeys(record.frontier):
            if not self._pool.knows(ref):
                self._waiting.setdefault(ref, []).append(op)
        self._weigh(op)

    def _weigh(self, op: Op) -> None:
        record = self._log.record(op.id)
        assert isinstance(record, Summary), "only summaries are weighed"
        new = _Version(op.id, op.hlc, record.text, self._pool.covered(record.frontier))
        if self._best is None or new.rank < self._best.rank:
            self._best = new
