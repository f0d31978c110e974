"""Case N4 and complaint 10 on real connections: peers that vanish, break streams or send rubbish end themselves only.

A whole node (core, driver, store, libp2p) among guests with valid certificates. After every attack each of its services
answers an honest guest: links (ping), records (a guest's record becomes an address to dial), repair (a request), and
the local side (status, memory). What was dropped or refused is counted.
"""

from __future__ import annotations

import random
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import trio

from kernel.commands import MemoryDigests
from node import swarm
from node.clock import BootClock
from node.config import load_config
from node.keystore import Keystore
from node.life import begin_life
from node.node import Node, Parts, load_member
from node.profile import Profile
from node.store import SqliteStore
from node.transport import PROTOCOLS, Libp2pTransport
from node.transport_host import build_host, dial, open_stream, run_host
from protocol import versions
from protocol.admission import CERT_LIFE_MS_MAX, MEMBER, issue
from protocol.capability import PeerValue, make_record
from protocol.codec import frame
from protocol.identity import KeyPair
from protocol.messages import (
    LANE_OF,
    Bye,
    Digests,
    Fetched,
    Frame,
    GetOps,
    Hello,
    Ping,
    Pong,
    Progress,
    Receipt,
    Records,
    Watch,
    decode_frame,
    encode_frame,
)
from protocol.peer import PeerID, PeerInfo, peer_text
from protocol.transport import FRAME_BYTES_MAX, Lane, LinkFrame, LinkUp
from tests.node.real_swarm import Wire
from tests.node.transport_contract import TrioNode, seen
from tests.strategies import keypair

pytestmark = pytest.mark.libp2p

LOOPBACK = "/ip4/127.0.0.1/tcp/0"
PSK = bytes(range(32))
LIMIT_S = 20.0
GUESTS, VANISHING, HOSTILE = 30, 10, 10
TALK_S = 0.25  # between two rounds of frames of a guest: thirty of them and the node share one core
ROUNDS = 60
SEED = 20261129


class FlatEncoder:
    """Every text is like every other."""

    encoder_id = "use-512"
    dim = 512

    async def encode(self, texts: tuple[str, ...]) -> tuple[bytes, ...]:
        await trio.lowlevel.checkpoint()
        return tuple(bytes([1]) * self.dim for _ in texts)

    async def aclose(self) -> None:
        """Nothing to free."""


@dataclass(frozen=True, slots=True)
class Hub:
    """The node under test, and the admin key that certifies its guests."""

    node: Node
    transport: Libp2pTransport
    admin: KeyPair
    swarm_id: bytes
    nursery: trio.Nursery
    guests: list[Guest]

    @property
    def peer(self) -> PeerID:
        return self.transport.local_peer

    @property
    def address(self) -> str:
        return self.transport.listen_addrs()[0]

    def hello(self, keys: KeyPair) -> bytes:
        now_ms = wall_ms()
        window = (now_ms - 3_600_000, now_ms - 3_600_000 + CERT_LIFE_MS_MAX)
        return encode_frame(
            Hello(
                wire_min=versions.WIRE_MIN,
                wire_max=versions.WIRE_MAX,
                swarm_id=self.swarm_id,
                cert_chain=self.chain(keys, window),
                inst=1,
                wall_ms=now_ms,
                derive_vers=versions.DERIVE_VERSIONS,
                roles=(MEMBER,),
                listen_addrs=(),
                features=versions.FEATURES,
            )
        )

    def chain(self, keys: KeyPair, window: tuple[int, int]) -> tuple[bytes, ...]:
        return (issue(self.admin, self.swarm_id, keys.public, (MEMBER,), window),)

    async def guest(self, number: int, address: str | None = None) -> Guest:
        """A guest that is linked."""
        guest = Guest(self, number)
        await self.nursery.start(guest.run)
        self.guests.append(guest)
        guest.connect(PeerInfo(self.peer, (address or self.address,)))

        async def is_up() -> bool:
            return bool(seen(guest, LinkUp)) and peer_text(guest.peer) in await self.linked()

        await until(f"link of guest {number}", is_up)
        return guest

    async def linked(self) -> set[str]:
        status: Any = await self.node.status()
        return {str(peer["peer"]) for peer in status["linked"]}

    async def counted(self, name: str) -> int:
        status: Any = await self.node.status()
        return int(status["counters"].get(name, 0))


