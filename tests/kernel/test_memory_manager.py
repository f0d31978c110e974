"""Limits are enforced in code (E1), text is cleaned once (W4), documents are cut in bounded parts."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from hypothesis import given, strategies as st

from kernel.bounds import TEXT_BYTES_MAX
from kernel.memory.manager import (
    FALLBACK_CHARS_MAX,
    GLOBAL_WORDS_MAX,
    PART_BYTES_MAX,
    PART_WORDS_MAX,
    PART_WORDS_MIN,
    PARTS_MAX,
    STEP_WORDS_MAX,
    DocumentTooLong,
    chunk_document,
    clean_output,
    limited,
    overrun,
    rolled_on,
    sentences,
    step_summary_by_rule,
    without_label,
    word_count,
)
from protocol.errors import Refused

CASES = Path(__file__).resolve().parents[3] / "shared" / "cases" / "files" / "W4_text.jsonl"
LICENSE = Path(__file__).resolve().parents[2] / "LICENSE"


@given(st.text(max_size=3000), st.integers(1, 80))
def test_a_stored_summary_always_obeys_its_limit(text: str, words: int) -> None:
    found = limited(text, words)
    assert word_count(found) <= words
    assert len(found) <= 2000
    assert "\n" not in found
    found.encode()  # carries on the wire


def test_e1_a_long_reply_is_cut_at_a_sentence_end_and_a_label_line_goes() -> None:
    long = "Here is the summary:\n\n" + "The agent found a rule. " * 100
    assert overrun(long, STEP_WORDS_MAX) == 450
    found = limited(long, STEP_WORDS_MAX)
    assert found.startswith("The agent")
    assert found.endswith("rule.")
    assert word_count(found) == 50
    assert limited("word " * 500, STEP_WORDS_MAX).endswith("word…")


@pytest.mark.parametrize(
    "text",
    [
        "Summary: it works",
        "**Summary:** it works",
        "## Summary\n\nit works",
        "Sure, here it is:\nit works",
        "Step summary:\nit works",
    ],
)
def test_labels_go(text: str) -> None:
    assert without_label(text) == "it works"


def test_a_text_that_is_only_a_label_stays() -> None:
    assert without_label("Summary:") == "Summary:"
    assert without_label("Rule: files carry notices") == "Rule: files carry notices"


@given(st.text(max_size=400), st.text(max_size=400), st.integers(1, 12))
def test_the_global_fallback_keeps_its_limits_and_its_newest_part(previous: str, line: str, step: int) -> None:
    text = previous
    for _ in range(4):
        text = rolled_on(text, step, line)
        assert len(text) <= FALLBACK_CHARS_MAX
        assert word_count(text) <= GLOBAL_WORDS_MAX
    if word_count(line) < 20 and len(line.split()) > 0 and len(line) < 100:
        assert text.endswith(line.rsplit(maxsplit=1)[-1])


def test_the_rule_for_step_summaries() -> None:
    assert step_summary_by_rule("critic", "short") == "critic said: short"
    assert step_summary_by_rule("critic", " ") == "critic said nothing."
    assert len(step_summary_by_rule("critic", "x" * 1000)) < 130


def test_case_w4_texts_are_stored_as_clean_utf8() -> None:
    if not CASES.exists():
        pytest.skip("../shared/cases is not on this machine")
    for line in CASES.read_text().splitlines():
        case = json.loads(line)
        text = json.loads(case["json_text"])
        stored = clean_output(text)
        stored.encode("utf-8")
        if "U+FFFD" in case["expect"]:
            assert "\ufffd" in stored
        elif "U+1F44D" in case["expect"]:
            assert "\U0001f44d" in stored
        else:
            assert stored == text


def test_sentences_mind_abbreviations_numbers_and_list_items() -> None:
    text = 'See e.g. Section 2. It has rules: (a) one thing; and (b) another. "Work" means work. Version 2.0 holds.'
    assert sentences(text) == (
        "See e.g. Section 2. It has rules:",
        "(a) one thing; and",
        "(b) another.",
        '"Work" means work.',
        "Version 2.0 holds.",
    )


@given(st.text(alphabet="ab. \n;A", max_size=4000))
def test_parts_keep_every_word_in_order_and_their_bounds(text: str) -> None:
    if not text.split():
        with pytest.raises(Refused):
            chunk_document(text)
        return
    try:
        parts = chunk_document(text)
    except DocumentTooLong:
        return
    assert " ".join(parts).split() == text.split()
    assert 0 < len(parts) <= PARTS_MAX
    assert all(word_count(part) <= PART_WORDS_MAX + PART_WORDS_MIN for part in parts)


@given(st.text(alphabet="a\u6761\u3002\U0001f600, \n", min_size=1, max_size=40).map(lambda text: text * 90))
def test_parts_keep_every_character_and_their_bytes_without_blanks_too(text: str) -> None:
    if not text.split():
        return
    try:
        parts = chunk_document(text)
    except DocumentTooLong:
        return
    assert "".join("".join(parts).split()) == "".join(text.split())
    assert all(0 < len(part.encode()) <= PART_BYTES_MAX for part in parts)


def test_what_an_agent_says_is_cut_by_bytes_and_between_characters() -> None:
    said = clean_output("\u6761" * TEXT_BYTES_MAX)
    assert TEXT_BYTES_MAX - 3 < len(said.encode()) <= TEXT_BYTES_MAX
    assert set(said) == {"\u6761"}
    assert clean_output("a" * TEXT_BYTES_MAX) == "a" * TEXT_BYTES_MAX


def test_a_document_beyond_the_bound_is_refused_with_a_hint() -> None:
    paragraph = "word " * PART_WORDS_MAX + "\n\n"
    assert len(chunk_document(paragraph * PARTS_MAX)) == PARTS_MAX
    with pytest.raises(DocumentTooLong) as caught:
        chunk_document(paragraph * (PARTS_MAX + 1))
    assert "128" in caught.value.hint


def test_the_licence_keeps_its_paragraphs() -> None:
    parts = chunk_document(LICENSE.read_text())
    assert len(parts) < 40
    assert any(part.startswith("6. Trademarks. This License does not grant permission") for part in parts)


def test_hostile_text_is_cut_in_bounded_work() -> None:
    text = "A. " * 16_000  # every piece looks like an abbreviation
    assert " ".join(sentences(text)).split() == text.split()
