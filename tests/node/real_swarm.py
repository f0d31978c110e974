"""Real daemons on loopback for tests about membership: made offline, started, killed, paused, cut off, asked.

A node listens on a port of its own choice, so it comes back somewhere else after each start; only one with a fixed
port can be named in a ticket. What others dial is the announced address, and a `Wire` can stand there: a relay that
cuts or swallows what passes, which is a partition between processes that both live.
"""

from __future__ import annotations

import json
import os
import selectors
import signal
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, Self

from node.demo.making import enter_swarm, make_profile
from node.demo.nodes import DemoNode, View, wait_for
from node.keystore import Keystore
from node.profile import Profile
from protocol.peer import peer_text

PING_S, SILENT_S, BACKOFF_S = 1.0, 5.0, 2.0
TIMING = {"ping_every_s": PING_S, "silent_after_s": SILENT_S, "dial_backoff_max_s": BACKOFF_S, "own_head_wait_s": 2.0}
START_S = 60.0


def free_port() -> int:
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        return int(sock.getsockname()[1])


class RealSwarm:
    """Nodes of one swarm, each made with the addresses of those it is given as members."""

    def __init__(self, folder: Path, engine: dict[str, object] | None = None) -> None:
        self.folder = folder
        self.engine = engine or {"kind": "none"}
        self.nodes: dict[str, DemoNode] = {}

    def add(self, name: str, *members: str, port: int = 0, announce: tuple[str, ...] = ()) -> DemoNode:
        profile = Profile(self.folder / name)
        chosen: dict[str, dict[str, object]] = {
            "node": {"listen": (f"/ip4/127.0.0.1/tcp/{port}",), "announce": announce},
            "engine": self.engine,
            "timing": dict(TIMING),
        }
        make_profile(profile, chosen, os.urandom)
        enter_swarm(profile, "churn", [self.nodes[m].profile for m in members], os.urandom, round(time.time() * 1000))
        return self.adopt(name, profile)

    def adopt(self, name: str, profile: Profile) -> DemoNode:
        """A profile that was made otherwise."""
        node = self.nodes[name] = DemoNode(name, profile, {}, unset=("MASOS_",))
        node.peer = peer_text(Keystore(profile).node().public)
        return node

    def star(self, count: int) -> list[DemoNode]:
        """Nodes that know the first one's address and no other."""
        self.add("n0", port=free_port())
        for number in range(1, count):
            self.add(f"n{number}", "n0")
        return list(self.nodes.values())

    @property
    def living(self) -> list[DemoNode]:
        return [node for node in self.nodes.values() if node.running]

    def start(self, *names: str) -> float:
        """Start nodes (all, if none is named) and wait until they answer."""
        chosen = [self.nodes[name] for name in names or self.nodes]
        for node in chosen:
            node.start()
        return wait_for("answers", lambda: all(node.status() is not None for node in chosen), START_S, chosen)

    def views(self) -> dict[str, set[str]]:
        """Peer of each living node that answers, and the peers it says it is linked to."""
        seen = [status for node in self.living if (status := node.status()) is not None]
        return {str(status["peer"]): linked_of(status) for status in seen}

    def exact(self) -> bool:
        """Every living node lists every other living node, once, and nobody else."""
        living = {node.peer for node in self.living}
        statuses = [node.status() for node in self.living]
        return all(
            status is not None
            and linked_of(status) == living - {status["peer"]}
            and len(status["linked"]) == len(living) - 1
            for status in statuses
        )

    def until_exact(self, limit_s: float) -> float:
        return wait_for("exact membership on every node", self.exact, limit_s, self.living)

    def stop(self) -> None:
        for node in self.nodes.values():
            if node.running and node.process is not None:
                node.process.send_signal(signal.SIGCONT)  # a paused one cannot end
                node.process.terminate()
        for node in self.nodes.values():
            node.stop()


def linked_of(status: View) -> set[str]:
    return {str(peer["peer"]) for peer in status["linked"]}


