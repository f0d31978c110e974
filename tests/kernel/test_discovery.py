"""Found by meaning: exact, in one order on every node, and with a reason for everybody who is not."""

from __future__ import annotations

import random
from fractions import Fraction
from math import sqrt
from typing import Any

import pytest
from hypothesis import given, strategies as st

from kernel.agents.roles import ROSTER
from kernel.discovery import (
    CALIBRATED,
    SCORE_ONE,
    Filters,
    Hit,
    Query,
    Rejection,
    Threshold,
    capability_text,
    find,
    threshold_of,
)
from kernel.memory.edges import Tau
from kernel.trust import Trust
from protocol.admission import EncoderSpec
from protocol.capability import RECORD_TTL_MS, AgentValue, PeerValue, SignedRecord, key_of

NOW_MS = 10_000_000
ENCODER = "enc"
DIM = 6
HALF = Threshold(Tau(1, 2), 3)
NORTH = bytes([100, 0, 0, 0, 0, 0])

vectors = st.lists(st.integers(-128, 127), min_size=DIM, max_size=DIM).map(lambda parts: bytes(p & 255 for p in parts))


def record(number: int = 1, *, issued_ms: int = NOW_MS, ttl_ms: int = RECORD_TTL_MS, **changes: Any) -> SignedRecord:
    given: dict[str, Any] = {"agent": "a", "roles": ("r",), "vector": NORTH, "encoder": ENCODER, **changes}
    value, publisher = AgentValue(**given), number.to_bytes(32, "big")
    return SignedRecord(key_of(publisher, value), "agent", value, publisher, 1, issued_ms, issued_ms + ttl_ms, b"", b"")


def ask(vector: bytes = NORTH, threshold: Threshold = HALF) -> Query:
    return Query(vector, ENCODER, threshold)


def names(parts: tuple[Hit, ...] | tuple[Rejection, ...]) -> list[int]:
    return [int.from_bytes(part.record.publisher, "big") for part in parts]


def reasons(*records: SignedRecord, filters: Filters | None = None, query: Query | None = None) -> list[str]:
    found = find(records, query or ask(), filters or Filters(), NOW_MS, {}, explain_max=100)
    return [each.reason for each in found.rejected]


# ---- meaning


@given(vectors, st.lists(vectors, max_size=20), st.integers(1, 8), st.integers(1, 20))
def test_hits_are_exactly_the_k_best_at_or_above_the_threshold(
    query: bytes, others: list[bytes], k: int, step: int
) -> None:
    tau = Fraction(step, 20)
    records = [record(n, vector=vector) for n, vector in enumerate(others)]
    found = find(records, ask(query, Threshold(Tau(step, 20), k)), Filters(), NOW_MS, {}, explain_max=100)

    def place(n: int) -> tuple[Fraction, int]:
        one, other = (memoryview(vector).cast("b").tolist() for vector in (query, others[n]))
        dot = sum(x * y for x, y in zip(one, other, strict=True))
        a, b = sum(x * x for x in one), sum(x * x for x in other)
        return (-Fraction(dot * abs(dot), a * b) if a and b else Fraction(0), n)

    ranked = sorted(range(len(others)), key=place)
    near = [n for n in ranked if -place(n)[0] >= tau * tau]
    assert names(found.hits) == near[:k]
    assert names(found.rejected) == [*near[k:], *ranked[len(near) :]]
    assert [each.reason for each in found.rejected] == ["beyond_limit"] * len(near[k:]) + ["below_threshold"] * (
        len(ranked) - len(near)
    )
    for each in (*found.hits, *found.rejected):
        n = int.from_bytes(each.record.publisher, "big")
        square = -place(n)[0]
        assert each.score == int(SCORE_ONE * sqrt(abs(square)) + 1e-7) * (1 if square >= 0 else -1)


@given(st.lists(vectors, min_size=1, max_size=12), st.randoms(use_true_random=False))
def test_the_order_in_which_records_came_does_not_show(others: list[bytes], rng: random.Random) -> None:
    records = [record(n, vector=vector) for n, vector in enumerate(others)]
    shuffled = rng.sample(records, len(records))
    first = find(records, ask(), Filters(), NOW_MS, {}, explain_max=4)
    assert find(shuffled, ask(), Filters(), NOW_MS, {}, explain_max=4) == first
    assert len(first.hits) + len(first.rejected) + first.more == len(records)


def test_of_equals_the_better_tier_is_first_then_the_publisher() -> None:
    records = [record(1, quality="demo"), record(3), record(2)]
    assert names(find(records, ask(), Filters(), NOW_MS, {}).hits) == [2, 3, 1]
    assert names(find(records, None, Filters(), NOW_MS, {}).hits) == [2, 3, 1]


def test_a_zero_vector_is_near_nothing_and_a_wide_one_is_exact() -> None:
    assert reasons(record(vector=bytes(DIM))) == ["below_threshold"]
    wide = bytes([128]) * 4096  # -128 each: past the dimension that float32 adds exactly
    found = find([record(vector=wide)], ask(wide), Filters(), NOW_MS, {})
    assert [hit.score for hit in found.hits] == [SCORE_ONE]


