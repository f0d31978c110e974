"""Case W3: a number is carried exactly through every layer that it passes, or refused where it is written.

The path of a memory unit: its body with metadata that a later version adds, the op around it, the frame on the wire,
the database, and back; then the same number as JSON for a person's tools. The whole kind: every integer around every
limit of the format, of JSON's doubles and of machine words.
"""

from __future__ import annotations

import io
import json
from pathlib import Path

import pytest
from hypothesis import given, strategies as st

from node.cli.output import Form, Screen
from node.store import SqliteStore
from protocol.codec import encode
from protocol.errors import UsageError
from protocol.messages import OpBatch, decode_frame, encode_frame
from protocol.op import OpKind, Position, decode_wire_op, make_op
from protocol.records import Unit, body_bytes, body_map
from protocol.store import OpRow
from protocol.transport import Lane
from tests.strategies import case_lines, keypair

EDGES = [sign * 2**power + step for power in (31, 32, 53, 63, 64, 80) for sign in (1, -1) for step in (-1, 0, 1)]
AUTHOR = keypair("author of numbers")
SPACE = b"s" * 16


def body_with(number: int) -> bytes:
    """A unit whose metadata holds the number.

    Raises:
        UsageError: it has no exact form on the wire.
    """
    known = body_map(body_bytes(Unit(agent="a", role="r", content="c")))
    return encode({**known, "metadata": {"answer": number}})


def carried(body: bytes) -> object:
    """What another node reads of it, after signing, sending and decoding."""
    op = make_op(AUTHOR, OpKind.UNIT, Position(SPACE, 1, 0, None, (), 1 << 40), body)
    frame = decode_frame(encode_frame(OpBatch((op.wire(),))), Lane.BULK)
    assert isinstance(frame, OpBatch)
    arrived = decode_wire_op(frame.ops[0]).body
    assert arrived is not None
    metadata = body_map(arrived)["metadata"]
    assert isinstance(metadata, dict)
    return metadata["answer"]


def check(number: int) -> None:
    if -(2**63) <= number < 2**64:
        assert carried(body_with(number)) == number
    else:
        with pytest.raises(UsageError):
            body_with(number)


@pytest.mark.parametrize("line", range(6))
def test_each_number_of_the_case_arrives_exactly_or_is_refused_when_written(line: int) -> None:
    check(int(case_lines("W3_ints.jsonl")[line]["value_decimal"]))


@given(st.sampled_from(EDGES) | st.integers(-(2**90), 2**90))
def test_any_number_arrives_exactly_or_is_refused_when_written(number: int) -> None:
    check(number)


def test_numbers_are_exact_in_the_database(tmp_path: Path) -> None:
    fit = [number for number in EDGES if -(2**63) <= number < 2**64]
    ops, prev = [], None
    for seq, number in enumerate(fit):
        position = Position(SPACE, 1, seq, prev, (), (1 << 40) + seq)
        ops.append(make_op(AUTHOR, OpKind.UNIT, position, body_with(number)))
        prev = ops[-1].id
    with SqliteStore(tmp_path / "store.db") as store:
        store.apply(tuple(OpRow(op, sync=False) for op in ops))
    with SqliteStore(tmp_path / "store.db") as store:
        bodies = [body_map(op.body) for op in store.ops(SPACE) if op.body is not None]
    assert [body["metadata"] for body in bodies] == [{"answer": number} for number in fit]


@given(st.sampled_from(EDGES) | st.integers())
def test_json_for_tools_rounds_no_number(number: int) -> None:
    out = io.StringIO()
    Screen(Form.JSON, out, io.StringIO()).record({"answer": number})
    assert str(number) in out.getvalue()
    assert json.loads(out.getvalue()) == {"answer": number}
