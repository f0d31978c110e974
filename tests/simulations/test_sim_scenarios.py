"""What a swarm of five survives, in virtual time, with every checker on. All between the cores is simulated."""

from __future__ import annotations

from dataclasses import replace

import pytest

from kernel.task import Stage
from protocol.errors import Conflict
from protocol.records import Done, Unit
from simulations.engine import EngineConfig
from simulations.link import NetConfig
from simulations.store import DiskConfig
from simulations.swarm import MINUTE_US, SimSwarm, SwarmConfig

CONFIG = SwarmConfig(engine=EngineConfig(decide_us=1_000_000))
KEY = "the-task"
STAGES: tuple[Stage, ...] = ("claiming", "running", "writing", "deciding")


def begun(seed: int, config: SwarmConfig = CONFIG) -> SimSwarm:
    swarm = SimSwarm(config, seed)
    swarm.begin()
    return swarm


def submitted(seed: int, config: SwarmConfig = CONFIG, node: int = 0) -> SimSwarm:
    swarm = begun(seed, config)
    ask = swarm.submit(node, KEY)
    swarm.run_until(lambda: ask.done, 30)
    assert ask.ok, ask.result
    return swarm


def stage_of(swarm: SimSwarm, step: int) -> tuple[int, Stage] | None:
    """Who is in which stage of a step now."""
    for host in swarm.up():
        task = swarm.task(host.index, KEY)
        if task is not None and task.run is not None and task.run.step == step:
            return host.index, task.run.stage
    return None


def until_stage(swarm: SimSwarm, step: int, stage: Stage) -> int:
    """Run until somebody is in a stage of a step; who."""
    swarm.run_until(lambda: (at := stage_of(swarm, step)) is not None and at[1] == stage, 120)
    at = stage_of(swarm, step)
    assert at is not None
    return at[0]


def epochs(swarm: SimSwarm) -> list[int]:
    """The epoch of the effective claim of each step."""
    task = swarm.task(swarm.up()[0].index, KEY)
    assert task is not None
    found = []
    for done_id in task.fold.chain:
        done = task.fold.done(done_id)
        claim = task.fold.claim(done.claim) if done is not None else None
        assert claim is not None
        found.append(claim.e)
    return found


def runs(swarm: SimSwarm, step: int) -> list[str]:
    """How the engine turns of a step ended."""
    return [ended for _, at, ended in swarm.turns(KEY) if at == step]


def outcome(swarm: SimSwarm) -> str:
    task = swarm.task(swarm.up()[0].index, KEY)
    assert task is not None
    return task.fold.outcome


@pytest.mark.parametrize("seed", range(3))
def test_a_quiet_swarm_runs_every_step_once(seed: int) -> None:
    swarm = submitted(seed, node=seed)
    swarm.settle()
    assert outcome(swarm) == "answer"
    assert [runs(swarm, step) for step in (1, 2, 3)] == [["answered"]] * 3
    assert epochs(swarm) == [0, 0, 0]
    task = swarm.task(0, KEY)
    assert task is not None
    assert {task.fold.finality(done_id) for done_id in task.fold.chain} == {"final"}


def test_a_document_becomes_memory_on_every_node() -> None:
    swarm = begun(5)
    chunks = tuple(f"Clause {n}: notice of {n} days is given in writing." for n in range(8))
    ask = swarm.submit(1, KEY, document=chunks, contract=(20_000, 12, 600_000, 0))
    swarm.run_until(lambda: ask.done, 30)
    assert ask.ok, ask.result
    swarm.settle()
    assert outcome(swarm) == "answer"
    for host in swarm.hosts:
        task = swarm.task(host.index, KEY)
        assert task is not None
        assert sorted(unit.content for unit in task.pool.units() if unit.is_document) == sorted(chunks)


@pytest.mark.parametrize("back_s", [4.0, 90.0], ids=["back_soon", "back_after_the_lease"])
@pytest.mark.parametrize("power", [False, True], ids=["process", "power"])
@pytest.mark.parametrize("stage", STAGES)
def test_a_step_outlives_the_death_of_its_owner(stage: Stage, back_s: float, *, power: bool) -> None:
    swarm = submitted(11)
    owner = until_stage(swarm, 2, stage)
    if stage == "running":
        swarm.run_for(0.5)
    swarm.crash(owner, power=power)
    swarm.after(back_s, lambda: swarm.restart(owner))
    swarm.run_until(lambda: swarm.ended(KEY), 300)
    swarm.run_for(back_s)
    swarm.settle()
    assert outcome(swarm) == "answer"
    if stage == "running":
        assert epochs(swarm)[1] >= 1
        assert runs(swarm, 2)[0] == "killed"