def test_without_a_query_everything_that_passes_is_given_uncompared() -> None:
    found = find([record(1, vector=None), record(2, encoder="other")], None, Filters(), NOW_MS, {})
    assert names(found.hits) == [1, 2]
    assert {hit.score for hit in found.hits} == {None}


def test_records_of_addresses_are_none_of_its_business() -> None:
    value = PeerValue(addrs=())
    other = SignedRecord(key_of(bytes(32), value), "peer", value, bytes(32), 1, NOW_MS, NOW_MS + 1, b"", b"")
    assert find([other], ask(), Filters(), NOW_MS, {}, explain_max=9).more == 0


# ---- reasons

WANTED = Filters(
    tools=("python", "files"), model="qwen", context_tokens_min=8_000, price_max=5, data_policy="local", skill="law"
)
FITS: dict[str, Any] = {
    "tools": ("files", "python", "web"), "model": "Qwen/Qwen3-8B", "context_tokens": 8_000, "price_micro_money": 5,
    "data_policy": "local", "tags": ("Law",),
}  # fmt: skip
FAULTS: dict[str, dict[str, Any]] = {
    "tool": {"tools": ("python",)},
    "model": {"model": "llama"},
    "context": {"context_tokens": 7_999},
    "price": {"price_micro_money": 6},
    "data": {"data_policy": "external"},
    "skill": {"tags": ("lawn",)},
    "encoder": {"encoder": "other"},
    "no_vector": {"vector": None},
    "withdrawn": {"ttl_ms": 0},
    "expired": {"issued_ms": NOW_MS - RECORD_TTL_MS},
    "below_threshold": {"vector": bytes([0, 1, 0, 0, 0, 0])},
}


def test_who_has_all_that_is_asked_for_is_found() -> None:
    assert names(find([record(**FITS)], ask(), WANTED, NOW_MS, {}).hits) == [1]


@pytest.mark.parametrize("reason", FAULTS)
def test_who_lacks_one_thing_is_rejected_for_it(reason: str) -> None:
    found = find([record(**{**FITS, **FAULTS[reason]})], ask(), WANTED, NOW_MS, {}, explain_max=9)
    assert not found.hits
    assert [each.reason for each in found.rejected] == [reason]
    assert found.rejected[0].why
    silent = find([record(**{**FITS, **FAULTS[reason]})], ask(), WANTED, NOW_MS, {})
    assert (silent.rejected, silent.more) == ((), 1)


def test_whose_node_is_down_is_rejected_with_the_reason() -> None:
    filters = Filters(down={record(1).publisher: "dead"})
    found = find([record(1), record(2)], ask(), filters, NOW_MS, {}, explain_max=9)
    assert names(found.hits) == [2]
    assert [(each.reason, "dead" in each.why) for each in found.rejected] == [("down", True)]


def test_a_vector_of_another_length_is_another_encoder() -> None:
    assert reasons(record(vector=bytes(DIM + 1))) == ["encoder"]


@pytest.mark.parametrize(
    ("wanted", "passes"),
    [("law", True), ("LAW/tax/", True), ("law/tax/vat", True), ("law/ta", False), ("tax", False), ("advice", True)],
)
def test_a_skill_is_a_label_or_the_start_of_the_path(wanted: str, *, passes: bool) -> None:
    value = record(taxonomy="/Law/Tax/VAT", skills=("Advice",))
    assert bool(find([value], ask(), Filters(skill=wanted), NOW_MS, {}).hits) is passes


def test_the_list_of_the_rejected_is_cut_and_says_so() -> None:
    records = [record(n, vector=None) for n in range(9)]
    found = find(records, ask(), Filters(), NOW_MS, {}, explain_max=4)
    assert (names(found.rejected), found.more) == ([0, 1, 2, 3], 5)


def test_trust_is_shown_and_decides_nothing() -> None:
    bad = Trust(0, 9)
    found = find([record(1), record(2)], ask(), Filters(), NOW_MS, {(1).to_bytes(32, "big"): bad})
    assert [hit.trust for hit in found.hits] == [bad, None]


# ---- texts and thresholds


def test_an_offer_is_found_by_its_words_or_else_by_its_roles() -> None:
    assert capability_text("Reads leases.", ("law", "tax"), ROSTER.names) == "Reads leases. law, tax."
    assert capability_text(" ", ("law",), ROSTER.names) == "law."
    said = capability_text("", (), ROSTER.names)
    assert all(agent.about in said for agent in ROSTER)
    assert capability_text("", (), ("unheard-of",)) == "unheard-of"


def test_an_encoder_without_calibration_gets_the_threshold_of_its_edges() -> None:
    assert threshold_of(EncoderSpec()) == CALIBRATED["use-512"]
    assert threshold_of(EncoderSpec(id="bge-m3", dim=1024, tau=(4, 5))).tau == Tau(4, 5)
    assert threshold_of(EncoderSpec(id="odd", tau=(0, 7))).tau == Tau(1, 7)
    assert threshold_of(EncoderSpec(id="odd", tau=(9, 7))).tau == Tau(7, 7)
