"""What reaches a terminal: nothing that could act on it, whatever a peer or a model wrote."""

from __future__ import annotations

import io
import json
import logging
import unicodedata
from pathlib import Path

import pytest
from hypothesis import given, strategies as st

from node.cli.logs import configure
from node.cli.options import seconds_of
from node.cli.output import Form, Screen, columns, form_of, indented, one_line, printable, wanted_form
from node.cli.task_text import view_lines
from node.cli.watching import Lines, picture_lines
from protocol.codec import clean_text
from protocol.errors import Refused, UsageError

CASES = Path(__file__).parents[3] / "shared" / "cases" / "files" / "W4_text.jsonl"
HOSTILE = "a\x1b[2Jb\u202ec\x07\x9bd\u2028e\ufefff\x00[bold red]g[/]\r\nforged"


def acts(char: str) -> bool:
    """Whether a character could move a cursor, hide or turn text around."""
    return char not in "\n\t\u200c\u200d" and unicodedata.category(char) in {"Cc", "Cf", "Cs", "Zl", "Zp"}


@given(st.text(st.characters(codec=None)))
def test_nothing_that_acts_is_left(text: str) -> None:
    assert not any(acts(char) for char in printable(text))
    assert "\n" not in one_line(text)
    assert len(one_line(text, 20)) <= 20


@given(st.text(st.characters(categories=("L", "N", "P", "S", "Zs"))))
def test_ordinary_text_is_left_alone(text: str) -> None:
    assert printable(text) == text


def test_escapes_are_seen_as_what_they_are() -> None:
    assert printable("\x1b[2J") == "\\x1b[2J"
    assert printable("\u202etxet") == "\\u202etxet"
    assert printable("\x9b") == "\\x9b"
    assert printable("\U000e0001") == "\\U000e0001"
    assert printable("👩\u200d🔬") == "👩\u200d🔬"


@pytest.mark.skipif(not CASES.exists(), reason="the shared cases are not on this machine")
def test_the_recorded_hostile_texts_reach_no_terminal() -> None:
    for line in CASES.read_text().splitlines():
        text = clean_text(json.loads(json.loads(line)["json_text"]))
        assert not any(acts(char) for char in printable(text))
        assert json.loads(json.dumps(text)) == text


def test_lines_of_a_peer_cannot_pass_for_ours() -> None:
    assert all(line.startswith("    ") for line in indented("yes\nerror: forged\nhint: run this"))


def hostile_view() -> dict[str, object]:
    """A view in which every text of others is hostile."""
    turn: dict[str, object] = {
        "step": 1, "done": "aa", "outcome": "next", "epoch": 0, "peer": HOSTILE, "role": HOSTILE, "agent": HOSTILE,
        "summary": HOSTILE, "content": HOSTILE, "verdict": HOSTILE,
        "model": HOSTILE, "quality": HOSTILE, "tokens": 7, "ms": 3, "finality": "final",
        "votes": 1, "context": [{"unit": "bb", "tokens": 5, "role": HOSTILE, "summary": HOSTILE}],
    }  # fmt: skip
    vector = {"tokens": None, "calls": 3, "ms": 5, "micro_money": 0}
    return {
        "task": "cc", "status": "running", "objective": HOSTILE, "answer": HOSTILE, "client_key": HOSTILE, "ops": 3,
        "digest": "dd", "used": vector, "budget": vector, "turns": [turn], "reason": HOSTILE,
        "running": {
            "step": 2, "claim": "ee", "epoch": 1, "peer": HOSTILE, "mine": False, "stage": HOSTILE, "role": HOSTILE,
            "agent": HOSTILE, "renews": 0, "slice": vector, "tokens": 4, "partial": HOSTILE,
        },
    }  # fmt: skip


def test_no_view_lets_text_of_others_act_or_forge_a_line() -> None:
    out = io.StringIO()
    screen = Screen(Form.HUMAN, out, io.StringIO())
    lines = [*view_lines(hostile_view()), *picture_lines(hostile_view())]
    screen.lines(lines)
    Lines(screen).draw(hostile_view())
    written = out.getvalue()
    assert not any(acts(char) for char in written)
    assert "forged" in written
    assert not any(line.startswith("forged") for line in written.split("\n"))
    assert "[bold red]" in written  # markup is text


