"""One parser for what models write. It gives a value or says why not; it never raises and never guesses.

Rules (cases K1-K3, masos-kernel.md C1-C3, D1):

- **Cut output never acts.** A reply that ended by its token limit is `Unusable("truncated")`, even when what came
  looks complete: nobody knows what would have followed.
- **JSON**: the last complete top-level object wins (an example of the format often comes first). An object is read by
  the JSON grammar, so fences and braces inside its strings are text. What does not parse (comments, trailing commas,
  cut off) is skipped up to its closing brace and never searched for inner objects. Fences of another language
  (`bash`, `sh`, ...) are no answer; their content is passed over.
- **Names** match as whole names, case-blind. `coder` is not in `code_reviewer`, `done` is not in "abandoned". Two
  different names in one reply are ambiguous. A word that ends the task must be the whole reply: "we are done" in a
  sentence ends nothing.
- **Indices**: distinct, within range, at most k, in the order given.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, Literal

Finish = Literal["stop", "length", "cancelled", "error"]
Why = Literal["truncated", "empty", "no_json", "not_an_object", "unknown", "ambiguous"]

OUTPUT_CHARS_MAX: Final = 64_000
"""Longer replies are not searched; no agent here may write that much."""

_FENCE: Final = re.compile(r"^[ \t]*```[ \t]*([\w+-]*)[^\n]*$", re.MULTILINE)
_JSON_FENCES: Final = frozenset(("", "json", "jsonc", "json5"))
_WRAPPING: Final = " \t\r\n\"'`*_.:;,!?()[]{}<>"
_DECODER: Final = json.JSONDecoder()


@dataclass(frozen=True, slots=True)
class Unusable:
    """The reply does not say what was asked for; `text` is its head, for the log."""

    why: Why
    text: str


def pick_json(text: str, finish: Finish = "stop") -> dict[str, object] | Unusable:
    """The last complete JSON object of a reply."""
    if refusal := _refuse(text, finish):
        return refusal
    found: dict[str, object] | None = None
    at = 0
    while (at := _next_brace(text, at)) >= 0:
        value, end = _object_at(text, at)
        found = found if value is None else value
        at = end
    return found if found is not None else Unusable("no_json", text[:200])


def pick_name(text: str, names: Sequence[str], *, ends: Sequence[str] = (), finish: Finish = "stop") -> str | Unusable:
    """The one of `names` that the reply means, or one of `ends` if the reply is nothing but it."""
    if refusal := _refuse(text, finish):
        return refusal
    bare = text.strip(_WRAPPING).casefold()
    exact = [name for name in (*names, *ends) if name.casefold() == bare]
    if len(exact) == 1:
        return exact[0]
    spoken = [name for name in names if _says(text, name)]
    if len(spoken) == 1:
        return spoken[0]
    return Unusable("ambiguous" if spoken else "unknown", text[:200])


def pick_indices(text: str, count: int, k: int, finish: Finish = "stop") -> tuple[int, ...] | Unusable:
    """The candidate numbers 0..count-1 that a reply lists: distinct, at most k, in its order."""
    if refusal := _refuse(text, finish):
        return refusal
    numbers = [int(digits) for digits in re.findall(r"(?<![\w.-])\d{1,6}(?![\w]|\.\d)", text)]
    valid = tuple(dict.fromkeys(number for number in numbers if number < count))[:k]
    return valid or Unusable("unknown", text[:200])


def _refuse(text: str, finish: Finish) -> Unusable | None:
    if finish != "stop" or len(text) > OUTPUT_CHARS_MAX:
        return Unusable("truncated", text[:200])
    return None if text.strip() else Unusable("empty", "")


def _says(text: str, name: str) -> bool:
    return re.search(rf"(?<![\w-]){re.escape(name)}(?![\w-])", text, re.IGNORECASE) is not None


def _next_brace(text: str, at: int) -> int:
    """The next opening brace outside fences of other languages, -1 at the end."""
    while (brace := text.find("{", at)) >= 0:
        fence = _FENCE.search(text, at, brace)
        if fence is None:
            return brace
        if fence.group(1).lower() in _JSON_FENCES:
            at = fence.end()
            continue
        closing = _FENCE.search(text, fence.end())
        if closing is None:
            return -1
        at = closing.end()
    return -1


def _object_at(text: str, at: int) -> tuple[dict[str, object] | None, int]:
    """The object that begins here, or None, and where to read on."""
    try:
        value, end = _DECODER.raw_decode(text, at)
    except (ValueError, RecursionError):
        return None, _closing(text, at)
    return (value if isinstance(value, dict) else None), end


def _closing(text: str, at: int) -> int:
    """Past the brace that closes the one at `at`, strings minded; the end of the text if none does."""
    depth = 0
    in_string = escaped = False
    for position in range(at, len(text)):
        char = text[position]
        if in_string:
            in_string = escaped or char != '"'
            escaped = char == "\\" and not escaped
        elif char == '"':
            in_string = True
        elif char in "{}":
            depth += 1 if char == "{" else -1
            if depth == 0:
                return position + 1
    return len(text)
