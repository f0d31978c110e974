"""Complaints 4, 5, 9 and 13, case D2, in virtual time: what nodes that come and go may not do to a task or an offer.

A task whose owner dies at any stage and stays away ends on every other node before its deadline, answered where
somebody can work and by a named state where nobody can. Who died or left is chosen for nothing any more. The answer is,
to the byte, that of a run without churn. What is offered is found by who was there before and by who comes after, also
where the push of it was lost. Every checker of the simulator is on.
"""

from __future__ import annotations

import pytest

from kernel.commands import FindAgents
from kernel.discovery import Filters
from kernel.jobs import TurnResult
from kernel.task import Stage, Task
from protocol.peer import peer_text
from protocol.records import ENDS, Unit
from simulations.engine import EngineConfig
from simulations.swarm import SimSwarm, SwarmConfig

KEY = "the task"
CONFIG = SwarmConfig(engine=EngineConfig(decide_us=1_000_000))
STAGES: tuple[Stage, ...] = ("claiming", "running", "writing", "deciding")
DEADLINE_S = 240
LATE_S = 15.0  # after the deadline: to write the end, and for everybody to hear of it
GONE_S = 20.0  # silence, and the ping that finds it
FOUND_S = 30.0  # a round of repair
RESTARTS = 4


def submitted(seed: int) -> SimSwarm:
    swarm = SimSwarm(CONFIG, seed)
    swarm.begin()
    ask = swarm.submit(0, KEY, deadline_ms=DEADLINE_S * 1_000)
    swarm.run_until(lambda: ask.done, 30)
    assert ask.ok, ask.result
    return swarm


def until_stage(swarm: SimSwarm, step: int, stage: Stage) -> int:
    """Run until somebody is in a stage of a step; who."""

    def at() -> list[int]:
        tasks = [(host.index, swarm.task(host.index, KEY)) for host in swarm.up()]
        return [n for n, task in tasks if task and task.run and (task.run.step, task.run.stage) == (step, stage)]

    swarm.run_until(lambda: bool(at()), 120)
    return at()[0]


def tasks(swarm: SimSwarm) -> list[Task]:
    """As every node that is up sees it."""
    found = [swarm.task(host.index, KEY) for host in swarm.up()]
    assert all(task is not None for task in found)
    return [task for task in found if task is not None]


# ---- complaint 5


@pytest.mark.parametrize("stage", STAGES)
@pytest.mark.parametrize("step", [1, 2, 3])
def test_an_owner_that_dies_for_good_at_any_stage_costs_a_lease_and_not_the_answer(step: int, stage: Stage) -> None:
    swarm = submitted(21)
    owner = until_stage(swarm, step, stage)
    swarm.crash(owner)
    swarm.run_until(lambda: swarm.ended(KEY), DEADLINE_S)
    assert {task.fold.outcome for task in tasks(swarm)} == {"answer"}
    swarm.settle()


@pytest.mark.parametrize("stage", STAGES)
@pytest.mark.parametrize("others", ["hang", "fail"])
def test_where_nobody_else_can_work_the_task_ends_by_name_before_or_at_its_deadline(others: str, stage: Stage) -> None:
    swarm = submitted(22)
    owner = until_stage(swarm, 2, stage)
    for host in swarm.hosts:
        if host.index != owner:
            swarm.script(host.index, others)  # type: ignore[arg-type]
    swarm.crash(owner)
    swarm.run_until(lambda: swarm.ended(KEY), DEADLINE_S + LATE_S)
    outcomes = {task.fold.outcome for task in tasks(swarm)}
    assert len(outcomes) == 1
    assert outcomes <= ENDS


# ---- complaint 4, case D2


def chosen_since(swarm: SimSwarm, task: Task, hlc: int) -> set[int]:
    """Nodes that were named as the next by a decision after a stamp, on the effective chain."""
    index_of = {host.peer: host.index for host in swarm.hosts}
    dones = [(task.fold.done(done_id), task.log.get(done_id)) for done_id in task.fold.chain]
    named = [done.next.peer for done, op in dones if done and op and op.hlc > hlc and done.next is not None]
    return {index_of[peer] for peer in named if peer is not None}  # type: ignore[index]


