"""What a turn's engine calls are charged, and that a call which the slice cannot pay is never made."""

from __future__ import annotations

from contextlib import suppress

import pytest
import trio
from hypothesis import given, strategies as st
from trio.testing import MockClock

from kernel.engine import EngineTimeout, Message, count_prompt
from kernel.metered import MeteredEngine, SliceSpent
from protocol.contract import INT63_MAX, Vector
from tests.kernel.kernel_doubles import FakeEngine

CHAT = (Message("user", "one two three"),)  # 3 tokens, and 16 of the template
BIG: Vector = (INT63_MAX, INT63_MAX, INT63_MAX, INT63_MAX)


async def test_calls_add_up_and_nothing_is_overwritten() -> None:
    engine = FakeEngine(["a b c", "d e", "f"])
    meter = MeteredEngine(engine, BIG, 60.0, trio.current_time)
    for _ in range(3):
        await meter.generate(CHAT, 10)
    prompt = await count_prompt(engine, CHAT)
    assert meter.used[:2] == (3 * prompt + 3 + 2 + 1, 3)
    await meter.score("w x y", ("a", "b c"))
    assert meter.used[:2] == (3 * prompt + 6 + 3 + 1 + 2, 4)


@given(tokens=st.integers(0, 120), calls=st.integers(0, 4), ask=st.integers(1, 60))
def test_a_slice_is_never_exceeded(tokens: int, calls: int, ask: int) -> None:
    async def spend() -> None:
        engine = FakeEngine(["word " * 60] * 9)
        meter = MeteredEngine(engine, (tokens, calls, 10_000, 0), 60.0, trio.current_time)
        with suppress(SliceSpent):
            while True:
                await meter.generate(CHAT, ask)
                await meter.score("w x", ("a",))
        assert meter.used[0] <= tokens
        assert meter.used[1] <= calls
        assert meter.spent in {"tokens", "calls"}
        assert len(engine.requests) + len(engine.scored) == meter.used[1]
        assert all(request.max_new_tokens <= ask for request in engine.requests)

    trio.run(spend)


async def test_a_reply_is_shortened_to_what_is_left() -> None:
    engine = FakeEngine(["a"])
    prompt = await count_prompt(engine, CHAT)
    meter = MeteredEngine(engine, (prompt + 9, 9, 9_000, 0), 60.0, trio.current_time)
    await meter.generate(CHAT, 50)
    assert engine.requests[0].max_new_tokens == 9


async def test_time_of_the_slice_ends_it_and_time_of_the_lease_fails_it(autojump_clock: MockClock) -> None:
    engine = FakeEngine()
    engine.delay_s = 30.0
    by_slice = MeteredEngine(engine, (9_000, 9, 5_000, 0), 60.0, trio.current_time)
    with pytest.raises(SliceSpent):
        await by_slice.generate(CHAT, 10)
    assert by_slice.spent == "ms"
    assert by_slice.used[2] == 5_000
    by_lease = MeteredEngine(engine, (9_000, 9, 50_000, 0), 5.0, trio.current_time)
    with pytest.raises(EngineTimeout):
        await by_lease.generate(CHAT, 10)
    assert by_lease.used[0] > 0
    with pytest.raises(SliceSpent):
        await by_slice.score("x", ("y",))
