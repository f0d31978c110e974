"""What the core says of the other nodes: each once, in its worst state, while it is linked, known or a member.

The states are those of a swarm in virtual time; the words that a person reads are tested in test_cli_find.py.
"""

from __future__ import annotations

from typing import Any

import pytest

from gossip.config import GossipConfig
from node.core import PEER_STATES, CoreConfig, ListPeers, Status
from protocol.peer import peer_text
from simulations.swarm import SimSwarm, SwarmConfig


def asked(swarm: SimSwarm, node: int, command: object) -> Any:
    ask = swarm.hosts[node].ask(command)
    swarm.run_until(lambda: ask.done, 30)
    return ask.result


def rows_of(swarm: SimSwarm, node: int) -> dict[int, dict[str, Any]]:
    """The rows at a node by the number of the peer."""
    numbers = {peer_text(host.peer): number for number, host in enumerate(swarm.hosts)}
    rows = asked(swarm, node, ListPeers())
    states = [PEER_STATES.index(row["state"]) for row in rows]
    assert states == sorted(states)
    found = {numbers[row["peer"]]: row for row in rows}
    assert len(found) == len(rows), "a peer is listed twice"
    assert node not in found, "a node is no peer of itself"
    return found


def states(swarm: SimSwarm, node: int) -> dict[int, str]:
    return {number: row["state"] for number, row in rows_of(swarm, node).items()}


def begun(n: int, gossip: GossipConfig | None = None) -> SimSwarm:
    core = CoreConfig(gossip=gossip or GossipConfig())
    swarm = SimSwarm(SwarmConfig(n=n, core=core), 5)
    swarm.begin()
    swarm.run_for(10)
    return swarm


def test_a_linked_peer_has_all_figures_and_no_trouble() -> None:
    swarm = begun(3)
    for row in rows_of(swarm, 0).values():
        assert (row["state"], row["linked"], row["why"], row["code"], row["reason"]) == ("linked", True, "", "", "")
        assert row["since_s"] >= 5
        assert row["rtt_ms"] > 0
        assert isinstance(row["score"], float)
        assert row["roles"] == ["member"]
        assert row["addrs"]
        assert row["offer"]["model"] == "scripted"


def test_who_died_who_left_and_who_came_back_are_told_apart() -> None:
    swarm = begun(5)
    swarm.crash(3)
    swarm.stop(4)
    swarm.run_for(20)
    rows = rows_of(swarm, 0)
    assert {number: row["state"] for number, row in rows.items()} == {1: "linked", 2: "linked", 3: "dead", 4: "left"}
    for row in (rows[3], rows[4]):
        assert (row["linked"], row["rtt_ms"], row["score"]) == (False, None, None)
        assert 0 < row["since_s"] <= 20
    assert rows[3]["code"] == "unreachable"
    assert 0 <= rows[3]["reason_age_s"] <= 20
    assert rows[4]["code"] == "", "who left is not dialled"
    assert (rows[3]["why"], rows[4]["why"]) == ("link lost", "left")
    counts = asked(swarm, 0, Status())["members"]
    assert (counts["alive"], counts["suspect"], counts["dead"], counts["left"]) == (2, 0, 1, 1)
    swarm.restart(3)
    swarm.restart(4)
    swarm.run_for(30)
    assert states(swarm, 0) == dict.fromkeys(range(1, 5), "linked")


def test_a_peer_that_does_not_answer_is_suspect_though_its_link_stands() -> None:
    swarm = begun(5)
    swarm.suspend(4, 8_000_000)
    seen: list[dict[str, Any]] = []
    for _ in range(6):
        swarm.run_for(1)
        seen.append(rows_of(swarm, 0)[4])
    assert any(row["state"] == "suspect" and row["linked"] and row["why"] for row in seen)
    swarm.run_for(30)
    assert states(swarm, 0)[4] == "linked"


def test_a_member_without_a_link_is_alive_and_a_dead_one_is_told_of() -> None:
    """Above `links_full_max` nobody links to all, and everybody still sees everybody."""
    swarm = begun(8, GossipConfig(links_full_max=2, links_min=2, links_max=3))
    swarm.run_for(90)
    first = states(swarm, 0)
    assert set(first) == set(range(1, 8))
    assert set(first.values()) == {"linked", "alive"}
    dies = next(number for number, state in first.items() if state == "alive" and number > 1)
    rows = rows_of(swarm, 0)
    assert (rows[dies]["linked"], rows[dies]["heard_ms"], rows[dies]["rtt_ms"]) == (False, None, None)
    assert rows[dies]["since_s"] > 0
    swarm.crash(dies)
    swarm.run_for(120)
    assert states(swarm, 0)[dies] == "dead"


def test_members_above_the_table_of_known_peers_are_listed_up_and_down() -> None:
    swarm = begun(8, GossipConfig(known_peers_max=3, links_full_max=2, links_min=2, links_max=3))
    swarm.run_for(90)
    known = asked(swarm, 0, Status())["known"]
    assert len(known) == 3
    dies = next(number for number in range(1, 8) if peer_text(swarm.hosts[number].peer) not in known)
    assert set(states(swarm, 0)) == set(range(1, 8))
    swarm.crash(dies)
    swarm.run_for(120)
    assert states(swarm, 0)[dies] == "dead"


@pytest.mark.slow
def test_a_dead_member_is_forgotten_and_is_only_dialled_then() -> None:
    swarm = begun(3)
    swarm.crash(2)
    swarm.run_for(60)
    assert states(swarm, 0)[2] == "dead"
    swarm.run_for(1_600)
    row = rows_of(swarm, 0)[2]
    assert (row["state"], row["why"], row["since_s"], row["code"]) == ("dialling", "", None, "unreachable")


def test_a_light_node_lists_its_members_and_says_that_it_is_light() -> None:
    swarm = begun(4, GossipConfig(light_index=True))
    swarm.run_for(60)
    swarm.stop(3)
    swarm.run_for(10)
    assert states(swarm, 0) == {1: "linked", 2: "linked", 3: "left"}
    status = asked(swarm, 0, Status())
    assert (status["index"], status["index_complete"]) == ("light", False)
    assert asked(begun(2), 0, Status())["index"] == "complete"


def test_refusals_tell_how_long_ago() -> None:
    swarm = begun(2)
    swarm.crash(1)
    swarm.run_for(60)
    ages = [each["age_s"] for each in asked(swarm, 0, Status())["refusals"]]
    assert len(ages) > 3
    assert ages == sorted(ages, reverse=True)
    assert 0 <= ages[-1] <= 60 <= ages[0] <= 75, "the first dial was made before the other node was up"
