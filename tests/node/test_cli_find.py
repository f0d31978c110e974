"""find, agents, peers and ping: what they ask, what they show, and that no peer's text acts on a terminal."""

from __future__ import annotations

import json
import unicodedata
from collections.abc import Callable, Iterator
from typing import Any, Self

import pytest

from node.cli import run
from node.control.client import ControlClient
from protocol.errors import PeerUnreachable, RequestTimeout, SwarmError

HOSTILE = "a\x1b[2Jb\u202ec\x07\x9bd\u2028e\ufefff\x00[bold red]g[/]\r\nforged"
PEER = "12D3KooWFkYWc54X7GdcZ6TNqKiMNYWv1Q8MSLh7umZuKMtDxjAA"
PROFILE = ("--profile", "/nonexistent")


def agent(**changes: Any) -> dict[str, Any]:
    return {
        "peer": PEER, "agent": "default", "score": 0.5312, "encoder": "use-512", "roles": ["reasoning", "critic"],
        "description": "Reads leases.", "skills": ["law"], "tags": ["eu"], "taxonomy": "law/tenancy", "tools": [],
        "permissions": [], "model": "smollm2", "backend": "b", "quality": "demo", "context_tokens": 2048,
        "tokens_per_s": 41, "price_micro_money": 7, "data_policy": "external", "age_ms": 125_000,
        "expires_ms": 9_000_000, "trust": None, "turns_seen": 0, "mine": False, "linked": True, "alive": True,
        **changes,
    }  # fmt: skip


def found(*agents: dict[str, Any], **more: Any) -> dict[str, Any]:
    return {
        "encoder": "use-512", "threshold": 0.22, "limit": 5, "live": 9, "source": "index", "index_complete": True,
        "candidates": 0, "rpcs": 0, "rounds": 0, "note": "", "agents": list(agents), **more,
    }  # fmt: skip


REJECTED = {"peer": PEER, "agent": "default", "reason": "price", "why": "it costs 9", "score": None, "age_ms": 5}
DOWN = {**REJECTED, "reason": "down", "why": "its node is down: link lost"}
LINKED = {
    "peer": PEER, "state": "linked", "linked": True, "why": "", "roles": ["member", "relay"],
    "addrs": ["/ip4/10.0.0.2/tcp/1", f"/ip4/10.0.0.2/tcp/1/p2p/{PEER}", "/ip4/10.0.0.2/tcp/2", "/ip4/10.0.0.2/tcp/3"],
    "since_s": 7_300, "heard_ms": 20, "rtt_ms": 1.25, "score": -2.5, "offer": {"roles": ["critic"]}, "code": "",
    "reason": "", "reason_age_s": None,
}  # fmt: skip
NO_LINK = {**LINKED, "linked": False, "roles": [], "heard_ms": None, "rtt_ms": None, "score": None}
ALIVE = {**NO_LINK, "state": "alive", "since_s": 61}
DEAD = {**NO_LINK, "state": "dead", "since_s": 40, "why": "link lost"}
GONE = {
    **NO_LINK, "state": "dialling", "since_s": None, "offer": None, "code": "unreachable",
    "reason": "connection refused", "reason_age_s": 4,
}  # fmt: skip


class FakeClient:
    """A daemon's answers, and what it was asked."""

    def __init__(self) -> None:
        self.value: Any = None
        self.asked: list[Any] = []
        self.index = "complete"

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_exc: object) -> None:
        """Nothing is open."""

    def find(self, body: Any, timeout_s: float) -> Any:
        self.asked.append((body, timeout_s))
        return self._next()

    def agents(self) -> Any:
        return self._next()

    peers = agents

    def status(self) -> Any:
        return {"index": self.index, "index_complete": self.index == "complete"}

    def ping(self, peer: str, timeout_s: float) -> Any:
        self.asked.append((peer, timeout_s))
        return self._next()

    def _next(self) -> Any:
        value = next(self.value) if isinstance(self.value, Iterator) else self.value
        if isinstance(value, SwarmError):
            raise value
        return value