@pytest.mark.parametrize("back_s", [3.0, 90.0])
def test_a_taker_completes_with_the_unit_that_the_dead_owner_left(back_s: float) -> None:
    swarm = submitted(12)
    owner = until_stage(swarm, 2, "deciding")
    swarm.run_for(0.5)  # the unit is on its way to the others, the decision takes longer
    swarm.crash(owner)
    swarm.after(back_s, lambda: swarm.restart(owner))
    swarm.run_until(lambda: swarm.ended(KEY), 300)
    swarm.run_for(back_s)
    swarm.settle()
    assert epochs(swarm)[1] == 1
    assert runs(swarm, 2) == ["answered"], "the step ran again"
    task = swarm.task(0, KEY)
    assert task is not None
    done = task.log.record(task.fold.chain[1])
    assert isinstance(done, Done)
    assert done.unit is not None
    unit = task.log.record(done.unit)
    assert isinstance(unit, Unit)
    assert unit.claim != done.claim


@pytest.mark.parametrize("owner_side", ["minority", "majority"])
@pytest.mark.parametrize("length_s", [8.0, 75.0])
def test_a_partition_during_a_turn_heals(owner_side: str, length_s: float) -> None:
    swarm = submitted(13)
    owner = until_stage(swarm, 2, "running")
    others = [node for node in range(5) if node != owner]
    small = [owner, others[0]] if owner_side == "minority" else others[:2]
    swarm.partition(small, [node for node in range(5) if node not in small])
    swarm.run_for(length_s)
    swarm.heal()
    swarm.settle()
    assert outcome(swarm) == "answer"


@pytest.mark.parametrize("loss", [0.1, 0.2])
@pytest.mark.parametrize("how", ["loss", "drop"])
def test_lost_frames_are_repaired(how: str, loss: float) -> None:
    net = NetConfig(loss=loss) if how == "loss" else NetConfig(drop=loss)
    swarm = SimSwarm(replace(CONFIG, net=net), 14)
    swarm.start()
    swarm.run_for(10)
    ask = swarm.submit(2, KEY)
    swarm.run_until(lambda: ask.done, 60)
    swarm.run_until(lambda: swarm.ended(KEY), 600)
    swarm.network.config = NetConfig()
    swarm.settle()
    assert outcome(swarm) == "answer"


def test_wrong_clocks_and_a_slow_disk_are_survived() -> None:
    skews = (10 * MINUTE_US, -10 * MINUTE_US)
    swarm = begun(15, replace(CONFIG, skews_us=skews, disk=DiskConfig(sync_us=50_000)))
    swarm.slow_disk(2, 10)
    for node in range(3):
        swarm.submit(node, f"{KEY}-{node}")
    swarm.run_until(lambda: all(ask.done for ask in swarm.asks), 60)
    assert all(ask.ok for ask in swarm.asks), [ask.result for ask in swarm.asks]
    swarm.settle()
    for key in swarm.submitted:
        task = swarm.task(0, key)
        assert task is not None
        assert task.fold.outcome == "answer"


@pytest.mark.parametrize("power", [False, True], ids=["process", "power"])
@pytest.mark.parametrize("step", [1, 2, 3])
def test_the_task_outlives_the_death_of_all_nodes(step: int, *, power: bool) -> None:
    swarm = submitted(16)
    until_stage(swarm, step, "running")
    for node in range(5):
        swarm.crash(node, power=power)
    swarm.run_for(20)
    for node in range(5):
        swarm.after(node * 0.7, lambda node=node: swarm.restart(node))  # type: ignore[misc]
    swarm.run_for(5)
    swarm.settle()
    assert outcome(swarm) == "answer"


@pytest.mark.parametrize("power", [False, True], ids=["process", "power"])
def test_a_task_outlives_its_submitter_from_the_acknowledgement_on(*, power: bool) -> None:
    swarm = submitted(17, node=3)
    swarm.crash(3, power=power)
    swarm.run_until(lambda: swarm.ended(KEY), 300)
    assert outcome(swarm) == "answer"
    swarm.settle()


def test_one_client_key_on_all_nodes_at_once_is_one_task() -> None:
    swarm = begun(18)
    asks = [swarm.submit(node, KEY, "What is due?") for node in range(5)]
    swarm.run_until(lambda: all(ask.done for ask in asks), 60)
    assert all(ask.ok for ask in asks), [ask.result for ask in asks]
    assert len({str(ask.result["task"]) for ask in asks if isinstance(ask.result, dict)}) == 1
    swarm.settle()
    assert outcome(swarm) == "answer"
    other = swarm.submit(4, KEY, "Something else?")
    swarm.run_until(lambda: other.done, 30)
    assert isinstance(other.result, Conflict)


