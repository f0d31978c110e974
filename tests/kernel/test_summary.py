"""The summary register: equal for equal sets, dominated texts go, and nothing is lost (invariant 12)."""

from __future__ import annotations

from collections.abc import Iterable

import pytest
from hypothesis import given, strategies as st

from kernel.memory.pool import Pool
from kernel.memory.summary import Summaries, SummaryRead
from protocol.op import Op
from protocol.records import Redact, Spend, Summary
from tests.kernel.pool_log import DIM, ENCODER, FakeLog, Writer, causal_shuffle


def views_of(log: FakeLog) -> tuple[Pool, Summaries]:
    pool = Pool(log, encoder=ENCODER, dim=DIM)
    return pool, Summaries(log, pool)


def summary(*frontier: Op, text: str = "done so far", claims: int = 0) -> Summary:
    return Summary(frontier=tuple(op.id for op in frontier), covers_count=claims, text=text)


@st.composite
def histories(draw: st.DrawFn) -> list[Op]:
    writer = Writer()
    for _ in range(draw(st.integers(1, 20))):
        author, earlier = draw(st.integers(0, 2)), list(writer.ops)
        deps = [op.id for op in draw(st.lists(st.sampled_from(earlier), max_size=2))] if earlier else []
        kind = draw(st.sampled_from(["unit", "unit", "summary", "summary", "other", "redact"]))
        if kind == "summary" and earlier:
            front = draw(st.lists(st.sampled_from(earlier), min_size=1, max_size=3, unique_by=lambda op: op.id))
            writer.write(author, summary(*front, text=f"t{len(earlier)}"), deps)
        elif kind == "redact" and earlier:
            writer.write(author, Redact(target=draw(st.sampled_from(earlier)).id), deps)
        elif kind == "other":
            writer.write(author, Spend(claim=bytes(32), used=(0, 0, 0, 0)), deps)
        else:
            writer.unit(author, None, deps)
    return writer.ops


@given(histories(), st.lists(st.integers(0, 1000), min_size=1, max_size=8), st.integers(1, 4))
def test_arrival_does_not_matter_and_nothing_is_lost(ops: list[Op], order: list[int], size: int) -> None:
    _, fresh = views_of(FakeLog(ops))
    log = FakeLog()
    pool, grown = views_of(log)
    left = causal_shuffle(ops, order)
    while left:
        change, left = log.add(*left[:size]), left[size:]
        pool.update(change)
        grown.update(change)
        read = grown.read()
        record = None if read.id is None else log.record(read.id)
        front = record.frontier if isinstance(record, Summary) else ()
        covered = {view.id for view in pool.select(pool.covered(front))}
        tail = {view.id for view in read.tail}
        live = {view.id for view in pool.units() if not view.redacted}
        assert not tail & covered
        assert live <= tail | covered
    assert grown.read() == fresh.read()


@given(histories())
def test_no_summary_covers_more_than_the_one_that_is_read(ops: list[Op]) -> None:
    log = FakeLog(ops)
    pool, summaries = views_of(log)
    read = summaries.read()
    records = [log.record(op.id) for op in ops if not pool.redacted(op)]
    counts = [pool.covered(each.frontier).bit_count() for each in records if isinstance(each, Summary)]
    assert read.covered == max(counts, default=0)
    assert (read.id is None) == (not counts)


def test_a_later_frontier_is_read_and_of_equal_ones_the_later_clock() -> None:
    writer = Writer()
    one = writer.unit(1, None)
    writer.write(1, summary(one, text="old"))
    two = writer.unit(1, None)
    writer.write(1, summary(two, text="new"))
    twin = writer.write(2, summary(two, text="twin"), [two.id])
    _, summaries = views_of(FakeLog(writer.ops))
    read = summaries.read()
    assert (read.id, read.covered, read.tail) == (twin.id, 2, ())


class CountingPool(Pool):
    """Counts how often the causal past of something is asked for."""

    asked = 0

    def covered(self, op_ids: Iterable[bytes]) -> int:
        self.asked += 1
        return super().covered(op_ids)


@pytest.mark.parametrize("early", [False, True], ids=["after_the_ops", "before_the_ops"])
def test_the_cost_of_a_summary_does_not_grow_with_their_number(early: bool) -> None:  # noqa: FBT001 - a parameter
    """A member may write thousands, and may name ops of its own that it sends later, one at a time."""
    writer = Writer()
    named = [writer.unit(1, None) for _ in range(16)]
    written = [writer.write(2, summary(*named, text=str(n))) for n in range(300)]
    log = FakeLog()
    pool = CountingPool(log, encoder=ENCODER, dim=DIM)
    summaries = Summaries(log, pool)
    for op in (*written, *named) if early else (*named, *written):
        change = log.add(op)
        pool.update(change)
        summaries.update(change)
    assert pool.asked <= len(written) * (1 + (len(named) if early else 0))
    assert summaries.read().covered == 16


def test_the_claimed_count_gains_nothing() -> None:
    writer = Writer()
    one = writer.unit(1, None)
    two = writer.unit(1, None)
    side = writer.unit(2, None)
    honest = writer.write(1, summary(two))
    writer.write(3, summary(side, text="mine", claims=2**60), [side.id])
    _, summaries = views_of(FakeLog(writer.ops))
    read = summaries.read()
    assert read.id == honest.id
    assert [view.id for view in read.tail] == [side.id]
    assert one.id not in {view.id for view in read.tail}


def test_a_frontier_that_comes_late_counts_from_then_on() -> None:
    writer = Writer()
    one = writer.unit(1, None)
    two = writer.unit(2, None)
    both = writer.write(3, summary(one, two))
    log = FakeLog([one, both])
    pool, summaries = views_of(log)
    assert summaries.read().covered == 1
    change = log.add(two)
    pool.update(change)
    assert summaries.read().tail != ()
    summaries.update(change)
    assert (summaries.read().covered, summaries.read().tail) == (2, ())


def test_prompt_text_is_bounded_and_keeps_the_newest_lines() -> None:
    writer = Writer()
    for number in range(40):
        writer.unit(1, None, summary=f"line {number} " + "x" * 60)
    writer.unit(1, None, role="document", agent="user", summary="a part of the document")
    _, summaries = views_of(FakeLog(writer.ops))
    text = summaries.read().text_for_prompt(500)
    assert len(text) <= 500
    assert "line 39" in text
    assert "line 0 " not in text
    assert "document" not in text


def test_an_empty_space_reads_empty() -> None:
    assert views_of(FakeLog())[1].read() == SummaryRead(None, "", (), 0)


def test_a_redacted_summary_is_read_no_more() -> None:
    writer = Writer()
    one = writer.unit(1, None)
    gone = writer.write(1, summary(one, text="gone"))
    log = FakeLog(writer.ops)
    pool, summaries = views_of(log)
    assert summaries.read().id == gone.id
    change = log.add(writer.write(1, Redact(target=gone.id)))
    pool.update(change)
    summaries.update(change)
    assert (summaries.read().id, len(summaries.read().tail)) == (None, 1)
