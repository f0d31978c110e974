"""What a verb shows: data on stdout in the asked form, messages on stderr, nothing that drives the terminal.

Text that came from a peer, a model or a file is hostile to a terminal: an escape sequence can clear the screen or
retitle the window, an override can turn a line around, a newline can forge a line of ours. So everything shown to a
person goes through `printable` or `one_line`, and text of several lines is indented; no markup is read in it. JSON
is ASCII, where all of that is harmless.
"""

from __future__ import annotations

import json
import sys
import unicodedata
from collections.abc import Iterable, Sequence
from enum import StrEnum
from typing import Final, TextIO

from protocol.errors import SwarmError, UsageError

ONE_LINE_CHARS: Final = 100
_JOINERS: Final = frozenset("\u200c\u200d")  # scripts and emoji need them, and they move nothing
_UNSEEN: Final = frozenset(("Cc", "Cf", "Cs", "Zl", "Zp"))

Json = dict[str, object]


class Form(StrEnum):
    """How data is shown."""

    HUMAN = "human"
    JSON = "json"
    JSONL = "jsonl"


def printable(text: str) -> str:
    """The text with everything that could act on a terminal made visible; newlines and tabs stay."""
    return "".join(char if _harmless(char) else _visible(char) for char in text)


def one_line(text: str, chars_max: int = ONE_LINE_CHARS) -> str:
    """The printable text as one line, cut to a length."""
    flat = " ".join(printable(text).split())
    return flat if len(flat) <= chars_max else flat[: chars_max - 1] + "…"


def indented(text: str, by: str = "    ") -> list[str]:
    """Lines of a printable text, each moved in, so that none can pass for a line of ours."""
    return [by + line for line in printable(text).split("\n")]


def _harmless(char: str) -> bool:
    return char in "\n\t" or char in _JOINERS or unicodedata.category(char) not in _UNSEEN


def _visible(char: str) -> str:
    code = ord(char)
    return f"\\x{code:02x}" if code < 0x100 else f"\\u{code:04x}" if code < 0x10000 else f"\\U{code:08x}"


def as_object(value: object) -> Json:
    """A part of an answer that should be an object."""
    return value if isinstance(value, dict) else {}


def as_list(value: object) -> list[object]:
    """A part of an answer that should be a list."""
    return value if isinstance(value, list) else []


def columns(rows: Sequence[Sequence[str]]) -> list[str]:
    """Rows as lines with aligned columns; the cells are printable one-liners."""
    if not rows:
        return []
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    return ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows]


class Screen:
    """Where one verb writes."""

    def __init__(self, form: Form, out: TextIO | None = None, err: TextIO | None = None) -> None:
        self.form = form
        self.out = out if out is not None else sys.stdout
        self.err = err if err is not None else sys.stderr

    @property
    def human(self) -> bool:
        """A person reads."""
        return self.form is Form.HUMAN

    def result(self, value: Json, lines: Iterable[str]) -> None:
        """The data of a verb: the value for programs, the lines (already printable) for people."""
        if self.human:
            self.lines(lines)
        else:
            self.record(value)

    def results(self, key: str, values: Sequence[Json], lines: Iterable[str]) -> None:
        """Many values: one object with a list in JSON, one object a line in JSONL."""
        if self.human:
            self.lines(lines)
        elif self.form is Form.JSONL:
            for value in values:
                self.record(value)
        else:
            self.record({key: list(values)})

    def record(self, value: Json) -> None:
        """One object on one line."""
        print(json.dumps(value), file=self.out, flush=True)

    def lines(self, lines: Iterable[str]) -> None:
        """Lines for a person."""
        for line in lines:
            print(_encodable(line, self.out), file=self.out, flush=True)

    def note(self, line: str) -> None:
        """A message beside the data."""
        print(_encodable(printable(line), self.err), file=self.err, flush=True)

    def error(self, error: SwarmError) -> None:
        """An error: for people on stderr, for programs on stdout as `{code, message, hint}`."""
        if not self.human:
            self.record(dict(error.as_dict()))
            return
        self.note(f"error: {error.message}")
        if error.hint:
            self.note(f"hint: {error.hint}")


def _encodable(line: str, stream: TextIO) -> str:
    """What the stream's encoding lacks becomes an escape instead of an exception."""
    encoding = stream.encoding or "utf-8"
    return line.encode(encoding, "backslashreplace").decode(encoding)


def wanted_form(argv: Sequence[str]) -> Form:
    """The form that a command line asks for, even one that cannot be parsed; an error needs it too."""
    asked: Form = Form.HUMAN
    for position, word in enumerate(argv):
        if word == "--":
            break
        if word == "--json":
            asked = Form.JSON
        value = None
        if word in ("-o", "--output"):
            value = argv[position + 1] if position + 1 < len(argv) else None
        elif word.startswith("--output="):
            value = word.partition("=")[2]
        elif word.startswith("-o") and not word.startswith("--"):
            value = word[2:]
        if value in list(Form):
            asked = Form(value)
    return asked


def form_of(output: Form, *, json_form: bool) -> Form:
    """What `-o` and `--json` say together.

    Raises:
        UsageError: they contradict each other.
    """
    if json_form and output is Form.JSONL:
        raise UsageError("--json and -o jsonl contradict each other", hint="--json is short for -o json")
    return Form.JSON if json_form else output
