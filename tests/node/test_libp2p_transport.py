"""What only the real transport can break: hostile peers on real connections, addresses, keys, dead processes."""

from __future__ import annotations

import importlib.metadata
import json
import logging
import os
import signal
import socket
import subprocess
import sys
import textwrap
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import trio
from libp2p.exceptions import BaseLibp2pError

import node.lanes
import node.links
import node.reach
import node.transport
from node.selftest import self_test
from node.transport import PROTOCOLS, Libp2pTransport
from node.transport_host import LIBRARY_LOG_LEVEL, build_host, dial, open_stream, run_host
from protocol.codec import frame
from protocol.errors import ConfigError
from protocol.peer import Multiaddr, PeerID, PeerInfo, peer_text
from protocol.transport import Lane, LinkDown, LinkFrame, LinkUp
from tests.node.transport_contract import TrioHarness, TrioNode, info, linked, reach, seen

pytestmark = pytest.mark.libp2p

CASES = Path(__file__).resolve().parents[3] / "shared" / "cases" / "files"
LOOPBACK = "/ip4/127.0.0.1/tcp/0"
KILL_S = 10.0


def transport(number: int, *listen: str, psk: bytes | None = None, announce: tuple[str, ...] = ()) -> Libp2pTransport:
    return Libp2pTransport(bytes([number]) * 32, listen or (LOOPBACK,), psk=psk, announce=announce)


def harness() -> TrioHarness:
    return TrioHarness(lambda spec: transport(spec.number, psk=spec.swarm_key))


def hello(_peer: PeerID) -> bytes:
    return b"hello"


def real(node: TrioNode) -> Libp2pTransport:
    assert isinstance(node.transport, Libp2pTransport)
    return node.transport


def has_counted(node: TrioNode, name: str, count: int) -> bool:
    return real(node).counters[name] == count


def cases(name: str) -> list[dict[str, Any]]:
    path = CASES / name
    if not path.exists():
        pytest.skip(f"{name} is not on this machine")
    return [json.loads(line) for line in path.read_text().splitlines()]


class RawPeer:
    """A peer that speaks the stream protocols but none of their rules."""

    def __init__(self, host: Any, connection: Any) -> None:
        self._host = host
        self.connection = connection

    async def open(self, lane: Lane) -> Any:
        return await open_stream(self._host, self.connection, PROTOCOLS[lane])

    def is_closed(self) -> bool:
        return bool(self.connection.is_closed)

    async def link(self) -> tuple[Any, Any]:
        """Both lanes, with the Hellos exchanged: from here on it is up."""
        control, bulk = await self.open(Lane.CONTROL), await self.open(Lane.BULK)
        await control.write(frame(b"raw hello"))
        assert await control.read(100) == frame(b"hello 1.1")
        return control, bulk


@asynccontextmanager
async def raw_peer(target: Any, seed: int = 99) -> AsyncIterator[RawPeer]:
    host = build_host(bytes([seed]) * 32, None, lambda _candidates: [])
    async with run_host(host):
        connection = await dial(host, target.peer, target.addrs[0])
        try:
            yield RawPeer(host, connection)
        finally:
            with trio.CancelScope(shield=True):
                await connection.close()


def open_sockets() -> set[str]:
    """Of this process."""
    found = set()
    for entry in Path("/proc/self/fd").iterdir():
        with suppress(OSError):  # the one that lists the folder is gone by now
            found.add(os.readlink(entry))
    return {name for name in found if name.startswith("socket:")}


async def test_self_test_passes_and_leaves_no_socket() -> None:
    before = open_sockets()
    await self_test()
    assert open_sockets() <= before


def test_another_library_version_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.metadata, "version", lambda _name: "0.9.0")
    with pytest.raises(ConfigError, match=r"libp2p 0\.9\.0"):
        transport(1)


@pytest.mark.parametrize(("seed", "psk"), [(b"short", None), (bytes(32), b"short")])
def test_keys_of_another_length_are_refused(seed: bytes, psk: bytes | None) -> None:
    with pytest.raises(ConfigError):
        Libp2pTransport(seed, (LOOPBACK,), psk=psk)


