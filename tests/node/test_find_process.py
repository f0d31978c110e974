"""Two real daemons: one offers agents, the other finds them by meaning, pings it, and sees it leave."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from node.cli import run

pytestmark = [pytest.mark.slow, pytest.mark.libp2p]

WAIT_S = 40.0
OFFER = """
[offer]
description = "Reads contracts and leases and says what they oblige each party to."
skills = ["contract review"]
taxonomy = "law/contracts"
price_micro_money = 7
"""


class Models(BaseHTTPRequestHandler):
    """A server that lists a model and says that it is healthy; nobody asks it for text here."""

    def do_GET(self) -> None:
        body = json.dumps({"object": "list", "data": [{"id": "stub", "object": "model", "owned_by": "test"}]}).encode()
        self.send_response(200)
        self.send_header("content-type", "application/json")
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_args: object) -> None:
        """Nothing."""


@pytest.fixture
def server() -> Iterator[str]:
    with ThreadingHTTPServer(("127.0.0.1", 0), Models) as made:
        thread = threading.Thread(target=made.serve_forever, daemon=True)
        thread.start()
        yield f"http://127.0.0.1:{made.server_address[1]}"
        made.shutdown()
        thread.join(5)


class Daemon:
    """A profile and its process; verbs run in this process."""

    def __init__(self, folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
        self.folder = folder
        self._capsys = capsys
        self.process: subprocess.Popen[bytes] | None = None
        assert self.masos("init")[0] == 0

    def masos(self, *args: str) -> tuple[int, Any]:
        self._capsys.readouterr()
        status = run([*args, "--json", "--profile", str(self.folder)])
        out = self._capsys.readouterr().out
        return status, json.loads(out) if out else None

    def start(self, *args: str) -> Any:
        command = [sys.executable, "-W", "ignore", "-m", "node.cli", "up", *args, "--json", "--profile"]
        with (self.folder / "log").open("ab") as log:
            self.process = subprocess.Popen([*command, str(self.folder)], stdout=subprocess.PIPE, stderr=log)
        assert self.process.stdout is not None
        return json.loads(self.process.stdout.readline() or "{}")

    def end(self, number: int = signal.SIGKILL) -> None:
        if self.process is not None:
            self.process.send_signal(number)
            self.process.wait(WAIT_S)
            if self.process.stdout is not None:
                self.process.stdout.close()
            self.process = None


@pytest.fixture
def pair(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> Iterator[tuple[Daemon, Daemon]]:
    for name in [name for name in os.environ if name.startswith("MASOS_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("MASOS_NODE_LISTEN", "/ip4/127.0.0.1/tcp/0")
    one, other = Daemon(tmp_path / "one", capsys), Daemon(tmp_path / "other", capsys)
    try:
        yield one, other
    finally:
        one.end()
        other.end()


def until(check: Callable[[], Any]) -> Any:
    """Processes know no event of ours: look, up to a bound."""
    for _ in range(round(WAIT_S / 0.2)):
        value = check()
        if value:
            return value
        time.sleep(0.2)
    raise AssertionError("not in time")


def test_an_offer_is_found_by_meaning_from_another_node_and_gone_when_its_node_leaves(
    pair: tuple[Daemon, Daemon], server: str
) -> None:
    one, other = pair
    assert one.masos("swarm", "create", "lab")[0] == 0
    settings = one.folder / "config.toml"
    settings.write_text(f'[engine]\nkind = "openai"\nbase_url = "{server}"\nmodel = "stub"\n{OFFER}')
    peer = one.start()["peer"]
    assert other.masos("swarm", "join", one.masos("swarm", "invite")[1]["ticket"])[0] == 0
    other.start("--engine", "none")

    (listed,) = until(lambda: other.masos("agents")[1]["agents"])
    assert (listed["peer"], listed["model"], listed["data_policy"]) == (peer, "stub", "local")
    text = "which clause lets me end the lease early"
    status, found = other.masos("find", text, "--timeout", "30s")
    assert status == 0
    (hit,) = found["agents"]
    assert hit["score"] > found["threshold"]
    assert (hit["price_micro_money"], hit["trust"], hit["encoder"], hit["linked"]) == (7, None, "use-512", True)
    for filters, reason in ((("--price", "6"), "price"), (("--model", "gpt"), "model"), (("--skill", "art"), "skill")):
        found = other.masos("find", text, "--explain", *filters)[1]
        assert found["agents"] == []
        assert [line["reason"] for line in found["rejected"]] == [reason]
    assert other.masos("find", "train a horse to jump fences")[1]["agents"] == []
    assert len(other.masos("find", text, "--skill", "law", "--data", "local")[1]["agents"]) == 1

    (row,) = other.masos("peers")[1]["peers"]
    assert (row["peer"], row["state"]) == (peer, "linked")
    status, trips = other.masos("ping", peer[-8:], "-c", "3", "--interval", "10ms")
    assert status == 0
    assert (trips["peer"], trips["received"]) == (peer, 3)
    assert 0 < trips["min_ms"] <= trips["max_ms"] < 5_000

    one.end(signal.SIGTERM)
    until(lambda: not other.masos("agents")[1]["agents"])
    (gone,) = other.masos("find", text, "--explain")[1]["rejected"]
    assert gone["reason"] == "withdrawn"
    (row,) = other.masos("peers")[1]["peers"]
    assert row["state"] == "left"
    status, error = other.masos("ping", peer[-8:])
    assert (status, error["code"]) == (69, "peer_unreachable")
