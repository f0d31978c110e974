"""Nodes of one swarm find each other on the local network, and nobody there makes them dial anywhere else."""

from __future__ import annotations

import logging

import pytest
import trio
from hypothesis import given, strategies as st

import node.mdns
from node.mdns import AGAIN_S, CANDIDATES_MAX, Candidates, LanDiscovery, advertisement, candidate, service_type
from protocol.errors import ConfigError
from protocol.peer import ADDRESSES_PER_PEER_MAX, Multiaddr, PeerID, PeerInfo, peer_text
from tests.strategies import ids, keypair

SWARM, OTHER_SWARM = b"s" * 32, b"o" * 32
A, B, C = (PeerID(keypair(f"mdns {name}").public) for name in "abc")
FOUND_S = 10.0


def said(peer: PeerID, *addrs: str, swarm_id: bytes = SWARM) -> PeerInfo | None:
    """What others make of an announcement."""
    info = advertisement(swarm_id, peer, addrs)
    return candidate(info.name, info.properties) if info is not None else None


def test_what_is_announced_is_what_is_found() -> None:
    addrs = ("/ip4/10.0.0.7/tcp/4001", "/ip6/fd00::7/tcp/4001", "/ip4/192.168.1.7/tcp/4001")
    assert said(A, *addrs) == PeerInfo(A, addrs)


def test_public_addresses_circuits_and_wildcards_stay_out() -> None:
    circuit = str(Multiaddr("10.0.0.1", 1, A, B))
    addrs = ("/ip4/8.8.8.8/tcp/1", circuit, "/ip4/0.0.0.0/tcp/1", "/ip4/10.0.0.7/tcp/0", "/ip4/10.0.0.7/tcp/2")
    assert said(A, *addrs) == PeerInfo(A, ("/ip4/10.0.0.7/tcp/2",))
    assert advertisement(SWARM, A, addrs[:4]) is None


@pytest.mark.parametrize(
    "addr",
    [
        b"/ip4/8.8.8.8/tcp/80", b"/ip6/2606:4700::1/tcp/80", b"/ip4/10.0.0.1/tcp/0", b"/ip4/224.0.0.1/tcp/1", b"\xff",
        b"", None, b"/dns4/example.org/tcp/1", str(Multiaddr("10.0.0.1", 1, A, B)).encode(),
        b"/ip4/169.254.1.1/tcp/1", b"/ip6/::ffff:8.8.8.8/tcp/1", str(Multiaddr("10.0.0.1", 1, B)).encode(),
    ],
)  # fmt: skip
def test_nobody_on_the_network_sends_a_node_elsewhere(addr: bytes | None) -> None:
    assert candidate(f"{peer_text(A)}.{service_type(SWARM)}", {b"a0": addr}) is None


@given(st.text(max_size=80), st.dictionaries(st.binary(max_size=4), st.none() | st.binary(max_size=60), max_size=6))
def test_any_answer_is_a_candidate_or_nothing(name: str, properties: dict[bytes, bytes | None]) -> None:
    info = candidate(name, properties)
    assert info is None or 0 < len(info.addrs) <= ADDRESSES_PER_PEER_MAX


def test_swarms_have_types_of_their_own_that_dns_allows() -> None:
    kinds = {service_type(bytes([n]) * 32) for n in range(100)}
    assert len(kinds) == 100
    assert all(len(kind.partition(".")[0]) - 1 <= 15 for kind in kinds)


def test_a_candidate_is_handed_on_once_in_a_while_and_never_oneself() -> None:
    candidates = Candidates(A)
    info = PeerInfo(B, ("/ip4/10.0.0.7/tcp/2",))
    assert candidates.take(info, 0.0)
    assert not candidates.take(info, AGAIN_S - 1)
    assert candidates.take(info, AGAIN_S + 1)
    assert not candidates.take(PeerInfo(A, info.addrs), 0.0)


@given(st.lists(ids.map(PeerID), min_size=CANDIDATES_MAX + 1, max_size=CANDIDATES_MAX + 20, unique=True))
def test_a_flood_of_answers_is_a_bounded_number_of_dials(peers: list[PeerID]) -> None:
    candidates = Candidates(A)
    assert sum(candidates.take(PeerInfo(peer, ("x",)), 0.0) for peer in peers) <= CANDIDATES_MAX


async def test_a_machine_that_cannot_says_so() -> None:
    lan = LanDiscovery(SWARM, A, ("203.0.113.254",))
    with pytest.raises(ConfigError, match="multicast DNS"):
        async with lan.run((), lambda _info: None):
            pass


@pytest.mark.slow
async def test_who_could_not_be_dialled_is_tried_again(monkeypatch: pytest.MonkeyPatch) -> None:
    logging.getLogger("zeroconf").setLevel(logging.CRITICAL)
    monkeypatch.setattr(node.mdns, "AGAIN_S", 0.5)
    found: list[PeerInfo] = []
    near, far = (LanDiscovery(SWARM, peer, ("127.0.0.1",)) for peer in (A, B))
    async with near.run((), found.append), far.run(("/ip4/127.0.0.1/tcp/2",), lambda _info: None):
        with trio.move_on_after(FOUND_S):
            while len(found) < 3:  # noqa: ASYNC110 - it comes from threads
                await trio.sleep(0.05)
    if not found:
        pytest.skip("multicast on loopback carries nothing here")
    assert found[:3] == [PeerInfo(B, ("/ip4/127.0.0.1/tcp/2",))] * 3


@pytest.mark.slow
async def test_nodes_of_one_swarm_find_each_other_and_no_others() -> None:
    """Real multicast, on the loopback interface alone."""
    logging.getLogger("zeroconf").setLevel(logging.CRITICAL)
    found: dict[PeerID, list[PeerInfo]] = {peer: [] for peer in (A, B, C)}
    swarms = {A: SWARM, B: SWARM, C: OTHER_SWARM}

    async def play(peer: PeerID, port: int, up: trio.Event) -> None:
        lan = LanDiscovery(swarms[peer], peer, ("127.0.0.1",))
        async with lan.run((f"/ip4/127.0.0.1/tcp/{port}",), found[peer].append):
            up.set()
            await trio.sleep_forever()

    async with trio.open_nursery() as nursery:
        for port, peer in enumerate(found, 1):
            up = trio.Event()
            try:
                nursery.start_soon(play, peer, port, up)
                await up.wait()
            except ConfigError as exc:
                pytest.skip(f"no multicast on loopback here: {exc.message}")
        with trio.move_on_after(FOUND_S):
            while not (found[A] and found[B]):  # noqa: ASYNC110 - it comes from threads
                await trio.sleep(0.05)
        nursery.cancel_scope.cancel()
    if not (found[A] or found[B]):
        pytest.skip("multicast on loopback carries nothing here")
    assert found == {A: [PeerInfo(B, ("/ip4/127.0.0.1/tcp/2",))], B: [PeerInfo(A, ("/ip4/127.0.0.1/tcp/1",))], C: []}
