"""NAT and relays in the simulated network: who can be dialled, through whom, how long it takes and when it ends."""

from __future__ import annotations

import random
from typing import Any

import pytest

from gossip.events import Linked, Publish, Unlinked
from gossip.reach import RELAY_ROLE, InboundLink, ReachConfig, Reached, ReachTest, RelayUse, Reserve, Reserved
from gossip.reachability import Reachability
from protocol import versions
from protocol.admission import MEMBER
from protocol.capability import PeerValue
from protocol.errors import PeerUnreachable
from protocol.machine import Effect, JobDone, JobFailed, JobIds, Local, Received, Send, SetTimer, StartJob, TimerFired
from protocol.messages import LANE_OF, decode_frame, encode_frame
from protocol.peer import Multiaddr, PeerID, PeerInfo
from protocol.transport import Lane, LinkDialFailed, LinkDown, LinkFrame, LinkUp, TransportEvent
from simulations.heap import EventHeap
from simulations.link import NetConfig
from simulations.network import DIAL_LATENCIES, SimNetwork
from simulations.rng import stream
from tests.gossip_world import hello
from tests.strategies import keypair

LAN = {"latency_min_us": 1_000, "latency_us": 0, "jitter_us": 0}
RELAY, HIDDEN, OTHER, HIDDEN_TOO = 0, 1, 2, 3


class World:
    """Transports on one network; hosts HIDDEN and HIDDEN_TOO are behind NAT."""

    def __init__(self, size: int = 4, **config: Any) -> None:
        self.heap = EventHeap(stream(1, "ties"))
        self.net = SimNetwork(self.heap, NetConfig(**{**LAN, "nat": frozenset((HIDDEN, HIDDEN_TOO)), **config}), 1)
        self.peers = [PeerID(keypair(f"nat {n}").public) for n in range(size)]
        self.events: list[list[TransportEvent]] = [[] for _ in self.peers]
        self.nodes = [self._add(number) for number in range(size)]

    def _add(self, number: int) -> Any:
        transport = self.net.transport(self.peers[number], self.events[number].append)
        transport.serves_circuits = number == RELAY
        transport.open(lambda _peer: b"hello")
        return transport

    def run(self, us: int = 20_000_000) -> None:
        end_us = self.heap.now_us + us
        while (next_us := self.heap.next_us) is not None and next_us <= end_us:
            self.heap.step()
        self.heap.now_us = end_us

    def dial(self, source: int, target: int, *addrs: str) -> None:
        self.nodes[source].connect(PeerInfo(self.peers[target], addrs or self.nodes[target].listen_addrs()))
        self.run()

    def found(self, source: int, spec: ReachTest | Reserve) -> object:
        found: list[object] = []
        self.nodes[source].reach_out(spec, found.append)
        self.run()
        return found[0]

    def place(self, number: int) -> tuple[str, ...]:
        """A place at the relay for a node that is linked to it."""
        self.dial(number, RELAY)
        place = self.found(number, Reserve(self.peers[RELAY]))
        assert isinstance(place, Reserved)
        return place.addrs

    def seen(self, number: int, kind: type[Any]) -> list[Any]:
        return [event for event in self.events[number] if isinstance(event, kind)]


def test_behind_nat_nobody_dials_in_and_everybody_dials_out() -> None:
    world = World()
    world.dial(OTHER, HIDDEN)
    assert world.seen(OTHER, LinkDialFailed)
    world.dial(HIDDEN, OTHER)
    assert world.seen(HIDDEN, LinkUp)
    assert world.nodes[OTHER].accepted(world.peers[HIDDEN])
    assert world.nodes[OTHER].send(world.peers[HIDDEN], Lane.CONTROL, b"back")
    world.run()
    assert world.seen(HIDDEN, LinkFrame)


def test_a_fraction_of_hosts_is_behind_nat_and_always_the_same() -> None:
    worlds = [World(60, nat=frozenset(), nat_fraction=0.5) for _ in range(2)]
    hidden = [[world.net.behind_nat(peer) for peer in world.peers] for world in worlds]
    assert hidden[0] == hidden[1]
    assert 15 < sum(hidden[0]) < 45