class Guest(TrioNode):
    """A member of the swarm without a core behind it."""

    def __init__(self, hub: Hub, number: int) -> None:
        self.keys = KeyPair(keypair(f"guest {number}").seed())
        self.hub = hub
        super().__init__(Libp2pTransport(self.keys.seed(), (), psk=PSK), number, lambda _peer: hub.hello(self.keys))

    def say(self, message: Frame) -> bool:
        return self.send(self.hub.peer, LANE_OF[type(message)], encode_frame(message))

    def got(self) -> list[Frame]:
        return [decode_frame(event.frame, event.lane) for event in seen(self, LinkFrame)]

    async def talk(self) -> None:
        """Frames for several services on both lanes, again and again; what finds no room is dropped.

        The record stays the same: a new one would be passed on to thirty, all in this process.
        """
        req, record = 1_000_000, self.record(1)
        while True:
            req += 1
            self.say(Ping(req, wall_ms()))
            self.say(Watch(bytes(16), on=bool(req % 2)))
            self.say(Records((record,)))
            self.say(Digests(req, ((bytes([self._number]) * 16, bytes(12)),)))
            await trio.sleep(TALK_S)

    def record(self, seq: int) -> bytes:
        now_ms = wall_ms()
        window = (now_ms - 3_600_000, now_ms + 3_600_000)
        value = PeerValue(addrs=(f"/ip4/127.0.0.1/tcp/{1 + seq % 1000}",), cert=self.hub.chain(self.keys, window))
        return make_record(self.keys, value, seq=seq, issued_ms=now_ms)


def wall_ms() -> int:
    clock = BootClock()
    return (clock.now_us() + clock.wall_offset_us()) // 1000


async def until(what: str, check: Callable[[], object | Awaitable[object]], limit_s: float = LIMIT_S) -> None:
    """Poll until it holds."""
    end = trio.current_time() + limit_s
    while True:
        found = check()
        if found is not True and hasattr(found, "__await__"):
            found = await found
        if found:
            return
        assert trio.current_time() < end, f"no {what} within {limit_s:g} s"
        await trio.sleep(0.01)


@asynccontextmanager
async def running(folder: Path) -> AsyncIterator[Hub]:
    profile = Profile(folder)
    profile.make()
    keys = Keystore(profile)
    keys.create(bytes([1]) * 32, bytes([2]) * 32)
    genesis = swarm.create(profile, "lab", PSK, wall_ms())
    member, psk = load_member(profile, wall_ms())
    assert psk == PSK
    transport = Libp2pTransport(member.node.seed(), (LOOPBACK,), psk=psk)
    with SqliteStore(profile.database) as store:
        parts = Parts(member, transport, store, FlatEncoder(), BootClock(), random.Random(1))
        node = Node(parts, load_config(profile, {}, {"engine": {"kind": "none"}}))
        with trio.fail_after(120):
            async with node.run(begin_life(store)), trio.open_nursery() as nursery:
                hub = Hub(node, transport, keys.user(), genesis.swarm_id, nursery, [])
                yield hub
                async with trio.open_nursery() as stopping:
                    for guest in hub.guests:
                        stopping.start_soon(guest.stop)


