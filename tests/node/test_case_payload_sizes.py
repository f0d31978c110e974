"""Case W6: payloads around every limit of the layers below arrive whole, or are refused before anything is sent.

Both lanes, both directions, over a real connection; the sizes are those of the case. A size that may not be sent costs
nothing: what is sent after it on the same lane arrives.
"""

from __future__ import annotations

import hashlib
import json
from typing import Any

import pytest
import trio

from node.transport import Libp2pTransport
from protocol.transport import FRAME_BYTES_MAX, Lane, LinkDown, LinkFrame
from tests.node.transport_contract import TrioHarness, TrioNode, bodies, linked, seen
from tests.strategies import CASES

pytestmark = pytest.mark.libp2p

ANSWER_S = 10.0  # of the case: no hang over that


def case() -> dict[str, Any]:
    path = CASES / "W6_payload_sizes.json"
    if not path.exists():
        pytest.skip(f"needs the case file {path.name} beside the checkout")
    found: dict[str, Any] = json.loads(path.read_text())
    assert "mod 256" in found["content"]
    return found


def content(size: int) -> bytes:
    """Byte i is (i * 31 + 7) mod 256."""
    period = bytes((i * 31 + 7) % 256 for i in range(256))
    return (period * (size // 256 + 1))[:size]


def harness() -> TrioHarness:
    return TrioHarness(lambda spec: Libp2pTransport(bytes([spec.number]) * 32, ("/ip4/127.0.0.1/tcp/0",)))


def digest(body: bytes) -> str:
    return hashlib.sha256(body).hexdigest()


@pytest.mark.parametrize("lane", list(Lane))
async def test_each_size_arrives_with_its_digest_or_is_refused_before_sending(lane: Lane) -> None:
    sizes = [*case()["sizes"], FRAME_BYTES_MAX[lane] - 1, FRAME_BYTES_MAX[lane], FRAME_BYTES_MAX[lane] + 1]
    async with harness() as network:
        a, b = await network.node(), await network.node()
        await linked(network, a, b)
        for sender, receiver in ((a, b), (b, a)):
            for size in sizes:
                fits = 0 < size <= FRAME_BYTES_MAX[lane]
                await exchanged(network, (sender, receiver), lane, content(size), fits=fits)
        assert not seen(a, LinkDown)
        assert not seen(b, LinkDown)
        for node in (a, b):
            assert isinstance(node.transport, Libp2pTransport)
            refused = sum(not 0 < size <= FRAME_BYTES_MAX[lane] for size in sizes)
            assert node.transport.counters["send_oversize"] == refused


async def exchanged(
    network: TrioHarness, ends: tuple[TrioNode, TrioNode], lane: Lane, body: bytes, *, fits: bool
) -> None:
    """Send one payload and a small one after it; both, or the small one alone, are there in time and order."""
    sender, receiver = ends
    before = len(seen(receiver, LinkFrame))
    assert sender.send(receiver.peer, lane, body) is fits
    assert sender.send(receiver.peer, lane, b"after")
    expected = [digest(body), digest(b"after")] if fits else [digest(b"after")]
    with trio.fail_after(ANSWER_S):
        await network.settle(lambda: len(seen(receiver, LinkFrame)) == before + len(expected))
    arrived = bodies(receiver, sender.peer, lane)[-len(expected) :]
    assert [digest(each) for each in arrived] == expected
