"""Budgets as integer vectors [tokens, calls, ms, micro-money]; every comparison holds per component.

A slice is cut from its parent and never exceeds it, so no path of a task spends more than its budget
(protocol.md §7.8). An unlimited component is written as nil and folded as 2^63 - 1.
"""

from __future__ import annotations

from typing import Annotated, Final

from pydantic import Field

INT63_MAX: Final = 2**63 - 1
COMPONENTS: Final = ("tokens", "calls", "ms", "micro_money")

Amount = Annotated[int, Field(ge=0, le=INT63_MAX)]
Vector = tuple[Amount, Amount, Amount, Amount]
Limits = tuple[Amount | None, Amount | None, Amount | None, Amount | None]

ZERO: Final[Vector] = (0, 0, 0, 0)


def _vector(items: list[int]) -> Vector:
    tokens, calls, ms, money = items
    return (tokens, calls, ms, money)


def limits_to_vector(limits: Limits) -> Vector:
    """Nil becomes 2^63 - 1."""
    return _vector([INT63_MAX if part is None else part for part in limits])


def add(a: Vector, b: Vector) -> Vector:
    """The sum, saturating at 2^63 - 1."""
    return _vector([min(INT63_MAX, x + y) for x, y in zip(a, b, strict=True)])


def remaining(budget: Vector, spent: Vector) -> Vector:
    """max(0, budget - spent); an unlimited component stays unlimited."""
    return _vector([x if x == INT63_MAX else max(0, x - y) for x, y in zip(budget, spent, strict=True)])


def least(a: Vector, b: Vector) -> Vector:
    """The smaller of each component."""
    return _vector([min(x, y) for x, y in zip(a, b, strict=True)])


def fits(a: Vector, b: Vector) -> bool:
    """True iff a ≤ b in every component."""
    return all(x <= y for x, y in zip(a, b, strict=True))


def exhausted(left: Vector) -> str | None:
    """The first component of which nothing is left, among tokens, calls and ms; money may be nothing."""
    return next((name for name, part in zip(COMPONENTS[:3], left[:3], strict=True) if part == 0), None)


def quarter(budget: Vector) -> Vector:
    """The default largest slice: a quarter, at least one of what is there; unlimited stays unlimited."""
    return _vector([x if x == INT63_MAX else min(x, max(1, x // 4)) for x in budget])
