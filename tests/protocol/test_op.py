"""An op is its exact bytes: nothing of it can be changed, and it travels on as it came."""

from __future__ import annotations

import hashlib
from typing import Any

import pytest
from hypothesis import given, strategies as st

from protocol.clock import HLC_MAX
from protocol.codec import encode
from protocol.errors import DecodeError, UsageError
from protocol.identity import digest, verify_raw
from protocol.op import (
    BODY_BYTES_MAX,
    DEPS_MAX,
    HEADER_BYTES_MAX,
    KNOWN,
    OP_BYTES_MAX,
    RESERVED,
    VOTES_MAX,
    Op,
    OpKind,
    Position,
    decode_op,
    decode_wire_op,
    make_op,
)
from tests.strategies import damaged, ids, keypair, sized, tuples_of, uints

AUTHOR = keypair("author")
SPACE = b"s" * 16
positions = st.builds(
    Position, space=sized(16), inst=st.integers(0, 2**32 - 1), seq=st.integers(1, 2**63 - 1), prev=ids,
    deps=tuples_of(ids, 0, DEPS_MAX), hlc=st.integers(0, HLC_MAX),
) | st.builds(
    Position, space=sized(16), inst=st.just(1), seq=st.just(0), prev=st.none(), deps=st.just(()),
    hlc=uints,
)  # fmt: skip
ops = st.builds(
    make_op, st.just(AUTHOR), st.sampled_from(sorted(KNOWN - RESERVED)), positions, st.binary(max_size=200),
    tuples_of(ids, 0, 4),
)  # fmt: skip


def an_op() -> Op:
    at = Position(SPACE, 3, 7, b"p" * 32, (b"a" * 32, b"b" * 32), 1 << 40)
    return make_op(AUTHOR, OpKind.UNIT, at, b"body", (b"a" * 32,))


def header(**changes: Any) -> bytes:
    """A well-formed header with some of its fields changed."""
    fields: dict[str, Any] = {
        "v": 1, "kind": 4, "space": SPACE, "author": AUTHOR.public, "inst": 0, "seq": 1, "prev": b"p" * 32,
        "deps": (), "hlc": 5, "body_len": 4, "body_hash": hashlib.sha256(b"body").digest(), "ext": (), **changes,
    }  # fmt: skip
    return encode(tuple(fields.values()))


def signed(head: bytes, body: bytes | None = b"body") -> Op:
    return decode_op(head, AUTHOR.sign_raw(digest("op", head)), body)


@given(ops)
def test_an_op_comes_back_equal_and_is_forwarded_as_the_same_bytes(op: Op) -> None:
    wire = op.wire()
    again = decode_wire_op(wire)
    assert again == op
    assert again.wire() == wire
    assert again.signed_by_author(verify_raw)
    assert again.refs == (*op.deps, *(() if op.prev is None else (op.prev,)))


