"""Circuits over real sockets: who listens nowhere is reached through a relay, under the rules of every other link."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
import trio
from libp2p.relay.circuit_v2.pb import circuit_pb2 as pb

import node.transport_relay
from node.lanes import ByteStream
from node.relay import CircuitLimits, RelayConfig, carry
from node.transport import Libp2pTransport
from node.transport_host import build_host, dial, open_stream, run_host
from node.transport_relay import HOP, MESSAGE_BYTES_MAX, STOP
from protocol.codec import encode_varint, frame
from protocol.errors import PeerUnreachable
from protocol.identity import KeyPair
from protocol.peer import Multiaddr, PeerID, PeerInfo, peer_text
from protocol.transport import HelloSource, Lane, LinkDialFailed, LinkDown, LinkFrame, LinkUp, TransportEvent
from tests.node.transport_contract import (
    CHECKS,
    Check,
    Spec,
    TrioHarness,
    TrioNode,
    bodies,
    info,
    linked,
    reach,
    seen,
)

pytestmark = pytest.mark.libp2p

LOOPBACK = "/ip4/127.0.0.1/tcp/0"
RELAY, CLIENT, THIRD, FOURTH = 1, 2, 3, 4
MEMBERS = [PeerID(KeyPair(bytes([number]) * 32).public) for number in (CLIENT, THIRD, FOURTH)]
# Over a circuit nobody was dialled; the next two need a relay for each key, and one that outlives its place; a full
# queue takes long to fill over two connections.
NOT_HERE = ("check_dialling_back", "check_swarm_key", "check_peer_stops", "check_full_queue_and_writable")
OVER_CIRCUITS = [check for check in CHECKS if check.__name__ not in NOT_HERE]


def part(number: int, psk: bytes | None = None, limits: CircuitLimits | None = None) -> Libp2pTransport:
    """The transport of a part in the play: a relay, a client that listens nowhere, and others."""
    listen = () if number == CLIENT else (LOOPBACK,)
    serve = RelayConfig("serve", limits or CircuitLimits(), MEMBERS.__contains__)
    use = {RELAY: serve, CLIENT: RelayConfig("client")}.get(number)
    return Libp2pTransport(bytes([number]) * 32, listen, psk=psk, relay=use)


def real(node: TrioNode) -> Libp2pTransport:
    assert isinstance(node.transport, Libp2pTransport)
    return node.transport


@asynccontextmanager
async def play(
    size: int = 3, psk: bytes | None = None, limits: CircuitLimits | None = None
) -> AsyncIterator[tuple[TrioHarness, list[TrioNode], tuple[str, ...]]]:
    """The nodes, and the circuit addresses of the client."""
    async with TrioHarness(lambda spec: part(spec.number, psk, limits)) as network:
        nodes = [await network.node() for _ in range(size)]
        relay, client = nodes[0], nodes[1]
        await linked(network, client, relay)
        place = await real(client).reserve(relay.peer)
        yield network, nodes, place.addrs


@asynccontextmanager
async def raw_host(target: TrioNode) -> AsyncIterator[tuple[Any, Any]]:
    """A library host that speaks circuits as it likes, and its connection to a node."""
    host: Any = build_host(bytes([99]) * 32, None, lambda _candidates: [])
    async with run_host(host):
        connection = await dial(host, target.peer, target.addrs[0])
        yield host, connection
        with trio.CancelScope(shield=True):
            await connection.close()


async def ask(host: Any, connection: Any, message: Any) -> int:
    """The status that a relay answers."""
    stream = await open_stream(host, connection, HOP)
    await stream.write(frame(message.SerializeToString()))
    answer = await stream.read(MESSAGE_BYTES_MAX)
    await stream.reset()
    return int(pb.HopMessage.FromString(answer[1:]).status)


def connect_to(peer: PeerID) -> Any:
    return pb.HopMessage(type=pb.HopMessage.CONNECT, peer=pb.PeerId(id=bytes.fromhex("002408011220") + peer))


@pytest.mark.parametrize("psk", [None, bytes(range(32))], ids=["open", "swarm_key"])
async def test_a_node_that_listens_nowhere_is_reached_through_a_relay(psk: bytes | None) -> None:
    async with play(psk=psk) as (network, (relay, client, third), circuit):
        assert client.addrs == ()
        assert Multiaddr.parse(circuit[0]).relay == relay.peer
        third.connect(PeerInfo(client.peer, circuit))
        await reach(network, 1, LinkUp, third)
        assert not real(client).accepted(third.peer)
        for sender, receiver in ((third, client), (client, third)):
            assert sender.send(receiver.peer, Lane.CONTROL, b"small")
            assert sender.send(receiver.peer, Lane.BULK, bytes(range(256)) * 1_000)
        await network.settle(lambda: len(seen(third, LinkFrame)) == len(seen(client, LinkFrame, third.peer)) == 2)
        assert bodies(third, client.peer, Lane.BULK) == bodies(client, third.peer, Lane.BULK)
        third.disconnect(client.peer, "done")
        await network.settle(lambda: bool(seen(client, LinkDown, third.peer)))
        await network.settle(lambda: real(relay).counters["bytes_relayed"] > 512_000)
        assert not seen(relay, LinkUp, third.peer)


async def test_over_the_link_to_the_relay_if_there_is_one() -> None:
    async with play() as (network, (relay, client, third), circuit):
        await linked(network, third, relay)
        third.connect(PeerInfo(client.peer, circuit))
        await reach(network, 2, LinkUp, third)
        assert [event.peer for event in seen(third, LinkUp)] == [relay.peer, client.peer]
        assert real(third).counters["dials"] == 2


async def test_a_direct_address_is_tried_before_a_circuit() -> None:
    async with play() as (network, (relay, client, third), _):
        through = str(Multiaddr("127.0.0.1", Multiaddr.parse(relay.addrs[0]).port, third.peer, relay.peer))
        client.connect(info(third, through))
        await network.settle(lambda: bool(seen(third, LinkUp)))
        assert real(third).accepted(client.peer)


async def test_one_circuit_ends_and_the_other_goes_on() -> None:
    async with play(4) as (network, (_, client, third, fourth), circuit):
        for each in (third, fourth):
            each.connect(PeerInfo(client.peer, circuit))
            await reach(network, 1, LinkUp, each)
        third.disconnect(client.peer, "done")
        await network.settle(lambda: bool(seen(client, LinkDown, third.peer)))
        assert client.send(fourth.peer, Lane.BULK, bytes(100_000))
        await network.settle(lambda: bool(seen(fourth, LinkFrame)))
        assert not seen(fourth, LinkDown)


async def test_a_relay_that_stops_takes_its_circuits_with_it() -> None:
    async with play() as (network, (relay, client, third), circuit):
        third.connect(PeerInfo(client.peer, circuit))
        await reach(network, 1, LinkUp, third)
        await relay.stop()
        await network.settle(lambda: bool(seen(third, LinkDown) and seen(client, LinkDown, third.peer)))
        third.connect(PeerInfo(client.peer, circuit))
        await network.settle(lambda: bool(seen(third, LinkDialFailed)))
        with pytest.raises(PeerUnreachable):
            await real(client).reserve(relay.peer)


async def test_the_relay_sees_nothing_of_what_it_carries(monkeypatch: pytest.MonkeyPatch) -> None:
    carried = bytearray()

    class Tap:
        def __init__(self, stream: ByteStream) -> None:
            self._stream = stream
            self.write, self.finish = stream.write, stream.finish

        async def read(self, bytes_max: int) -> bytes:
            data = await self._stream.read(bytes_max)
            carried.extend(data)
            return data

    async def tapped(one: ByteStream, other: ByteStream, limits: CircuitLimits) -> int:
        return await carry(Tap(one), Tap(other), limits)

    monkeypatch.setattr(node.transport_relay, "carry", tapped)
    async with play() as (network, (_, client, third), circuit):
        third.connect(PeerInfo(client.peer, circuit))
        await reach(network, 1, LinkUp, third)
        assert third.send(client.peer, Lane.CONTROL, b"a secret between two" * 100)
        await network.settle(lambda: bool(seen(client, LinkFrame, third.peer)))
    assert len(carried) > 2_000
    assert b"secret" not in carried
    assert b"hello" not in carried
    assert b"/yamux" not in carried


async def test_a_circuit_ends_with_its_bytes_and_the_relay_goes_on() -> None:
    async with play(limits=CircuitLimits(bytes_max=100_000)) as (network, (_, client, third), circuit):
        for count in (1, 2):
            third.connect(PeerInfo(client.peer, circuit))
            await reach(network, count, LinkUp, third)
            assert third.send(client.peer, Lane.BULK, bytes(200_000))
            await network.settle(lambda count=count: len(seen(client, LinkDown, third.peer)) == count)  # type: ignore[misc]
            await network.settle(lambda count=count: len(seen(third, LinkDown)) == count)  # type: ignore[misc]
        assert not seen(client, LinkFrame)


async def test_without_a_place_nobody_is_reached() -> None:
    async with play(4) as (network, (relay, _, third, fourth), _circuit):
        await linked(network, third, relay)
        through = Multiaddr("127.0.0.1", Multiaddr.parse(relay.addrs[0]).port, third.peer, relay.peer)
        fourth.connect(PeerInfo(third.peer, (str(through),)))
        await network.settle(lambda: bool(seen(fourth, LinkDialFailed)))
        assert "no_reservation" in seen(fourth, LinkDialFailed)[0].reason


async def test_only_a_relay_gives_places_and_only_a_link_takes_one() -> None:
    async with play() as (network, (_, client, third), _circuit):
        await linked(network, client, third)
        with pytest.raises(PeerUnreachable):
            await real(client).reserve(third.peer)
        with pytest.raises(PeerUnreachable):
            await real(client).reserve(PeerID(bytes(32)))


async def test_a_relay_without_room_says_so() -> None:
    async with TrioHarness(lambda spec: part(spec.number, limits=CircuitLimits(places_max=0))) as network:
        relay, client = await network.node(), await network.node()
        await linked(network, client, relay)
        with pytest.raises(PeerUnreachable, match="reservation_refused"):
            await real(client).reserve(relay.peer)
        assert not seen(client, LinkDown)


async def test_a_stranger_gets_no_place_and_its_connection_ends_with_its_last_request() -> None:
    async with play() as (network, (relay, client, _), _circuit), raw_host(relay) as (host, connection):
        assert await ask(host, connection, pb.HopMessage(type=pb.HopMessage.RESERVE)) == pb.PERMISSION_DENIED
        await network.settle(lambda: bool(connection.is_closed))
        assert not seen(relay, LinkDown, client.peer)


async def test_a_stranger_gets_no_circuit_to_anybody() -> None:
    async with play() as (_, (relay, client, third), _circuit):
        for peer in (client.peer, third.peer):
            async with raw_host(relay) as (host, connection):
                assert await ask(host, connection, connect_to(peer)) == pb.PERMISSION_DENIED


async def test_who_is_denied_gets_nothing_although_its_link_still_stands(monkeypatch: pytest.MonkeyPatch) -> None:
    async with play() as (network, (relay, client, third), circuit):
        await linked(network, third, relay)
        monkeypatch.setattr(real(relay)._circuits, "_config", RelayConfig("serve", admits=lambda _peer: False))
        third.connect(PeerInfo(client.peer, circuit))
        await network.settle(lambda: bool(seen(third, LinkDialFailed)))
        assert "permission_denied" in seen(third, LinkDialFailed)[0].reason
        with pytest.raises(PeerUnreachable, match="permission_denied"):
            await real(client).reserve(relay.peer)


async def test_without_word_of_members_a_circuit_is_for_who_has_a_link(monkeypatch: pytest.MonkeyPatch) -> None:
    async with play(4) as (network, (relay, client, third, fourth), circuit):
        monkeypatch.setattr(real(relay)._circuits, "_config", RelayConfig("serve"))
        fourth.connect(PeerInfo(client.peer, circuit))
        await network.settle(lambda: bool(seen(fourth, LinkDialFailed)))
        await linked(network, third, relay)
        third.connect(PeerInfo(client.peer, circuit))
        await network.settle(lambda: bool(seen(client, LinkUp, third.peer)))


async def test_a_member_is_told_that_nobody_has_a_place() -> None:
    async with play() as (network, (relay, _client, third), _circuit):
        through = Multiaddr("127.0.0.1", Multiaddr.parse(relay.addrs[0]).port, MEMBERS[2], relay.peer)
        third.connect(PeerInfo(MEMBERS[2], (str(through),)))
        await network.settle(lambda: bool(seen(third, LinkDialFailed)))
        assert "no_reservation" in seen(third, LinkDialFailed)[0].reason


NONSENSE = (
    b"\x00", b"\xff" * 12, encode_varint(MESSAGE_BYTES_MAX + 1), frame(b"\xff" * 40), frame(b"\x08\x02"),
    frame(b"\x08\x01"), b"",
)  # fmt: skip


@pytest.mark.parametrize("protocol", [HOP, STOP], ids=["hop", "stop"])
async def test_nonsense_ends_that_stream_only(protocol: str) -> None:
    async with play() as (network, (relay, client, third), circuit):
        link = real(relay).link_of(client.peer)
        assert link is not None
        for data in NONSENSE:
            if protocol == HOP:
                async with raw_host(relay) as (host, connection):
                    await say(await open_stream(host, connection, protocol), data)
            else:  # the relay itself sends it to its client
                await say(await real(relay).open_stream(link.swarm_conn, protocol), data)
        third.connect(PeerInfo(client.peer, circuit))
        await network.settle(lambda: bool(seen(client, LinkUp, third.peer)))
        assert not seen(relay, LinkDown)
        assert not any(real(each).counters["handler_errors"] for each in (relay, client))


async def say(stream: Any, data: bytes) -> None:
    """Send bytes, end, and wait until the other side has given up the stream."""
    if data:
        await stream.write(data)
    await stream.close_write()
    with trio.fail_after(10):
        while await rest_of(stream):
            continue


async def rest_of(stream: Any) -> bytes:
    try:
        return bytes(await stream.read(100))
    except Exception:  # noqa: BLE001 - any class of the library: it is over
        return b""


async def test_who_is_no_relay_of_ours_brings_no_circuit() -> None:
    async with play() as (network, (_relay, client, third), _circuit):
        await linked(network, client, third)
        link = real(third).link_of(client.peer)
        assert link is not None
        stream = await real(third).open_stream(link.swarm_conn, STOP)
        source = pb.PeerId(id=bytes.fromhex("002408011220") + bytes(range(32)))
        await stream.write(frame(pb.StopMessage(type=pb.StopMessage.CONNECT, peer=source).SerializeToString()))
        answer = await stream.read(MESSAGE_BYTES_MAX)
        assert pb.StopMessage.FromString(answer[1:]).status == pb.PERMISSION_DENIED


async def test_a_relay_that_connects_somebody_else_is_found_out() -> None:
    async with play(4) as (network, (relay, client, third, fourth), circuit):
        circuits = real(relay)._circuits
        honest = circuits._connect

        async def lying(source: PeerID, _target: PeerID, stream: Any) -> None:
            await honest(source, client.peer, stream)

        circuits._connect = lying  # type: ignore[method-assign]
        third.connect(PeerInfo(fourth.peer, (circuit[0].replace(peer_text(client.peer), peer_text(fourth.peer)),)))
        await network.settle(lambda: bool(seen(third, LinkDialFailed)))
        assert not seen(client, LinkUp, third.peer)
        assert not seen(fourth, LinkUp)


# ---- the contract of every transport, with every link over a circuit


class Behind(Libp2pTransport):
    """A node that listens nowhere; its own doings with the relay are not shown."""

    def __init__(self, spec: Spec, relay: Libp2pTransport) -> None:
        self._at = relay
        self._circuit: tuple[str, ...] = ()
        super().__init__(bytes([spec.number]) * 32, (), relay=RelayConfig("client"))

    def listen_addrs(self) -> tuple[str, ...]:
        return self._circuit

    @asynccontextmanager
    async def run(self, hello: HelloSource) -> AsyncIterator[None]:
        async with super().run(lambda peer: b"client" if peer == self._at.local_peer else hello(peer)):
            self.connect(PeerInfo(self._at.local_peer, self._at.listen_addrs()))
            assert isinstance(await anext(super().events()), LinkUp)
            self._circuit = (await self.reserve(self._at.local_peer)).addrs
            yield

    async def events(self) -> AsyncIterator[TransportEvent]:  # type: ignore[override]
        async for event in super().events():
            if event.peer != self._at.local_peer:
                yield event


@pytest.mark.slow
@pytest.mark.parametrize("check", OVER_CIRCUITS, ids=[check.__name__ for check in OVER_CIRCUITS])
async def test_links_over_circuits_keep_the_contract(check: Check) -> None:
    relay = Libp2pTransport(bytes([200]) * 32, (LOOPBACK,), relay=RelayConfig("serve"))
    async with relay.run(lambda _peer: b"relay"), trio.open_nursery() as nursery:

        async def drain() -> None:
            async for _ in relay.events():
                continue

        nursery.start_soon(drain)
        async with TrioHarness(lambda spec: Behind(spec, relay)) as harness:
            await check(harness)
        nursery.cancel_scope.cancel()
