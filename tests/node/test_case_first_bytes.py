"""Case W1 before any security: a length that a stranger claims in his first bytes reserves no memory."""

from __future__ import annotations

from pathlib import Path

import pytest
import trio

from node.transport import Libp2pTransport
from protocol.peer import Multiaddr, PeerInfo
from protocol.transport import DIAL_TIMEOUT_S, LinkUp

pytestmark = [pytest.mark.slow, pytest.mark.libp2p]

GREETING = b"\x13/multistream/1.0.0\n"
CLAIMS = [2**power for power in (16, 28, 32, 34, 40, 62)]
GROWTH_BYTES_MAX = 64 << 20


def peak_bytes() -> int:
    """The most address space that this process ever had; proc(5)."""
    (line,) = [line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith("VmPeak:")]
    return int(line.split()[1]) * 1024


def unbounded_varint(number: int) -> bytes:
    out = bytearray()
    while number > 0x7F:
        out.append(number & 0x7F | 0x80)
        number >>= 7
    return bytes([*out, number])


def transport(number: int) -> Libp2pTransport:
    return Libp2pTransport(bytes([number]) * 32, ("/ip4/127.0.0.1/tcp/0",))


@pytest.mark.parametrize("greeting", [b"", GREETING], ids=["at once", "after the greeting"])
async def test_a_claimed_length_before_the_handshake_reserves_nothing_and_ends_by_its_deadline(greeting: bytes) -> None:
    a, good = transport(1), transport(2)
    async with a.run(lambda _peer: b"hello"), good.run(lambda _peer: b"hello"):
        where = Multiaddr.parse(a.listen_addrs()[0])
        before = peak_bytes()
        streams = [await trio.open_tcp_stream(where.host, where.port) for _ in CLAIMS]
        for stream, claim in zip(streams, CLAIMS, strict=True):
            await stream.send_all(greeting + unbounded_varint(claim) + bytes(100))
        with trio.fail_after(DIAL_TIMEOUT_S + 2):
            for stream in streams:
                while True:
                    try:
                        if not await stream.receive_some(1000):
                            break
                    except trio.BrokenResourceError:
                        break
                await stream.aclose()
        assert peak_bytes() - before < GROWTH_BYTES_MAX, f"{(peak_bytes() - before) >> 20} MiB were reserved"
        good.connect(PeerInfo(a.local_peer, a.listen_addrs()))
        assert await anext(good.events()) == LinkUp(a.local_peer, b"hello")
