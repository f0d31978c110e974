"""The Memory Manager: what an agent said, brought into the form of a unit; limits are enforced here, not asked for.

Rules (masos-kernel.md §1, E1):

- A step summary has at most 50 words, the global summary at most 80. A leading label line goes; what is still too
  long is asked for once more with the overrun stated (kernel/executor.py), then cut at a sentence end, then at a word.
- Without an engine a rule writes both: the step summary is the head of what was said, and the global summary grows by
  "step n: ..."; above 300 characters its last 280 stay.
- Text is cleaned once, here, before it is counted, hashed or signed (case W4).

The same file cuts the user's document into parts, because a part is a unit like any other.
"""

from __future__ import annotations

import re
from typing import Final

from kernel.bounds import TEXT_BYTES_MAX, fits_bytes, head_bytes
from protocol.codec import clean_text
from protocol.errors import Refused

STEP_WORDS_MAX: Final = 50
GLOBAL_WORDS_MAX: Final = 80
SUMMARY_CHARS_MAX: Final = 2_000  # protocol.records.Unit.summary; 50 "words" without a space could be longer
FALLBACK_CHARS_MAX: Final = 300
FALLBACK_CHARS_KEPT: Final = 280
SUMMARY_INPUT_CHARS_MAX: Final = 500
"""Of an output in the prompt for its summary [source: masos-kernel.md §1]."""

PART_WORDS_MAX: Final = 85
"""Of a document part, about 110 tokens: SmolLM2 has 1.3 tokens per word on licence text, 128 in its largest part
[measured]."""
PART_WORDS_MIN: Final = 12
"""A shorter paragraph is a heading or a list head and goes with the next one."""
PART_BYTES_MAX: Final = 2_000
"""Of a document part in UTF-8: three times what 85 words take, for text that has no blanks (CJK, base64, code)."""
HEADING_BYTES_MAX: Final = 500
"""Longer, and it is a paragraph of its own, though it has few blanks."""
PARTS_MAX: Final = 128
"""Document parts of one task."""

_ELLIPSIS: Final = " …"
_SENTENCE_SHARE: Final = 3
_TAIL_CHARS: Final = 16  # enough for any abbreviation here; a search through all of it would be quadratic
_LABEL_LINE: Final = re.compile(
    r"^(?:#+\s.*|\**[A-Z][\w ,'-]{0,60}:\**|(?:sure|okay|certainly|of course)\b[^\n]{0,80}[:!.])\s*\n+", re.IGNORECASE
)
_LABEL_HEAD: Final = re.compile(r"^\**(?:step |global |one-sentence )?summary\**\s*:\**\s*", re.IGNORECASE)
_ABBREVIATION: Final = re.compile(
    r"(?:\b(?:e\.g|i\.e|cf|etc|vs|No|Dr|Mr|Mrs|Ms|Inc|Ltd|Fig|Sec|St|approx)|\b[A-Z]|(?:^|\s)\(?\d{1,3})\.$"
)
_SENTENCE_END: Final = re.compile(r"(?<=[.!?])[\"')\]]*\s+(?=[\"'(\[]?[A-Z0-9])")
_LIST_ITEM: Final = re.compile(r"\s+(?=\((?:[a-z]|[ivx]{1,4}|\d{1,2})\)\s+\S)")
_CLAUSE_ENDS: Final = " .!?;,\u3002\uff01\uff1f\uff1b\uff0c\u3001"  # ASCII and CJK; a part is cut there if it can be
_BLANK_LINES: Final = re.compile(r"\n[ \t\f\v]*\n\s*")


class DocumentTooLong(Refused):
    """The document has more parts than a task may hold."""

    code = "document_too_long"
    default_hint = f"cut it to what the question needs; a task holds {PARTS_MAX} parts of about {PART_WORDS_MAX} words"


def clean_output(text: str) -> str:
    """What an agent said, as a unit may hold it: no lone surrogates, outer blanks gone, bounded in bytes."""
    return head_bytes(clean_text(text).strip(), TEXT_BYTES_MAX)


def word_count(text: str) -> int:
    """Words between blanks."""
    return len(text.split())


def without_label(text: str) -> str:
    """The text without a leading label line ("Here is the summary:") or label ("Summary: ")."""
    body = _LABEL_LINE.sub("", text.strip(), count=1).strip()
    return _LABEL_HEAD.sub("", body, count=1).strip() or text.strip()


def overrun(text: str, words_max: int) -> int:
    """By how many words a summary is too long once its label is gone; 0 when it fits."""
    return max(0, word_count(without_label(text)) - words_max)


