"""Budgets: nothing is made by cutting, adding or subtracting; unlimited stays unlimited."""

from __future__ import annotations

import pytest
from hypothesis import given, strategies as st

from protocol.contract import (
    INT63_MAX,
    ZERO,
    Limits,
    Vector,
    add,
    exhausted,
    fits,
    least,
    limits_to_vector,
    quarter,
    remaining,
)
from tests.strategies import limits, vectors


@given(vectors, vectors, vectors)
def test_adding_is_a_saturating_sum(a: Vector, b: Vector, c: Vector) -> None:
    assert add(a, b) == add(b, a)
    assert add(add(a, b), c) == add(a, add(b, c))
    assert add(a, ZERO) == a
    assert fits(a, add(a, b))
    assert add(a, b) == tuple(min(INT63_MAX, x + y) for x, y in zip(a, b, strict=True))


@given(vectors, vectors)
def test_what_is_spent_and_what_remains_make_the_budget(budget: Vector, spent: Vector) -> None:
    left = remaining(budget, spent)
    assert fits(left, budget)
    for whole, used, rest in zip(budget, spent, left, strict=True):
        if whole == INT63_MAX:
            assert rest == INT63_MAX
        else:
            assert rest + min(used, whole) == whole


@given(vectors, st.lists(vectors, max_size=6))
def test_slices_cut_one_after_another_never_exceed_the_budget(budget: Vector, asked: list[Vector]) -> None:
    spent = ZERO
    for wish in asked:
        cut = least(wish, remaining(budget, spent))
        assert fits(cut, wish)
        spent = add(spent, cut)
        assert fits(spent, budget)


@given(vectors)
def test_a_quarter_is_a_part_and_is_something_where_there_is_something(budget: Vector) -> None:
    part = quarter(budget)
    assert fits(part, budget)
    for whole, share in zip(budget, part, strict=True):
        assert (share == 0) == (whole == 0)
        assert (share == INT63_MAX) == (whole == INT63_MAX)
        if 4 <= whole < INT63_MAX:
            assert share == whole // 4


@given(limits)
def test_nil_is_unlimited(given_limits: Limits) -> None:
    assert limits_to_vector(given_limits) == tuple(INT63_MAX if part is None else part for part in given_limits)


@given(vectors, vectors)
def test_fitting_holds_in_every_component(a: Vector, b: Vector) -> None:
    assert fits(least(a, b), a)
    assert fits(a, b) == (least(a, b) == a)


@pytest.mark.parametrize(
    ("left", "name"),
    [((0, 0, 0, 0), "tokens"), ((1, 0, 0, 0), "calls"), ((1, 1, 0, 5), "ms"), ((1, 1, 1, 0), None)],
)
def test_the_first_exhausted_component_is_named_and_money_may_be_nothing(left: Vector, name: str | None) -> None:
    assert exhausted(left) == name
