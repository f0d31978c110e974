"""Frames of the DHT: they come back equal, fit the control lane at their fullest, and are bounded."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, strategies as st

from dht.server import ANSWER_BYTES_MAX, VALUES_BYTES_MAX
from protocol import messages as m
from protocol.capability import PeerValue, make_record
from protocol.codec import encode
from protocol.errors import DecodeError
from protocol.transport import FRAME_BYTES_MAX, Lane
from tests.strategies import FRAMES, keypair

DHT_FRAMES = {cls: each for cls, each in FRAMES.items() if 17 <= m._TAG_OF[cls] <= 24}
TOP = 2**32 - 1
KEY = bytes(m.DHT_KEY_BYTES)


@given(st.one_of(*DHT_FRAMES.values()))
def test_a_dht_frame_comes_back_equal_on_the_control_lane_only(frame: Any) -> None:
    raw = m.encode_frame(frame)
    assert m.decode_frame(raw, Lane.CONTROL) == frame
    with pytest.raises(DecodeError):
        m.decode_frame(raw, Lane.BULK)


def test_the_tags_of_the_dht_stay() -> None:
    assert [m._TAG_OF[cls] for cls in DHT_FRAMES] == [17, 18, 19, 20, 21, 22, 23, 24]


def split(total: int, count: int) -> tuple[bytes, ...]:
    """So many records that fill a number of bytes, lengths included."""
    return tuple(bytes(total // count - 3) for _ in range(count))


FULL = [
    m.FoundNodes(TOP, split(ANSWER_BYTES_MAX, 20)),
    m.FoundValue(TOP, split(VALUES_BYTES_MAX, 16), split(ANSWER_BYTES_MAX - VALUES_BYTES_MAX, 20)),
    m.FindValue(TOP, KEY, bytes(m.DHT_PROBE_BYTES_MAX)),
    m.StoreRecord(TOP, KEY, bytes(m.RECORD_BYTES_MAX)),
    m.Stored(TOP, ok=True, reason="\U0001f600" * 300, retry_after_ms=TOP),
    m.Introduce(bytes(m.PEER_RECORD_BYTES_MAX)),
]


@pytest.mark.parametrize("frame", FULL, ids=lambda frame: type(frame).__name__)
def test_the_fullest_frame_fits_its_lane(frame: Any) -> None:
    raw = m.encode_frame(frame)
    assert len(raw) <= FRAME_BYTES_MAX[Lane.CONTROL]
    assert m.decode_frame(raw, Lane.CONTROL) == frame


OVER: dict[str, tuple[int, list[Any]]] = {
    "a key of 19 bytes": (17, [1, KEY[:19]]),
    "a key of 21 bytes": (19, [1, KEY + b"x", b""]),
    "21 peers": (18, [1, (b"",) * 21]),
    "a peer record too large": (18, [1, (bytes(m.PEER_RECORD_BYTES_MAX + 1),)]),
    "17 records": (20, [1, (b"",) * 17, ()]),
    "a record too large": (21, [1, KEY, bytes(m.RECORD_BYTES_MAX + 1)]),
    "a probe too wide": (19, [1, KEY, bytes(m.DHT_PROBE_BYTES_MAX + 1)]),
    "ok is a number": (22, [1, 1, "", 0]),
    "a wait of 33 bits": (23, [1, 1 << 32]),
}


@pytest.mark.parametrize("name", OVER)
def test_a_count_or_size_over_its_bound_is_refused_in_dht_frames(name: str) -> None:
    tag, fields = OVER[name]
    with pytest.raises(DecodeError):
        m.decode_frame(encode((tag, *fields)), Lane.CONTROL)


def test_the_longest_peer_record_fits_its_bound() -> None:
    addr = f"/ip6/2001:db8:1111:2222:3333:4444:5555:6666/tcp/65535/p2p/{'1' * 52}"
    addrs = tuple(addr[:-1] + str(n) for n in range(8))
    wire = make_record(keypair("long"), PeerValue(addrs=addrs), seq=2**62, issued_ms=2**47)
    assert len(wire) <= m.PEER_RECORD_BYTES_MAX
