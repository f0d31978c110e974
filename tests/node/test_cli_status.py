"""status: one screen that says plainly how it stands and what to do about it; no peer's text acts on a terminal."""

from __future__ import annotations

import json
import unicodedata
from collections.abc import Callable
from pathlib import Path
from typing import Any, Self

import pytest

from node.cli import run
from node.cli.status import LINKED_SHOWN, LOSSES, REFUSALS_SHOWN
from node.control.client import ControlClient
from node.control.credentials import Address

HOSTILE = "a\x1b[2Jb\u202ec\x07\x9bd\u2028e\ufefff\x00[bold red]g[/]\r\nforged"
ME, PEER = (
    "12D3KooWNrJcRqwtN3Kqgbwo1oCFCw93dYAzxJuhD3bqHbf1vBtf",
    "12D3KooWFkYWc54X7GdcZ6TNqKiMNYWv1Q8MSLh7umZuKMtDxjAA",
)
OFFER = {"roles": ["critic"], "model": "tiny", "quality": "demo", "context_tokens": 2048, "tokens_per_s": 0}


def reach(verdict: str = "direct", **changes: Any) -> dict[str, Any]:
    return {
        "verdict": verdict, "seen_from": 2, "serving": True, "relay": None, "relay_addrs": [], "reasons": [],
        "since_s": 9, **changes,
    }  # fmt: skip


def members(**changes: Any) -> dict[str, Any]:
    return {
        "alive": 1, "suspect": 0, "dead": 0, "left": 0, "linked": 1, "incarnation": 1 << 20, "health": 1,
        "standing_down": False, **changes,
    }  # fmt: skip


def mesh(**counters: int) -> dict[str, Any]:
    topic = {"mesh": 1, "subscribers": 4, "backoffs": 0}
    return {"topics": {"members": topic, "ops": topic}, "peers": {}, "counters": {"mesh_sent": 3, **counters}}


def linked(peer: str = PEER, offer: Any = OFFER) -> dict[str, Any]:
    return {"peer": peer, "addrs": [], "incarnation": 1, "offer": offer}


def refused(reason: str, peer: str = PEER, code: str = "unreachable", age_s: int = 2) -> dict[str, Any]:
    return {"peer": peer, "code": code, "reason": reason, "wall_ms": 5, "age_s": age_s}


def told(**changes: Any) -> dict[str, Any]:
    return {
        "peer": ME, "swarm": "lab", "swarm_id": "15a967969f27ed20" * 4, "mode": "private", "user": "ab",
        "incarnation": 7, "listen": ["/ip4/10.0.0.1/tcp/27420"], "linked": [linked()], "known": {PEER: []},
        "isolated": False, "reachability": reach(), "members": members(), "index": "complete", "index_complete": True,
        "dht": {"mode": "server", "joined": True, "contacts": 1, "held_records": 4}, "mesh": mesh(), "offer": None,
        "clock_offset_ms": 0, "clock_warning": False, "spaces": 1, "unsure_spaces": 0, "tasks": 1, "refusals": [],
        "counters": {},
        "engine": {"kind": "none", "state": "none", "reason": "", "model": None, "backend": None, "quality": None},
        **changes,
    }  # fmt: skip


ALONE = {"linked": [], "isolated": True, "members": members(alive=0)}


class FakeClient:
    """A daemon that says one thing of itself."""

    value: dict[str, Any]
    reasons: tuple[str, ...] = ()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_exc: object) -> None:
        """Nothing is open."""

    def status(self) -> dict[str, Any]:
        return self.value

    def ready(self) -> dict[str, Any]:
        return {"ready": not self.reasons, "reasons": list(self.reasons), "checks": {}}


Shown = Callable[..., list[str]]


@pytest.fixture
def daemon(monkeypatch: pytest.MonkeyPatch) -> FakeClient:
    fake = FakeClient()
    monkeypatch.setattr(ControlClient, "for_profile", lambda _profile: fake)
    monkeypatch.setattr("node.cli.status.read_address", lambda _profile: Address("http://127.0.0.1:1", 42))
    return fake