@pytest.fixture
def daemon(monkeypatch: pytest.MonkeyPatch) -> FakeClient:
    fake = FakeClient()
    monkeypatch.setattr(ControlClient, "for_profile", lambda _profile: fake)
    monkeypatch.setattr("time.sleep", lambda _s: None)
    return fake


Out = Callable[..., tuple[int, str, str]]


@pytest.fixture
def masos(capsys: pytest.CaptureFixture[str]) -> Out:
    def call(*argv: str) -> tuple[int, str, str]:
        status = run([*argv, *PROFILE])
        captured = capsys.readouterr()
        return status, captured.out, captured.err

    return call


# ---- find


def test_find_asks_for_what_was_said_and_shows_all_that_decides(daemon: FakeClient, masos: Out) -> None:
    daemon.value = found(agent(trust=0.8333, turns_seen=4))
    status, out, _ = masos(
        "find", "who reads leases", "--tool", "python", "--tool", "files", "--model", "qwen", "--min-ctx", "8000",
        "--price", "0", "--data", "local", "--skill", "law", "-k", "3", "--explain", "--timeout", "9s",
    )  # fmt: skip
    assert status == 0
    assert daemon.asked == [
        (
            {
                "text": "who reads leases", "tools": ["python", "files"], "model": "qwen", "context_tokens_min": 8000,
                "price_micro_money_max": 0, "data_policy": "local", "skill": "law", "limit": 3, "explain": True,
            },
            9.0,
        )
    ]  # fmt: skip
    for shown in ("0.531", "use-512", "2m", "7", "0.83 (4)", "external", PEER[-8:], "Reads leases.", "smollm2 (demo)"):
        assert shown in out, shown


def test_who_was_never_seen_at_work_is_unknown_and_who_is_not_linked_is_said_so(daemon: FakeClient, masos: Out) -> None:
    daemon.value = found(agent(linked=False), agent(mine=True))
    _, out, _ = masos("find", "x")
    assert out.count("unknown") == 2
    assert "(not linked)" in out
    assert "unheard" not in out
    assert "this node" in out


def test_who_gave_no_sign_of_life_yet_is_unheard_and_a_link_is_a_sign(daemon: FakeClient, masos: Out) -> None:
    daemon.value = found(agent(linked=False, alive=None))
    assert f"…{PEER[-8:]} (unheard)" in masos("find", "x")[1]
    daemon.value = [agent(linked=False, alive=None, score=None)]
    assert f"…{PEER[-8:]} (unheard)" in masos("agents")[1]
    assert json.loads(masos("agents", "--json")[1])["agents"][0]["alive"] is None
    daemon.value = [agent(linked=True, alive=None, score=None)]
    assert "unheard" not in masos("agents")[1]


def test_nobody_is_an_answer_with_the_way_to_the_reasons(daemon: FakeClient, masos: Out) -> None:
    daemon.value = found()
    status, out, _ = masos("find", "x")
    assert status == 0
    assert "nobody" in out
    assert "--explain" in out
    assert "0.22" in out


def test_an_explanation_lists_the_reasons_and_what_it_left_out(daemon: FakeClient, masos: Out) -> None:
    daemon.value = found(agent(), rejected=[REJECTED, {**REJECTED, "score": 0.1}, DOWN], rejected_more=7)
    _, out, _ = masos("find", "x", "--explain")
    assert "down   its node is down: link lost" in out
    assert "it costs 9" in out
    assert "0.100" in out
    assert "7 more" in out


@pytest.mark.parametrize("explain", [[], ["--explain"]])
def test_a_person_is_told_where_the_node_looked(daemon: FakeClient, masos: Out, explain: list[str]) -> None:
    daemon.value = found(agent())
    assert "source: the 9 records held here\n" in masos("find", "x", *explain)[1]
    daemon.value = found(agent(), source="index+dht", index_complete=False, candidates=12, rpcs=31, rounds=4)
    out = masos("find", "x", *explain)[1]
    assert "source: 9 records held here and 12 that the DHT named in 31 requests, 4 rounds\n" in out
    daemon.value = found(agent(), source="index+dht", live=1, candidates=0, rpcs=1, rounds=1)
    assert "source: 1 record held here and 0 that the DHT named in 1 request, 1 round\n" in masos("find", "x")[1]
    daemon.value = found(index_complete=False, note=f"no answer {HOSTILE}")
    out = masos("find", "x", *explain)[1]
    assert "source: the 9 records held here, which are not all there are\nnote: no answer" in out
    assert "\nforged" not in out


