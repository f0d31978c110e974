"""Records replace each other in one order everywhere, in their own slot only, and never outlive their time."""

from __future__ import annotations

import itertools
from typing import Any

import pytest
from hypothesis import given, strategies as st

from protocol.capability import (
    DESCRIPTION_CHARS_MAX,
    FUTURE_MS_MAX,
    LABELS_MAX,
    RECORD_TTL_MS,
    TAXONOMY_CHARS_MAX,
    AgentValue,
    PeerValue,
    SignedRecord,
    Value,
    key_of,
    make_record,
    record_key,
)
from protocol.codec import decode, encode
from protocol.errors import DecodeError
from protocol.identity import KeyPair, prefixed, verify_raw
from protocol.messages import RECORD_BYTES_MAX
from tests.strategies import case_lines, damaged, keypair, names, sized, texts, tuples_of, values

NOW = 1_700_000_000_000
PUBLISHER, MALLORY = keypair("publisher"), keypair("mallory")
agents = st.builds(
    AgentValue, agent=names, roles=tuples_of(names), description=texts(), vector=st.none() | st.binary(max_size=16),
    encoder=names, model=names, backend=names, quality=st.sampled_from(("demo", "standard")),
    context_tokens=st.integers(0, 2**31), tools=tuples_of(names), permissions=tuples_of(names),
    skills=tuples_of(names), tags=tuples_of(names), taxonomy=texts(),
    price_micro_money=st.integers(0, 2**53), tokens_per_s=st.integers(0, 2**31),
    data_policy=st.sampled_from(("local", "external")),
)  # fmt: skip
peers = st.builds(PeerValue, addrs=tuples_of(st.integers(0, 65535).map("/ip4/10.0.0.7/tcp/{}".format)))
record_values: st.SearchStrategy[Value] = agents | peers
seqs = st.integers(0, 2**63 - 1)
times = st.integers(0, 2**47)


def read(wire: bytes) -> SignedRecord:
    return SignedRecord.from_wire(wire, verify_raw)


def signed(keys: KeyPair = PUBLISHER, **changes: Any) -> bytes:
    """A record with some of its fields changed, well signed."""
    value = PeerValue(addrs=("/ip4/10.0.0.7/tcp/4001",))
    fields: dict[str, Any] = {
        "key": key_of(keys.public, value), "kind": "peer", "value": value.model_dump(), "publisher": keys.public,
        "seq": 9, "issued": NOW, "expiry": NOW + 1000, **changes,
    }  # fmt: skip
    body = encode(tuple(fields.values()))
    return encode((body, keys.sign("record", body)))


@given(record_values, seqs, times, st.integers(0, RECORD_TTL_MS))
def test_a_record_comes_back_equal_with_its_exact_bytes(value: Value, seq: int, issued: int, ttl: int) -> None:
    wire = make_record(PUBLISHER, value, seq=seq, issued_ms=issued, ttl_ms=ttl)
    record = read(wire)
    assert (record.value, record.seq, record.publisher) == (value, seq, PUBLISHER.public)
    assert (record.issued_ms, record.expiry_ms) == (issued, issued + ttl)
    assert record.wire == wire
    assert read(record.wire) == record


@given(st.data())
def test_any_damage_is_refused(data: st.DataObject) -> None:
    wire = signed()
    raw = data.draw(damaged(wire))
    if raw != wire:
        with pytest.raises(DecodeError):
            read(raw)


