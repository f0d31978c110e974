"""Similarity in exact integers: thresholds, ranking, and the odd vectors of case K5."""

from __future__ import annotations

import json
from fractions import Fraction
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, strategies as st

from kernel.embedding import quantise
from kernel.memory.edges import DIM_MAX, Tau, VectorTable, nearest, rank, signed_square, squared_norm
from protocol.errors import EngineError
from tests.vectors import similarity_parts

CASES = Path(__file__).resolve().parents[3] / "shared" / "cases" / "files" / "K5_vectors.jsonl"
vectors = st.lists(st.integers(-128, 127), min_size=4, max_size=4).map(lambda v: bytes(x & 0xFF for x in v))


@given(st.lists(vectors, max_size=12), vectors, st.integers(1, 6), st.integers(1, 20))
def test_nearest_is_the_rule_written_out(rows: list[bytes], query: bytes, k: int, p: int) -> None:
    tau, table = Tau(p, 20), VectorTable(4)
    ids = [bytes([200 - at]) for at in range(len(rows))]
    for row in rows:
        table.append(row)
    allowed = np.array([at % 3 != 2 for at in range(len(rows))], dtype=np.bool_)
    expected = []
    for at, row in enumerate(rows):
        dot, norm_a, norm_b = similarity_parts(query, row)
        if allowed[at] and dot > 0 and 400 * dot * dot >= p * p * norm_a * norm_b:
            expected.append((-Fraction(dot * dot, norm_b), ids[at], at))
    assert nearest(table, query, allowed, tau, k, ids) == [at for _, _, at in sorted(expected)[:k]]
    assert nearest(table, query, allowed, tau, None, ids) == [at for _, _, at in sorted(expected)]


@given(st.lists(vectors, max_size=10), vectors, st.integers(1, 4))
def test_rank_orders_by_exact_cosine_then_id(rows: list[bytes], query: bytes, limit: int) -> None:
    ids = [bytes([at ^ 5]) for at in range(len(rows))]
    full = sorted(range(len(rows)), key=lambda at: (-signed_square(*similarity_parts(query, rows[at])[::2]), ids[at]))
    assert rank(query, rows, ids).order == tuple(full)
    assert rank(query, rows, ids, limit).order == tuple(full[:limit])


def test_dot_products_are_exact_at_the_largest_dimension() -> None:
    extreme = bytes([0x80]) * DIM_MAX
    table = VectorTable(DIM_MAX)
    table.append(extreme)
    assert int(table.dots(extreme)[0]) == squared_norm(extreme) == 128 * 128 * DIM_MAX


def test_one_step_below_the_threshold_is_no_edge() -> None:
    # cosine of (4, 3) with (1, 0) is exactly 4/5
    table = VectorTable(2)
    table.append(bytes([4, 3]))
    yes = np.ones(1, dtype=np.bool_)
    assert nearest(table, bytes([1, 0]), yes, Tau(4, 5), None, [b"a"]) == [0]
    assert nearest(table, bytes([1, 0]), yes, Tau(801, 1000), None, [b"a"]) == []


def test_odd_vectors_of_case_k5() -> None:
    if not CASES.exists():
        pytest.skip("../shared/cases is not on this machine")
    lines = [json.loads(line) for line in CASES.read_text().splitlines()]
    assert len(lines) == 5
    for case in lines:
        query = [float(x) for x in case["query"]]
        if "reject" in case["expect"]:
            with pytest.raises(EngineError):
                quantise(query, len(query))
            continue
        docs = [quantise(doc, len(doc)) for doc in case["docs"]]
        ranking = rank(quantise(query, len(query)), docs, [b"a", b"b"])
        other = [doc for doc in docs if len(doc) != len(query)]
        assert ranking.skipped == len(other)
        assert len(ranking.order) == len(docs) - len(other)
        if "doc 1 first" in case["expect"]:
            assert ranking.order == (1, 0)
        elif not other:
            assert ranking.order == (0, 1)  # equal scores: by id
