"""A signature is for one key, one purpose, one message."""

from __future__ import annotations

import hashlib

from hypothesis import given, strategies as st

from protocol.identity import KeyPair, digest, h64, prefixed, verify, verify_raw
from protocol.spaces import swarm_space, task_space
from tests.strategies import ids, keypair, sized, texts

PURPOSES = ("op", "cert", "genesis", "record", "receipt", "body")
NODE = keypair("node")


@given(st.binary(max_size=80), st.sampled_from(PURPOSES), st.sampled_from(PURPOSES))
def test_a_signature_holds_for_its_purpose_only(data: bytes, made_for: str, read_as: str) -> None:
    assert verify(NODE.public, read_as, data, NODE.sign(made_for, data)) == (made_for == read_as)


@given(st.binary(max_size=80), st.integers(0, 511), st.binary(min_size=1, max_size=4))
def test_another_key_message_or_signature_fails(data: bytes, bit: int, more: bytes) -> None:
    sig = NODE.sign_raw(data)
    bad = bytearray(sig)
    bad[bit // 8] ^= 1 << bit % 8
    assert verify_raw(NODE.public, data, sig)
    assert not verify_raw(keypair("other").public, data, sig)
    assert not verify_raw(NODE.public, data + more, sig)
    assert not verify_raw(NODE.public, data, bytes(bad))


@given(st.binary(max_size=40), st.binary(max_size=70))
def test_keys_and_signatures_of_any_length_are_refused_quietly(public: bytes, sig: bytes) -> None:
    assert not verify_raw(public, b"message", sig)


@given(sized(32), st.binary(max_size=30))
def test_equal_seeds_and_bytes_give_equal_signatures(seed: bytes, data: bytes) -> None:
    first, again = KeyPair(seed), KeyPair(seed)
    assert first.public == again.public
    assert first.sign("op", data) == again.sign("op", data)


def test_a_key_pair_does_not_show_its_seed() -> None:
    seed = bytes(range(32))
    assert seed.hex()[:8] not in repr(KeyPair(seed))
    assert str(list(seed))[1:9] not in repr(KeyPair(seed))


@given(st.binary(max_size=30), st.binary(max_size=30))
def test_digests_are_those_of_the_prefixed_bytes(left: bytes, right: bytes) -> None:
    assert digest("space", left, right) == hashlib.sha256(b"masos/space/1\0" + left + right).digest()
    assert prefixed("op", left) == b"masos/op/1\0" + left
    assert h64(left, right) == int.from_bytes(hashlib.sha256(left + right).digest()[:8], "big")


@given(ids, ids, texts(), texts())
def test_a_task_has_one_space_and_other_tasks_have_others(swarm: bytes, user: bytes, key: str, other: str) -> None:
    space = task_space(swarm, user, key)
    assert space == hashlib.sha256(b"masos/space/1\0" + swarm + user + key.encode()).digest()[:16]
    assert (space == task_space(swarm, user, other)) == (key == other)
    assert swarm_space(swarm) == hashlib.sha256(b"masos/space/1\0" + swarm).digest()[:16] != space
