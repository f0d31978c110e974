"""Text on its way into an engine and out of it: cleaned, defused, and counted without a tokenizer."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Final

from kernel.engine import Message
from node.engines.http import Json
from protocol.codec import clean_text

_PIECE: Final = re.compile(r"[A-Za-z]+|[^\sA-Za-z]|\s+")
_CONTROL: Final = re.compile(r"<(?=\|[A-Za-z0-9_]{1,40}\|>|/?s>|(?:start|end)_of_turn>)|\[(?=/?INST\])")


def defuse(text: str) -> str:
    """Text that no tokenizer reads as a control token: `<|im_end|>` becomes `< |im_end|>`.

    Servers parse such marks wherever they stand, so that text of a peer could end its quotation
    and speak as the system. Quoting is the prompt's affair; this is the engine's part of it.
    """
    return _CONTROL.sub(lambda mark: mark[0] + " ", text)


def estimate_tokens(text: str) -> int:
    """Tokens of a text that no tokenizer is asked about; made to be above the truth, not near it.

    One per three letters of a word, one per other character, one per four of white space; other
    scripts count their UTF-8 bytes less one.
    """
    total = 0
    for piece in _PIECE.findall(text):
        if piece.isspace():
            total += len(piece) // 4
        elif piece.isascii():
            total += -(-len(piece) // 3)
        else:
            total += max(1, len(piece.encode("utf-8", "replace")) - 1)
    return total


def chat(messages: Sequence[Message]) -> list[Json]:
    """Messages in the wire form, with control marks of chat templates broken up."""
    return [{"role": m.role, "content": defuse(m.content)} for m in messages]


class TextParts:
    """Cleans text that comes in pieces: what is given out, joined, is `clean_text` of the whole.

    Half of a surrogate pair may end a piece and its other half begin the next one (case W4), so a
    trailing high surrogate waits for what follows.
    """

    def __init__(self) -> None:
        self._given: list[str] = []
        self._held = ""

    @property
    def text(self) -> str:
        """Everything given out so far."""
        return "".join(self._given)

    def feed(self, piece: str) -> str:
        """What can be shown now."""
        raw = self._held + piece
        self._held = raw[-1] if raw and "\ud800" <= raw[-1] <= "\udbff" else ""
        return self._give(raw[:-1] if self._held else raw)

    def finish(self) -> str:
        """What was still held back."""
        raw, self._held = self._held, ""
        return self._give(raw)

    def _give(self, raw: str) -> str:
        clean = clean_text(raw)
        if clean:
            self._given.append(clean)
        return clean