def test_json_is_ascii() -> None:
    out = io.StringIO()
    Screen(Form.JSON, out, io.StringIO()).record(hostile_view())
    assert out.getvalue().isascii()
    assert out.getvalue().count("\n") == 1
    assert json.loads(out.getvalue()) == hostile_view()


def test_a_turn_that_is_displaced_is_told_again_and_progress_only_when_it_grew() -> None:
    out = io.StringIO()
    lines = Lines(Screen(Form.HUMAN, out, io.StringIO()))
    view = hostile_view()
    lines.draw(view)
    before = out.getvalue()
    lines.draw(view)
    assert out.getvalue() == before
    turns = view["turns"]
    assert isinstance(turns, list)
    turns[0]["done"] = "ff"
    lines.draw(view)
    assert out.getvalue().count("step 1") == 2


def test_a_stream_that_cannot_show_a_character_gets_an_escape() -> None:
    raw = io.BytesIO()
    stream = io.TextIOWrapper(raw, encoding="ascii", write_through=True)
    Screen(Form.HUMAN, stream, stream).lines(["naïve"])
    assert raw.getvalue() == b"na\\xefve\n"


@pytest.mark.parametrize(
    ("argv", "form"),
    [
        (["status"], Form.HUMAN),
        (["status", "--json"], Form.JSON),
        (["status", "-o", "jsonl"], Form.JSONL),
        (["status", "-ojson"], Form.JSON),
        (["status", "--output=json"], Form.JSON),
        (["status", "-o"], Form.HUMAN),
        (["task", "submit", "--", "--json"], Form.HUMAN),
        (["status", "-o", "nonsense"], Form.HUMAN),
    ],
)
def test_the_form_of_an_error_is_found_in_any_command_line(argv: list[str], form: Form) -> None:
    assert wanted_form(argv) is form


def test_forms_that_contradict_each_other_are_refused() -> None:
    assert form_of(Form.HUMAN, json_form=True) is Form.JSON
    with pytest.raises(UsageError):
        form_of(Form.JSONL, json_form=True)


def test_errors_go_where_their_reader_looks() -> None:
    error = Refused("no \x1b[2J", hint="do this")
    out, err = io.StringIO(), io.StringIO()
    Screen(Form.HUMAN, out, err).error(error)
    assert (out.getvalue(), err.getvalue()) == ("", "error: no \\x1b[2J\nhint: do this\n")
    out, err = io.StringIO(), io.StringIO()
    Screen(Form.JSONL, out, err).error(error)
    assert json.loads(out.getvalue()) == {"code": "refused", "message": "no \x1b[2J", "hint": "do this"}
    assert err.getvalue() == ""


@pytest.mark.parametrize(
    ("text", "seconds"), [("90", 90), ("90s", 90), ("1.5m", 90), ("2h", 7200), ("1d", 86_400), ("250ms", 0.25)]
)
def test_durations(text: str, seconds: float) -> None:
    assert seconds_of(text, "--timeout") == pytest.approx(seconds)


@pytest.mark.parametrize("text", ["", "0", "-5", "ten", "5 apples", "5w", "1e9"])
def test_what_is_no_duration_is_refused(text: str) -> None:
    with pytest.raises(UsageError, match="--timeout"):
        seconds_of(text, "--timeout")


def test_columns_align() -> None:
    assert columns([["a", "bbb", "c"], ["aaaa", "b", ""]]) == ["a     bbb  c", "aaaa  b"]
    assert columns([]) == []


def test_the_log_of_a_daemon_is_one_ascii_object_a_line() -> None:
    root = logging.getLogger()
    handlers, level = root.handlers[:], root.level
    stream = io.StringIO()
    try:
        configure(stream, "AbCdEfGh", verbose=False)
        logging.getLogger("masos.test").info("peer says %s", "\x1b[2J\n", extra={"peer": "x"})
        try:
            json.loads("")
        except ValueError:
            logging.getLogger("masos.test").exception("bug")
        logging.getLogger("masos.test").debug("not shown")
    finally:
        root.handlers[:], root.level = handlers, level
    first, second = (json.loads(line) for line in stream.getvalue().splitlines())
    assert (first["level"], first["node"], first["peer"]) == ("info", "AbCdEfGh", "x")
    assert first["ts"].endswith("+00:00")
    assert "JSONDecodeError" in second["traceback"]
    assert stream.getvalue().isascii()