def test_json_is_what_the_node_said_and_jsonl_is_one_agent_a_line(daemon: FakeClient, masos: Out) -> None:
    daemon.value = found(agent(), agent(), rejected=[REJECTED], rejected_more=0)
    assert json.loads(masos("find", "x", "--json")[1]) == daemon.value
    lines = [json.loads(line) for line in masos("find", "x", "-o", "jsonl")[1].splitlines()]
    assert lines == [agent(), agent(), REJECTED]


@pytest.mark.parametrize(
    "argv",
    [
        ["find"], ["find", "x", "--data", "mars"], ["find", "x", "-k", "0"], ["find", "x", "--min-ctx", "-1"],
        ["find", "x", "--price", "cheap"], ["find", "x", "--timeout", "soon"], ["ping"], ["ping", "abcd", "-c", "0"],
        ["ping", "abcd", "--interval", "0"],
    ],
)  # fmt: skip
def test_what_cannot_be_asked_is_a_usage_error(daemon: FakeClient, masos: Out, argv: list[str]) -> None:
    status, _, err = masos(*argv)
    assert status == 64
    assert err.startswith("error:")
    assert not daemon.asked


# ---- agents, peers


def test_agents_lists_every_record_or_says_that_there_is_none(daemon: FakeClient, masos: Out) -> None:
    daemon.value = [agent(score=None)]
    assert "Reads leases." in masos("agents")[1]
    assert "SCORE" not in masos("agents")[1]
    assert json.loads(masos("agents", "--json")[1]) == {"agents": daemon.value}
    daemon.value = []
    assert "no node" in masos("agents")[1]


@pytest.mark.parametrize(
    ("index", "why"),
    [
        ("light", "this node keeps no index of agents"),
        ("partial", "this node does not hold the records of all agents"),
    ],
)
def test_agents_says_when_it_cannot_know_all(daemon: FakeClient, masos: Out, index: str, why: str) -> None:
    daemon.value, daemon.index = [], index
    _, out, err = masos("agents")
    assert why in out
    assert "`masos find TEXT` asks the DHT" in out
    assert "no node" not in out, "that is not known here"
    assert err == ""
    daemon.value = [agent(mine=True, score=None)]
    _, out, err = masos("agents")
    assert "Reads leases." in out
    assert why in err
    assert "`masos find TEXT` asks the DHT" in err
    assert masos("agents", "--json")[2] == ""


def test_peers_says_how_it_stands_with_each(daemon: FakeClient, masos: Out) -> None:
    daemon.value = [LINKED, ALIVE, DEAD, GONE]
    _, out, _ = masos("peers")
    header, linked, alive, dead, why, gone, trouble, counts = out.splitlines()
    assert header.split()[0] == "STATE"
    assert linked.split()[:7] == ["linked", "2h", "1.2", "ms", "-2.5", "critic,", "relay"]
    assert linked.endswith(f"{PEER}  /ip4/10.0.0.2/tcp/1 /ip4/10.0.0.2/tcp/2 +1")  # one known with its id and without
    assert alive.split()[:5] == ["alive", "1m", "-", "-", "critic"]
    assert dead.split()[:5] == ["dead", "40s", "-", "-", "-"], "who is dead offers nothing"
    assert why == "    dead: link lost"
    assert gone.split()[:5] == ["dialling", "-", "-", "-", "-"]
    assert trouble == "    unreachable (4s ago): connection refused"
    assert counts == "1 linked, 1 alive, 1 dead, 1 dialling"
    assert [json.loads(line) for line in masos("peers", "-o", "jsonl")[1].splitlines()] == daemon.value
    daemon.value = []
    assert "masos swarm join" in masos("peers")[1]


def test_an_address_through_a_relay_is_shown_as_one(daemon: FakeClient, masos: Out) -> None:
    relay = PEER[:-3] + "xyz"
    daemon.value = [{**LINKED, "addrs": [f"/ip4/10.0.0.9/tcp/7/p2p/{relay}/p2p-circuit/p2p/{PEER}"]}]
    assert masos("peers")[1].splitlines()[1].endswith(f"/ip4/10.0.0.9/tcp/7 (relay …{relay[-8:]})")


