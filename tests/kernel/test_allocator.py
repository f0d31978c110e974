"""The allocator: what was allocated fits, by rank, with a receipt for everything (cases K4 and B1)."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given as forall, strategies as st

from kernel.allocator.candidates import (
    DOCUMENTS_CHOSEN_MAX,
    GRAPH_CANDIDATES_MAX,
    GRAPH_CHOSEN_MAX,
    Candidate,
    Candidates,
    candidates,
    given,
)
from kernel.allocator.select import (
    NEW_TOKENS_MIN,
    Budget,
    BudgetTooSmall,
    Cost,
    allocate,
    estimate_tokens,
    without_last,
)
from kernel.memory.pool import UnitView
from protocol.errors import UsageError

CASES = Path(__file__).resolve().parents[3] / "shared" / "cases" / "files" / "K4_budget.jsonl"


def unit(number: int, *, document: bool = False, emb: bytes | None = None) -> UnitView:
    role = "document" if document else "reasoning"
    claim = None if document else b"c" * 32
    base = (number.to_bytes(32, "big"), claim, b"a" * 32, role, role, "", f"content {number}", f"summary {number}")
    return UnitView(*base, 0, emb, "test", number, number)


def ranked(*units: UnitView) -> Candidates:
    return Candidates(tuple(Candidate(one, f"rank {place}") for place, one in enumerate(units)), (), 0)


def test_case_k4_trims_before_sending_and_refuses_only_a_task_that_is_too_long() -> None:
    if not CASES.exists():
        pytest.skip("../shared/cases is not on this machine")
    for line in CASES.read_text().splitlines():
        case = json.loads(line)
        if "memories" in case:
            units = [unit(at, document=True) for at in range(len(case["memories"]))]
            costs = {one.id: Cost(size, None) for one, size in zip(units, case["memories"], strict=True)}
            fixed, new = 100, 256
            found = allocate(ranked(*units), costs, Budget(fixed + new + case["budget"], fixed, new))
            assert len(found.quotes) <= 4
            assert sum(quote.tokens for quote in found.quotes) <= case["budget"]
            continue
        context, prompt, new = case["context"], case["prompt_tokens"], case["max_new"]
        memories = [unit(at, document=True) for at in range(14)]
        costs = {one.id: Cost(prompt // 16, None) for one in memories}
        found = allocate(ranked(*memories), costs, Budget(context, prompt - 14 * (prompt // 16), new))
        assert found.receipt.prompt_tokens + found.new_tokens <= context
        assert [quote.unit.id for quote in found.quotes] == [one.id for one in memories[: len(found.quotes)]]
        if prompt + new > context:
            with pytest.raises(BudgetTooSmall):
                allocate(ranked(), {}, Budget(context, max(prompt, context), new))


SIZES = st.tuples(st.integers(1, 400), st.one_of(st.none(), st.integers(1, 60)), st.booleans())


@forall(
    sizes=st.lists(
        st.tuples(st.integers(1, 400), st.one_of(st.none(), st.integers(1, 60)), st.booleans()), max_size=12
    ),
    window=st.integers(1, 1500),
    fixed=st.integers(0, 600),
    new=st.integers(1, 300),
)
def test_prompt_and_reply_always_fit_and_every_unit_is_accounted_for(
    sizes: list[tuple[int, int | None, bool]], window: int, fixed: int, new: int
) -> None:
    units = [unit(at, document=document) for at, (_, _, document) in enumerate(sizes)]
    costs = {one.id: Cost(whole, short) for one, (whole, short, _) in zip(units, sizes, strict=True)}
    budget = Budget(window, fixed, new)
    if window - fixed < min(new, NEW_TOKENS_MIN):
        with pytest.raises(BudgetTooSmall):
            allocate(ranked(*units), costs, budget)
        return
    found = allocate(ranked(*units), costs, budget)
    receipt = found.receipt
    assert receipt.prompt_tokens + found.new_tokens <= window
    assert receipt.prompt_tokens == fixed + sum(quote.tokens for quote in found.quotes)
    assert 0 < found.new_tokens <= new
    given_ids = [unit_id for unit_id, _, _ in receipt.given]
    assert sorted([*given_ids, *(unit_id for unit_id, _ in receipt.left_out)]) == sorted(one.id for one in units)
    assert given_ids == [one.id for one in units if one.id in given_ids]  # by rank
    # lowest rank first: behind the first unit that was dropped for room, nothing is given
    dropped = [at for at, one in enumerate(units) if (one.id, "over the token budget") in receipt.left_out]
    assert all(units.index(quote.unit) < dropped[0] for quote in found.quotes if dropped)
    if found.quotes:
        fewer = without_last(found, "test")
        assert fewer.receipt.prompt_tokens == receipt.prompt_tokens - found.quotes[-1].tokens
        assert fewer.receipt.left_out[-1] == (given_ids[-1], "test")


def test_an_oversized_unit_shuts_nobody_out_and_a_large_one_goes_in_as_its_summary() -> None:
    huge, large, small = unit(1, document=True), unit(2), unit(3)
    costs = {huge.id: Cost(5000, None), large.id: Cost(600, 40), small.id: Cost(50, 30)}
    found = allocate(ranked(huge, large, small), costs, Budget(1000, 100, 200))
    assert [(quote.unit.id, quote.whole, quote.text) for quote in found.quotes] == [
        (large.id, False, "summary 2"),
        (small.id, True, "content 3"),
    ]
    assert found.receipt.left_out == ((huge.id, "larger than the whole budget"),)
    assert found.receipt.given[0] == (large.id, 40, "rank 1, summary only")


def test_the_error_is_the_callers_and_says_what_to_do() -> None:
    with pytest.raises(UsageError) as caught:
        allocate(ranked(), {}, Budget(window=4096, fixed=11_680, new=256))
    assert caught.value.code == "budget_too_small"
    assert caught.value.hint


def test_graph_candidates_keep_graph_order_and_documents_compete_by_similarity() -> None:
    working = [unit(at) for at in range(10)]
    parts = [unit(100 + at, document=True, emb=bytes([at, 20 - at])) for at in range(12)]
    found = candidates((*working, *parts), query=bytes([1, 0]))
    ids = [one.unit.id for one in found.ranked]
    assert ids[:GRAPH_CHOSEN_MAX] == [one.id for one in working[:GRAPH_CHOSEN_MAX]]
    by_cosine = list(reversed(parts))[:DOCUMENTS_CHOSEN_MAX]
    assert ids[GRAPH_CHOSEN_MAX:] == [one.id for one in by_cosine]
    passed = [unit_id for unit_id, why in found.passed_over if why.startswith("graph")]
    assert passed == [one.id for one in working[GRAPH_CHOSEN_MAX:GRAPH_CANDIDATES_MAX]]
    in_order = candidates((*working, *parts), query=bytes([1, 0]), order="graph")
    assert [one.unit.id for one in in_order.ranked][GRAPH_CHOSEN_MAX] == parts[0].id


def test_parts_that_cannot_be_compared_come_last_and_are_counted() -> None:
    odd, plain = unit(1, document=True, emb=bytes(3)), unit(2, document=True, emb=bytes([1, 0]))
    found = candidates((odd, plain), query=bytes([1, 0]))
    assert [one.unit.id for one in found.ranked] == [plain.id, odd.id]
    assert found.incomparable == 1


def test_redacted_units_are_never_given() -> None:
    gone = replace(unit(1), redacted=True, content="", summary="")
    assert candidates((gone,), None).ranked == ()
    chosen = given((gone, unit(2)))
    assert [one.unit.id for one in chosen.ranked] == [unit(2).id]
    assert chosen.passed_over == ((gone.id, "redacted"),)


@forall(st.text(max_size=300))
def test_the_estimate_is_positive_and_grows_with_the_text(text: str) -> None:
    assert 1 <= estimate_tokens(text) <= estimate_tokens(text + "abc")