@given(ops, st.data())
def test_a_changed_bit_is_refused_or_breaks_the_signature(op: Op, data: st.DataObject) -> None:
    wire = bytearray(op.wire())
    bit = data.draw(st.integers(0, 8 * len(wire) - 1))
    wire[bit // 8] ^= 1 << bit % 8
    try:
        other = decode_wire_op(bytes(wire))
    except DecodeError:
        return
    assert not other.signed_by_author(verify_raw)


def test_every_single_bit_of_an_op_counts() -> None:
    wire = an_op().wire()
    for bit in range(8 * len(wire)):
        changed = bytearray(wire)
        changed[bit // 8] ^= 1 << bit % 8
        try:
            other = decode_wire_op(bytes(changed))
        except DecodeError:
            continue
        assert not other.signed_by_author(verify_raw), bit


@given(st.data())
def test_damaged_op_bytes_raise_nothing_but_decode_error(data: st.DataObject) -> None:
    raw = data.draw(damaged(an_op().wire()))
    try:
        op = decode_wire_op(raw)
    except DecodeError:
        return
    assert op.wire() == raw


def test_a_body_can_go_without_touching_the_id() -> None:
    op = an_op()
    bare = decode_op(op.header, op.sig, None)
    assert (bare.id, bare.body_hash) == (op.id, op.body_hash)
    assert bare.signed_by_author(verify_raw)
    assert decode_wire_op(bare.wire()) == bare


BAD: dict[str, dict[str, Any]] = {
    "version 2": {"v": 2},
    "version true": {"v": True},
    "kind 256": {"kind": 256},
    "kind true": {"kind": True},
    "kind -1": {"kind": -1},
    "short space": {"space": b"s" * 15},
    "long author": {"author": b"a" * 33},
    "text for the author": {"author": "a" * 32},
    "inst beyond 32 bits": {"inst": 1 << 32},
    "seq beyond 63 bits": {"seq": 1 << 63},
    "first op with a prev": {"seq": 0},
    "later op without a prev": {"prev": None},
    "deps out of order": {"deps": (b"b" * 32, b"a" * 32)},
    "a dep twice": {"deps": (b"a" * 32, b"a" * 32)},
    "prev among the deps": {"deps": (b"p" * 32,)},
    "17 deps": {"deps": tuple(bytes([i]) * 32 for i in range(DEPS_MAX + 1))},
    "a short dep": {"deps": (b"a",)},
    "deps are no array": {"deps": None},
    "negative stamp": {"hlc": -1},
    "body too long": {"body_len": BODY_BYTES_MAX + 1},
    "another body length": {"body_len": 5},
    "another body": {"body_hash": bytes(32)},
    "ext is no array": {"ext": {}},
    "nine votes": {"ext": (tuple(bytes([i]) * 32 for i in range(VOTES_MAX + 1)),)},
    "a short vote": {"ext": ((b"v",),)},
}


@pytest.mark.parametrize("name", BAD)
def test_a_header_that_breaks_a_rule_is_refused(name: str) -> None:
    assert signed(header()).kind == OpKind.UNIT  # the unchanged one is fine
    with pytest.raises(DecodeError):
        signed(header(**BAD[name]))


@pytest.mark.parametrize(
    "raw",
    [
        encode((header(), bytes(63), b"body")),
        encode((header(), bytes(64))),
        encode((header(), bytes(64), "body")),
        encode((header(), bytes(64), b"body", None)),
        encode({"header": header()}),
        encode((encode((1, 2)), bytes(64), None)),
        encode((encode({"v": 1}), bytes(64), None)),
    ],
)
def test_a_wire_form_of_another_shape_is_refused(raw: bytes) -> None:
    with pytest.raises(DecodeError):
        decode_wire_op(raw)


def test_what_a_later_version_appends_to_ext_is_kept_and_hashed() -> None:
    head = header(ext=((b"v" * 32,), {"new": (1, None)}, "more"))
    op = decode_wire_op(signed(head).wire())
    assert op.votes == (b"v" * 32,)
    assert op.header == head
    assert op.signed_by_author(verify_raw)


@pytest.mark.parametrize("kind", [*sorted(RESERVED), 0, 28, 200, 255])
def test_a_reserved_kind_is_not_written_but_is_taken_and_forwarded(kind: int) -> None:
    at = Position(SPACE, 0, 0, None, (), 5)
    with pytest.raises(UsageError) as refused:
        make_op(AUTHOR, kind, at, b"\x80")
    assert refused.value.hint
    op = signed(header(kind=kind))
    assert decode_wire_op(op.wire()) == op
    assert str(kind) in repr(op) or OpKind(kind).name in repr(op)


def test_bounds_are_checked_when_an_op_is_written() -> None:
    many = tuple(bytes([i]) * 32 for i in range(DEPS_MAX + 1))
    cases = (
        (Position(SPACE, 0, 0, None, many, 5), b"", ()),
        (Position(SPACE, 0, 0, None, (), 5), b"", many[: VOTES_MAX + 1]),
        (Position(SPACE, 0, 0, None, (), 5), bytes(BODY_BYTES_MAX + 1), ()),
        (Position(SPACE, 0, 0, None, (), HLC_MAX + 1), b"", ()),
        (Position(SPACE, 0, 1, None, (), 5), b"", ()),
        (Position(b"", 0, 0, None, (), 5), b"", ()),
    )
    for at, body, votes in cases:
        with pytest.raises(UsageError):
            make_op(AUTHOR, OpKind.UNIT, at, body, votes)


def test_the_largest_op_fits_its_bound() -> None:
    many = tuple(bytes([i]) * 32 for i in range(DEPS_MAX))
    at = Position(SPACE, 2**32 - 1, 2**63 - 1, b"p" * 32, many, HLC_MAX)
    op = make_op(AUTHOR, OpKind.UNIT, at, bytes(BODY_BYTES_MAX), many[:VOTES_MAX])
    assert len(op.header) <= HEADER_BYTES_MAX
    assert len(op.wire()) <= OP_BYTES_MAX
    assert decode_wire_op(op.wire()) == op
    terms = {"body_len": BODY_BYTES_MAX, "body_hash": op.body_hash}
    room = HEADER_BYTES_MAX - len(header(ext=((), bytes(256)), **terms)) + 256
    head = header(ext=((), bytes(room)), **terms)
    assert len(head) == HEADER_BYTES_MAX
    assert decode_wire_op(signed(head, op.body).wire()).header == head


def test_deps_are_put_in_order_and_prev_is_left_out() -> None:
    at = Position(SPACE, 0, 4, b"p" * 32, (b"z" * 32, b"p" * 32, b"a" * 32, b"z" * 32), 5)
    assert make_op(AUTHOR, OpKind.UNIT, at, b"").deps == (b"a" * 32, b"z" * 32)


def test_kinds_keep_their_place_in_the_list() -> None:
    listed = (
        "join deny open unit edge summary claim renew release done seen spend grant redact cancel settle checkpoint "
        "rehold rating seal_vote work need note norm approval subtask intent"
    )
    assert [kind.name.lower() for kind in sorted(OpKind)] == listed.split()
    assert sorted(KNOWN) == list(range(1, 28))
