"""Being found in a swarm: published once, held by everybody, gone when its node leaves; ghosts are told apart."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import pytest

from gossip.pings import PingPeer
from kernel import behaviour, trust
from kernel.commands import FindAgents, ListAgents
from kernel.discovery import Filters
from kernel.trust import Trust
from kernel.turns.fold import TaskFold
from node.core import ListPeers
from protocol.errors import PeerUnreachable
from protocol.peer import peer_text
from simulations.swarm import SimSwarm, SwarmConfig

TEXT = "Reads the quoted material and works out what in it bears on the task."  # what the roles of all nodes share


def asked(swarm: SimSwarm, node: int, command: object) -> Any:
    ask = swarm.hosts[node].ask(command)
    swarm.run_until(lambda: ask.done, 30)
    return ask.result


def found(swarm: SimSwarm, node: int, **changes: Any) -> dict[str, Any]:
    value = asked(swarm, node, FindAgents(TEXT, Filters(**changes), 100, explain=True))
    assert isinstance(value, dict)
    return value


def peers_of(swarm: SimSwarm, *nodes: int) -> set[str]:
    return {peer_text(swarm.hosts[node].peer) for node in nodes}


def begun(n: int, seed: int = 5) -> SimSwarm:
    swarm = SimSwarm(SwarmConfig(n=n), seed)
    swarm.begin()
    swarm.run_for(10)
    return swarm


@pytest.mark.parametrize("n", [5, pytest.param(16, marks=pytest.mark.slow)])
def test_everybody_finds_everybody_by_meaning(n: int) -> None:
    swarm = begun(n)
    for node in range(n):
        value = found(swarm, node)
        assert {line["peer"] for line in value["agents"]} == peers_of(swarm, *range(n))
        assert value["rejected"] == []
        assert {(line["model"], line["encoder"]) for line in value["agents"]} == {("scripted", "scripted")}
        assert all(line["score"] > 0.5 for line in value["agents"])
        assert [line["mine"] for line in value["agents"]].count(True) == 1


def test_a_node_that_leaves_is_gone_at_once_and_so_is_one_that_dies() -> None:
    """Case D2: the record of the dead one lives on for hours, and offers nobody any more."""
    swarm = begun(5)
    swarm.stop(3)
    swarm.crash(4)
    swarm.run_for(20)
    value = found(swarm, 0)
    assert {line["peer"] for line in value["agents"]} == peers_of(swarm, 0, 1, 2)
    assert {line["peer"]: line["reason"] for line in value["rejected"]} == {
        **dict.fromkeys(peers_of(swarm, 3), "withdrawn"),
        **dict.fromkeys(peers_of(swarm, 4), "down"),
    }
    assert [line["peer"] for line in asked(swarm, 0, ListAgents())] == [line["peer"] for line in value["agents"]]
    swarm.restart(4)
    swarm.run_for(10)
    assert {line["peer"] for line in found(swarm, 0)["agents"]} == peers_of(swarm, 0, 1, 2, 4)


def test_a_filter_that_nobody_passes_finds_nobody_and_names_all() -> None:
    swarm = begun(5)
    value = found(swarm, 1, context_tokens_min=10**6)
    assert value["agents"] == []
    assert {line["reason"] for line in value["rejected"]} == {"context"}
    assert len(value["rejected"]) == 5


def test_turns_that_were_seen_give_trust() -> None:
    swarm = begun(5)
    assert {line["trust"] for line in found(swarm, 0)["agents"]} == {None}
    ask = swarm.submit(0, "k", "Which clause ends the lease?")
    swarm.run_until(lambda: ask.done and swarm.ended("k"), 600)
    figures = {line["peer"]: (line["trust"], line["turns_seen"]) for line in found(swarm, 1)["agents"]}
    assert sum(turns for _, turns in figures.values()) >= 3
    assert all(trust is None if turns == 0 else trust > 0.5 for trust, turns in figures.values())


def test_what_peers_are_worth_in_the_mesh_is_counted_once_for_all_tasks_that_ended(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A boot meets thousands of ended tasks at once; counting anew for each would make it quadratic."""
    counted: list[int] = []

    def first_hand(folds: Iterable[TaskFold]) -> dict[bytes, Trust]:
        counted.append(1)
        return trust.first_hand(folds)

    swarm = begun(3)
    asks = [swarm.submit(0, f"k{number}", "Which clause ends the lease?") for number in range(4)]
    monkeypatch.setattr(behaviour, "first_hand", first_hand)
    swarm.run_until(lambda: all(ask.done for ask in asks) and all(swarm.ended(f"k{n}") for n in range(4)), 900)
    swarm.run_for(3)  # heartbeats ask for everybody's worth
    swarm.crash(1)
    counted.clear()
    swarm.restart(1)
    assert not counted, "no mesh asked yet"
    swarm.run_for(5)
    assert len(counted) == 1
    assert any(swarm.hosts[1].core.kernel.worth(host.peer) > 0 for host in swarm.hosts)


def test_peers_and_pings_tell_who_is_there_and_how_far() -> None:
    swarm = begun(5)
    swarm.crash(4)
    swarm.run_for(20)
    rows = asked(swarm, 0, ListPeers())
    assert {row["peer"]: row["state"] for row in rows} == {
        **dict.fromkeys(peers_of(swarm, 1, 2, 3), "linked"),
        **dict.fromkeys(peers_of(swarm, 4), "dead"),
    }
    for row in rows:
        linked = row["state"] == "linked"
        assert (row["rtt_ms"] is not None) is linked
        assert row["offer"]["model"] == "scripted"
        reply = asked(swarm, 0, PingPeer(row["peer"]))
        if linked:
            assert reply["rtt_us"] > 0
        else:
            assert isinstance(reply, PeerUnreachable)