def test_a_cancel_stops_the_engine_of_the_owner() -> None:
    swarm = submitted(19)
    owner = until_stage(swarm, 2, "running")
    swarm.run_for(0.3)
    ask = swarm.cancel((owner + 1) % 5, KEY)
    swarm.run_until(lambda: ask.done, 30)
    assert ask.ok, ask.result
    swarm.settle()
    assert outcome(swarm) == "cancelled"
    assert runs(swarm, 2) == ["aborted"]
    assert runs(swarm, 3) == []


@pytest.mark.parametrize("seed", [20, 24])
def test_a_hanging_engine_is_stopped_and_the_step_is_taken_over(seed: int) -> None:
    swarm = begun(seed)
    swarm.script(0, "hang")
    swarm.script(1, "fail")
    ask = swarm.submit(0, KEY, deadline_ms=3_000_000)  # a hang in each of three steps
    swarm.run_until(lambda: ask.done, 30)
    swarm.run_until(lambda: swarm.ended(KEY), 3_100)  # before `settle`, which makes every engine work again
    assert outcome(swarm) == "answer"
    hung = swarm.hosts[0].turns
    assert hung, "the hanging engine was given no turn, so nothing is proven"
    assert {ran.ended for ran in hung} == {"aborted"}
    taken = [runs(swarm, ran.spec.step) for ran in hung]
    assert all("answered" in ended for ended in taken), taken
    swarm.settle()
    assert "no" not in {ran.ended for host in swarm.hosts for ran in host.turns}, "an engine still works on a turn"


@pytest.mark.parametrize("fresh", [False, True], ids=["backup_within_the_task", "backup_before_the_task"])
@pytest.mark.parametrize("seed", range(4))
def test_a_restored_backup_does_not_burn_its_node(seed: int, *, fresh: bool) -> None:
    swarm = begun(seed)
    before = [host.disk.length for host in swarm.hosts]
    ask = swarm.submit(0, KEY)
    swarm.run_until(lambda: ask.done, 30)
    owner = until_stage(swarm, 2, "running")
    if not fresh:
        before = [host.disk.length for host in swarm.hosts]
    until_stage(swarm, 2, "deciding")
    swarm.run_for(0.5)
    swarm.crash(owner)
    swarm.run_for(2)
    swarm.restart(owner, rollback=before[owner])
    swarm.settle()
    assert outcome(swarm) == "answer"
    log = swarm.hosts[0].core.replication.log(swarm.submitted[KEY])
    assert log is not None
    assert not log.burnt(swarm.hosts[owner].peer)


def test_a_restored_backup_asks_more_than_the_first_peer_that_answers() -> None:
    swarm = submitted(24)
    owner = until_stage(swarm, 2, "running")
    swarm.run_for(0.5)
    lagging = (owner + 1) % 5
    backup = swarm.hosts[owner].disk.length
    swarm.crash(lagging)  # it agrees with the backup, and with nothing newer
    until_stage(swarm, 2, "deciding")
    swarm.run_for(0.5)
    swarm.crash(owner)
    swarm.network.set_latency(swarm.hosts[owner].peer, swarm.hosts[lagging].peer, 1_000)
    for other in range(5):
        if other not in (owner, lagging):
            swarm.network.set_latency(swarm.hosts[owner].peer, swarm.hosts[other].peer, 150_000)
            swarm.network.set_latency(swarm.hosts[lagging].peer, swarm.hosts[other].peer, 150_000)
    swarm.restart(lagging)
    swarm.restart(owner, rollback=backup)
    swarm.settle()
    assert outcome(swarm) == "answer"


def test_a_suspended_owner_gives_its_turn_back() -> None:
    swarm = submitted(21)
    owner = until_stage(swarm, 2, "running")
    swarm.suspend(owner, 25_000_000)
    swarm.run_for(30)
    swarm.settle()
    assert outcome(swarm) == "answer"


def test_an_owner_that_is_stopped_gives_its_turn_back_at_once() -> None:
    swarm = submitted(22)
    owner = until_stage(swarm, 2, "running")
    stopped_us = swarm.heap.now_us
    swarm.stop(owner)
    swarm.run_until(lambda: (at := stage_of(swarm, 2)) is not None and at[0] != owner, 20)
    assert swarm.heap.now_us - stopped_us < 10_000_000, "nobody waits for the end of the lease"
    swarm.run_until(lambda: not swarm.hosts[owner].up, 20)
    swarm.settle()
    assert outcome(swarm) == "answer"


def test_a_full_disk_ends_the_node_and_nothing_else() -> None:
    swarm = submitted(23)
    owner = until_stage(swarm, 1, "running")
    swarm.hosts[owner].disk.broken = True
    swarm.run_until(lambda: not swarm.hosts[owner].up, 60)
    swarm.run_until(lambda: swarm.ended(KEY), 300)
    swarm.settle()
    assert outcome(swarm) == "answer"