@pytest.mark.parametrize("lane", list(Lane))
async def test_malformed_frames_end_that_link_only(lane: Lane, monkeypatch: pytest.MonkeyPatch) -> None:
    """Case W1: each frame on a fresh link of its own; after each, a well-behaved peer is served."""
    hostile = [bytes.fromhex(case["hex"]) for case in cases("W1_frames.jsonl") if case["expect"].startswith("re")]
    hostile += [b"\x80\x00", frame(bytes(20))[:7], b"\xff\xff\x7f" + bytes(100)]
    hostile = [data for data in hostile if data != bytes.fromhex("04920102c0")]  # a good frame, a bad message
    async with harness() as network:
        a, good = await network.node(), await network.node()
        monkeypatch.setattr(node.lanes, "FRAME_STALL_S", 0.2)
        for count, data in enumerate(hostile, 1):
            a.hellos = 0
            async with raw_peer(a) as raw:
                control, bulk = await raw.link()
                await (control if lane is Lane.CONTROL else bulk).write(data)
                await reach(network, count, LinkDown, a)
        assert all(down.reason.startswith("misbehaved: ") for down in seen(a, LinkDown))
        assert real(a).counters["misbehaved"] == len(hostile)
        assert not seen(a, LinkFrame)
        monkeypatch.undo()
        await linked(network, good, a)
        assert good.send(a.peer, lane, b"served")
        await network.settle(lambda: bool(seen(a, LinkFrame)))


@pytest.mark.slow
async def test_a_peer_without_a_proper_opening_gets_no_link(monkeypatch: pytest.MonkeyPatch) -> None:
    """No stream, one lane, no Hello, bulk before the Hello, a malformed Hello: counted, closed, no event."""

    async def nothing(_raw: RawPeer) -> None:
        return

    async def one_lane(raw: RawPeer) -> None:
        await (await raw.open(Lane.CONTROL)).write(frame(b"hello"))

    async def no_hello(raw: RawPeer) -> None:
        await raw.open(Lane.CONTROL)
        await raw.open(Lane.BULK)

    async def early_bulk(raw: RawPeer) -> None:
        await raw.open(Lane.CONTROL)
        await (await raw.open(Lane.BULK)).write(frame(b"early"))

    async def bad_hello(raw: RawPeer) -> None:
        await raw.open(Lane.BULK)
        await (await raw.open(Lane.CONTROL)).write(b"\x00")

    openings = (nothing, one_lane, no_hello, early_bulk, bad_hello)
    async with harness() as network:
        a, good = await network.node(), await network.node()
        with monkeypatch.context() as hurry:
            hurry.setattr(node.links, "HELLO_TIMEOUT_S", 0.3)
            hurry.setattr(node.transport, "HELLO_TIMEOUT_S", 0.3)
            for count, opening in enumerate(openings, 1):
                async with raw_peer(a) as raw:
                    await opening(raw)
                    await network.settle(partial(has_counted, a, "misbehaved", count))
                    await network.settle(raw.is_closed)
        assert not a.events
        await linked(network, good, a)


async def test_a_second_stream_of_a_lane_is_reset_and_the_link_lives() -> None:
    async with harness() as network:
        a = await network.node()
        async with raw_peer(a) as raw:
            control, _bulk = await raw.link()
            with pytest.raises(BaseLibp2pError):
                await (await raw.open(Lane.CONTROL)).read(1)
            await network.settle(partial(has_counted, a, "misbehaved", 1))
            await control.write(frame(b"still here"))
            await network.settle(lambda: bool(seen(a, LinkFrame)))


async def test_a_stream_ended_inside_a_frame_is_no_link_but_no_offence_either() -> None:
    async with harness() as network:
        a = await network.node()
        async with raw_peer(a) as raw:
            control, bulk = await raw.link()
            await control.write(frame(b"whole") + frame(b"broken")[:3])
            await control.close_write()
            await bulk.close_write()
            await network.settle(lambda: bool(seen(a, LinkDown)))
        assert [e.frame for e in seen(a, LinkFrame)] == [b"whole"]
        assert real(a).counters["misbehaved"] == 0


async def test_accepted_connections_give_their_slot_back() -> None:
    """The library keeps an accept slot for ever; without the repair a listener is deaf after 250 connections."""
    async with harness() as network:
        a = await network.node()
        limiter = real(a)._host.get_network()._inbound_limiter
        for _ in range(6):
            async with raw_peer(a):
                pass
        await network.settle(lambda: limiter.borrowed_tokens == 0)


async def test_a_second_listener_on_a_port_is_refused() -> None:
    """The library binds with SO_REUSEPORT, so two daemons would share the port in silence."""
    first = transport(1)
    async with first.run(hello):
        second = transport(2, *first.listen_addrs())
        with pytest.raises(ConfigError, match="cannot listen"):
            async with second.run(hello):
                pass