@contextmanager
def real_swarm(folder: Path, engine: dict[str, object] | None = None) -> Iterator[RealSwarm]:
    swarm = RealSwarm(folder, engine)
    try:
        yield swarm
    finally:
        swarm.stop()


class Wire:
    """A relay on a port of its own to a port that may be listened on or not.

    `mode`: "open" passes bytes; "to" swallows those towards the target and "from" those that come from it (one-way
    loss); "cut" ends every connection and takes no new one.
    """

    def __init__(self, target: int) -> None:
        self.target = target
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port = int(self._listener.getsockname()[1])
        self.mode = "open"
        self._pairs: list[tuple[socket.socket, socket.socket]] = []
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    @property
    def address(self) -> str:
        return f"/ip4/127.0.0.1/tcp/{self.port}"

    def close(self) -> None:
        self._over.set()
        self._thread.join(5)
        self._listener.close()
        self._drop_all()

    def _run(self) -> None:
        with selectors.DefaultSelector() as selector:
            selector.register(self._listener, selectors.EVENT_READ, None)
            while not self._over.is_set():
                if self.mode == "cut":
                    for pair in self._pairs:
                        for sock in pair:
                            selector.unregister(sock)
                    self._drop_all()
                for key, _ in selector.select(0.05):
                    if key.data is None:
                        self._accept(selector)
                    elif key.fileobj.fileno() >= 0:  # type: ignore[union-attr]
                        self._pass(selector, key.fileobj, key.data)  # type: ignore[arg-type]

    def _accept(self, selector: selectors.BaseSelector) -> None:
        near, _ = self._listener.accept()
        if self.mode == "cut":
            near.close()
            return
        try:
            far = socket.create_connection(("127.0.0.1", self.target), 1)
        except OSError:
            near.close()
            return
        far.settimeout(5)
        near.settimeout(5)
        self._pairs.append((near, far))
        selector.register(near, selectors.EVENT_READ, (near, far))
        selector.register(far, selectors.EVENT_READ, (near, far))

    def _pass(self, selector: selectors.BaseSelector, source: socket.socket, pair: tuple[socket.socket, ...]) -> None:
        near, far = pair
        data = b""
        with suppress(OSError):
            data = source.recv(65_536)
        try:
            if data and self.mode != ("to" if source is near else "from"):
                (far if source is near else near).sendall(data)
        except OSError:
            data = b""
        if not data:
            for sock in pair:
                selector.unregister(sock)
                sock.close()
            self._pairs.remove((near, far))

    def _drop_all(self) -> None:
        for pair in self._pairs:
            for sock in pair:
                sock.close()
        self._pairs.clear()


class _Models(BaseHTTPRequestHandler):
    """A model server that lists one model and does nothing else: its nodes offer agents."""

    def do_GET(self) -> None:
        body = json.dumps({"data": [{"id": "tiny", "max_model_len": 4096}]}).encode()
        self.send_response(200 if self.path == "/v1/models" else 404)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002, ARG002 - the base class's
        return


@contextmanager
def model_server() -> Iterator[dict[str, object]]:
    """Settings of an engine that answers only what it is."""
    server = ThreadingHTTPServer(("127.0.0.1", 0), _Models)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield {"kind": "openai", "base_url": f"http://127.0.0.1:{server.server_port}", "model": "tiny"}
    finally:
        server.shutdown()
        server.server_close()
        thread.join(5)


class Clockwork:
    """Calls something again and again in a thread until it is stopped; what it raises is kept."""

    def __init__(self, work: Callable[[], None], every_s: float) -> None:
        self._work, self._every_s = work, every_s
        self._over = threading.Event()
        self.errors: list[Exception] = []
        self._thread = threading.Thread(target=self._run, daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_exc: object) -> None:
        self._over.set()
        self._thread.join(60)

    def _run(self) -> None:
        while not self._over.wait(self._every_s):
            try:
                self._work()
            except Exception as exc:  # noqa: BLE001 - kept for the test to look at
                self.errors.append(exc)
