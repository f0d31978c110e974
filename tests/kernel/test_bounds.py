"""Texts are bounded in bytes, between whole characters; what no model takes is a typed error."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given, strategies as st

from kernel.bounds import check_size, fits_bytes, head_bytes, model_bounds, tail_bytes
from kernel.commands import Submit
from kernel.submits import Pending
from kernel.task import candidate_of
from protocol.capability import AgentValue
from protocol.errors import UsageError
from protocol.op import BODY_BYTES_MAX
from protocol.records import Unit, body_bytes

TEXTS = st.text(alphabet="a\u00e4\u6761\U0001f600", max_size=60)


@given(TEXTS, st.integers(1, 100))
def test_head_and_tail_are_the_longest_whole_characters_that_fit(text: str, bytes_max: int) -> None:
    head, tail = head_bytes(text, bytes_max), tail_bytes(text, bytes_max)
    assert text.startswith(head)
    assert text.endswith(tail)
    assert fits_bytes(text, bytes_max) == (len(text.encode()) <= bytes_max)
    for part, longer in ((head, text[: len(head) + 1]), (tail, text[len(text) - len(tail) - 1 :])):
        assert len(part.encode()) <= bytes_max
        assert part == text or len(longer.encode()) > bytes_max


def test_a_refused_field_is_named() -> None:
    with pytest.raises(UsageError, match=r"the result cannot be kept: tokens"), model_bounds("the result"):
        Unit(agent="one", role="one", tokens=-1)


def test_a_body_of_the_largest_size_passes_and_one_byte_more_does_not() -> None:
    room = BODY_BYTES_MAX - len(body_bytes(Unit(agent="one", role="one", content="x" * 40_000))) + 40_000
    wide = "\u6761" * (room // 3) + "x" * (room % 3)
    check_size(Unit(agent="one", role="one", content=wide), "a unit")
    with pytest.raises(UsageError, match="65537 bytes"):
        check_size(Unit(agent="one", role="one", content=wide + "x"), "a unit")


def test_one_holder_of_everything_is_needed_and_one_copy_of_each_part_is_enough() -> None:
    a, b, c = b"a" * 32, b"b" * 32, b"c" * 32
    alone = Pending(Submit("key", "what?"), {1: "w1"}, existing=True)
    parts = replace(alone, needs=(frozenset((a, b)), frozenset((c,))))
    assert alone.held, "nothing that this node alone has"
    assert not parts.held
    assert not replace(parts, acked={b"x": {a, b}, b"y": {c}}).held, "two holders with a part each"
    assert replace(parts, acked={b"x": {a, b}, b"y": {b, c}}).held


def test_a_peer_with_many_agents_offers_all_roles_and_promises_its_weakest_figures() -> None:
    strong = AgentValue(agent="b", roles=("writer", "critic"), model="big", quality="standard", context_tokens=8_000)
    weak = AgentValue(agent="a", roles=("critic", "painter"), model="small", quality="demo", context_tokens=9_000)
    offer = candidate_of(bytes(32), {"b": strong, "a": weak})
    assert offer.agents == ("critic", "painter", "writer")
    assert (offer.model, offer.quality, offer.context_tokens) == ("small", "demo", 9_000)
    assert candidate_of(bytes(32), {"a": weak, "b": strong}) == offer
