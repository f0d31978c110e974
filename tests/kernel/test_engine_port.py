"""The port's own rules: what no engine is asked, what a schema may say, how vectors compare."""

from __future__ import annotations

import json
import math
import random
from pathlib import Path

import pytest
from hypothesis import given, strategies as st

from kernel.embedding import components, quantise, zero_vector
from kernel.engine import (
    Capabilities,
    Completion,
    EngineRefused,
    EngineTruncated,
    Message,
    OnText,
    Request,
    Usage,
    check_request,
    check_window,
    count_prompt,
)
from kernel.json_schema import check_schema, violation
from protocol.errors import EngineError
from tests.vectors import similarity_parts

CASES = Path(__file__).resolve().parents[3] / "shared" / "cases" / "files"
HELLO = (Message("user", "hello"),)


def case_lines(name: str) -> list[dict[str, object]]:
    path = CASES / name
    if not path.exists():
        pytest.skip(f"the shared case file {name} is not on this machine")
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines() if line]


class CountingEngine:
    """Counts words; the rest of the port is never called here."""

    async def generate(self, request: Request, on_text: OnText | None = None) -> Completion:
        raise AssertionError(request, on_text)

    async def score(self, prefix: str, options: tuple[str, ...]) -> tuple[float, ...]:
        raise AssertionError(prefix, options)

    async def count_tokens(self, text: str) -> int:
        return len(text.split())

    async def health(self) -> bool:
        return True

    async def capabilities(self) -> Capabilities:
        return Capabilities(
            model="table",
            context_tokens=100,
            quality="demo",
            json_schema=False,
            logprobs=False,
            score=True,
            adapters=False,
            tokens_per_s=None,
            backend="table",
            message_tokens=5,
        )

    async def aclose(self) -> None:
        return None


# Requests and usage


def test_usage_of_three_calls_is_their_sum() -> None:
    total = sum((Usage(10, 3), Usage(20, 4), Usage(5, 5)), start=Usage())
    assert (total.prompt_tokens, total.completion_tokens, total.total) == (35, 12, 47)


@pytest.mark.parametrize(
    "request_",
    [
        Request((), 10),
        Request(HELLO, 0),
        Request(HELLO, 10, temperature=-0.1),
        Request(HELLO, 10, temperature=float("nan")),
        Request(HELLO, 10, deadline_s=0.0),
        Request(HELLO, 10, stop=("",)),
        Request(HELLO, 10, stop=("x",) * 17),
        Request(HELLO * 300, 10),
    ],
)
def test_a_request_that_no_engine_can_serve_is_refused(request_: Request) -> None:
    with pytest.raises(EngineRefused):
        check_request(request_)


def test_a_plain_request_passes() -> None:
    check_request(Request(HELLO, 10, stop=("\n",)))


@given(st.integers(0, 5000), st.integers(1, 5000), st.integers(1, 5000))
def test_nothing_over_the_window_is_sent(prompt: int, new: int, window: int) -> None:
    if prompt + new <= window:
        check_window(prompt, new, window)
    else:
        with pytest.raises(EngineRefused):
            check_window(prompt, new, window)


def test_a_cut_answer_keeps_its_cost() -> None:
    cut = Completion('{"a": "co', "length", Usage(12, 5), "m")
    assert EngineTruncated(cut).completion.usage.total == 17


async def test_a_prompt_is_charged_its_template() -> None:
    assert await count_prompt(CountingEngine(), [Message("system", "a b"), Message("user", "c")]) == 3 + 3 * 5


# Schemas

GOOD = {
    "type": "object",
    "properties": {
        "agent": {"type": "string", "enum": ["coder", "critic"]},
        "ids": {"type": "array", "items": {"$ref": "#/$defs/id"}, "maxItems": 3},
        "note": {"anyOf": [{"type": "null"}, {"type": "string", "maxLength": 5}]},
    },
    "required": ["agent"],
    "additionalProperties": False,
    "$defs": {"id": {"type": "string", "pattern": "^m[0-9]{1,4}$"}},
}


def test_the_schemas_of_the_shared_case_are_refused() -> None:
    lines = case_lines("E2_schema.jsonl")
    assert lines
    for line in lines:
        schema = line["schema"]
        assert isinstance(schema, dict)
        with pytest.raises(EngineRefused):
            check_schema(schema)


@pytest.mark.parametrize(
    "schema",
    [
        {},
        {"type": "objct"},
        {"type": ["string", "null"]},
        {"type": "array", "items": [{"type": "string"}]},
        {"$ref": "#/definitions/missing"},
        {"$ref": "http://example.org/schema"},
        {"$ref": "#/$defs/a", "$defs": {"a": {"$ref": "#/$defs/a"}}},
        {"type": "object", "properties": {"a": {"type": "string", "pattern": "["}}},
        {"type": "string", "pattern": "^(a+)+$"},
        {"type": "string", "pattern": "^a*a*a*$"},
        {"type": "string", "pattern": "^(?=a)a$"},
        {"type": "string", "pattern": "unanchored"},
        {"type": "string", "pattern": "^a\\$"},
        {"type": "string", "pattern": "^" + "a" * 200 + "$"},
        {"type": "string", "maxLength": -1},
        {"type": "string", "maxLength": True},
        {"type": "number", "minimum": float("nan")},
        {"enum": []},
        {"enum": list(range(300))},
        {"const": {1, 2}},
        {"type": "object", "required": ["a"]},
        {"type": "object", "properties": {"a": {"type": "string"}}, "unknownKeyword": 1},
        {"type": "string", "description": "x" * 20_000},
        {"anyOf": []},
    ],
)
def test_a_schema_outside_the_subset_is_refused(schema: dict[str, object]) -> None:
    with pytest.raises(EngineRefused):
        check_schema(schema)