@pytest.mark.parametrize("verb", [["find", "x", "--explain"], ["agents"], ["peers"], ["ping", "abcd", "-c", "1"]])
def test_no_text_of_a_peer_acts_or_forges_a_line(daemon: FakeClient, masos: Out, verb: list[str]) -> None:
    texts = {"peer": HOSTILE, "encoder": HOSTILE, "roles": [HOSTILE], "description": HOSTILE, "skills": [HOSTILE]}
    hostile = agent(**texts, tags=[HOSTILE], taxonomy=HOSTILE, model=HOSTILE, quality=HOSTILE, data_policy=HOSTILE)
    rejected = {**REJECTED, "peer": HOSTILE, "agent": HOSTILE, "reason": HOSTILE, "why": HOSTILE}
    daemon.value = {
        "find": found(hostile, rejected=[rejected]),
        "agents": [hostile],
        "peers": [
            {
                **LINKED,
                "peer": HOSTILE,
                "addrs": [HOSTILE, f"{HOSTILE}/p2p/{HOSTILE}/p2p-circuit"],
                "roles": [HOSTILE],
                "code": HOSTILE,
                "reason": HOSTILE,
                "state": HOSTILE,
                "why": f"{HOSTILE} too",
                "offer": {"roles": [HOSTILE]},
            }
        ],
        "ping": {"peer": HOSTILE, "rtt_us": 5},
    }[verb[0]]
    status, out, _ = masos(*verb)
    assert status == 0
    assert not any(char != "\n" and unicodedata.category(char) in {"Cc", "Cf", "Zl", "Zp"} for char in out)
    assert not any(line.startswith("forged") for line in out.splitlines())


# ---- ping


def test_ping_shows_each_trip_and_sums_them_up(daemon: FakeClient, masos: Out) -> None:
    daemon.value = iter([{"peer": PEER, "rtt_us": us} for us in (3_000, 1_000, 2_000)])
    status, out, _ = masos("ping", "DxjAA", "-c", "3")
    assert status == 0
    assert [peer for peer, _ in daemon.asked] == ["DxjAA", PEER, PEER]
    assert out.splitlines()[-1] == "3 of 3 answered, min 1.00 / median 2.00 / max 3.00 ms"
    assert "ping 1, 3.00 ms" in out


def test_ping_in_json_is_one_object_and_in_jsonl_one_a_trip(daemon: FakeClient, masos: Out) -> None:
    daemon.value = {"peer": PEER, "rtt_us": 1_500}
    value = json.loads(masos("ping", PEER, "-c", "2", "--json")[1])
    assert (value["peer"], value["sent"], value["received"], value["rtt_ms"]) == (PEER, 2, 2, [1.5, 1.5])
    lines = [json.loads(line) for line in masos("ping", PEER, "-c", "2", "-o", "jsonl")[1].splitlines()]
    assert lines == [{"peer": PEER, "ping": n, "rtt_ms": 1.5} for n in (1, 2)]


def test_lost_pings_are_counted_and_only_lost_ones_are_an_error(daemon: FakeClient, masos: Out) -> None:
    late = RequestTimeout("no answer within 5 s", hint="see `masos peers`")
    daemon.value = iter([late, {"peer": PEER, "rtt_us": 1_000}])
    status, out, err = masos("ping", PEER, "-c", "2")
    assert status == 0
    assert "1 of 2 answered" in out
    assert "ping 1: no answer" in err
    daemon.value = iter([late, late])
    status, _, err = masos("ping", PEER, "-c", "2")
    assert status == 75
    assert "hint: see `masos peers`" in err


def test_a_peer_without_a_link_ends_it_at_once(daemon: FakeClient, masos: Out) -> None:
    daemon.value = PeerUnreachable("not linked to it: connection refused", hint="see `masos peers`")
    status, out, _ = masos("ping", PEER, "--json")
    assert status == 69
    assert json.loads(out) == daemon.value.as_dict()
    assert len(daemon.asked) == 1