def test_every_single_bit_of_a_record_counts() -> None:
    wire = signed()
    for bit in range(8 * len(wire)):
        changed = bytearray(wire)
        changed[bit // 8] ^= 1 << bit % 8
        with pytest.raises(DecodeError):
            read(bytes(changed))


@given(values)
def test_any_value_is_no_record(value: Any) -> None:
    body = encode(value)
    for raw in (body, encode((body, PUBLISHER.sign("record", body)))):
        with pytest.raises(DecodeError):
            read(raw)


def test_a_record_is_verified_before_its_value_is_looked_at() -> None:
    """Whatever a forger puts into the value, the reason is the signature."""
    body = encode((record_key(PUBLISHER.public, "agent", "a"), "agent", {"agent": 1}, PUBLISHER.public, 1, NOW, NOW))
    with pytest.raises(DecodeError, match="not signed"):
        read(encode((body, MALLORY.sign("record", body))))


BAD: dict[str, dict[str, Any]] = {
    "somebody else's slot": {"key": record_key(MALLORY.public, "peer")},
    "another slot of one's own": {"key": record_key(PUBLISHER.public, "agent", "a")},
    "a short key": {"key": bytes(19)},
    "an unknown kind": {"kind": "robot"},
    "an agent's kind": {"kind": "agent"},
    "a short publisher": {"publisher": PUBLISHER.public[:31]},
    "somebody else as publisher": {"publisher": MALLORY.public, "key": record_key(MALLORY.public, "peer")},
    "seq below zero": {"seq": -1},
    "seq of 64 bits": {"seq": 2**63},
    "seq true": {"seq": True},
    "issued true": {"issued": True, "expiry": 5},
    "expiry before issue": {"expiry": NOW - 1},
    "expiry after the year 10,000": {"expiry": 2**48},
    "text for a time": {"issued": "now"},
    "value is no map": {"value": ()},
    "nine addresses": {"value": {"addrs": ("/ip4/10.0.0.7/tcp/4001",) * 9}},
    "an address that is none": {"value": {"addrs": ("/dns4/example.org/tcp/1",)}},
    "no addresses field": {"value": {}},
}


@pytest.mark.parametrize("name", BAD)
def test_a_well_signed_record_that_breaks_a_rule_is_refused(name: str) -> None:
    assert read(signed()).seq == 9
    with pytest.raises(DecodeError):
        read(signed(**BAD[name]))


AGENT = AgentValue(agent="a", roles=("r",), vector=bytes(512), encoder="use-512", skills=("law",))
BAD_AGENTS: dict[str, dict[str, Any]] = {
    "no agent": {"agent": None},
    "a long description": {"description": "x" * (DESCRIPTION_CHARS_MAX + 1)},
    "a vector of floats": {"vector": (1, 2)},
    "a long vector": {"vector": bytes(4097)},
    "text for a vector": {"vector": "north"},
    "a long encoder": {"encoder": "x" * 129},
    "one skill as text": {"skills": "law"},
    "a number for a skill": {"skills": (1,)},
    **{f"many {kind}": {kind: ("x",) * (LABELS_MAX + 1)} for kind in ("tools", "permissions", "skills", "tags")},
    "a long tag": {"tags": ("x" * 129,)},
    "a long path": {"taxonomy": "x" * (TAXONOMY_CHARS_MAX + 1)},
    "a price below zero": {"price_micro_money": -1},
    "a price true": {"price_micro_money": True},
    "a price beyond money": {"price_micro_money": 2**53 + 1},
    "a window below zero": {"context_tokens": -1},
    "a speed beyond engines": {"tokens_per_s": 2**31 + 1},
    "an unknown tier": {"quality": "perfect"},
    "an unknown policy": {"data_policy": "somewhere"},
}


@pytest.mark.parametrize("name", BAD_AGENTS)
def test_a_well_signed_agent_that_breaks_a_bound_is_refused(name: str) -> None:
    slot = {"key": key_of(PUBLISHER.public, AGENT), "kind": "agent"}
    assert read(signed(**slot, value=AGENT.model_dump())).value == AGENT
    with pytest.raises(DecodeError):
        read(signed(**slot, value={**AGENT.model_dump(), **BAD_AGENTS[name]}))


def test_a_record_has_a_bound() -> None:
    with pytest.raises(DecodeError):
        read(signed(value={"addrs": (), "padding": bytes(RECORD_BYTES_MAX)}))


def test_fields_of_a_later_version_are_ignored_and_forwarded() -> None:
    wire = signed(value={"addrs": (), "later": (1, {"a": None})})
    record = read(wire)
    assert record.value == PeerValue(addrs=())
    assert b"later" in record.wire == wire


@given(names, names)
def test_slots_are_one_per_publisher_kind_and_agent(one: str, other: str) -> None:
    slots = [
        record_key(PUBLISHER.public, "agent", one), record_key(PUBLISHER.public, "agent", other),
        record_key(PUBLISHER.public, "peer"), record_key(MALLORY.public, "agent", one),
    ]  # fmt: skip
    assert len(set(slots)) == (4 if one != other else 3)


@given(st.lists(st.tuples(st.integers(0, 3), st.integers(0, 3)), min_size=1, max_size=5))
def test_the_order_of_versions_is_total_and_the_same_whatever_came_first(contents: list[tuple[int, int]]) -> None:
    """Two contents under one sequence number included: every node keeps the same one."""
    records = [read(signed(seq=seq, value={"addrs": (f"/ip4/10.0.0.7/tcp/{port}",)})) for seq, port in contents]
    winners = set()
    for order in itertools.permutations(records):
        best = order[0]
        for record in order[1:]:
            best = record if record.version > best.version else best
        winners.add(best.wire)
    assert len(winners) == 1
    assert max(records, key=lambda record: record.version).seq == max(seq for seq, _ in contents)
    for a, b in itertools.combinations(records, 2):
        assert (a.version == b.version) == (a.wire == b.wire)


@given(st.integers(0, RECORD_TTL_MS), st.integers(-2 * FUTURE_MS_MAX, 2 * RECORD_TTL_MS))
def test_a_record_is_used_until_its_expiry_and_taken_only_while_its_times_are_possible(ttl: int, age: int) -> None:
    record = read(make_record(PUBLISHER, PeerValue(addrs=()), seq=1, issued_ms=NOW, ttl_ms=ttl))
    now = NOW + age
    assert record.live(now) == (ttl > 0 and age < ttl)
    if age < -FUTURE_MS_MAX:
        assert not record.acceptable(now)
    elif ttl:
        assert record.acceptable(now) == (age < ttl)
    else:  # a withdrawal: known as long as what it withdraws could still be offered
        assert record.acceptable(now) == (age < RECORD_TTL_MS)
        assert age < 0 or not record.live(now)


def test_a_record_that_claims_to_live_longer_than_a_record_may_is_not_taken() -> None:
    assert read(signed(expiry=NOW + RECORD_TTL_MS)).acceptable(NOW)
    assert not read(signed(expiry=NOW + RECORD_TTL_MS + 1)).acceptable(NOW)


# ---- S1: what exactly was signed


@pytest.mark.parametrize("line", range(2))
def test_s1_a_record_holds_over_the_exact_bytes_only(line: int) -> None:
    """The case's bytes hold floats, so they are a blob here: the signature is over bytes, never over a value."""
    case = case_lines("S1_reencode.jsonl")[line]
    sig = PUBLISHER.sign("record", bytes.fromhex(case["signed_hex"]))
    resent = prefixed("record", bytes.fromhex(case["resent_hex"]))
    assert verify_raw(PUBLISHER.public, resent, sig) == case["expect"].startswith("valid")


def test_s1_no_second_encoding_of_a_record_is_taken() -> None:
    wire = signed()
    outer = decode(wire, bytes_max=1 << 16)
    assert isinstance(outer, tuple)
    body, sig = outer
    assert isinstance(body, bytes)
    fields = decode(body, bytes_max=1 << 16)
    assert isinstance(fields, tuple)
    seq = encode(fields[4])
    longer = body.replace(seq + encode(fields[5]), b"\xcc" + seq + encode(fields[5]), 1)  # 9 in two bytes
    assert longer != body
    with pytest.raises(DecodeError):
        read(encode((longer, PUBLISHER.sign("record", longer))))
    with pytest.raises(DecodeError):
        read(encode((longer, sig)))


@given(sized(32))
def test_a_key_that_is_no_point_signs_nothing(public: bytes) -> None:
    body = encode((record_key(public, "peer"), "peer", {"addrs": ()}, public, 1, NOW, NOW + 1))
    with pytest.raises(DecodeError):
        read(encode((body, bytes(64))))