def test_a_deep_or_wide_schema_is_refused() -> None:
    deep: dict[str, object] = {"type": "string"}
    for _ in range(20):
        deep = {"type": "array", "items": deep}
    wide = {"type": "object", "properties": {f"p{i}": {"type": "null"} for i in range(300)}}
    # Each level doubles the parts: small on paper, 2^8 unrolled.
    doubling: dict[str, object] = {"$ref": "#/$defs/d0", "$defs": {}}
    definitions = doubling["$defs"]
    assert isinstance(definitions, dict)
    for level in range(8):
        part = {"$ref": f"#/$defs/d{level + 1}"} if level < 7 else {"type": "null"}
        definitions[f"d{level}"] = {"anyOf": [part, part]}
    for schema in (deep, wide, doubling):
        with pytest.raises(EngineRefused):
            check_schema(schema)


@pytest.mark.parametrize(
    ("value", "keeps"),
    [
        ({"agent": "coder"}, True),
        ({"agent": "coder", "ids": ["m1", "m22"], "note": None}, True),
        ({"agent": "code"}, False),
        ({"ids": []}, False),
        ({"agent": "coder", "extra": 1}, False),
        ({"agent": "coder", "ids": ["m1"] * 4}, False),
        ({"agent": "coder", "ids": ["m"]}, False),
        ({"agent": "coder", "ids": ["m1\n"]}, False),
        ({"agent": "coder", "note": "too long"}, False),
        ({"agent": True}, False),
        ([], False),
        (None, False),
    ],
)
def test_answers_are_judged_by_their_schema(value: object, *, keeps: bool) -> None:
    check_schema(GOOD)
    assert (violation(value, GOOD) is None) == keeps


@pytest.mark.parametrize(
    ("schema", "value"),
    [
        ({"type": "integer"}, 1.0),
        ({"type": "integer"}, True),
        ({"type": "number", "maximum": 1}, 2),
        ({"const": 1}, True),
        ({"type": "string", "pattern": "^[a-z]*$"}, "a" * 600),
    ],
)
def test_near_misses_do_not_pass(schema: dict[str, object], value: object) -> None:
    check_schema(schema)
    assert violation(value, schema) is not None


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=8), inner),
    max_leaves=12,
)


@given(JSON)
def test_any_json_value_is_judged_without_an_exception(value: object) -> None:
    violation(value, GOOD)


@given(st.dictionaries(st.sampled_from(["type", "items", "enum", "$ref", "anyOf", "pattern"]), JSON))
def test_any_json_schema_is_taken_or_refused(schema: dict[str, object]) -> None:
    try:
        check_schema(schema)
    except EngineRefused:
        return
    violation({"a": ["b", 1]}, schema)


# Vectors

FLOATS = st.floats(-1e6, 1e6)


@given(st.lists(FLOATS, min_size=1, max_size=64))
def test_the_peak_of_a_quantised_vector_is_127(vector: list[float]) -> None:
    got = components(quantise(vector, len(vector)))
    assert max(map(abs, got)) == (127 if any(vector) else 0)
    assert all(a * b >= 0 for a, b in zip(got, vector, strict=True))


@given(st.integers(0, 10_000))
def test_quantising_moves_the_cosine_little(seed: int) -> None:
    rng = random.Random(seed)
    vector = [rng.gauss(0, 1) for _ in range(384)]
    other = [0.5 * x + rng.gauss(0, 1) for x in vector]
    dot, left, right = similarity_parts(quantise(vector, 384), quantise(other, 384))
    true = sum(a * b for a, b in zip(vector, other, strict=True))
    true /= math.sqrt(sum(a * a for a in vector)) * math.sqrt(sum(b * b for b in other))
    assert dot / math.sqrt(left * right) == pytest.approx(true, abs=0.005)


@pytest.mark.parametrize("bad", [float("nan"), float("inf"), -float("inf")])
def test_a_vector_that_is_not_finite_is_refused(bad: float) -> None:
    with pytest.raises(EngineError):
        quantise([1.0, bad, 0.0], 3)


def test_dimensions_never_mix() -> None:
    with pytest.raises(EngineError):
        quantise([1.0, 0.0], 3)


def test_the_zero_vector_is_similar_to_nothing() -> None:
    assert quantise([0.0, -0.0, 0.0], 3) == zero_vector(3)
    assert similarity_parts(zero_vector(3), quantise([1, 0, 0], 3)) == (0, 0, 127 * 127)


def test_a_subnormal_vector_keeps_its_direction() -> None:
    assert components(quantise([5e-324, 0.0, -5e-324], 3)) == (127, 0, -127)
