"""Which units could go to an agent, in the order in which they would be given up last.

Two kinds compete, because they answer two questions (masos-kernel.md §3, D2):

- **Working units** in graph order, as the pool gives them: breadth first from the newest over semantic neighbours, then
  temporal predecessors, then reverse time. It is not "most recent" and not strictly backward. At most M = 7 are looked
  at; heuristic selection takes the first K = 3 of them.
- **Documents**, the user's material in parts. The named option `query` ranks them by similarity to the objective;
  `graph` keeps the order of the document. No K holds for them: they fill what the token budget leaves.

Without the vector of the objective (a pure Decide has no encoder) the vector of the newest working unit stands in for
it; without either, parts keep the order of the document.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Literal

from kernel.memory.edges import rank
from kernel.memory.pool import UnitView

Order = Literal["query", "graph"]

GRAPH_CANDIDATES_MAX: Final = 7
"""M [source: masos-kernel.md §3]."""
GRAPH_CHOSEN_MAX: Final = 3
"""K [source: masos-kernel.md §3]."""
DOCUMENTS_CHOSEN_MAX: Final = 8
"""Document parts in one prompt; a small model loses the thread with more [judgement]."""


@dataclass(frozen=True, slots=True)
class Candidate:
    """A unit that may be given, and why it stands where it stands."""

    unit: UnitView
    why: str


@dataclass(frozen=True, slots=True)
class Candidates:
    """What may be given, best first, and what was passed over, with the reason.

    Attributes:
        incomparable: document parts without a vector of the same encoder; they come last, in document order.
    """

    ranked: tuple[Candidate, ...]
    passed_over: tuple[tuple[bytes, str], ...]
    incomparable: int


def candidates(pool: tuple[UnitView, ...], query: bytes | None, order: Order = "query") -> Candidates:
    """The working units of a snapshot in graph order, K of them, then the document parts in the order asked for."""
    working = [unit for unit in pool if not unit.is_document and not unit.redacted]
    parts = [unit for unit in pool if unit.is_document and not unit.redacted]
    seen, chosen = working[:GRAPH_CANDIDATES_MAX], working[:GRAPH_CHOSEN_MAX]
    found = [Candidate(unit, f"graph {place}") for place, unit in enumerate(chosen, 1)]
    out = [(unit.id, f"graph candidate beyond K={GRAPH_CHOSEN_MAX}") for unit in seen[len(chosen) :]]
    basis = query if query is not None else next((unit.emb for unit in working if unit.emb is not None), None)
    ranked, incomparable = _ranked_parts(parts, basis if order == "query" else None)
    how = "document order" if basis is None or order == "graph" else "similar to the task"
    found += [Candidate(unit, f"{how} {place}") for place, unit in enumerate(ranked[:DOCUMENTS_CHOSEN_MAX], 1)]
    out += [(unit.id, f"document part beyond {DOCUMENTS_CHOSEN_MAX}") for unit in ranked[DOCUMENTS_CHOSEN_MAX:]]
    return Candidates(tuple(found), tuple(out), incomparable)


def given(chosen: tuple[UnitView, ...]) -> Candidates:
    """What the step before has allocated, in its order."""
    live = tuple(Candidate(unit, f"allocated {place}") for place, unit in enumerate(chosen, 1) if not unit.redacted)
    return Candidates(live, tuple((unit.id, "redacted") for unit in chosen if unit.redacted), 0)


def _ranked_parts(parts: list[UnitView], query: bytes | None) -> tuple[list[UnitView], int]:
    if query is None or not parts:
        return parts, 0
    ranking = rank(query, [unit.emb for unit in parts], [unit.id for unit in parts])
    placed = set(ranking.order)
    rest = [unit for at, unit in enumerate(parts) if at not in placed]
    return [parts[at] for at in ranking.order] + rest, ranking.skipped