@pytest.mark.parametrize("bind", ["/ip4/0.0.0.0/tcp/0", "/ip6/::/tcp/0", LOOPBACK, "/ip6/::1/tcp/0"])
async def test_announced_addresses_can_be_dialled(bind: str) -> None:
    """Case N1: whatever is bound, no wildcard and no port 0 is announced, and the last address works from here."""
    a, b = transport(1, bind), transport(2)
    try:
        async with a.run(hello), b.run(hello):
            announced = [Multiaddr.parse(text) for text in a.listen_addrs()]
            assert announced
            assert all(addr.dialable for addr in announced)
            b.connect(PeerInfo(a.local_peer, a.listen_addrs()[-1:]))
            assert await anext(b.events()) == LinkUp(a.local_peer, b"hello")
    except ConfigError as exc:
        if "ip6" not in bind:
            raise
        pytest.skip(f"no IPv6 here: {exc}")


async def test_configured_announce_address_wins_and_is_what_peers_are_told() -> None:
    a = transport(1, announce=("/ip4/192.0.2.7/tcp/0", "/ip4/192.0.2.8/tcp/4444"))
    async with a.run(hello):
        (bound,) = a._host.get_transport_addrs()
        port = Multiaddr.parse(str(bound)).port
        assert a.listen_addrs() == (f"/ip4/192.0.2.7/tcp/{port}", "/ip4/192.0.2.8/tcp/4444")
        told = [str(addr).partition("/p2p/")[0] for addr in a._host.get_addrs()]
        assert told == list(a.listen_addrs())


async def test_a_new_object_serves_the_same_port_with_another_swarm_key() -> None:
    """A node that joins another swarm rebuilds its host."""
    first = transport(1, psk=bytes(32))
    async with first.run(hello):
        addrs = first.listen_addrs()
    second, friend = transport(1, *addrs, psk=b"\x01" * 32), transport(2, psk=b"\x01" * 32)
    async with second.run(hello), friend.run(hello):
        friend.connect(PeerInfo(second.local_peer, second.listen_addrs()))
        assert await anext(friend.events()) == LinkUp(first.local_peer, b"hello")


async def test_nothing_is_learnt_from_identify() -> None:
    """P18: no address of the peer is stored, and nothing is dialled that we did not ask for."""
    async with harness() as network:
        a, b = await network.node(), await network.node()
        await linked(network, a, b)
        await network.idle()
        for node_ in (a, b):
            host = real(node_)._host
            others = [p for p in host.get_peerstore().peer_ids() if p != host.get_id()]
            assert all(not host.get_peerstore().peer_info(p).addrs for p in others)


async def test_the_library_is_silent(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.DEBUG):
        async with harness() as network:
            a, b = await network.node(), await network.node()
            a.connect(info(b, "/ip4/127.0.0.1/tcp/1"))
            await network.settle(lambda: bool(seen(a, LinkUp)))
    loud = [r for r in caplog.records if r.name.startswith("libp2p") and r.levelno < LIBRARY_LOG_LEVEL]
    assert not loud


@pytest.mark.slow
async def test_a_consumer_that_rests_longer_than_yamux_waits_keeps_its_link() -> None:
    """Yamux gives up a write after 5 s without window; the transport waits for the window itself."""
    async with harness() as network:
        a, b = await network.node(), await network.node()
        await linked(network, a, b)
        b.pause()
        sent = 0
        deadline = trio.current_time() + 7.0
        while trio.current_time() < deadline:  # more than queue, window and event channel hold together
            if a.send(b.peer, Lane.BULK, bytes(20_000)):
                sent += 1
                await trio.lowlevel.checkpoint()
            else:
                await trio.sleep(0.01)
        b.resume()
        await network.settle(lambda: len(seen(b, LinkFrame)) == sent)
        assert not seen(a, LinkDown)


PEER = """
    import sys, trio
    from node.transport import Libp2pTransport
    from protocol.peer import PeerInfo, parse_peer
    from protocol.transport import Lane, LinkUp

    async def main() -> None:
        transport = Libp2pTransport(bytes([int(sys.argv[1])]) * 32, ("/ip4/127.0.0.1/tcp/0",))
        async with transport.run(lambda peer: b"victim"):
            target = parse_peer(sys.argv[2])
            transport.connect(PeerInfo(target, (sys.argv[3],)))
            async for event in transport.events():
                while True:
                    transport.send(target, Lane.CONTROL, b"c" * 1000)
                    transport.send(target, Lane.BULK, b"b" * 100_000)
                    await trio.sleep(0.005)

    trio.run(main)
"""


