"""What counts as a membership statement, and that only its signer can have made it."""

from __future__ import annotations

import contextlib

import pytest
from hypothesis import given, strategies as st

from gossip.membership.statement import (
    HOLD_S_MAX,
    STATEMENT_BYTES_MAX,
    Statement,
    first_inc,
    make_statement,
    read_statement,
)
from protocol.codec import encode
from protocol.errors import DecodeError
from protocol.identity import verify_raw
from tests.strategies import damaged, keypair, uints, values

ONE, TWO = keypair("one"), keypair("two")
INC = first_inc(3) + 2
SIG = bytes(64)


@given(st.sampled_from(("suspect", "dead")), st.integers(0, first_inc(2**32) - 1), st.integers(0, 2**47))
def test_what_is_made_is_read_and_genuine(kind: str, inc: int, at_ms: int) -> None:
    wire = make_statement(ONE, kind, TWO.public, inc, at_ms)  # type: ignore[arg-type]
    said = read_statement(wire)
    assert (said.kind, said.subject, said.inc, said.by, said.at_ms) == (kind, TWO.public, inc, ONE.public, at_ms)
    assert said.accuses
    assert said.genuine(verify_raw)
    assert len(wire) <= STATEMENT_BYTES_MAX


@given(st.data())
def test_a_changed_statement_is_refused_or_not_genuine(data: st.DataObject) -> None:
    wire = make_statement(ONE, "alive", ONE.public, INC, 1_000)
    changed = data.draw(damaged(wire))
    try:
        said = read_statement(changed)
    except DecodeError:
        return
    assert changed == wire or not said.genuine(verify_raw)


def test_a_signature_under_another_purpose_is_not_genuine() -> None:
    body = encode(("alive", ONE.public, INC, ONE.public, 1_000, 90))
    assert not read_statement(encode((body, ONE.sign("receipt", body)))).genuine(verify_raw)
    assert read_statement(encode((body, ONE.sign("member", body)))).genuine(verify_raw)


BODIES: dict[str, tuple[object, ...]] = {
    "an unknown kind": ("ill", TWO.public, INC, ONE.public, 1, 0),
    "alive said of another": ("alive", TWO.public, INC, ONE.public, 1, 0),
    "left said of another": ("left", TWO.public, INC, ONE.public, 1, 0),
    "suspect said of oneself": ("suspect", ONE.public, INC, ONE.public, 1, 0),
    "dead said of oneself": ("dead", ONE.public, INC, ONE.public, 1, 0),
    "a short subject": ("suspect", b"short", INC, ONE.public, 1, 0),
    "a short signer": ("suspect", TWO.public, INC, b"short", 1, 0),
    "a negative incarnation": ("alive", ONE.public, -1, ONE.public, 1, 0),
    "an incarnation past the last life": ("alive", ONE.public, first_inc(2**32), ONE.public, 1, 0),
    "an incarnation that is a truth value": ("alive", ONE.public, True, ONE.public, 1, 0),
    "a negative time": ("alive", ONE.public, INC, ONE.public, -1, 0),
    "a time past the wire's last": ("alive", ONE.public, INC, ONE.public, 2**47 + 1, 0),
    "a field too many": ("alive", ONE.public, INC, ONE.public, 1, 0, 0),
    "a hold that is negative": ("alive", ONE.public, INC, ONE.public, 1, -1),
    "a hold for more than a day": ("alive", ONE.public, INC, ONE.public, 1, HOLD_S_MAX + 1),
    "a hold that is a truth value": ("alive", ONE.public, INC, ONE.public, 1, True),
    "an accusation that holds for a while": ("suspect", TWO.public, INC, ONE.public, 1, 90),
    "a leave that holds for a while": ("left", ONE.public, INC, ONE.public, 1, 90),
    "a field too few": ("alive", ONE.public, INC, ONE.public, 1),
}


@pytest.mark.parametrize("name", BODIES)
def test_a_body_that_nobody_can_say_is_refused(name: str) -> None:
    body = encode(BODIES[name])
    with pytest.raises(DecodeError):
        read_statement(encode((body, ONE.sign("member", body))))


@given(values | st.tuples(values, values) | st.tuples(st.binary(max_size=80), st.binary(min_size=64, max_size=64)))
def test_any_other_value_is_refused(value: object) -> None:
    wire = encode(value)
    with pytest.raises(DecodeError):
        read_statement(wire)


@given(st.binary(max_size=400))
def test_any_bytes_are_refused_or_read(data: bytes) -> None:
    with contextlib.suppress(DecodeError):
        assert isinstance(read_statement(data), Statement)


@given(uints.filter(lambda life: life < 2**32 - 1))
def test_a_later_life_outranks_every_refutation_of_an_earlier_one(life: int) -> None:
    assert first_inc(life) + 2**20 - 1 < first_inc(life + 1)
