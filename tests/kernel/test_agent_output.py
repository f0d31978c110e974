"""The parser of model output never guesses: cases K1, K2, K3 and faults C1, C2, D1."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from hypothesis import given, strategies as st

from kernel.agents.output import Unusable, pick_indices, pick_json, pick_name

CASES = Path(__file__).resolve().parents[3] / "shared" / "cases" / "files"
AGENTS = ("planner", "coder", "code_reviewer")
needs_cases = pytest.mark.skipif(not CASES.exists(), reason="../shared/cases is not on this machine")


def chosen(text: str) -> object:
    found = pick_json(text)
    return found if isinstance(found, Unusable) else found["next_agent"]


@needs_cases
def test_case_k1_picks_the_last_complete_object_outside_foreign_fences() -> None:
    texts = {path.name[3]: path.read_text() for path in sorted(CASES.glob("K1_*.txt"))}
    assert chosen(texts["a"]) == "coder"
    assert chosen(texts["b"]) == Unusable("no_json", texts["b"][:200])
    assert chosen(texts["c"]) == "reviewer"
    assert chosen(texts["d"]) == "planner"


def test_k1_rules_on_our_own_copies() -> None:
    assert chosen('```json\n{"next_agent": "coder", "reason": "run:\\n```sh\\nls {x}\\n```"}\n```') == "coder"
    assert isinstance(chosen('{"next_agent": "tester", # comment\n "inner": {"next_agent": "coder"}}'), Unusable)
    assert isinstance(chosen('```bash\necho {"next_agent": "coder"}\n```\nthat was the shell'), Unusable)
    assert isinstance(chosen('```bash\necho {"next_agent": "coder"}'), Unusable)
    assert isinstance(chosen('text {"next_agent": "co'), Unusable)
    assert isinstance(chosen("[" * 100_000), Unusable)
    assert isinstance(chosen('{"a":' * 20_000), Unusable)


@needs_cases
def test_case_k2_cut_replies_never_act() -> None:
    lines = [json.loads(line) for line in (CASES / "K2_truncated.jsonl").read_text().splitlines()]
    replies = [line for line in lines if "text" in line]
    assert len(replies) == 3
    for reply in replies:
        assert pick_json(reply["text"], reply["finish_reason"]) == Unusable("truncated", reply["text"])
        assert pick_name(reply["text"], AGENTS, finish=reply["finish_reason"]) == Unusable("truncated", reply["text"])
        assert pick_indices(reply["text"], 9, 3, reply["finish_reason"]) == Unusable("truncated", reply["text"])


@needs_cases
def test_case_k3_names() -> None:
    for line in (CASES / "K3_selector.jsonl").read_text().splitlines():
        case = json.loads(line)
        found = pick_name(case["output"], case["agents"])
        expected = case["expect"].split()[0]
        if expected in case["agents"]:
            assert found == expected
        else:
            assert isinstance(found, Unusable)
            if expected == "ambiguous":
                assert found.why == "ambiguous"


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("DONE", "DONE"),
        ('"done".', "DONE"),
        ("**DONE**", "DONE"),
        ("abandoned", None),
        ("we are done here", None),
        ("'coder'", "coder"),
        ("`Code_Reviewer`", "code_reviewer"),
        ("the reviewer", None),
        ("code", None),
        ("", None),
        ("   \n", None),
        ("coder, coder!", "coder"),
        ("not-coder", None),
    ],
)
def test_c2_ends_and_near_misses(text: str, expected: str | None) -> None:
    found = pick_name(text, AGENTS, ends=("DONE",))
    assert found == expected if expected else isinstance(found, Unusable)


@given(st.text(max_size=200), st.integers(0, 12), st.integers(1, 4))
def test_d1_indices_are_distinct_within_range_and_at_most_k(text: str, count: int, k: int) -> None:
    found = pick_indices(text, count, k)
    if not isinstance(found, Unusable):
        assert 1 <= len(found) <= k
        assert len(set(found)) == len(found)
        assert all(0 <= index < count for index in found)


def test_d1_reads_every_listing_form() -> None:
    assert pick_indices("[0], [2]", 5, 3) == (0, 2)
    assert pick_indices("[2, 0, 2, 9, 1, 3]", 5, 3) == (2, 0, 1)
    assert isinstance(pick_indices("none of them", 5, 3), Unusable)
    assert isinstance(pick_indices("1.5 and v2", 5, 3), Unusable)


@given(st.text(alphabet='{}"\\` \nabjson:,[]#', max_size=80))
def test_the_parser_never_raises_and_gives_only_objects(text: str) -> None:
    found = pick_json(text)
    assert isinstance(found, (dict, Unusable))


@given(
    st.dictionaries(st.text(max_size=5), st.integers() | st.text(max_size=9), max_size=4),
    st.text(alphabet="abc \n.", max_size=30),
)
def test_a_json_object_is_found_behind_any_prose(value: dict[str, object], prose: str) -> None:
    assert pick_json(f"{prose}{json.dumps(value)}{prose}") == value
