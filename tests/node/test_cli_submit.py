"""What `masos task submit` tells the person in front of it: the key that makes it repeatable, and who acknowledged."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Self

import pytest

from node.cli import run
from node.control.client import ControlClient
from node.profile import Profile
from protocol.errors import DaemonUnreachable, RequestTimeout, SwarmError

PEER = "12D3KooWexample"


class FakeClient:
    """Answers as a node that knows some peers, or fails a submit."""

    def __init__(self, *, known: bool, error: SwarmError | None = None) -> None:
        self.known = known
        self.error = error
        self.bodies: list[dict[str, object]] = []

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_exc: object) -> None:
        return None

    def status(self) -> dict[str, object]:
        return {"known": {PEER: []} if self.known else {}, "linked": []}

    def submit(self, body: dict[str, object]) -> dict[str, object]:
        self.bodies.append(body)
        if self.error is not None:
            raise self.error
        return {"task": "ab" * 32, "existing": False, "ack": body["ack"]}


def client_of(monkeypatch: pytest.MonkeyPatch, client: FakeClient) -> FakeClient:
    def for_profile(_profile: Profile) -> FakeClient:
        return client

    monkeypatch.setattr(ControlClient, "for_profile", for_profile)
    return client


@pytest.mark.parametrize(
    ("known", "options", "ack"),
    [(True, [], "w1"), (False, [], "local"), (False, ["--ack", "w1"], "w1"), (True, ["--ack", "local"], "local")],
)
def test_a_node_that_is_alone_acknowledges_by_itself_and_says_so(
    known: bool,  # noqa: FBT001 - a case of the table
    options: list[str],
    ack: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    client = client_of(monkeypatch, FakeClient(known=known))
    assert run(["task", "submit", "What is due?", "--json", *options]) == 0
    captured = capsys.readouterr()
    assert client.bodies[0]["ack"] == json.loads(captured.out)["ack"] == ack
    assert ("knows no other" in captured.err) is (not known and not options)


@pytest.mark.parametrize("error", [RequestTimeout("m", hint="h"), DaemonUnreachable("m")])
def test_the_key_is_told_before_and_after_a_submit_that_may_have_worked(
    error: SwarmError, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    client = client_of(monkeypatch, FakeClient(known=True, error=error))
    assert run(["task", "submit", "What is due?"]) == error.exit_code
    key = str(client.bodies[0]["client_key"])
    note, *_, hint = capsys.readouterr().err.splitlines()
    assert note.startswith(f"client key {key}")
    assert hint.startswith("hint: ")
    assert f"--key {key}" in hint


def test_a_key_of_the_users_own_is_not_told_back(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    client = client_of(monkeypatch, FakeClient(known=True))
    assert run(["task", "submit", "What is due?", "--key", "mine", "--json"]) == 0
    assert client.bodies[0]["client_key"] == "mine"
    assert capsys.readouterr().err == ""


@pytest.mark.parametrize(
    "argv",
    [["up"], ["status"], ["task", "ls"], ["task", "submit", "x"], ["swarm", "create", "x"], ["swarm", "invite"]],
)
def test_where_no_profile_is_every_verb_says_that_and_how_to_make_one(
    argv: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    place = tmp_path / "none"
    assert run([*argv, "--profile", str(place), "--json"]) == 78
    error = json.loads(capsys.readouterr().out)
    assert error["message"] == f"there is no profile at {place}"
    assert error["hint"] == "make it with `masos init`"