@pytest.fixture
def shown(daemon: FakeClient, capsys: pytest.CaptureFixture[str]) -> Shown:
    def call(**changes: Any) -> list[str]:
        daemon.value = told(**changes)
        assert run(["status", "--profile", "/nonexistent"]) == 0
        return capsys.readouterr().out.splitlines()

    return call


def said(lines: list[str], name: str) -> str:
    """The text of a line, and of those that go on with it."""
    start = next(number for number, line in enumerate(lines) if line.startswith(name))
    rest = lines[start + 1 :]
    more = next((number for number, line in enumerate(rest) if not line.startswith("   ")), len(rest))
    return " | ".join(line.removeprefix(name).strip() for line in lines[start : start + 1 + more])


def test_all_is_well_fits_a_screen_and_names_everything(shown: Shown) -> None:
    lines = shown()
    assert len(lines) <= 24
    assert said(lines, "node") == f"{ME} (pid 42, life 7)"
    assert said(lines, "swarm") == "lab, private (15a967969f27ed20)"
    assert said(lines, "listens") == "/ip4/10.0.0.1/tcp/27420"
    assert said(lines, "reached") == "direct: 2 peers got through"
    assert said(lines, "members") == "1 alive, 0 suspect, 0 dead, beside this node"
    assert said(lines, "links") == "1 of 1 known peer"
    assert said(lines, "dht") == "server, joined, 1 contact, 4 records held"
    assert said(lines, "index").startswith("complete")
    assert said(lines, "mesh") == "members 1/4, ops 1/4 (peers in the mesh / subscribed)"
    assert any(line == f"  {PEER}  critic on tiny (demo, ? tokens/s)" for line in lines)
    assert not any("refusals" in line or "clock" in line for line in lines)


def test_json_is_all_that_the_node_said(daemon: FakeClient, capsys: pytest.CaptureFixture[str]) -> None:
    daemon.value = told(refusals=[refused("x")])
    assert run(["status", "--profile", "/nonexistent", "--json"]) == 0
    value = json.loads(capsys.readouterr().out)
    assert value == {**daemon.value, "ready": True, "reasons": [], "pid": 42}


def test_an_open_swarm_is_said_to_be_one(shown: Shown) -> None:
    assert "lab, open" in said(shown(mode="open"), "swarm")


def test_a_node_that_nobody_can_dial_is_told_who_tried_and_what_to_do(shown: Shown) -> None:
    tried = [f"aaaaaaa{n}: Connection refused" for n in range(9)]
    text = said(shown(reachability=reach("outbound-only", seen_from=0, reasons=tried)), "reached")
    assert text.startswith("outbound-only")
    assert "tried by aaaaaaa0: Connection refused" in text
    assert "aaaaaaa8" not in text, "one screen"
    assert "masos up --relay client" in text
    assert "announce" in text


def test_a_node_behind_a_relay_names_it_and_an_untested_one_says_so(shown: Shown) -> None:
    lines = shown(reachability=reach("relay", seen_from=0, relay="uSnoBe69", relay_addrs=["/ip4/1.2.3.4/tcp/5"]))
    assert "uSnoBe69" in said(lines, "reached")
    assert "hint" not in said(lines, "reached")
    assert said(shown(reachability=reach("unknown", seen_from=0)), "reached").startswith("unknown")


def test_a_node_alone_says_so_with_the_last_reason_of_every_address(shown: Shown) -> None:
    old, last = refused("stale"), refused("/ip4/10.0.0.2/tcp/1: refused; /ip4/10.0.0.2/tcp/2: no route", age_s=3)
    lines = shown(**ALONE, refusals=[old, old, last])
    assert "ALONE" in said(lines, "links")
    assert "1 known peer again" in said(lines, "links")
    at = lines.index("refusals:")
    assert lines[at + 1] == f"  …{PEER[-8:]} unreachable (3s ago, 3 times): /ip4/10.0.0.2/tcp/1: refused"
    assert lines[at + 2 :] == ["    /ip4/10.0.0.2/tcp/2: no route"]


def test_the_first_node_of_a_swarm_is_not_called_alone(shown: Shown) -> None:
    text = said(shown(**ALONE, known={}), "links")
    assert "ALONE" not in text
    assert "masos swarm invite" in text