async def check_services(hub: Hub, guest: Guest, req: int) -> None:
    """Every service answers one honest guest, and the node's own user."""
    port = 2_000 + req
    seq = wall_ms()  # above those of its talk
    value = PeerValue(
        addrs=(f"/ip4/127.0.0.1/tcp/{port}",), cert=hub.chain(guest.keys, (seq - 3_600_000, seq + 3_600_000))
    )
    guest.say(Ping(req, seq))
    guest.say(GetOps(req, bytes(16), (bytes(32),)))
    guest.say(Records((make_record(guest.keys, value, seq=seq, issued_ms=seq),)))
    await until("answer of links", lambda: any(isinstance(f, Pong) and f.req == req for f in guest.got()))
    await until("answer of repair", lambda: any(isinstance(f, Fetched) and f.req == req for f in guest.got()))

    async def knows_address() -> bool:
        status: Any = await hub.node.status()
        return any(f"/tcp/{port}" in addr for addr in status["known"].get(peer_text(guest.peer), []))

    await until("address from the record", knows_address)
    assert isinstance(await hub.node.ask(MemoryDigests()), list)
    assert (await hub.node.verify()).ok


def rubbish(lane: Lane) -> list[bytes]:
    """Whole frames of a lane that no honest peer sends; each ends the link of its sender."""
    small, large = encode_frame(Ping(1, 1)), encode_frame(Records((b"x",)))
    good, other = (small, large) if lane is Lane.CONTROL else (large, small)
    w5 = ("82a373657101a373657102", "810102", "81920102c0", "82c3010102", "80", "90", "c0", "a3666f6f", "c1")
    return [
        *(bytes.fromhex(each) for each in w5),
        other,
        good + b"\xc0",
        good[:-1],
        b"\x92\xcd\x03\xe8\x01",  # of a kind that nobody knows
        bytes(FRAME_BYTES_MAX[lane]),
        b"\xdd\xff\xff\xff\xff",
    ]


@pytest.mark.slow
async def test_thirty_peers_of_whom_ten_vanish_and_ten_send_rubbish_while_frames_flow(tmp_path: Path) -> None:
    async with running(tmp_path) as hub:
        wire = Wire(int(hub.address.rpartition("/")[2]))
        try:
            guests = [await hub.guest(number, wire.address if number < VANISHING else None) for number in range(GUESTS)]
            await until("thirty links", partial(has_links, hub, guests))
            async with trio.open_nursery() as talking:
                for guest in guests:
                    talking.start_soon(guest.talk)
                await trio.sleep(0.5)
                wire.mode = "cut"
                bad = {lane: rubbish(lane) for lane in Lane}
                for number, guest in enumerate(guests[VANISHING : VANISHING + HOSTILE]):
                    lane = Lane(number % len(Lane))
                    guest.send(hub.peer, lane, bad[lane][number % len(bad[lane])])
                rest = guests[VANISHING + HOSTILE :]
                await until("end of the links of twenty", partial(has_links, hub, rest))
                await trio.sleep(0.5)
                talking.cancel_scope.cancel()
        finally:
            await trio.to_thread.run_sync(wire.close)
        assert await hub.counted("refused_peer_misbehaved") == HOSTILE
        assert hub.transport.counters["links_down"] == VANISHING + HOSTILE
        assert hub.transport.counters["handler_errors"] == 0
        for number, guest in enumerate(rest):
            await check_services(hub, guest, number)
        await check_services(hub, await hub.guest(GUESTS), GUESTS)


async def has_links(hub: Hub, guests: list[Guest]) -> bool:
    return await hub.linked() == {peer_text(guest.peer) for guest in guests}


@pytest.mark.parametrize("lane", list(Lane))
async def test_each_kind_of_rubbish_on_each_lane_ends_the_link_of_its_sender_alone(lane: Lane, tmp_path: Path) -> None:
    async with running(tmp_path) as hub:
        honest = await hub.guest(0)
        for number, data in enumerate(rubbish(lane), 1):
            guest = await hub.guest(number)
            assert guest.send(hub.peer, lane, data)
            await until("end of its link", partial(has_links, hub, [honest]))
            assert await hub.counted("refused_peer_misbehaved") == number, data[:20].hex()
            await guest.stop()
        await check_services(hub, honest, 1)


# ---- streams and channels that close at random