@pytest.mark.parametrize("seed", range(31, 35))
def test_nobody_who_left_died_or_was_restarted_often_is_a_ghost_that_gets_a_task(seed: int) -> None:
    swarm = SimSwarm(CONFIG, seed)
    swarm.begin()
    for _ in range(RESTARTS):
        swarm.crash(2)
        swarm.run_for(3)
        swarm.restart(2)
        swarm.run_for(5)
    swarm.stop(3)
    swarm.crash(4)
    swarm.run_for(GONE_S)
    living = {host.peer for host in swarm.up()}
    for host in swarm.up():
        assert set(host.core.links.linked) == living - {host.peer}
    ask = swarm.submit(0, KEY)
    swarm.run_until(lambda: ask.done, 30)
    assert ask.ok, ask.result
    swarm.run_until(lambda: swarm.ended(KEY), 120)
    for task in tasks(swarm):
        assert task.fold.outcome == "answer"
        assert chosen_since(swarm, task, 0) <= {0, 1, 2}
    assert {ended for _, _, ended in swarm.turns(KEY)} == {"answered"}, "a turn was tried in vain"


# ---- complaint 9


def written(swarm: SimSwarm, node: int) -> dict[int, str | None]:
    """What one node holds as written by the agents, by step of the effective chain."""
    task = swarm.task(node, KEY)
    assert task is not None
    assert task.fold.outcome == "answer"
    found: dict[int, str | None] = {}
    for step, done_id in enumerate(task.fold.chain, 1):
        done = task.fold.done(done_id)
        unit = task.log.record(done.unit) if done and done.unit else None
        found[step] = unit.content if isinstance(unit, Unit) else None
    return found


def said(swarm: SimSwarm) -> dict[int, str]:
    """What each turn that was answered says when it is run again with nothing beside it, by step."""
    found: dict[int, str] = {}
    for host in swarm.hosts:
        for ran in host.turns:
            if ran.spec.space == swarm.submitted[KEY] and ran.ended == "answered":
                assert ran.spec.step not in found, "a turn ran twice although its owner was there"
                result = host.engine.plan(ran.spec).result
                assert isinstance(result, TurnResult)
                found[ran.spec.step] = result.content
    return found


@pytest.mark.parametrize("seed", range(41, 49))
def test_joins_and_deaths_beside_a_running_turn_change_no_byte_of_its_reply(seed: int) -> None:
    swarm = submitted(seed)
    churns = 0
    while not swarm.ended(KEY):
        owner = swarm.owner(KEY)
        bystanders = [host.index for host in swarm.hosts if host.index not in (0, owner) and host.up]
        if owner is not None and bystanders:
            victim = bystanders[churns % len(bystanders)]
            swarm.crash(victim)
            swarm.after(0.7, lambda victim=victim: swarm.restart_if_down(victim))  # type: ignore[misc]
            churns += 1
        swarm.run_for(1)
        assert churns < DEADLINE_S
    swarm.settle()
    assert churns >= 3, "too little churn beside a turn to prove anything"
    outputs = said(swarm)
    assert all(written(swarm, host.index) == outputs for host in swarm.hosts)


# ---- complaint 13

TEXT = "Reads the quoted material and works out what in it bears on the task."  # what the roles of all nodes share


def linked_agents(swarm: SimSwarm, node: int) -> set[str]:
    ask = swarm.hosts[node].ask(FindAgents(TEXT, Filters(), 100))
    swarm.run_until(lambda: ask.done, 30)
    assert isinstance(ask.result, dict)
    return {str(line["peer"]) for line in ask.result["agents"] if line["linked"] or line["mine"]}


@pytest.mark.parametrize("seed", range(51, 54))
def test_an_offer_is_found_by_who_was_there_before_though_its_push_was_lost_and_by_who_comes_after(seed: int) -> None:
    swarm = SimSwarm(CONFIG, seed)
    swarm.begin()
    swarm.stop(2)  # withdraws what it offers
    swarm.crash(3)
    swarm.run_for(5)
    swarm.partition([0, 1, 2], [3, 4])
    swarm.restart(2)  # offers again; node 4 was there before and hears nothing of it
    swarm.run_for(GONE_S)
    publisher = peer_text(swarm.hosts[2].peer)
    assert publisher not in linked_agents(swarm, 4)
    swarm.heal()
    swarm.restart(3)  # comes after
    swarm.run_for(FOUND_S)
    everybody = {peer_text(host.peer) for host in swarm.hosts}
    assert [linked_agents(swarm, node) for node in range(5)] == [everybody] * 5