def test_a_failed_dial_of_a_peer_that_is_linked_by_now_is_no_trouble_but_its_clash_is(shown: Shown) -> None:
    assert "refusals:" not in shown(refusals=[refused("no route")])
    lines = shown(refusals=[refused("no route"), refused("two nodes use this key", code="identity_clash")])
    assert lines[-1].endswith("identity_clash (2s ago): two nodes use this key")


def test_members_that_are_down_and_doubts_of_this_node_are_counted(shown: Shown) -> None:
    text = said(shown(members=members(alive=9, suspect=2, dead=1, left=3, health=4, standing_down=True)), "members")
    assert text.startswith("9 alive, 2 suspect, 1 dead, 3 left")
    assert "only links count" in text
    assert "4 times longer" in text


def test_every_loss_of_the_mesh_is_shown_and_none_where_there_was_none(shown: Shown) -> None:
    losses = {name: number for number, name in enumerate(LOSSES, 2)}
    text = said(shown(mesh=mesh(**losses)), "mesh")
    assert all(f"{number} {LOSSES[name]}" in text for name, number in losses.items())
    assert "|" not in said(shown(mesh=mesh(mesh_drops=0)), "mesh")


def test_a_light_node_says_where_agents_are_found_and_claims_nothing_of_others(shown: Shown) -> None:
    lines = shown(index="light", index_complete=False, linked=[linked(offer=None)])
    assert "masos find" in said(lines, "index")
    assert lines[-1] == f"  {PEER}"
    assert "not every agent" in said(shown(index="partial", index_complete=False), "index")


def test_a_client_of_the_dht_holds_nothing(shown: Shown) -> None:
    dht = {"mode": "client", "joined": False, "contacts": 0, "held_records": 0}
    assert said(shown(dht=dht), "dht") == "client, not joined, 0 contacts, holds nothing"


def test_a_wrong_clock_and_spaces_that_wait_are_named(shown: Shown) -> None:
    lines = shown(clock_warning=True, clock_offset_ms=-90_000, unsure_spaces=2)
    assert "-90000 ms" in said(lines, "clock")
    assert "2 spaces" in said(lines, "waits")


def test_what_is_not_ready_says_why(daemon: FakeClient, shown: Shown) -> None:
    daemon.reasons = ("no peer is linked",)
    assert said(shown(), "ready") == "no peer is linked"


def test_a_crowd_stays_on_one_screen(shown: Shown) -> None:
    peers = [f"{PEER[:-3]}{number:03}" for number in range(200)]
    lines = shown(
        linked=[linked(peer) for peer in peers[:100]],
        known={peer: [] for peer in peers},
        refusals=[refused("no route", peer) for peer in peers[100:]],
    )
    assert f"  and {100 - LINKED_SHOWN} more (masos peers)" in lines
    assert f"  and {100 - REFUSALS_SHOWN} more (masos status --json)" in lines
    assert len(lines) <= 40


def test_no_text_of_a_peer_acts_or_forges_a_line(daemon: FakeClient, shown: Shown) -> None:
    daemon.reasons = (HOSTILE,)
    bad: dict[str, Any] = {**dict.fromkeys(OFFER, HOSTILE), "roles": [HOSTILE]}
    lines = shown(
        peer=HOSTILE, swarm=HOSTILE, listen=[HOSTILE], offer=bad, linked=[linked(HOSTILE, bad)], index=HOSTILE,
        refusals=[refused(f"{HOSTILE}; {HOSTILE}", f"{HOSTILE}x", HOSTILE)], mode="open",
        reachability=reach("outbound-only", relay=HOSTILE, reasons=[HOSTILE]),
        dht={"mode": HOSTILE, "joined": True, "contacts": 0, "held_records": 0},
        engine=dict.fromkeys(("kind", "state", "reason", "model", "backend", "quality"), HOSTILE),
    )  # fmt: skip
    assert not any(unicodedata.category(char) in {"Cc", "Cf", "Zl", "Zp"} for line in lines for char in line)
    assert not any(line.startswith("forged") for line in lines)


def test_it_needs_a_daemon(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["init", "--profile", str(tmp_path)]) == 0
    assert run(["status", "--profile", str(tmp_path)]) == 69
    assert "masos up" in capsys.readouterr().err
