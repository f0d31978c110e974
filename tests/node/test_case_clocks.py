"""Complaint 14, case C4: clocks wrong by ten minutes, either way: joining works, with a warning, and order holds.

In virtual time with every checker on, also when clocks are set while a task runs; and with real daemons of which two
see a wrong wall clock (a `sitecustomize` of the child process moves what CLOCK_REALTIME shows it, and nothing else).
"""

from __future__ import annotations

import os
import textwrap
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path

import pytest

from node.core import Status
from node.demo.nodes import DemoNode, wait_for
from protocol.clock import SKEW_WARN_MS, hlc_to_ms
from simulations.host import EPOCH_US
from simulations.swarm import MINUTE_US, SimSwarm, SwarmConfig
from tests.node.real_swarm import RealSwarm, free_port, model_server, real_swarm

KEY = "the task"
WRONG_MIN = 10
SKEWS = [(WRONG_MIN, 0, 0, 0, 0), (-WRONG_MIN, 0, 0, 0, 0), (0, WRONG_MIN, -WRONG_MIN, 0, 0)]


def begun(seed: int, minutes: tuple[int, ...]) -> SimSwarm:
    swarm = SimSwarm(SwarmConfig(skews_us=tuple(m * MINUTE_US for m in minutes)), seed)
    swarm.begin()
    return swarm


def warnings(swarm: SimSwarm) -> list[object]:
    asks = [host.ask(Status()) for host in swarm.hosts]
    swarm.run_until(lambda: all(ask.done for ask in asks), 5)
    return [ask.result["clock_warning"] for ask in asks]  # type: ignore[index]


def check_order(swarm: SimSwarm) -> None:
    """Each step of the chain is stamped after the one before it, near the true time, whoever wrote it."""
    for host in swarm.hosts:
        task = swarm.task(host.index, KEY)
        assert task is not None
        stamps = [done.hlc for done_id in task.fold.chain if (done := task.log.get(done_id)) is not None]
        assert len(stamps) == len(task.fold.chain) > 1
        assert all(before < after for before, after in pairwise(stamps))
        true_ms = (EPOCH_US + swarm.heap.now_us) // 1_000
        assert all(true_ms - WRONG_MIN * 60_000 < hlc_to_ms(stamp) <= true_ms + SKEW_WARN_MS for stamp in stamps)


@pytest.mark.parametrize("minutes", SKEWS, ids=str)
@pytest.mark.parametrize("submitter", range(3))
def test_wrong_clocks_join_are_warned_of_and_keep_the_order(minutes: tuple[int, ...], submitter: int) -> None:
    swarm = begun(3, minutes)
    swarm.run_for(20)
    assert warnings(swarm) == [bool(minute) for minute in minutes]
    ask = swarm.submit(submitter, KEY)
    swarm.run_until(lambda: ask.done, 60)
    swarm.run_until(lambda: swarm.ended(KEY), 300)
    swarm.settle()
    assert ask.ok, ask.result
    check_order(swarm)


@pytest.mark.parametrize("minute", [WRONG_MIN, -WRONG_MIN])
def test_a_clock_that_is_set_while_a_task_runs_neither_stops_it_nor_moves_its_order(minute: int) -> None:
    swarm = begun(4, ())
    ask = swarm.submit(0, KEY)
    swarm.run_until(lambda: swarm.owner(KEY) is not None, 60)
    owner = swarm.owner(KEY)
    assert owner is not None
    swarm.set_clock(owner, minute * MINUTE_US)
    swarm.set_clock((owner + 1) % 5, -minute * MINUTE_US)
    swarm.run_until(lambda: ask.done, 60)
    swarm.run_until(lambda: swarm.ended(KEY), 300)
    swarm.settle()
    assert ask.ok, ask.result
    check_order(swarm)
    assert sum(map(bool, warnings(swarm))) == 2


# ---- real processes

HOOK = """
    import os
    import time

    shown = time.clock_gettime_ns
    moved_ns = int(os.environ["CLOCK_MOVED_S"]) * 10**9

    def clock_gettime_ns(which):
        return shown(which) + (moved_ns if which == time.CLOCK_REALTIME else 0)

    time.clock_gettime_ns = clock_gettime_ns
"""


@pytest.fixture
def swarm(tmp_path: Path) -> Iterator[RealSwarm]:
    with model_server() as engine, real_swarm(tmp_path, engine) as made:
        yield made


def move_clock(node: DemoNode, folder: Path, seconds: int) -> None:
    folder.mkdir(exist_ok=True)
    (folder / "sitecustomize.py").write_text(textwrap.dedent(HOOK))
    path = [str(folder), *os.environ.get("PYTHONPATH", "").split(os.pathsep)]
    node.environ.update({"PYTHONPATH": os.pathsep.join(filter(None, path)), "CLOCK_MOVED_S": str(seconds)})


def clocks(swarm: RealSwarm) -> dict[str, tuple[bool, int]]:
    """Of each node, whether it warns, and how far it sees its own clock behind the swarm's, in whole minutes."""
    found = {node.name: node.status() for node in swarm.living}
    return {
        name: (status["clock_warning"], round(status["clock_offset_ms"] / 60_000))
        for name, status in found.items()
        if status is not None
    }


def answered(swarm: RealSwarm, task: str) -> bool:
    views = [node.task(task) for node in swarm.living]
    return all(view is not None and view["status"] == "answer" for view in views)


@pytest.mark.slow
@pytest.mark.libp2p
def test_daemons_whose_clocks_are_wrong_join_warn_and_work(swarm: RealSwarm, tmp_path: Path) -> None:
    swarm.add("right", port=free_port())
    for name in ("fast", "slow", "other"):
        swarm.add(name, "right")
    move_clock(swarm.nodes["fast"], tmp_path / "hook", WRONG_MIN * 60)
    move_clock(swarm.nodes["slow"], tmp_path / "hook", -WRONG_MIN * 60)
    swarm.start()
    swarm.until_exact(60)
    wrong = {"right": (False, 0), "other": (False, 0), "fast": (True, -WRONG_MIN), "slow": (True, WRONG_MIN)}
    wait_for("warnings of those that are wrong", lambda: clocks(swarm) == wrong, 20, swarm.living)
    wait_for("offers of all", lambda: all(offers(node) == 3 for node in swarm.living), 60, swarm.living)
    for name in ("fast", "slow"):
        with swarm.nodes[name].client() as client:
            task = str(client.submit({"objective": "When?", "client_key": name, "ack": "w1"})["task"])
        wait_for("answer everywhere", lambda task=task: answered(swarm, task), 60, swarm.living)  # type: ignore[misc]
    wait_for("equal memory", lambda: equal(swarm), 60, swarm.living)


def offers(node: DemoNode) -> int:
    """Agents of other nodes whose records are believed, whoever's clock signed them."""
    status = node.status()
    return sum(peer["offer"] is not None for peer in status["linked"]) if status is not None else -1


def equal(swarm: RealSwarm) -> bool:
    first, *rest = [node.digests() for node in swarm.living]
    return bool(first) and all(other == first for other in rest)
