"""One value has one encoding; everything else is refused with one error class."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given, strategies as st

from protocol.capability import SignedRecord
from protocol.codec import (
    DEPTH_MAX,
    ITEMS_MAX,
    VARINT_BYTES_MAX,
    FrameBuffer,
    clean_text,
    decode,
    encode,
    encode_varint,
    frame,
    read_varint,
)
from protocol.errors import DecodeError, UsageError
from protocol.identity import verify_raw
from protocol.messages import decode_frame
from protocol.op import OpKind, decode_wire_op
from protocol.records import body_map, parse_body
from protocol.transport import Lane
from tests.strategies import case_lines, damaged, texts, values

CAP = 1 << 18
NOT_CANONICAL = {
    "float32": "ca3f800000",
    "float64": "cb3ff0000000000000",
    "one byte for a fixint": "cc01",
    "nine bytes for a fixint": "cf0000000000000001",
    "signed form of a positive": "d001",
    "str8 for a fixstr": "d90161",
    "bin16 for bin8": "c5000161",
    "array16 for a fixarray": "dc000101",
    "array32 for a fixarray": "dd0000000101",
    "map16 for a fixmap": "de0001a16101",
    "keys out of order": "82a16201a16102",
    "a key twice": "82a16101a16102",
    "a nil key": "81c001",
    "text that is not UTF-8": "a1ff",
    "a surrogate in UTF-8": "a3eda080",
    "an overlong UTF-8 form": "a2c080",
    "ext 1": "d40100",
    "a timestamp": "d6ff00000000",
    "ext of length zero": "c70005",
    "reserved": "c1",
    "bytes after the value": "0101",
    "cut": "a261",
}


def typed(value: Any) -> Any:
    """The value with the type of every part, since True == 1 and 1 == 1.0."""
    if isinstance(value, dict):
        return {key: typed(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return tuple(typed(item) for item in value)
    return (type(value).__name__, value)


@given(values)
def test_every_value_comes_back_as_it_went(value: Any) -> None:
    assert typed(decode(encode(value), bytes_max=CAP)) == typed(value)


@given(st.dictionaries(texts(6), st.integers(0, 9), max_size=6))
def test_encoding_does_not_depend_on_the_order_of_insertion(value: dict[str, int]) -> None:
    assert encode(dict(reversed(value.items()))) == encode(value)


@given(values, st.data())
def test_damaged_bytes_are_the_encoding_of_another_value_or_refused(value: Any, data: st.DataObject) -> None:
    changed = data.draw(damaged(encode(value)))
    try:
        other = decode(changed, bytes_max=CAP)
    except DecodeError:
        return
    assert encode(other) == changed


@given(st.binary(max_size=60))
def test_arbitrary_bytes_are_a_value_in_canonical_form_or_refused(raw: bytes) -> None:
    try:
        value = decode(raw, bytes_max=CAP)
    except DecodeError:
        return
    assert encode(value) == raw


@pytest.mark.parametrize("name", NOT_CANONICAL)
def test_forms_that_are_not_canonical_are_refused(name: str) -> None:
    with pytest.raises(DecodeError):
        decode(bytes.fromhex(NOT_CANONICAL[name]), bytes_max=CAP)


@pytest.mark.parametrize(
    "value",
    [1.5, 2**64, -(2**63) - 1, "\ud800", {"\udfff": 1}, {1: 2}, {b"a": 1}, {1, 2}, object(), 3j, bytearray(b"a")],
    ids=repr,
)
def test_what_has_no_wire_form_is_refused_when_it_is_written(value: object) -> None:
    with pytest.raises(UsageError):
        encode((value,))


def test_depth_is_bounded_on_both_ways() -> None:
    deepest = b"\x91" * DEPTH_MAX + b"\xc0"
    value = decode(deepest, bytes_max=CAP)
    assert encode(value) == deepest
    with pytest.raises(UsageError):
        encode((value,))
    for depth in (DEPTH_MAX + 1, 600, 5_000, CAP - 1):
        with pytest.raises(DecodeError):
            decode(b"\x91" * depth + b"\xc0", bytes_max=CAP)
        with pytest.raises(DecodeError):
            decode(b"\x81\xa1a" * (depth // 3 + DEPTH_MAX) + b"\xc0", bytes_max=3 * CAP)


def test_size_and_count_are_bounded() -> None:
    body = encode(b"x" * 98)
    assert decode(body, bytes_max=100) == b"x" * 98
    for bad, cap in ((body, 99), (b"", 10)):
        with pytest.raises(DecodeError):
            decode(bad, bytes_max=cap)
    assert len(decode(encode((None,) * ITEMS_MAX), bytes_max=CAP) or ()) == ITEMS_MAX  # type: ignore[arg-type]
    with pytest.raises(DecodeError):
        decode(encode((None,) * (ITEMS_MAX + 1)), bytes_max=CAP)
    claims = (b"\xdd\xff\xff\xff\xff", b"\xdf\xff\xff\xff\xff", b"\xc6\xff\xff\xff\xff", b"\xdb\xff\xff\xff\xff")
    for claim in claims:  # 2^32 - 1 parts or bytes in five bytes
        with pytest.raises(DecodeError):
            decode(claim, bytes_max=CAP)


# ---- W3: integers


@pytest.mark.parametrize("line", range(6))
def test_w3_integers_are_carried_exactly_or_refused_when_written(line: int) -> None:
    number = int(case_lines("W3_ints.jsonl")[line]["value_decimal"])
    unit = {"content": "text", "metadata": {"answer": number}}
    fits = -(2**63) <= number < 2**64
    if not fits:
        with pytest.raises(UsageError):
            encode(unit)
    else:
        assert decode(encode(unit), bytes_max=CAP) == unit


# ---- W4: text


@given(st.text(st.characters(), max_size=30) | st.text("\ud83d\udc4d\ud800a\ufeff\x00", max_size=8))
def test_cleaned_text_can_always_be_signed_and_cleaning_twice_changes_nothing(text: str) -> None:
    clean = clean_text(text)
    assert decode(encode(clean), bytes_max=CAP) == clean
    assert clean_text(clean) == clean


@given(texts(30))
def test_cleaning_leaves_proper_text_alone(text: str) -> None:
    assert clean_text(text) == text
    assert clean_text(f"{text}\ud800{text}") == f"{text}\ufffd{text}"
    assert clean_text(f"{text}\udc4d") == f"{text}\ufffd"
    assert clean_text(f"\ud83d\udc4d{text}") == f"\U0001f44d{text}"


W4 = {
    "half emoji \ud83d end": "half emoji \ufffd end",
    "low half \udc4d": "low half \ufffd",
    "ok \ud83d\udc4d": "ok \U0001f44d",
}


@pytest.mark.parametrize("line", range(8))
def test_w4_text_from_a_model_is_cleaned_once_and_never_cut(line: int) -> None:
    raw = json.loads(case_lines("W4_text.jsonl")[line]["json_text"])
    assert clean_text(raw) == W4.get(raw, raw)


# ---- W5: maps


@pytest.mark.parametrize("line", range(10))
def test_w5_hostile_maps_are_refused_by_every_reader(line: int) -> None:
    raw = bytes.fromhex(case_lines("W5_maps.jsonl")[line]["hex"])
    for lane in Lane:
        with pytest.raises(DecodeError):
            decode_frame(raw, lane)
    with pytest.raises(DecodeError):
        decode_wire_op(raw)
    with pytest.raises(DecodeError):
        SignedRecord.from_wire(raw, verify_raw)
    if raw == b"\x80":  # a canonical map that lacks every field; two kinds demand none
        fit = {kind for kind in OpKind if parse_body(kind, raw) is not None}
        assert fit == {OpKind.SEEN, OpKind.RELEASE}
    else:
        with pytest.raises(DecodeError):
            body_map(raw)


# ---- W1, W2: frames on a stream


@given(st.integers(0, (1 << 21) - 1))
def test_varints_are_minimal_and_every_prefix_of_one_is_incomplete(number: int) -> None:
    raw = encode_varint(number)
    assert read_varint(raw + b"\x00rest") == (number, len(raw))
    assert read_varint(b"xx" + raw, 2) == (number, len(raw) + 2)
    assert all(read_varint(raw[:cut]) is None for cut in range(len(raw)))


@given(st.binary(min_size=1, max_size=4))
def test_arbitrary_bytes_are_a_minimal_varint_or_refused_or_incomplete(raw: bytes) -> None:
    try:
        found = read_varint(raw)
    except DecodeError:
        return
    if found is None:
        assert len(raw) < VARINT_BYTES_MAX
        assert all(byte >= 0x80 for byte in raw)
    else:
        assert encode_varint(found[0]) == raw[: found[1]]


@pytest.mark.parametrize("number", [-1, 1 << 21])
def test_a_number_beyond_the_prefix_is_not_written(number: int) -> None:
    with pytest.raises(UsageError):
        encode_varint(number)


@pytest.mark.parametrize("line", range(9))
def test_w2_varints(line: int) -> None:
    case = case_lines("W2_varints.jsonl")[line]
    raw = bytes.fromhex(case["hex"])
    match case["expect"]:
        case "reject_truncated" | "reject_empty":
            assert read_varint(raw) is None  # a stream waits for the rest, and ends by its deadline
        case "reject_non_minimal":
            with pytest.raises(DecodeError):
                read_varint(raw)
        case number:
            assert read_varint(raw) == (number, len(raw))


@given(st.lists(st.binary(min_size=1, max_size=300), max_size=6), st.data())
def test_frames_come_out_whole_however_the_stream_is_cut(bodies: list[bytes], data: st.DataObject) -> None:
    stream = b"".join(frame(body) for body in bodies)
    cuts = sorted(data.draw(st.lists(st.integers(0, len(stream)), max_size=8)))
    buffer, found = FrameBuffer(300), []
    for start, end in zip([0, *cuts], [*cuts, len(stream)], strict=True):
        found += buffer.feed(stream[start:end])
    assert found == bodies
    assert not buffer.partial


def test_a_stream_that_stops_inside_a_frame_is_partial() -> None:
    buffer = FrameBuffer(300)
    stream = frame(b"x" * 200)
    for byte in stream[:-1]:
        assert buffer.feed(bytes([byte])) == []
        assert buffer.partial
    assert buffer.feed(stream[-1:]) == [b"x" * 200]


@pytest.mark.parametrize("length", [0, 301, (1 << 21) - 1])
def test_a_length_outside_the_cap_is_refused_with_the_prefix_alone(length: int) -> None:
    with pytest.raises(DecodeError):
        FrameBuffer(300).feed(encode_varint(length))


@pytest.mark.parametrize("line", range(6))
def test_w1_claims_of_size(line: int) -> None:
    case = case_lines("W1_frames.jsonl")[line]
    raw, buffer = bytes.fromhex(case["hex"]), FrameBuffer(CAP)
    match case["expect"]:
        case "reject_before_alloc" | "reject_empty_message":
            with pytest.raises(DecodeError):
                buffer.feed(raw)
        case "incomplete_then_timeout":
            assert buffer.feed(raw) == []
            assert buffer.partial
        case "accept_first_then_reject_or_next_frame":
            assert buffer.feed(raw) == [bytes.fromhex("920102")]
            assert buffer.partial
        case "reject_trailing_bytes":
            (body,) = buffer.feed(raw)
            with pytest.raises(DecodeError):
                decode(body, bytes_max=CAP)
        case other:
            pytest.fail(f"unknown expectation {other}")
