"""A node without an index gives work away: who could do it is asked of the DHT."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from dht.placement import train
from gossip.config import GossipConfig
from kernel.agents.roles import CONCLUDER, CRITIC, REASONING, ROSTER
from kernel.commands import ListAgents
from kernel.discovery import capability_text
from node.core import CoreConfig, Membership, NodeCore
from protocol.errors import Refused
from protocol.identity import KeyPair
from protocol.peer import peer_text
from simulations.engine import ENCODER, EngineConfig, embed
from simulations.host import EPOCH_US
from simulations.rng import derive, stream
from simulations.swarm import SimSwarm, SwarmConfig
from tests.simulations.test_sim_large import trade

LIGHT, DIM, SEED = 4, 64, 21


def codebook() -> bytes:
    texts = [trade(node) for node in range(144)] + [capability_text("", (), ROSTER.names)] * 9
    vectors = [embed(text, DIM) for text in texts]
    return train(vectors, encoder=ENCODER, made_ms=EPOCH_US // 1_000, count=16, rng=stream(SEED, "codebook")).wire


def swarm(
    *,
    light: tuple[str, ...] = (),
    others: tuple[str, ...] = ROSTER.names,
    books: int = 1,
    records_max: int | None = None,
) -> SimSwarm:
    """Five nodes; the last one is light, or holds `records_max`. `light` and `others` are the roles that they run."""
    gossip = GossipConfig()
    gossip = replace(gossip, light_index=True) if records_max is None else replace(gossip, records_max=records_max)
    core = CoreConfig(codebooks=(codebook(),) * books)
    key = KeyPair(derive(SEED, "node", LIGHT)).public

    def build(member: Membership, config: CoreConfig, *args: Any, **more: Any) -> NodeCore:
        mine = replace(config, gossip=gossip)
        return NodeCore(member, mine if member.node.public == key else config, *args, **more)

    made = SimSwarm(SwarmConfig(n=5, core=core, dim=DIM, build_core=build), SEED)
    for host in made.hosts:
        host.engine.config = replace(EngineConfig(), roles=light if host.index == LIGHT else others)
    made.start()
    made.run_for(60)
    return made


@pytest.mark.parametrize("records_max", [None, 5])
def test_a_node_without_the_whole_index_submits_a_task_and_it_is_answered(records_max: int | None) -> None:
    made = swarm(records_max=records_max)
    assert not made.hosts[LIGHT].core.kernel.offers()
    assert not made.hosts[LIGHT].core.records.complete
    ask = made.submit(LIGHT, "k", "Which clause ends the lease?")
    made.run_until(lambda: ask.done, 60)
    assert ask.ok, ask.result
    made.run_until(lambda: made.ended("k"), 600)
    task = made.task(0, "k")
    assert task is not None
    assert task.fold.outcome == "answer"
    assert made.hosts[LIGHT].core.counters["roles_sought"] == 1
    made.run_for(60)
    made.check_end()


def test_a_light_node_that_took_a_turn_names_a_peer_whose_record_it_never_held() -> None:
    made = swarm(light=(REASONING,), others=(CRITIC, CONCLUDER))
    ask = made.submit(LIGHT, "k", "Which clause ends the lease?")
    made.run_until(lambda: ask.done, 60)
    assert ask.ok, ask.result
    made.run_until(lambda: made.ended("k"), 600)
    task = made.task(0, "k")
    assert task is not None
    assert task.fold.outcome == "answer"
    assert {node for node, step, _ in made.turns("k") if step == 1} == {LIGHT}
    assert LIGHT not in {node for node, step, _ in made.turns("k") if step > 1}


@pytest.mark.parametrize(("books", "why"), [(1, "the DHT named nobody"), (0, "no codebook")])
def test_where_the_dht_names_nobody_the_error_says_what_was_not_known(books: int, why: str) -> None:
    made = swarm(others=(), books=books)
    ask = made.submit(LIGHT, "k")
    made.run_until(lambda: ask.done, 60)
    assert isinstance(ask.result, Refused)
    assert "nobody runs reasoning" in ask.result.message
    assert "this node keeps no index of all agents" in ask.result.message
    assert why in ask.result.message


def test_who_died_before_a_node_came_is_listed_until_silence_says_that_it_died_and_never_named_for_a_turn() -> None:
    """Nobody who saw the death need be there to tell: here all the others restart after it."""
    made = SimSwarm(SwarmConfig(n=5), SEED)
    made.begin()
    made.run_for(10)
    for node in range(5):
        made.crash(node)
    for node in range(4):
        made.restart(node)
    made.run_for(30)
    ghost = peer_text(made.hosts[4].peer)
    assert {line["peer"]: line["alive"] for line in listed(made, 0)} == {
        **{peer_text(host.peer): True for host in made.hosts[:4]},
        ghost: None,
    }
    ask = made.submit(0, "k", "Which clause ends the lease?")
    made.run_until(lambda: ask.done and made.ended("k"), 600)
    task = made.task(0, "k")
    assert task is not None
    assert task.fold.outcome == "answer"
    named = [task.open.next, *(done.next for i in task.fold.chain if (done := task.fold.done(i)) is not None)]
    assert made.hosts[4].peer not in {following.peer for following in named if following is not None}
    made.run_for(200)
    assert ghost not in {line["peer"] for line in listed(made, 0)}
    made.restart(4)
    made.run_for(10)
    assert {line["peer"]: line["alive"] for line in listed(made, 0)}[ghost] is True


def listed(made: SimSwarm, node: int) -> list[dict[str, Any]]:
    ask = made.hosts[node].ask(ListAgents())
    made.run_until(lambda: ask.done, 10)
    assert isinstance(ask.result, list)
    return ask.result
