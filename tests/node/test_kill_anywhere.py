"""Three real daemons with real engines; one of them is killed with SIGKILL at a random moment, again and again.

What must hold whatever the moment was: no acknowledged task is lost, every task ends, all three hold the same memory,
every database passes its audit, and a restart needs no hand. At most one node is down at a time, so a majority of
the voters is always there. CI kills 50 times, a developer's run less often (MASOS_KILLS).
"""

from __future__ import annotations

import os
import random
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from node.demo.nodes import DemoNode, View, wait_for
from node.demo.scenario import TIMING
from node.profile import Profile
from protocol.errors import SwarmError

pytestmark = [pytest.mark.slow, pytest.mark.libp2p]

KILLS = int(os.environ.get("MASOS_KILLS", "50" if os.environ.get("CI") else "8"))
SEED = int(os.environ.get("MASOS_KILL_SEED", "20261129"))
FAST = {
    **TIMING,
    "MASOS_TASK_LEASE_S": "3",
    "MASOS_TASK_EPS_S": "1",
    "MASOS_TIMING_TAU_S": "1",
    "MASOS_TIMING_OWN_HEAD_WAIT_S": "3",
    "MASOS_TIMING_SYNC_EVERY_S": "1",
    "MASOS_TASK_DEADLINE_S": "900",
}
DOCUMENT = (
    "The tide tables of the harbour are printed each spring.\n\n"
    "Ships that carry timber must wait for the pilot boat outside the breakwater.\n\n"
    "The harbour office closes at noon on Sundays."
)


class Harbour:
    """The three nodes, and what they have acknowledged."""

    def __init__(self, folder: Path) -> None:
        self.nodes = [DemoNode(name, Profile(folder / name), FAST) for name in ("a", "b", "c")]
        self.acknowledged: list[str] = []

    def raise_swarm(self) -> None:
        first = self.nodes[0]
        for node in self.nodes:
            node.masos("init")
            if node is first:
                node.masos("swarm", "create", "harbour")
            else:
                node.masos("swarm", "join", str(first.masos("swarm", "invite")["ticket"]))
            node.start()
            self.await_answer(node)
        wait_for("links and engines", lambda: all(self.ready(node) for node in self.nodes), 120, self.nodes)

    def await_answer(self, node: DemoNode) -> None:
        wait_for(f"answer of {node.name}", lambda: node.status() is not None, 90, [node])

    def ready(self, node: DemoNode) -> bool:
        status = node.status()
        return status is not None and status["offer"] is not None and len(status["linked"]) == 2

    def idle(self, node: DemoNode) -> bool:
        """The last acknowledged task has ended, as far as this node knows."""
        view = node.task(self.acknowledged[-1]) if self.acknowledged else None
        return not self.acknowledged or (view is not None and view["status"] != "running")

    def submit(self, node: DemoNode, number: int) -> None:
        body: dict[str, object] = {
            "objective": f"Which ships must wait for the pilot boat? ({number})",
            "document": DOCUMENT,
            "client_key": f"question-{number}",
            "ack": "w1",
        }
        try:
            with node.client() as client:
                self.acknowledged.append(str(client.submit(body)["task"]))
        except SwarmError:
            return  # refused or not acknowledged in time: nothing was promised

    def views(self, task: str) -> list[View | None]:
        return [node.task(task) for node in self.nodes]

    def all_ended(self) -> bool:
        return all(
            view is not None and view["status"] not in ("running", "unknown")
            for task in self.acknowledged
            for view in self.views(task)
        )

    def equal(self) -> bool:
        digests = [node.digests() for node in self.nodes]
        return digests[0] is not None and all(other == digests[0] for other in digests)


@pytest.fixture
def harbour(tmp_path: Path) -> Iterator[Harbour]:
    swarm = Harbour(tmp_path)
    try:
        yield swarm
    finally:
        for node in swarm.nodes:
            node.stop()


def test_no_kill_loses_an_acknowledged_task(harbour: Harbour) -> None:
    rng = random.Random(SEED)
    harbour.raise_swarm()
    for number in range(KILLS):
        submitter = rng.choice(harbour.nodes)
        if harbour.idle(submitter):
            harbour.submit(submitter, number)
        time.sleep(rng.uniform(0.0, 3.0))  # a random moment of whatever turn is running
        victim = submitter if rng.random() < 0.3 else rng.choice(harbour.nodes)
        victim.kill()
        time.sleep(rng.uniform(0.0, 1.0))
        victim.start()
        harbour.await_answer(victim)
    assert len(harbour.acknowledged) >= KILLS // 8, "too few submits were acknowledged to prove anything"
    wait_for("end of every acknowledged task", harbour.all_ended, 300, harbour.nodes)
    wait_for("equal memory", harbour.equal, 60, harbour.nodes)
    for task in harbour.acknowledged:
        outcomes = {view["status"] for view in harbour.views(task) if view is not None}
        assert outcomes == {"answer"}, f"task {task} ended as {outcomes}"
    for node in harbour.nodes:
        node.stop()
        assert node.masos("memory", "verify")["ok"] is True
