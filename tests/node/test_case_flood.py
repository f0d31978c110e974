"""Case S3, complaint 21: whatever a member floods a daemon with, its memory is bounded and it goes on answering.

One real daemon, one member with a valid certificate, frames as full as the protocol allows and never the same name
twice: topics, offered and refused messages, records of made-up keys, spaces, DHT keys, watches, receipts, answers that
nobody asked for. Then the same again under other identities: what was kept of the first must not stay beside it.
"""

from __future__ import annotations

import random
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
import trio

from node.demo.making import own_addresses
from node.demo.nodes import DemoNode
from node.keystore import Keystore
from node.swarm import load_secrets
from node.transport import Libp2pTransport
from protocol import messages as m, versions
from protocol.admission import CERT_LIFE_MS_MAX, MEMBER, Genesis, issue
from protocol.capability import PeerValue, make_record
from protocol.identity import KeyPair
from protocol.peer import PeerID, PeerInfo
from protocol.transport import LinkFrame, LinkUp, TransportEvent
from tests.node.real_swarm import free_port, real_swarm

pytestmark = [pytest.mark.slow, pytest.mark.libp2p]

GROWTH_BYTES_MAX = 32 << 20  # of the case
WAVES = 3
FRAMES_PER_KIND = 120
IDENTITIES = 30
ANSWER_S = 20.0
LIMIT_S = 120.0


@pytest.fixture
def daemon(tmp_path: Path) -> Iterator[DemoNode]:
    with real_swarm(tmp_path) as swarm:
        node = swarm.add("n0", port=free_port())
        swarm.start()
        yield node


def rss_bytes(node: DemoNode) -> int:
    """Resident memory of the daemon; proc(5)."""
    text = Path(f"/proc/{node.pid}/status").read_text()
    (line,) = [line for line in text.splitlines() if line.startswith("VmRSS:")]
    return int(line.split()[1]) * 1024


async def until(check: Callable[[], bool]) -> None:
    """Poll until it holds."""
    end = trio.current_time() + ANSWER_S
    while not check():
        assert trio.current_time() < end, f"not within {ANSWER_S:g} s"
        await trio.sleep(0.01)


class Member:
    """A linked member of the daemon's swarm, without a node behind it."""

    def __init__(self, daemon: DemoNode, rng: random.Random) -> None:
        secrets, keystore = load_secrets(daemon.profile), Keystore(daemon.profile)
        self.rng = rng
        self.keys = KeyPair(rng.randbytes(32))
        self.target = PeerID(keystore.node().public)
        self.address = own_addresses(daemon.profile)[0].partition("/p2p/")[0]
        self.swarm_id = Genesis.from_wire(secrets.genesis).swarm_id
        self.now_ms = round(time.time() * 1000)
        begun_ms = self.now_ms - 60_000
        window = (begun_ms, begun_ms + CERT_LIFE_MS_MAX)
        self.chain = (issue(keystore.user(), self.swarm_id, self.keys.public, (MEMBER,), window),)
        self.transport = Libp2pTransport(self.keys.seed(), (), psk=secrets.psk)
        self.events: list[TransportEvent] = []

    def hello(self, _peer: PeerID) -> bytes:
        return m.encode_frame(
            m.Hello(
                wire_min=versions.WIRE_MIN,
                wire_max=versions.WIRE_MAX,
                swarm_id=self.swarm_id,
                cert_chain=self.chain,
                inst=1,
                wall_ms=self.now_ms,
                derive_vers=versions.DERIVE_VERSIONS,
                roles=(MEMBER,),
                listen_addrs=(),
                features=versions.FEATURES,
            )
        )

    async def collect(self) -> None:
        async for event in self.transport.events():
            self.events.append(event)

    async def say(self, frame: m.Frame) -> None:
        """Send, and wait for room where there is none."""
        raw, lane = m.encode_frame(frame), m.LANE_OF[type(frame)]
        await until(lambda: self.transport.send(self.target, lane, raw))

    async def round_trip(self, req: int) -> float:
        """Seconds until the daemon answers a ping that stands behind everything that was sent before."""
        begun = trio.current_time()
        await self.say(m.Ping(req, self.now_ms))
        await until(lambda: any(self._is_pong(event, req) for event in self.events))
        return trio.current_time() - begun

    def _is_pong(self, event: TransportEvent, req: int) -> bool:
        if not isinstance(event, LinkFrame):
            return False
        frame = m.decode_frame(event.frame, event.lane)
        return isinstance(frame, m.Pong) and frame.req == req