def test_dialling_back_finds_out() -> None:
    world = World()
    world.dial(HIDDEN, OTHER)
    asked = ReachTest(world.peers[HIDDEN], world.nodes[HIDDEN].listen_addrs())
    found = world.found(OTHER, asked)
    assert isinstance(found, Reached)
    assert found.tried
    assert found.addrs == ()
    back = world.found(HIDDEN, ReachTest(world.peers[OTHER], world.nodes[OTHER].listen_addrs()))
    assert isinstance(back, Reached)
    assert back.addrs == world.nodes[OTHER].listen_addrs()
    assert len(world.events[OTHER]) == 1


def test_through_a_relay_two_hidden_nodes_meet_and_it_takes_both_legs() -> None:
    world = World()
    circuit = world.place(HIDDEN)
    world.dial(HIDDEN_TOO, RELAY)
    a, relay, b = world.peers[HIDDEN_TOO], world.peers[RELAY], world.peers[HIDDEN]
    world.net.set_latency(a, relay, 10_000)
    world.net.set_latency(relay, b, 20_000)
    world.net.set_latency(a, b, 1)
    start_us = world.heap.now_us
    world.nodes[HIDDEN_TOO].connect(PeerInfo(b, circuit))
    while not world.nodes[HIDDEN_TOO].ends.get(b):
        assert world.heap.step()
    assert world.heap.now_us - start_us == DIAL_LATENCIES * 30_000
    assert not world.nodes[HIDDEN].accepted(a)
    sent_us = world.heap.now_us
    assert world.nodes[HIDDEN_TOO].send(b, Lane.CONTROL, b"x")
    while not world.seen(HIDDEN, LinkFrame):
        assert world.heap.step()
    assert world.heap.now_us - sent_us == 30_000


@pytest.mark.parametrize("how", ["close", "kill", "link", "power"])
def test_a_circuit_ends_with_its_relay(how: str) -> None:
    world = World()
    circuit = world.place(HIDDEN)
    world.dial(OTHER, HIDDEN, *circuit)
    assert world.seen(OTHER, LinkUp)
    match how:
        case "close":
            world.nodes[RELAY].close()
        case "kill":
            world.nodes[RELAY].kill()
        case "link":
            world.nodes[RELAY].disconnect(world.peers[HIDDEN], "no more")
        case _:
            world.nodes[RELAY].kill(power=True)
    world.run()
    if how == "power":  # nobody says anything; the next life of the host does
        assert not world.seen(OTHER, LinkDown)
        assert world.nodes[OTHER].send(world.peers[HIDDEN], Lane.CONTROL, b"into the void")
        world.nodes[RELAY] = world._add(RELAY)
        world.run()
        assert not world.seen(HIDDEN, LinkFrame)
    assert world.seen(OTHER, LinkDown)
    assert [event.peer for event in world.seen(HIDDEN, LinkDown)].count(world.peers[OTHER]) == 1
    failed = len(world.seen(OTHER, LinkDialFailed))
    world.dial(OTHER, HIDDEN, *circuit)
    assert len(world.seen(OTHER, LinkDialFailed)) == failed + 1


def test_a_cut_between_relay_and_target_stalls_the_circuit() -> None:
    world = World()
    circuit = world.place(HIDDEN)
    world.dial(OTHER, HIDDEN, *circuit)
    world.net.partition([[world.peers[OTHER], world.peers[RELAY]], [world.peers[HIDDEN]]])
    assert world.nodes[OTHER].send(world.peers[HIDDEN], Lane.CONTROL, b"later")
    world.run()
    assert not world.seen(HIDDEN, LinkFrame)
    world.net.heal()
    world.run()
    assert len(world.seen(HIDDEN, LinkFrame)) == 1


