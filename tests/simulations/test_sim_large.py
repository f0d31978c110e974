"""Swarms above the full mesh in virtual time: bounded links, everybody found, the DHT beyond the index."""

from __future__ import annotations

import os
import random
from dataclasses import replace
from typing import Any

import pytest

from dht.placement import train
from gossip.config import GossipConfig
from gossip.dialling import LINK_AGE_MIN_US, TOPOLOGY_EVERY_US
from kernel.commands import FindAgents, Offer
from node.core import CoreConfig
from protocol.peer import peer_text
from simulations.engine import ENCODER, EngineConfig, embed
from simulations.host import EPOCH_US, SimHost
from simulations.swarm import SimSwarm, SwarmConfig

DIM = 64
on_ci = pytest.mark.skipif(not os.environ.get("CI"), reason="CI only: minutes of CPU")
DEEDS = (
    "reads",
    "drafts",
    "checks",
    "counts",
    "paints",
    "mends",
    "tastes",
    "prunes",
    "tunes",
    "folds",
    "maps",
    "weighs",
)
THINGS = (
    "leases",
    "bills",
    "bridges",
    "fiddles",
    "trees",
    "soups",
    "pumps",
    "charts",
    "poems",
    "kites",
    "wells",
    "glass",
)


def trade(node: int) -> str:
    """What a node is good at: no two of the first 144 share both words."""
    return f"{DEEDS[node % 12]} {THINGS[node // 12 % 12]} lot{node}"


def codebook() -> bytes:
    """A codebook of the simulated encoder, as a release ships one for a real encoder."""
    texts = [trade(node) for node in range(144)]
    vectors = [embed(text, DIM) for text in texts]
    return train(vectors, encoder=ENCODER, made_ms=EPOCH_US // 1_000, count=16, rng=random.Random(1)).wire


def config(n: int, **gossip: Any) -> SwarmConfig:
    core = CoreConfig(gossip=replace(GossipConfig(), **gossip), codebooks=(codebook(),))
    engine = EngineConfig()
    return SwarmConfig(
        n=n, core=core, engine=engine, dim=DIM, wire="frozen", boot_spread_us=20_000_000,
        offer=lambda node: Offer(description=trade(node)),
    )  # fmt: skip


def begun(n: int, seed: int, **gossip: Any) -> SimSwarm:
    swarm = SimSwarm(config(n, **gossip), seed, checkers=())
    swarm.begin(300)
    return swarm


def find(swarm: SimSwarm, node: int, text: str) -> dict[str, Any]:
    ask = swarm.hosts[node].ask(FindAgents(text, limit=5))
    swarm.run_until(lambda: ask.done, 60)
    assert isinstance(ask.result, dict), ask.result
    return ask.result


def settled(host: SimHost) -> int:
    """Links that are old enough to be let go, and were looked at since; look-ups of the DHT open others for a while."""
    settled_us = LINK_AGE_MIN_US + TOPOLOGY_EVERY_US
    views = [host.core.links.view_of(peer) for peer in host.core.links.linked]
    return sum(view is not None and host.now_us - view.since_us > settled_us for view in views)


def finds(swarm: SimSwarm, pairs: list[tuple[int, int]]) -> list[bool]:
    """For each (asker, wanted): whether the wanted node is the best hit."""
    hits = []
    for asker, wanted in pairs:
        agents = find(swarm, asker, trade(wanted))["agents"]
        hits.append(bool(agents) and agents[0]["peer"] == peer_text(swarm.hosts[wanted].peer))
    return hits


@on_ci
@pytest.mark.slow
def test_at_128_nodes_links_are_bounded_and_everybody_is_found_also_after_30_percent_died() -> None:
    n, rng = 128, random.Random(4)
    swarm = begun(n, seed=11)
    swarm.run_for(60)
    assert max(map(settled, swarm.hosts)) <= GossipConfig().links_max
    assert max(len(host.core.links.linked) for host in swarm.hosts) <= 2 * GossipConfig().links_max
    assert finds(swarm, [(rng.randrange(n), wanted) for wanted in range(n)]) == [True] * n
    dead = rng.sample(range(n), int(0.3 * n))
    for node in dead:
        swarm.crash(node)
    left = [node for node in range(n) if node not in dead]
    swarm.run_for(60)
    gone = {swarm.hosts[node].peer for node in dead}
    for node in left:
        assert not gone & set(swarm.hosts[node].core.members.alive()), "a ghost is taken for alive"
    hits = finds(swarm, [(rng.choice(left), wanted) for wanted in left])
    assert sum(hits) / len(hits) >= 0.99


@on_ci
@pytest.mark.slow
def test_beyond_the_index_everybody_is_found_through_the_dht() -> None:
    """128 nodes give 256 records; 200 fit."""
    n, rng = 128, random.Random(5)
    swarm = begun(n, seed=12, records_max=200)
    swarm.run_for(120)
    assert not any(host.core.records.complete for host in swarm.hosts)
    wanted = rng.sample(range(n), 40)
    sources = {find(swarm, rng.randrange(n), trade(node))["source"] for node in wanted[:3]}
    assert sources == {"index+dht"}
    assert finds(swarm, [(rng.randrange(n), node) for node in wanted]) == [True] * len(wanted)


def test_a_light_node_holds_no_index_and_finds_through_the_dht() -> None:
    n = 24
    swarm = begun(n, seed=13, light_index=True)
    swarm.run_for(60)
    assert not any(host.core.records.complete for host in swarm.hosts)
    assert finds(swarm, [(0, 17), (5, 3), (23, 11)]) == [True] * 3