@asynccontextmanager
async def member_of(daemon: DemoNode, rng: random.Random) -> AsyncIterator[Member]:
    member = Member(daemon, rng)
    async with member.transport.run(member.hello), trio.open_nursery() as nursery:
        nursery.start_soon(member.collect)
        member.transport.connect(PeerInfo(member.target, (member.address,)))
        await until(lambda: any(isinstance(event, LinkUp) for event in member.events))
        yield member
        nursery.cancel_scope.cancel()


def flood(member: Member) -> Iterator[m.Frame]:
    """One frame of each kind, as full as it may be, with names that were never used before."""
    raw = member.rng.randbytes
    ids = tuple(raw(m.MESSAGE_ID_BYTES) for _ in range(m.MESSAGE_IDS_MAX))
    spaces = tuple((raw(16), raw(12)) for _ in range(m.DIGESTS_MAX))
    yield m.Subscribe(tuple((raw(20).hex(), True) for _ in range(m.TOPICS_MAX)))
    yield m.Graft(raw(20).hex())
    yield m.IHave("ops", ids)
    yield m.IHave(raw(20).hex(), ids[:8])
    yield m.IWant("ops", ids)
    yield m.IDontWant("ops", ids)
    yield m.Spread("ops", wide=False, items=tuple(raw(400) for _ in range(32)))
    yield m.Spread("members", wide=False, items=tuple(raw(80) for _ in range(32)))
    yield m.Records(tuple(record_of_nobody(member) for _ in range(m.RECORDS_MAX)))
    yield m.Digests(1, spaces)
    yield m.Heads(1, raw(16), want=True, authors=tuple((raw(32), 9, 9, raw(12)) for _ in range(200)))
    yield m.OpBatch((raw(2_000),))
    yield m.GetOps(1, raw(16), tuple(raw(32) for _ in range(m.IDS_MAX)))
    yield m.Fetched(1, raw(16), (raw(500),), (), (), more=True)
    yield m.Receipt(raw(16), 1, tuple(raw(32) for _ in range(m.IDS_MAX)), bytes(64))
    yield m.Watch(raw(16), on=True)
    yield m.Progress(raw(16), 1, raw(32), 1, "x" * 1_000)
    yield m.StoreRecord(1, raw(m.DHT_KEY_BYTES), record_of_nobody(member))
    yield m.FindNode(1, raw(m.DHT_KEY_BYTES))
    yield m.FoundValue(member.rng.randrange(2**31), (), (record_of_nobody(member),))
    yield m.ProbeFor(1, raw(32))
    yield m.RecordDigests(raw(500))


def record_of_nobody(member: Member) -> bytes:
    """Well signed by a key that was made for it."""
    keys = KeyPair(member.rng.randbytes(32))
    return make_record(keys, PeerValue(addrs=(), cert=member.chain), seq=1, issued_ms=member.now_ms)


async def test_a_flood_of_new_names_in_every_kind_of_frame_leaves_memory_bounded(daemon: DemoNode) -> None:
    rng = random.Random(20261129)
    with trio.fail_after(LIMIT_S):
        async with member_of(daemon, rng) as member:
            await member.round_trip(0)
        await trio.sleep(1)
        before, grown = rss_bytes(daemon), []
        for wave in range(WAVES):
            async with member_of(daemon, rng) as member:
                for _ in range(FRAMES_PER_KIND):
                    for frame in flood(member):
                        await member.say(frame)
                await member.round_trip(wave + 1)
            grown.append((rss_bytes(daemon) - before) >> 20)
    assert max(grown) << 20 < GROWTH_BYTES_MAX, f"MiB above the start after each wave: {grown}"
    status = daemon.status()
    assert status is not None
    assert status["linked"] == []
    assert len(status["refusals"]) <= 32
    assert status["spaces"] <= 10_000


async def test_identities_that_come_and_go_leave_nothing(daemon: DemoNode) -> None:
    rng = random.Random(7)
    with trio.fail_after(LIMIT_S):
        async with member_of(daemon, rng) as member:
            await member.round_trip(0)
        before = rss_bytes(daemon)
        for number in range(IDENTITIES):
            async with member_of(daemon, rng) as member:
                await member.round_trip(number)
    assert rss_bytes(daemon) - before < GROWTH_BYTES_MAX // 4
    status = daemon.status()
    assert status is not None
    assert (status["linked"], status["known"]) == ([], {})
