"""Three real daemons with real engines; one of them is killed with SIGKILL at a random moment, again and again.

What must hold whatever the moment was: no acknowledged op is lost, nor one that was ever on a disk, every task ends,
all three hold the same memory, every database passes its audit, and a restart needs no hand. At most one node is down
at a time, so a majority of the voters is always there.

Every second kill waits for a node that says it runs a turn, and hits that node at a random moment of the turn; the
others fall on whoever and whenever. What was hit is counted, so a run that only ever killed idle nodes fails.
CI kills 50 times, a developer's run less often (MASOS_KILLS).
"""

from __future__ import annotations

import os
import random
import sqlite3
import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from node.demo.nodes import DemoNode, View, wait_for
from node.demo.scenario import TIMING
from node.engines.models import DEFAULT_MODEL, MODELS, default_models_dir, pull
from node.profile import Profile
from protocol.errors import SwarmError

pytestmark = [pytest.mark.slow, pytest.mark.libp2p]

KILLS = int(os.environ.get("MASOS_KILLS", "50" if os.environ.get("CI") else "8"))
SEED = int(os.environ.get("MASOS_KILL_SEED", "20261129"))
IN_A_TURN_MIN = KILLS // 5
"""So many kills at least hit a node that ran, wrote or decided a turn at that moment."""
AIM_S = 10.0
POLL_S = 0.02
FAST = {
    **TIMING,
    "MASOS_NODE_SELF_TEST": "false",
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
    """The three nodes, what they have acknowledged, and what was on their disks when they died."""

    def __init__(self, folder: Path) -> None:
        self.nodes = [DemoNode(name, Profile(folder / name), FAST) for name in ("a", "b", "c")]
        self.acknowledged: list[str] = []
        self.durable: set[bytes] = set()
        self.killed_in: list[str] = []

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
                task = str(client.submit(body)["task"])
        except SwarmError:
            return  # refused or not acknowledged in time: nothing was promised
        promised = ops_on_disk(node, task)
        assert len(promised) > DOCUMENT.count("\n\n"), "an acknowledged task is on the disk: its open and its document"
        self.acknowledged.append(task)
        self.durable |= promised

    def stage(self, node: DemoNode) -> str | None:
        """Where in a turn of its own a node is, by its own word."""
        view = node.task(self.acknowledged[-1]) if self.acknowledged else None
        running = view.get("running") if view is not None else None
        return running["stage"] if running and running["mine"] else None

    def aim(self, rng: random.Random) -> DemoNode:
        """A node that is in a turn now, if one is before long; else any."""
        end = time.monotonic() + AIM_S
        while time.monotonic() < end:
            for node in self.nodes:
                if self.stage(node) is not None:
                    time.sleep(rng.uniform(0.0, 0.5))  # anywhere in the turn, not only at its start
                    return node
            time.sleep(POLL_S)
        return rng.choice(self.nodes)

    def kill(self, node: DemoNode) -> None:
        """Kill, and remember where it was hit and what it had on its disk."""
        stage = self.stage(node)
        node.kill()
        if stage is not None:
            self.killed_in.append(stage)
        self.durable |= ops_on_disk(node)

    def taken_over(self) -> list[int]:
        """The epochs above 0 with which steps were completed."""
        views = [self.nodes[0].task(task) for task in self.acknowledged]
        return [turn["epoch"] for view in views if view is not None for turn in view["turns"] if turn["epoch"]]

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


def ops_on_disk(node: DemoNode, task: str | None = None) -> set[bytes]:
    """Ids of the ops in a node's database, of one task or of all; read beside the node, without its help."""
    where, values = ("", ()) if task is None else (" WHERE space = ?", (bytes.fromhex(task),))
    with closing(sqlite3.connect(f"{node.profile.database.as_uri()}?mode=ro", uri=True, timeout=10)) as connection:
        return {row[0] for row in connection.execute(f"SELECT id FROM op{where}", values)}


@pytest.fixture
def harbour(tmp_path: Path) -> Iterator[Harbour]:
    pull(MODELS[DEFAULT_MODEL], default_models_dir(os.environ))
    swarm = Harbour(tmp_path)
    try:
        yield swarm
    finally:
        for node in swarm.nodes:
            node.stop()


def test_no_kill_loses_what_was_acknowledged(harbour: Harbour) -> None:
    rng = random.Random(SEED)
    harbour.raise_swarm()
    for number in range(KILLS):
        submitter = rng.choice(harbour.nodes)
        if harbour.idle(submitter):
            harbour.submit(submitter, number)
        if number % 2 == 0:
            victim = harbour.aim(rng)
        else:
            time.sleep(rng.uniform(0.0, 3.0))
            victim = submitter if rng.random() < 0.3 else rng.choice(harbour.nodes)
        harbour.kill(victim)
        time.sleep(rng.uniform(0.0, 1.0))
        victim.start()
        harbour.await_answer(victim)
    assert len(harbour.acknowledged) >= KILLS // 8, "too few submits were acknowledged to prove anything"
    assert len(harbour.killed_in) >= IN_A_TURN_MIN, f"too few kills hit a turn: {harbour.killed_in}"
    wait_for("end of every acknowledged task", harbour.all_ended, 300, harbour.nodes)
    wait_for("equal memory", harbour.equal, 60, harbour.nodes)
    for task in harbour.acknowledged:
        outcomes = {view["status"] for view in harbour.views(task) if view is not None}
        assert outcomes == {"answer"}, f"task {task} ended as {outcomes}"
    assert harbour.taken_over(), f"no step was taken over, after kills in {harbour.killed_in}"
    for node in harbour.nodes:
        node.stop()
        lost = harbour.durable - ops_on_disk(node)
        assert not lost, f"{node.name} lacks {len(lost)} of {len(harbour.durable)} ops that were on a disk"
        assert node.masos("memory", "verify")["ok"] is True