@pytest.mark.slow
async def test_killed_peers_are_told_at_once_and_the_node_serves_on() -> None:
    """Case N4: peers die by SIGKILL while frames flow both ways; each is one LinkDown within a second."""
    async with harness() as network:
        a, friend = await network.node(), await network.node()
        await linked(network, a, friend)
        address = [peer_text(a.peer), a.addrs[0]]
        command = [sys.executable, "-c", textwrap.dedent(PEER)]
        victims = [subprocess.Popen([*command, str(n), *address]) for n in (101, 102, 103)]  # noqa: ASYNC220 - bounded
        try:
            await network.settle(lambda: len({e.peer for e in seen(a, LinkFrame)}) == len(victims))
            for peer in sorted({e.peer for e in seen(a, LinkFrame)}):
                a.send(peer, Lane.BULK, bytes(200_000))
            before = trio.current_time()
            for victim in victims:
                victim.send_signal(signal.SIGKILL)
            await network.settle(lambda: len(seen(a, LinkDown)) == len(victims))
            assert trio.current_time() - before < 1.0
        finally:
            for victim in victims:
                victim.kill()
                victim.wait(KILL_S)
        assert friend.send(a.peer, Lane.CONTROL, b"still served")
        await network.settle(lambda: bool(seen(a, LinkFrame, friend.peer)))
        assert real(a).counters["misbehaved"] == 0


async def test_dialling_back_needs_the_peer_itself_to_answer_and_leaves_no_connection() -> None:
    async with harness() as network:
        a, b, c = await network.node(), await network.node(), await network.node()
        await linked(network, a, b)
        before = len(real(b)._network.get_connections())
        for _ in range(5):
            found = await real(b).reach(a.peer, (*c.addrs, *b.addrs, *a.addrs))
            assert found.addrs == a.addrs
            assert "is our own" in found.reason
        await network.settle(lambda: len(real(b)._network.get_connections()) == before)
        await network.settle(lambda: len(real(a)._network.get_connections()) == before)
        assert not seen(a, LinkDown)
        assert not real(a).counters["misbehaved"]


async def test_a_silent_address_does_not_keep_the_others_from_being_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(node.reach, "REACH_S", 0.5)
    async with harness() as network:
        a, b = await network.node(), await network.node()
        await linked(network, a, b)
        with socket.socket() as mute:  # it listens and never accepts
            mute.bind(("127.0.0.1", 0))
            mute.listen(1)
            silent = f"/ip4/127.0.0.1/tcp/{mute.getsockname()[1]}"
            found = await real(b).reach(a.peer, (silent, *a.addrs))
        assert found.addrs == a.addrs
        assert "no answer within" in found.reason


async def test_the_other_end_of_an_ipv6_link_is_known() -> None:
    with socket.socket(socket.AF_INET6) as sock:
        try:
            sock.bind(("::1", 0))
        except OSError:
            pytest.skip("no IPv6 loopback here")
    async with TrioHarness(lambda spec: transport(spec.number, "/ip6/::1/tcp/0", psk=bytes(32))) as network:
        a, b = await network.node(), await network.node()
        await linked(network, a, b)
        assert real(b).accepted(a.peer)
        assert (await real(b).reach(a.peer, a.addrs)).addrs == a.addrs


async def test_a_burst_of_events_arrives_in_order_and_leaves_others_their_turn() -> None:
    transport = Libp2pTransport(bytes([1]) * 32, ())
    frames = [LinkFrame(transport.local_peer, Lane.CONTROL, bytes([number])) for number in range(200)]
    for event in frames:
        transport._events_send.send_nowait(event)
    transport._events_send.close()
    turns = 0

    async def other() -> None:
        nonlocal turns
        while True:
            await trio.lowlevel.checkpoint()
            turns += 1

    async with trio.open_nursery() as nursery:
        nursery.start_soon(other)
        assert [event async for event in transport.events()] == frames
        nursery.cancel_scope.cancel()
    assert turns >= len(frames) // (node.transport.BURST_EVENTS + 1) // 2  # trio shuffles who comes first
