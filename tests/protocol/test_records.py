"""Bodies of ops: what fits its kind comes back equal, what a later version adds passes, nothing signed can change."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, strategies as st

from protocol import records as r
from protocol.codec import decode, encode
from protocol.errors import DecodeError, UsageError
from protocol.identity import verify_raw
from protocol.op import BODY_BYTES_MAX, OpKind
from tests.strategies import BODIES, keypair, signed_bodies, texts, values

KINDS = [pytest.param(cls, id=cls.__name__) for cls in BODIES]
SIGNED = [pytest.param(cls, id=cls.__name__) for cls in signed_bodies]
USER = keypair("user")
SPACE = b"s" * 16


def test_every_kind_that_is_not_reserved_has_a_model_and_a_strategy() -> None:
    assert set(BODIES) == set(r.KIND_OF)
    assert sorted(r.KIND_OF.values()) == [kind for kind in OpKind if kind <= OpKind.SEAL_VOTE]


@pytest.mark.parametrize("cls", KINDS)
@given(data=st.data())
def test_a_body_comes_back_equal(cls: type[Any], data: st.DataObject) -> None:
    record = data.draw(BODIES[cls])
    body = r.body_bytes(record)
    assert r.parse_body(r.KIND_OF[cls], body) == record
    assert encode(r.body_map(body)) == body


@pytest.mark.parametrize("cls", KINDS)
@given(data=st.data())
def test_fields_of_a_later_version_are_ignored(cls: type[Any], data: st.DataObject) -> None:
    record = data.draw(BODIES[cls])
    more = {**r.body_map(r.body_bytes(record)), "~new": data.draw(values)}
    assert r.parse_body(r.KIND_OF[cls], encode(more)) == record


@pytest.mark.parametrize("cls", KINDS)
@given(data=st.data())
def test_a_field_of_another_type_makes_the_body_mean_nothing(cls: type[Any], data: st.DataObject) -> None:
    fields = r.body_map(r.body_bytes(data.draw(BODIES[cls])))
    if not fields:
        return
    name = data.draw(st.sampled_from(sorted(fields)))
    changed = encode({**fields, name: (True, (((b"deep",),),), {"no": "model has this"})})
    assert r.parse_body(r.KIND_OF[cls], changed) is None


@given(st.sampled_from(list(OpKind)), st.dictionaries(texts(6), values, max_size=4))
def test_any_map_is_a_record_or_nothing(kind: OpKind, fields: dict[str, Any]) -> None:
    record = r.parse_body(kind, encode(fields))
    assert record is None or r.KIND_OF[type(record)] == kind


@given(st.sampled_from(list(OpKind)), st.binary(max_size=50) | values.map(encode))
def test_a_body_that_is_no_canonical_map_is_malformed(kind: OpKind, body: bytes) -> None:
    try:
        is_map = isinstance(decode(body, bytes_max=BODY_BYTES_MAX), dict)
    except DecodeError:
        is_map = False
    if is_map:
        r.parse_body(kind, body)
    else:
        with pytest.raises(DecodeError):
            r.parse_body(kind, body)


@pytest.mark.parametrize("kind", [21, 27, 28, 255, 0])
def test_a_reserved_or_unknown_kind_means_nothing_here(kind: int) -> None:
    assert r.parse_body(kind, encode({"claim": bytes(32)})) is None


WRONG: list[tuple[type[Any], dict[str, Any]]] = [
    (r.Claim, {"parent": bytes(31), "e": 0}),
    (r.Claim, {"parent": bytes(32), "e": -1}),
    (r.Claim, {"parent": bytes(32), "e": True}),
    (r.Claim, {"parent": "p" * 32, "e": 0}),
    (r.Claim, {"parent": bytes(32), "e": 0, "slice": (1, 2, 3)}),
    (r.Claim, {"parent": bytes(32), "e": 0, "slice": (-1, 0, 0, 0)}),
    (r.Claim, {"parent": bytes(32), "e": 0, "slice": (2**63, 0, 0, 0)}),
    (r.Done, {"claim": bytes(32), "outcome": "won"}),
    (r.Rating, {"done": bytes(32), "score": 101}),
    (r.Join, {"cert": ()}),
    (r.Join, {"cert": (b"1", b"2", b"3")}),
    (r.Edge, {"relation": "likes", "source": bytes(32), "target": bytes(32)}),
    (r.Summary, {"frontier": (), "covers_count": 0, "text": ""}),
    (r.Unit, {"agent": "a", "role": "r", "tokens": -1}),
    (r.Unit, {"agent": "a" * 129, "role": "r"}),
]


@pytest.mark.parametrize(("cls", "fields"), WRONG, ids=lambda part: getattr(part, "__name__", None))
def test_a_value_outside_its_bounds_makes_the_body_mean_nothing(cls: type[Any], fields: dict[str, Any]) -> None:
    assert r.parse_body(r.KIND_OF[cls], encode(fields)) is None


@given(signed_bodies[r.Open], st.sampled_from(sorted(r.Open.model_fields)))
def test_an_open_without_a_field_it_demands_means_nothing(record: r.Open, name: str) -> None:
    fields = r.body_map(r.body_bytes(record))
    del fields[name]
    parsed = r.parse_body(OpKind.OPEN, encode(fields))
    assert (parsed is None) == r.Open.model_fields[name].is_required()


# ---- bodies that a user or an admin signed


def is_good(space: bytes, kind: int, body: bytes) -> bool:
    """True iff the signature in the body is that of the key it names."""
    fields = r.body_map(body)
    by, sig = fields["by"], fields["sig"]
    assert isinstance(by, bytes)
    assert isinstance(sig, bytes)
    return verify_raw(by, r.signed_part(space, kind, fields), sig)


@pytest.mark.parametrize("cls", SIGNED)
@given(data=st.data())
def test_a_signed_body_holds_only_in_its_space_under_its_kind_and_unchanged(
    cls: type[Any], data: st.DataObject
) -> None:
    record = r.sign_body(USER, SPACE, data.draw(BODIES[cls]))
    kind, body = r.KIND_OF[cls], r.body_bytes(record)
    assert record.by == USER.public
    assert r.parse_body(kind, body) == record
    assert is_good(SPACE, kind, body)
    assert not is_good(b"t" * 16, kind, body)
    assert not any(is_good(SPACE, other, body) for other in OpKind if other != kind)
    fields = r.body_map(body)
    for name in fields:
        if name != "sig":
            bad = {**fields, name: (fields[name], 1) if name != "by" else keypair("mallory").public}
            assert not is_good(SPACE, kind, encode(bad)), name
    added = {**fields, "~new": data.draw(values)}
    assert not is_good(SPACE, kind, encode(added))


@given(signed_bodies[r.Cancel], st.integers(0, 511))
def test_any_changed_bit_of_a_signature_breaks_it(record: r.Cancel, bit: int) -> None:
    good = r.sign_body(USER, SPACE, record)
    sig = bytearray(good.sig)
    sig[bit // 8] ^= 1 << bit % 8
    assert not is_good(SPACE, OpKind.CANCEL, r.body_bytes(good.model_copy(update={"sig": bytes(sig)})))


def test_signing_again_gives_the_same_bytes() -> None:
    draft = r.Settle(done=bytes(32), by=bytes(32), sig=bytes(64))
    once = r.sign_body(USER, SPACE, draft)
    assert r.sign_body(USER, SPACE, once) == once


# ---- edges


@given(st.sampled_from(list(BODIES)), st.data())
def test_named_ids_are_the_ids_in_the_fields_that_must_be_refs(cls: type[Any], data: st.DataObject) -> None:
    fields = r.body_map(r.body_bytes(data.draw(BODIES[cls])))
    named = r.named_ids(fields)
    expected = [fields[name] for name in ("after", "ended", "claim", "unit", "done") if fields.get(name) is not None]
    assert named == expected


def test_text_that_cannot_be_signed_is_refused_when_it_is_written() -> None:
    with pytest.raises((UsageError, ValueError)):
        r.body_bytes(r.Unit(agent="a", role="r", content="half \ud83d"))
