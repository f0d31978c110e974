"""What fits: a token budget over ranked candidates, with a receipt for every unit given or left out.

    prompt = fixed (system text, task, global summary, template) + quotes          prompt + new tokens <= window

Rules (case K4, masos-kernel.md B1):

- The task text and the global summary are always kept. The window is the smaller of the engine's context and the
  tokens of the turn's slice.
- The lowest rank is dropped first: when a unit does not fit, it and all below it are left out. A unit that is larger
  than the whole room by itself is passed over instead, or one oversized unit would shut out all others.
- A working unit goes in whole, or as its summary when whole it takes more than a third of the room: MAS-OS hands on
  summaries only, small units are worth their few tokens. A document part goes in whole or not.
- When nothing but the reply is too large, the reply shrinks, to 32 tokens at the least. If even that does not fit, it
  is `BudgetTooSmall`; there is no negative room.

Counts come from the caller: the engine's own tokenizer where there is one, `estimate_tokens` where there is none.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from kernel.allocator.candidates import Candidates
from kernel.jobs import Receipt
from kernel.memory.pool import UnitView
from protocol.errors import UsageError

NEW_TOKENS_MIN: Final = 32
"""The shortest reply that is worth a call [judgement]."""
WHOLE_SHARE: Final = 3
"""A working unit above room / 3 goes in as its summary."""
_BYTES_PER_TOKEN: Final = 3  # SmolLM2 has 5 on licence text [measured]; 3 errs on the safe side


class BudgetTooSmall(UsageError):
    """The task text alone does not fit the window or the slice; no choice of memory can help."""

    code = "budget_too_small"
    default_hint = "shorten the task, raise its token budget or use a model with a larger context"


@dataclass(frozen=True, slots=True)
class Budget:
    """The room of one turn, in tokens of the engine that runs it.

    Attributes:
        window: context of the engine, or tokens of the slice if fewer.
        fixed: of the prompt without any quote, template included.
        new: wanted for the reply.
    """

    window: int
    fixed: int
    new: int


@dataclass(frozen=True, slots=True)
class Cost:
    """Tokens of one quote, header included, whole and as its summary (None: it has no shorter form)."""

    whole: int
    summary: int | None


@dataclass(frozen=True, slots=True)
class Quoted:
    """A unit as it goes into the prompt."""

    unit: UnitView
    whole: bool
    tokens: int
    why: str

    @property
    def text(self) -> str:
        """What the agent reads of it."""
        return self.unit.content if self.whole else self.unit.summary


@dataclass(frozen=True, slots=True)
class Allocation:
    """The quotes of a turn in rank order, the reply that is left room for, and the receipt."""

    quotes: tuple[Quoted, ...]
    new_tokens: int
    receipt: Receipt


def estimate_tokens(text: str) -> int:
    """An upper estimate of the tokens of a text, where no tokenizer is at hand."""
    return 1 + len(text.encode("utf-8", "replace")) // _BYTES_PER_TOKEN


def allocate(found: Candidates, costs: Mapping[bytes, Cost], budget: Budget) -> Allocation:
    """Takes candidates by rank while they fit.

    Raises:
        BudgetTooSmall: the prompt without quotes leaves no room for a reply.
    """
    new = min(budget.new, budget.window - budget.fixed)
    if new < min(NEW_TOKENS_MIN, budget.new):
        raise BudgetTooSmall(
            f"the task alone takes {budget.fixed} tokens of {budget.window}; {NEW_TOKENS_MIN} are needed for a reply"
        )
    room = free = budget.window - budget.fixed - new
    quotes: list[Quoted] = []
    left_out = list(found.passed_over)
    full = False
    for candidate in found.ranked:
        unit = candidate.unit
        tokens, whole = _form(costs[unit.id], unit, room)
        if full or tokens > free:
            full = full or tokens <= room  # what could never fit shuts nobody out
            left_out.append((unit.id, "over the token budget" if tokens <= room else "larger than the whole budget"))
            continue
        free -= tokens
        quotes.append(Quoted(unit, whole, tokens, candidate.why if whole else f"{candidate.why}, summary only"))
    receipt = Receipt(
        given=tuple((quote.unit.id, quote.tokens, quote.why) for quote in quotes),
        left_out=tuple(left_out),
        prompt_tokens=budget.fixed + room - free,
        budget_tokens=budget.window - new,
    )
    return Allocation(tuple(quotes), new, receipt)


def without_last(allocation: Allocation, why: str) -> Allocation:
    """The allocation with its lowest-ranked quote left out."""
    last = allocation.quotes[-1]
    receipt = Receipt(
        given=allocation.receipt.given[:-1],
        left_out=(*allocation.receipt.left_out, (last.unit.id, why)),
        prompt_tokens=allocation.receipt.prompt_tokens - last.tokens,
        budget_tokens=allocation.receipt.budget_tokens,
    )
    return Allocation(allocation.quotes[:-1], allocation.new_tokens, receipt)


def _form(cost: Cost, unit: UnitView, room: int) -> tuple[int, bool]:
    if cost.summary is None or unit.is_document or cost.whole * WHOLE_SHARE <= room:
        return cost.whole, True
    return (cost.summary, False) if cost.summary < cost.whole else (cost.whole, True)
