"""A lane gives back exactly the frames that went in, however the bytes below are cut."""

from __future__ import annotations

import pytest
import trio
from hypothesis import given, strategies as st

from node.lanes import QUEUE_BYTES_MAX, WRITE_BYTES, Outbox, frame_reader
from protocol.codec import frame
from protocol.errors import DecodeError, PeerUnreachable
from protocol.transport import FRAME_BYTES_MAX, QUEUE_FRAMES_MAX, Lane


class Cut:
    """A ByteStream that gives `data` in pieces of the sizes given, over and over."""

    def __init__(self, data: bytes, sizes: list[int]) -> None:
        self._data, self._sizes, self._turn = data, sizes, 0
        self.largest_read = 0

    async def read(self, bytes_max: int) -> bytes:
        self.largest_read = max(self.largest_read, bytes_max)
        size = min(bytes_max, self._sizes[self._turn % len(self._sizes)])
        self._turn += 1
        piece, self._data = self._data[:size], self._data[size:]
        return piece

    async def write(self, data: bytes) -> None:
        raise NotImplementedError

    async def finish(self) -> None:
        raise NotImplementedError


async def read_all(lane: Lane, stream: Cut) -> list[bytes]:
    reader = frame_reader(lane, stream)
    frames = []
    while (body := await reader.next()) is not None:
        frames.append(body)
    return frames


lanes = pytest.mark.parametrize("lane", list(Lane))
bodies = st.lists(
    st.binary(min_size=1, max_size=300) | st.just(bytes(4200)), max_size=5
)  # 4200: longer than one head read
cuts = st.lists(st.integers(1, 5000), min_size=1, max_size=8)


@lanes
@given(frames=bodies, sizes=cuts)
def test_frames_survive_any_cutting(lane: Lane, frames: list[bytes], sizes: list[int]) -> None:
    stream = Cut(b"".join(map(frame, frames)), sizes)
    assert trio.run(read_all, lane, stream) == frames


@lanes
@given(frames=bodies.filter(bool), sizes=cuts, missing=st.integers(1, 300))
def test_an_end_inside_a_frame_is_no_end(lane: Lane, frames: list[bytes], sizes: list[int], missing: int) -> None:
    whole = b"".join(map(frame, frames))
    last = frame(frames[-1])
    stream = Cut(whole[: -min(missing, len(last) - 1)], sizes)
    with pytest.raises(PeerUnreachable):
        trio.run(read_all, lane, stream)


@lanes
@given(sizes=cuts, over=st.integers(1, 2**20))
def test_a_claim_over_the_cap_is_refused_before_its_body_is_read(lane: Lane, sizes: list[int], over: int) -> None:
    """Case W1: never more than one buffer is read for a frame that cannot be."""
    claim = frame(bytes(min(FRAME_BYTES_MAX[lane] + over, 2**21 - 1)))
    stream = Cut(claim, sizes)
    with pytest.raises(DecodeError):
        trio.run(read_all, lane, stream)
    assert len(claim) - len(stream._data) <= 5000
    assert stream.largest_read <= WRITE_BYTES


@given(frames=st.lists(st.binary(min_size=1, max_size=2000), min_size=1, max_size=200))
def test_an_outbox_joins_frames_in_order_within_one_write(frames: list[bytes]) -> None:
    async def run() -> None:
        outbox = Outbox(Lane.CONTROL)
        assert all(map(outbox.offer, frames))
        outbox.finish()
        assert not outbox.offer(b"late")
        writes = []
        while (data := await outbox.take()) is not None:
            assert len(data) <= WRITE_BYTES
            writes.append(data)
        assert b"".join(writes) == b"".join(map(frame, frames))
        assert len(writes) <= 1 + 2 * sum(map(len, map(frame, frames))) // WRITE_BYTES

    trio.run(run)


@pytest.mark.parametrize(("size", "room"), [(1, QUEUE_FRAMES_MAX), (2**18, QUEUE_BYTES_MAX[Lane.BULK] // 2**18)])
async def test_an_outbox_is_bounded_by_frames_and_bytes_and_says_when_it_reopens(size: int, room: int) -> None:
    outbox = Outbox(Lane.BULK)
    taken = 0
    while outbox.offer(bytes(size)):
        taken += 1
    assert taken == room
    assert not outbox.reopened()
    while 2 * len(outbox) > room:
        await outbox.take()
    assert outbox.reopened()
    assert not outbox.reopened()
    assert outbox.offer(bytes(size))
