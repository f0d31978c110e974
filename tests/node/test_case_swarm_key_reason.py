"""Complaint 24: a wrong swarm key is refused with the reason, in words that say what to do."""

from __future__ import annotations

import pytest

from node.transport import Libp2pTransport
from protocol.peer import PeerInfo
from protocol.transport import LinkDialFailed

pytestmark = pytest.mark.libp2p


def transport(number: int, psk: bytes | None) -> Libp2pTransport:
    return Libp2pTransport(bytes([number]) * 32, ("/ip4/127.0.0.1/tcp/0",), psk=psk)


@pytest.mark.parametrize(
    ("there", "here"),
    [(bytes(32), b"\x01" * 32), (None, bytes(32)), (bytes(32), None)],
    ids=["other", "none there", "none here"],
)
async def test_the_reason_of_a_dial_that_fails_by_its_swarm_key_says_so(
    there: bytes | None, here: bytes | None
) -> None:
    a, b = transport(1, there), transport(2, here)
    async with a.run(lambda _peer: b"hello"), b.run(lambda _peer: b"hello"):
        b.connect(PeerInfo(a.local_peer, a.listen_addrs()))
        failed = await anext(b.events())
        assert isinstance(failed, LinkDialFailed)
        assert "swarm key" in failed.reason, failed.reason
        assert "msg_bytes" not in failed.reason
