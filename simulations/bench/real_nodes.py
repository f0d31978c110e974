"""Real daemons on loopback for benches: profiles made offline in a temporary folder, processes started and ended here.

Each node listens on a port of its own and learns others as in life: from a ticket that names the first nodes, and from
what these tell. A daemon with an engine offers agents only if the engine answers; benches that need offers give it a
model server that lists one model and writes nothing (`models`), so that no engine's cost is in the figures.
"""

from __future__ import annotations

import json
import os
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Final

from node.demo.making import enter_swarm, make_profile
from node.demo.nodes import DemoNode, View, wait_for
from node.profile import Profile
from simulations.bench.rpc import free_port

BOOTSTRAPS: Final = 3  # first nodes that a ticket names
UP_S: Final = 60.0
LINKED_S: Final = 90.0
NO_ENGINE: Final[dict[str, object]] = {"kind": "none"}


class Nodes:
    """The daemons of a bench, in the order in which they were made."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._swarm: list[Profile] = []
        self.all: list[DemoNode] = []

    def add(self, engine: dict[str, object], *, alone: bool = False) -> DemoNode:
        """Make a node that is to join the others, or one of a swarm of its own that none of them knows."""
        profile = Profile(self._folder / f"node{len(self.all)}")
        chosen: dict[str, dict[str, object]] = {
            "node": {"listen": (f"/ip4/127.0.0.1/tcp/{free_port()}",)},
            "engine": engine,
        }
        make_profile(profile, chosen, _entropy)
        members = [] if alone else self._swarm[:BOOTSTRAPS]
        enter_swarm(profile, "bench", members, _entropy, round(time.time() * 1000))
        if not alone:
            self._swarm.append(profile)
        node = DemoNode(f"node{len(self.all)}", profile, {}, unset=("MASOS_",))
        self.all.append(node)
        return node

    @property
    def living(self) -> list[DemoNode]:
        """Those whose daemon runs."""
        return [node for node in self.all if node.running]

    def until_up(self, nodes: list[DemoNode]) -> None:
        """Wait until all answer their control API.

        Raises:
            LocalError: not in time, or one has died.
        """
        wait_for("answer", lambda: all(node.status() is not None for node in nodes), UP_S, nodes)

    def until_linked(self, nodes: list[DemoNode], links: int) -> None:
        """Wait until each has so many links at least.

        Raises:
            LocalError: as above.
        """
        wait_for("links", lambda: all(_links(node.status()) >= links for node in nodes), LINKED_S, nodes)

    def stop(self) -> None:
        """End all of them: told at once, waited for one by one."""
        for node in self.living:
            if node.process is not None:
                node.process.terminate()
        for node in self.all:
            node.stop()


def _entropy(size: int) -> bytes:
    return os.urandom(size)


def _links(status: View | None) -> int:
    return len(status["linked"]) if status is not None else 0


@contextmanager
def real_nodes() -> Iterator[Nodes]:
    """Nodes in a folder that is gone afterwards, as they are."""
    with tempfile.TemporaryDirectory(prefix="masos-bench-") as folder:
        nodes = Nodes(Path(folder))
        try:
            yield nodes
        finally:
            nodes.stop()


class _Models(BaseHTTPRequestHandler):
    """Lists the models that its server was given."""

    def do_GET(self) -> None:
        """Any path but the list is unknown, and that is an answer too."""
        listed = [{"id": name, "object": "model", "max_model_len": 4096} for name in self.server.names]  # type: ignore[attr-defined]
        body = json.dumps({"object": "list", "data": listed}).encode()
        self.send_response(200 if self.path == "/v1/models" else 404)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - the base class's
        """Nothing is logged."""


@contextmanager
def models(*names: str) -> Iterator[str]:
    """The URL of a server that lists these models."""
    server = ThreadingHTTPServer(("127.0.0.1", 0), _Models)
    server.names = names  # type: ignore[attr-defined]
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        server.server_close()
        thread.join(5)


def engine_of(url: str, model: str) -> dict[str, object]:
    """Settings of an engine that a server of `models` stands for."""
    return {"kind": "openai", "base_url": url, "model": model}
