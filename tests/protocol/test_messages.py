"""Frames: equal on the other side, refused with one error class when they are not, never over their lane's cap."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest
from hypothesis import given, strategies as st

from protocol import messages as m
from protocol.codec import encode
from protocol.contract import INT63_MAX
from protocol.errors import DecodeError
from protocol.op import OP_BYTES_MAX
from protocol.transport import FRAME_BYTES_MAX, Lane
from tests.strategies import FRAMES, damaged, frames, keypair, values

ID, SPACE, SIG, D12 = bytes(32), bytes(16), bytes(64), bytes(12)
KINDS = [pytest.param(cls, id=cls.__name__) for cls in FRAMES]


def other(lane: Lane) -> Lane:
    return Lane.BULK if lane is Lane.CONTROL else Lane.CONTROL


def fields_of(frame: Any) -> list[Any]:
    return [getattr(frame, field.name) for field in dataclasses.fields(frame)]


@pytest.mark.parametrize("cls", KINDS)
@given(data=st.data())
def test_a_frame_comes_back_equal_on_its_own_lane_only(cls: type[Any], data: st.DataObject) -> None:
    frame = data.draw(FRAMES[cls])
    raw, lane = m.encode_frame(frame), m.LANE_OF[cls]
    assert m.decode_frame(raw, lane) == frame
    with pytest.raises(DecodeError):
        m.decode_frame(raw, other(lane))


@pytest.mark.parametrize("cls", KINDS)
@given(data=st.data())
def test_a_frame_with_a_field_more_or_less_is_refused(cls: type[Any], data: st.DataObject) -> None:
    frame = data.draw(FRAMES[cls])
    tag = m._TAG_OF[cls]
    fields = fields_of(frame)
    for wrong in (fields[:-1], [*fields, None], []):
        with pytest.raises(DecodeError):
            m.decode_frame(encode((tag, *wrong)), m.LANE_OF[cls])


@given(frames, st.data())
def test_a_field_of_any_other_value_is_a_frame_or_refused(frame: Any, data: st.DataObject) -> None:
    cls = type(frame)
    fields = fields_of(frame)
    fields[data.draw(st.integers(0, len(fields) - 1))] = data.draw(values)
    raw = encode((m._TAG_OF[cls], *fields))
    try:
        again = m.decode_frame(raw, m.LANE_OF[cls])
    except DecodeError:
        return
    assert m.encode_frame(again) == raw


@given(st.integers(0, 20), st.lists(values, max_size=11), st.sampled_from(list(Lane)))
def test_any_canonical_array_is_a_frame_or_refused(tag: int, fields: list[Any], lane: Lane) -> None:
    raw = encode((tag, *fields))
    try:
        frame = m.decode_frame(raw, lane)
    except DecodeError:
        return
    assert m.encode_frame(frame) == raw


@given(values.map(encode) | st.binary(max_size=60), st.sampled_from(list(Lane)))
def test_anything_else_raises_nothing_but_decode_error(raw: bytes, lane: Lane) -> None:
    try:
        frame = m.decode_frame(raw, lane)
    except DecodeError:
        return
    assert m.encode_frame(frame) == raw


@given(frames, st.data())
def test_a_damaged_frame_is_another_frame_or_refused(frame: Any, data: st.DataObject) -> None:
    raw = data.draw(damaged(m.encode_frame(frame)))
    try:
        again = m.decode_frame(raw, m.LANE_OF[type(frame)])
    except DecodeError:
        return
    assert m.encode_frame(again) == raw


@pytest.mark.parametrize("raw", [*map(encode, ((), None, {}, (True,), ("x",), (0,), (200, 1), (255,)))])
def test_what_does_not_start_with_a_known_kind_is_refused(raw: bytes) -> None:
    for lane in Lane:
        with pytest.raises(DecodeError):
            m.decode_frame(raw, lane)


OVER: dict[str, tuple[int, list[Any]]] = {
    "no op": (5, [()]),
    "257 ops": (5, [(b"",) * 257]),
    "an op too large": (5, [(bytes(OP_BYTES_MAX + 1),)]),
    "257 digests": (6, [1, ((SPACE, D12),) * 257]),
    "a digest of 11 bytes": (6, [1, ((SPACE, bytes(11)),)]),
    "1025 heads": (7, [1, SPACE, True, ((ID, 0, 1, D12),) * 1025]),
    "a negative head": (7, [1, SPACE, True, ((ID, -1, 0, D12),)]),
    "want is a number": (7, [1, SPACE, 1, ()]),
    "a request id of 33 bits": (8, [1 << 32, SPACE, ID, 0, 1]),
    "a seq of 64 bits": (8, [1, SPACE, ID, 0, 1 << 63]),
    "no id": (9, [1, SPACE, ()]),
    "257 ids": (9, [1, SPACE, (ID,) * 257]),
    "a receipt for nothing": (13, [SPACE, 1, (), SIG]),
    "nine records": (14, [(b"",) * 9]),
    "a record too large": (14, [(bytes(m.RECORD_BYTES_MAX + 1),)]),
    "a tail too long": (16, [SPACE, 1, ID, 1, "x" * (m.TAIL_BYTES_MAX + 1)]),
    "a long reason": (2, ["code", "x" * 301]),
    "three certificates": (1, [1, 1, ID, (b"",) * 3, 1, 1, (1,), (), (), ()]),
    "nine addresses": (1, [1, 1, ID, (), 1, 1, (1,), (), ("/a",) * 9, ()]),
}


@pytest.mark.parametrize("name", OVER)
def test_a_count_or_size_over_its_bound_is_refused(name: str) -> None:
    tag, fields = OVER[name]
    lane = m.LANE_OF[m._CLASS_OF[tag]]
    with pytest.raises(DecodeError):
        m.decode_frame(encode((tag, *fields)), lane)


@pytest.mark.parametrize("lane", list(Lane))
def test_a_frame_over_its_lane_is_refused_whatever_it_holds(lane: Lane) -> None:
    with pytest.raises(DecodeError):
        m.decode_frame(bytes(FRAME_BYTES_MAX[lane] + 1), lane)


def largest() -> list[Any]:
    """For each kind that a node fills up to its bounds, the largest frame."""
    top, big = 2**32 - 1, INT63_MAX
    record = bytes(m.RECORD_BYTES_MAX)
    return [
        m.Ping(top, 2**47),
        m.Digests(top, ((SPACE, D12),) * m.DIGESTS_MAX),
        m.Heads(top, SPACE, want=True, authors=((ID, big, big, D12),) * m.HEADS_MAX),
        m.GetLog(top, SPACE, ID, big, big),
        m.GetOps(top, SPACE, (ID,) * m.IDS_MAX),
        m.GetIds(top, SPACE, ID, big),
        m.IdList(top, SPACE, ID, (ID,) * m.IDS_MAX, big),
        m.Receipt(SPACE, top, (ID,) * m.IDS_MAX, SIG),
        m.Records((record,) * m.RECORDS_MAX),
        m.Watch(SPACE, on=True),
        m.Progress(SPACE, big, ID, big, "\U0001f600" * m.TAIL_BYTES_MAX),
        m.Bye("\U0001f600" * 300, "\U0001f600" * 300),
        m.OpBatch((bytes(OP_BYTES_MAX),)),
        m.OpBatch((bytes(m.BATCH_BYTES_MAX // m.BATCH_OPS_MAX),) * m.BATCH_OPS_MAX),
    ]


@pytest.mark.parametrize("frame", largest(), ids=lambda frame: type(frame).__name__)
def test_the_largest_frame_of_a_kind_fits_its_lane(frame: Any) -> None:
    lane = m.LANE_OF[type(frame)]
    raw = m.encode_frame(frame)
    assert len(raw) <= FRAME_BYTES_MAX[lane]
    assert m.decode_frame(raw, lane) == frame


def test_two_largest_ops_and_a_largest_fork_fit_one_answer() -> None:
    """What repair may always put into one Fetched: a pair that proves a fork, and one op."""
    op = bytes(OP_BYTES_MAX)
    answer = m.Fetched(2**32 - 1, SPACE, (op,), ((op, op),), (), more=True)
    assert len(m.encode_frame(answer)) <= FRAME_BYTES_MAX[Lane.BULK]


def test_tags_are_never_moved() -> None:
    listed = (
        "Hello Bye Ping Pong OpBatch Digests Heads GetLog GetOps GetIds IdList Fetched Receipt Records Watch Progress"
    )
    tags = sorted(m._CLASS_OF)
    assert tags == list(range(1, len(tags) + 1))
    assert [m._CLASS_OF[tag].__name__ for tag in tags][:16] == listed.split()


def test_every_kind_of_frame_has_a_strategy() -> None:
    """A new kind is appended to FRAMES of tests/strategies.py, so that the properties above hold for it as well."""
    assert set(FRAMES) == set(m.LANE_OF)


@given(st.lists(st.binary(min_size=32, max_size=32), min_size=1, max_size=4), st.integers(0, 9))
def test_a_receipt_covers_space_level_and_every_id(ids: list[bytes], level: int) -> None:
    signed = m.receipt_bytes(SPACE, level, tuple(ids))
    assert signed != m.receipt_bytes(b"t" * 16, level, tuple(ids))
    assert signed != m.receipt_bytes(SPACE, level + 1, tuple(ids))
    assert signed != m.receipt_bytes(SPACE, level, (*ids, keypair("x").public))
    assert signed != m.receipt_bytes(SPACE, level, tuple(ids[:-1]))