def limited(text: str, words_max: int, chars_max: int = SUMMARY_CHARS_MAX) -> str:
    """The text on one line within both limits: cut at the last sentence end that fits, else at a word.

    A sentence end that would leave less than a third of the limit is passed over.
    """
    flat = " ".join(without_label(clean_text(text)).split())
    whole = ""
    for sentence in sentences(flat):
        longer = f"{whole} {sentence}".strip()
        if word_count(longer) > words_max or len(longer) > chars_max:
            break
        whole = longer
    if whole == flat or word_count(whole) >= words_max // _SENTENCE_SHARE:
        return whole
    cut = " ".join(flat.split()[:words_max])
    return cut if cut == flat and len(cut) <= chars_max else cut[: chars_max - len(_ELLIPSIS)] + _ELLIPSIS.strip()


def step_summary_by_rule(role: str, content: str) -> str:
    """The step summary without an engine: who, and the head of what was said (100 characters, as MAS-OS)."""
    flat = " ".join(clean_text(content).split())
    head = flat if len(flat) <= 100 else flat[:100].rsplit(" ", 1)[0] + _ELLIPSIS
    return limited(f"{role} said: {head}" if head else f"{role} said nothing.", STEP_WORDS_MAX)


def rolled_on(previous: str, step: int, line: str) -> str:
    """The global summary without an engine: "step n: ..." appended; above 300 characters the last 280 stay."""
    text = f"{previous} step {step}: {' '.join(clean_text(line).split())}".strip()
    if len(text) > FALLBACK_CHARS_MAX:
        text = text[-FALLBACK_CHARS_KEPT:]
    words = text.split()
    return " ".join(words[-GLOBAL_WORDS_MAX:])


def sentences(text: str) -> tuple[str, ...]:
    """Sentences and list items of a text, in order, verbatim up to blanks; abbreviations and numbers end none."""
    found: list[str] = []
    for piece in _LIST_ITEM.split(" ".join(text.split())):
        held = ""
        for part in _SENTENCE_END.split(piece):
            held = f"{held} {part}".strip()
            if not _ABBREVIATION.search(held[-_TAIL_CHARS:]):
                found.append(held)
                held = ""
        if held:
            found.append(held)
    return tuple(item for item in found if item)


def chunk_document(text: str) -> tuple[str, ...]:
    """The document in parts of whole paragraphs or whole sentences, each of about 120 tokens at most.

    Lines of a paragraph are joined; headings go with the paragraph that they head. No part is over `PART_BYTES_MAX`,
    whatever its words look like.

    Raises:
        Refused: the document is empty.
        DocumentTooLong: it has more than 128 parts.
    """
    parts: list[str] = []
    held = ""  # a heading that waits for its paragraph
    for paragraph in _BLANK_LINES.split(clean_text(text)):
        body = " ".join(f"{held} {paragraph}".split())
        if not body:
            continue
        if word_count(body) < PART_WORDS_MIN and fits_bytes(body, HEADING_BYTES_MAX):
            held = body
            continue
        held = ""
        parts.extend(part for piece in _pieces(body) for part in _within_bytes(piece))
        if len(parts) > PARTS_MAX:
            raise DocumentTooLong(f"the document has more than {PARTS_MAX} parts")
    if held:
        parts.extend(_within_bytes(held))
    if not parts:
        raise Refused("the document holds no text")
    if len(parts) > PARTS_MAX:
        raise DocumentTooLong(f"the document has more than {PARTS_MAX} parts")
    return tuple(parts)


def _pieces(body: str) -> list[str]:
    """A paragraph in pieces of whole sentences; a heading stays with what follows it, a long sentence is cut."""
    pieces: list[str] = []
    held: list[str] = []
    for sentence in sentences(body):
        words = sentence.split()
        if len(held) >= PART_WORDS_MIN and len(held) + len(words) > PART_WORDS_MAX:
            pieces.append(" ".join(held))
            held = []
        held += words
        while len(held) > PART_WORDS_MAX + PART_WORDS_MIN:
            at = _cut_at(held)
            pieces.append(" ".join(held[:at]))
            held = held[at:]
    if held:
        pieces.append(" ".join(held))
    return pieces


def _cut_at(words: list[str]) -> int:
    """After the last word within the limit that ends a clause, else at the limit."""
    clauses = (at for at in range(PART_WORDS_MAX, PART_WORDS_MIN, -1) if words[at - 1].endswith((";", ":", ",")))
    return next(clauses, PART_WORDS_MAX)


def _within_bytes(piece: str) -> list[str]:
    """A piece in parts that fit, cut at a blank or the end of a clause in the second half, else between characters."""
    parts: list[str] = []
    rest = piece
    while head := head_bytes(rest, PART_BYTES_MAX):
        if len(head) < len(rest):
            ends = (at for at in range(len(head), len(head) // 2, -1) if head[at - 1] in _CLAUSE_ENDS)
            head = head[: next(ends, len(head))]
        rest = rest[len(head) :].lstrip()
        parts.append(head.rstrip())
    return parts
