"""Case W4 over real daemons: what a model says is cleaned once at the entry and is the same bytes everywhere after.

A model server says each text of the case; the answer of a task is then read from both nodes, from both databases'
digests, and as a person sees it on a terminal.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from node.demo.nodes import DemoNode, wait_for
from protocol.codec import clean_text
from tests.node.real_swarm import RealSwarm, free_port, model_server, real_swarm
from tests.strategies import case_lines

pytestmark = [pytest.mark.slow, pytest.mark.libp2p]

UP_S, TASK_S = 60.0, 30.0
PRINTABLE_TOO = "\n"


def texts() -> list[str]:
    """Of the case; an empty reply is no unit but a failed turn, which tests/simulations show."""
    found = [str(json.loads(line["json_text"])) for line in case_lines("W4_text.jsonl")]
    assert "" in found
    return [text for text in found if text]


def shown(node: DemoNode, task: str) -> str:
    """What `masos task show` prints for a person."""
    command = [sys.executable, "-m", "node.cli", "task", "show", task]
    done = subprocess.run(command, env=node._env(), capture_output=True, check=True, timeout=60)
    return done.stdout.decode()


def ended(swarm: RealSwarm, task: str) -> bool:
    views = [node.task(task) for node in swarm.living]
    return all(view is not None and view["status"] == "answer" for view in views)


def test_every_text_of_the_case_is_cleaned_once_and_equal_on_all_nodes_and_harmless_on_a_terminal(
    tmp_path: Path,
) -> None:
    said = texts()

    def says(asked: str) -> str:
        return next(text for number, text in enumerate(said) if f"question {number}." in asked)

    with model_server(says=says) as engine, real_swarm(tmp_path, engine) as swarm:
        first = swarm.add("first", port=free_port())
        second = swarm.add("second", "first")
        swarm.start()
        swarm.until_exact(UP_S)
        wait_for("offers", lambda: all(offers(node) == 1 for node in swarm.living), UP_S, swarm.living)
        for number, text in enumerate(said):
            with first.client() as client:
                body: dict[str, object] = {
                    "objective": f"This is question {number}.",
                    "client_key": str(number),
                    "ack": "w1",
                }
                task = str(client.submit(body)["task"])
            wait_for(f"answer {number}", lambda task=task: ended(swarm, task), TASK_S, swarm.living)  # type: ignore[misc]
            for node in (first, second):
                view = node.task(task)
                assert view is not None
                assert view["answer"] == clean_text(text).strip()
                assert all(turn["content"] == view["answer"] for turn in view["turns"])
            told = shown(second, task)
            assert all(char.isprintable() or char in PRINTABLE_TOO for char in told), told
        wait_for("equal memory", lambda: first.digests() == second.digests() is not None, TASK_S, swarm.living)
        for node in (first, second):
            assert node.masos("memory", "verify")["ok"] is True


def offers(node: DemoNode) -> int:
    status = node.status()
    return sum(peer["offer"] is not None for peer in status["linked"]) if status is not None else -1