class RawGuest:
    """A guest that holds the library's own objects and keeps no rule."""

    def __init__(self, hub: Hub, connection: Any, lanes: dict[Lane, Any]) -> None:
        self.hub = hub
        self.connection = connection
        self.lanes = lanes

    async def act(self, rng: random.Random) -> None:
        """One deed of many: end something, in some way, at some moment of a frame."""
        lane = rng.choice(list(Lane))
        stream = self.lanes[lane]
        good = encode_frame(rng.choice(self.messages(rng, lane)))
        deeds: list[Callable[[], Awaitable[object]]] = [
            stream.reset,
            stream.close_write,
            stream.close,
            self.connection.close,
            lambda: stream.write(frame(good)),
            lambda: stream.write(frame(damaged(rng, good))),
            lambda: stream.write(frame(good)[: rng.randrange(1, len(good))]),
            lambda: stream.write(rng.randbytes(rng.randrange(1, 5_000))),
            lambda: stream.write(b"".join(frame(good) for _ in range(rng.randrange(1, 200)))),
            self.connection.new_stream,
        ]
        with suppress(Exception), trio.move_on_after(1):  # what the library says to who works on something closed
            await rng.choice(deeds)()

    def messages(self, rng: random.Random, lane: Lane) -> list[Frame]:
        now_ms, req = wall_ms(), rng.randrange(1000)
        every: list[Frame] = [
            Ping(req, now_ms),
            Pong(req, now_ms),
            Bye("leaving", "x"),
            Digests(req, ((bytes(16), bytes(12)),)),
            GetOps(req, bytes(16), (bytes(32),)),
            Receipt(bytes(16), 1, (bytes(32),), bytes(64)),
            Progress(bytes(16), 1, bytes(32), 1, "x"),
            Records((rng.randbytes(80),)),
            Fetched(req, bytes(16), (rng.randbytes(50),), (), (), more=False),
            decode_frame(self.hub.hello(keypair("raw 1")), Lane.CONTROL),
        ]
        return [each for each in every if LANE_OF[type(each)] is lane]


@asynccontextmanager
async def raw_guest(hub: Hub, number: int) -> AsyncIterator[RawGuest]:
    keys = KeyPair(keypair(f"raw {number}").seed())
    host = build_host(keys.seed(), PSK, lambda _candidates: [])
    async with run_host(host):
        connection = await dial(host, hub.peer, hub.address)
        lanes = {lane: await open_stream(host, connection, PROTOCOLS[lane]) for lane in Lane}
        await lanes[Lane.CONTROL].write(frame(hub.hello(keys)))
        assert await lanes[Lane.CONTROL].read(1)
        try:
            yield RawGuest(hub, connection, lanes)
        finally:
            with trio.move_on_after(2) as leave:
                leave.shield = True
                await connection.close()


def damaged(rng: random.Random, data: bytes) -> bytes:
    out = bytearray(data)
    for _ in range(rng.randrange(1, 4)):
        out[rng.randrange(len(out))] ^= rng.randrange(1, 256)
    return bytes(out[: rng.randrange(1, len(out) + 1)])


@pytest.mark.slow
async def test_streams_and_connections_that_close_at_random_end_nothing_else(
    tmp_path: Path,
) -> None:
    rng = random.Random(SEED)
    async with running(tmp_path) as hub:
        honest = await hub.guest(0)
        for round_ in range(ROUNDS):
            async with raw_guest(hub, round_ % 7) as raw:
                for _ in range(rng.randrange(1, 6)):
                    await raw.act(rng)
            if round_ % 10 == 9:
                await check_services(hub, honest, round_)
        await until("nobody but the honest guest", partial(has_links, hub, [honest]))
        assert hub.transport.counters["links_up"] >= ROUNDS // 2, "too few links came about to prove anything"
        assert hub.transport.counters["misbehaved"] + await hub.counted("refused_peer_misbehaved") >= ROUNDS // 10
        assert hub.transport.counters["handler_errors"] == 0
        await check_services(hub, await hub.guest(99), 99)