def test_without_a_place_or_a_relay_there_is_no_circuit() -> None:
    world = World()
    world.dial(HIDDEN, RELAY)
    relay = Multiaddr.parse(world.nodes[RELAY].listen_addrs()[0])
    world.dial(OTHER, HIDDEN, str(Multiaddr(relay.host, relay.port, world.peers[HIDDEN], world.peers[RELAY])))
    assert "no_reservation" in world.seen(OTHER, LinkDialFailed)[0].reason
    world.dial(HIDDEN, OTHER)
    assert isinstance(world.found(HIDDEN, Reserve(world.peers[OTHER])), PeerUnreachable)
    assert isinstance(world.found(OTHER, Reserve(world.peers[RELAY])), PeerUnreachable)


class Minds(World):
    """The same hosts, each with the machine that judges whether it can be reached."""

    def __init__(self) -> None:
        super().__init__()
        self.minds: list[Reachability] = []
        for number, peer in enumerate(self.peers):
            jobs = JobIds()
            jobs.start(1)
            use: RelayUse = "serve" if number == RELAY else "client"
            self.minds.append(Reachability(peer, ReachConfig(relay=use), random.Random(number), jobs))
            self.events[number] = _Feed(self, number)  # type: ignore[assignment]
            self.nodes[number]._emit = self.events[number].append
            self.tell(number, Publish(PeerValue(addrs=self.nodes[number].listen_addrs(), cert=())))

    def tell(self, number: int, event: object) -> None:
        for effect in self.minds[number].handle(event, self.heap.now_us):
            self._carry_out(number, effect)

    def _carry_out(self, number: int, effect: Effect) -> None:
        match effect:
            case Send(peer, lane, frame):
                self.nodes[number].send(peer, lane, encode_frame(frame))
            case SetTimer(key, at_us):
                self.heap.at(at_us, lambda: self.tell(number, TimerFired(key)))
            case StartJob(job, ReachTest() | Reserve() as spec):
                self.nodes[number].reach_out(
                    spec,
                    lambda found: self.tell(
                        number, JobFailed(job, found) if isinstance(found, PeerUnreachable) else JobDone(job, found)
                    ),
                )
            case Local(event):
                self.tell(number, event)
            case _:
                pass

    def on_event(self, number: int, event: TransportEvent) -> None:
        match event:
            case LinkUp(peer):
                of = self.peers.index(peer)
                roles = (MEMBER, RELAY_ROLE) if of == RELAY else (MEMBER,)
                greeting = hello(keypair(f"nat {of}"), features=(versions.DIAL_BACK,), roles=roles)
                self.tell(number, Linked(peer, greeting))
                if self.nodes[number].accepted(peer):
                    self.tell(number, InboundLink(peer))
            case LinkFrame(peer, lane, raw):
                frame = decode_frame(raw, lane)
                assert LANE_OF[type(frame)] is lane
                self.tell(number, Received(peer, frame))
            case LinkDown(peer):
                self.tell(number, Unlinked(peer))
            case _:
                pass


class _Feed(list[TransportEvent]):
    """Keeps the events of a host and hands them to its mind."""

    def __init__(self, minds: Minds, number: int) -> None:
        super().__init__()
        self._minds, self._number = minds, number

    def append(self, event: TransportEvent) -> None:
        super().append(event)
        self._minds.on_event(self._number, event)


def test_every_host_finds_out_what_it_is_and_the_hidden_ones_stay_reachable() -> None:
    world = Minds()
    for number in (HIDDEN, OTHER, HIDDEN_TOO):
        world.dial(number, RELAY)
        if number != OTHER:
            world.dial(number, OTHER)
    world.run(60_000_000)
    assert [mind.verdict for mind in world.minds] == ["direct", "relay", "direct", "relay"]
    assert [mind.serving for mind in world.minds] == [True, False, True, False]
    (circuit,) = world.minds[HIDDEN].status(world.heap.now_us)["relay_addrs"]  # type: ignore[misc]
    world.dial(HIDDEN_TOO, HIDDEN, str(circuit))
    assert world.peers[HIDDEN] in world.nodes[HIDDEN_TOO].ends
    world.nodes[RELAY].kill()
    world.run()
    assert [world.minds[number].verdict for number in (HIDDEN, HIDDEN_TOO)] == ["outbound-only"] * 2
