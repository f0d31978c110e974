"""What is read before the signature is checked says the same as what is read after it."""

from __future__ import annotations

import pytest
from hypothesis import given, strategies as st

from gossip.record_outline import outline
from protocol.capability import FUTURE_MS_MAX, RECORD_TTL_MS, AgentValue, PeerValue, SignedRecord, make_record
from protocol.codec import encode
from protocol.errors import DecodeError
from tests.gossip_world import NOW_MS, verify
from tests.strategies import keypair, values

KEYS = keypair("author")
agents = st.builds(
    AgentValue, agent=st.just("a"), roles=st.just(("r",)), vector=st.none() | st.binary(max_size=9),
    encoder=st.sampled_from(("", "use-512")),
)  # fmt: skip


@given(
    agents | st.just(PeerValue(addrs=())), st.integers(0, 9), st.sampled_from((0, 1, 1000, RECORD_TTL_MS)),
    st.integers(-2 * FUTURE_MS_MAX, 2 * RECORD_TTL_MS),
)  # fmt: skip
def test_an_outline_says_what_the_record_says(value: AgentValue | PeerValue, seq: int, ttl_ms: int, age: int) -> None:
    wire = make_record(KEYS, value, seq=seq, issued_ms=NOW_MS, ttl_ms=ttl_ms)
    record, seen = SignedRecord.from_wire(wire, verify), outline(wire)
    assert (seen.key, seen.kind, seen.publisher, seen.seq) == (record.key, record.kind, record.publisher, seq)
    assert (seen.issued_ms, seen.expiry_ms, seen.withdrawal) == (NOW_MS, NOW_MS + ttl_ms, record.withdrawal)
    assert seen.timely(NOW_MS + age) == record.acceptable(NOW_MS + age)
    if isinstance(value, AgentValue):
        assert seen.vector == value.vector
        assert seen.encoder == value.encoder


@given(st.binary(max_size=100) | st.tuples(values, values).map(encode))
def test_what_is_no_record_is_said_to_be_none_and_stops_nothing(garbage: bytes) -> None:
    with pytest.raises(DecodeError):
        outline(garbage)
