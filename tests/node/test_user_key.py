"""One user, several nodes: the user key is brought along, and a client key names one task on all of them."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from node.cli import run
from node.demo.nodes import DemoNode, wait_for
from node.demo.scenario import TIMING
from node.engines.models import DEFAULT_MODEL, MODELS, default_models_dir, pull
from node.profile import Profile

LINK_S = 120
TASK_S = 180


def made(folder: Path, *options: str) -> Profile:
    assert run(["init", "--profile", str(folder), "--json", *options]) == 0
    return Profile(folder)


def key_of(profile: Profile) -> Path:
    return profile.identity / "user.key"


def test_a_user_key_is_brought_along_and_the_node_key_is_new(tmp_path: Path) -> None:
    first = made(tmp_path / "a")
    second = made(tmp_path / "b", "--user-key", str(key_of(first)))
    assert key_of(first).read_bytes() == key_of(second).read_bytes()
    assert (first.identity / "node.key").read_bytes() != (second.identity / "node.key").read_bytes()
    assert key_of(second).stat().st_mode & 0o777 == 0o600
    assert key_of(made(tmp_path / "c")).read_bytes() != key_of(first).read_bytes()


@pytest.mark.parametrize("content", [b"", b"masos-seed-1 00\n", b"-----BEGIN KEY-----\n", b"\xff" * 4_000, None])
def test_what_is_no_key_makes_no_profile(
    content: bytes | None, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "some.key"
    if content is not None:
        file.write_bytes(content)
        file.chmod(0o600)
    assert run(["init", "--profile", str(tmp_path / "p"), "--user-key", str(file)]) == 78
    assert str(file) in capsys.readouterr().err
    assert not (tmp_path / "p").exists()


def test_a_key_that_others_can_read_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    key = key_of(made(tmp_path / "a"))
    key.chmod(0o644)
    assert run(["init", "--profile", str(tmp_path / "b"), "--user-key", str(key)]) == 78
    assert "chmod 600" in capsys.readouterr().err
    assert not (tmp_path / "b").exists()


def test_an_interrupted_profile_keeps_its_user(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    first, second = made(tmp_path / "a"), made(tmp_path / "b")
    own = key_of(second).read_bytes()
    second.control_token.unlink()
    assert run(["init", "--profile", str(second.path), "--user-key", str(key_of(first))]) == 78
    assert "another user" in capsys.readouterr().err
    assert key_of(second).read_bytes() == own
    assert run(["init", "--profile", str(second.path)]) == 0


@pytest.fixture
def pair(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Iterator[tuple[DemoNode, DemoNode]]:
    """Two nodes of one user; the second is made and not started."""
    pull(MODELS[DEFAULT_MODEL], default_models_dir(os.environ))
    first, second = (DemoNode(name, Profile(tmp_path / name), TIMING) for name in ("a", "b"))
    first.masos("init")
    first.masos("swarm", "create", "home")
    second.masos("init", "--user-key", str(key_of(first.profile)))
    first.start()
    try:
        yield first, second
    finally:
        first.stop()
        second.stop()


def offers(node: DemoNode, links: int) -> bool:
    status = node.status()
    return status is not None and status["offer"] is not None and len(status["linked"]) == links


@pytest.mark.slow
@pytest.mark.libp2p
def test_a_client_key_is_one_task_on_all_nodes_of_its_user(pair: tuple[DemoNode, DemoNode]) -> None:
    first, second = pair
    nodes = [first, second]
    ask = ("task", "submit", "Who waits for the pilot boat?", "--key")
    wait_for("engine of the first", lambda: offers(first, 0), LINK_S, [first])
    alone = first.masos(*ask, "alone")
    assert alone["ack"] == "local", "a node that knows no other does not wait for one"

    second.masos("swarm", "join", str(first.masos("swarm", "invite")["ticket"]))
    second.start()
    wait_for("links and engines", lambda: all(offers(node, 1) for node in nodes), LINK_S, nodes)
    here, there = first.masos(*ask, "shared"), second.masos(*ask, "shared")
    assert here["task"] == there["task"] != alone["task"]
    assert (here["ack"], here["existing"]) == ("w1", False)
    wait_for("end of both", lambda: all(ended(node, here, alone) for node in nodes), TASK_S, nodes)
    for node in nodes:
        assert {task["task"] for task in node.masos("task", "ls")["tasks"]} == {here["task"], alone["task"]}
        assert node.masos(*ask, "shared")["existing"] is True


def ended(node: DemoNode, *tasks: dict[str, object]) -> bool:
    views = [node.task(str(task["task"])) for task in tasks]
    return all(view is not None and view["status"] not in ("running", "unknown") for view in views)


def test_the_profile_says_whose_it_is(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    users = []
    for name, options in (("a", ()), ("b", ("--user-key", str(tmp_path / "a" / "identity" / "user.key")))):
        made(tmp_path / name, *options)
        users.append(json.loads(capsys.readouterr().out)["user"])
    assert users[0] == users[1]
