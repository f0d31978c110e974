"""Real daemons on loopback for tests about membership: made offline, started, killed, paused, cut off, asked.

A node listens on a port of its own choice, so it comes back somewhere else after each start; only one with a fixed
port can be named in a ticket. What others dial is the announced address, and a `Wire` can stand there: a relay that
cuts or swallows what passes, which is a partition between processes that both live. A `Fabric` has a wire before every
node and knows who is at the other end of each connection, so that it can cut pairs of nodes.
"""

from __future__ import annotations

import json
import os
import selectors
import signal
import socket
import sqlite3
import threading
import time
from collections.abc import Callable, Collection, Iterator
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from itertools import combinations
from pathlib import Path
from typing import Any, Self

from node.demo.making import enter_swarm, make_profile
from node.demo.nodes import DemoNode, View, wait_for
from node.keystore import Keystore
from node.profile import Profile
from protocol.capability import SignedRecord
from protocol.identity import verify_raw
from protocol.peer import peer_text

PING_S, SILENT_S, BACKOFF_S = 1.0, 5.0, 2.0
TIMING = {"ping_every_s": PING_S, "silent_after_s": SILENT_S, "dial_backoff_max_s": BACKOFF_S, "own_head_wait_s": 2.0}
START_S = 60.0
SAID = "The office closes at noon."


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

    def add(
        self, name: str, *members: str, port: int = 0, announce: tuple[str, ...] = (), host: str = "/ip4/127.0.0.1"
    ) -> DemoNode:
        profile = Profile(self.folder / name)
        chosen: dict[str, dict[str, object]] = {
            "node": {"listen": (f"{host}/tcp/{port}",), "announce": announce},
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

    def exact(self, among: Collection[str] = ()) -> bool:
        """Every living node (of those named, if any are) lists every other one, once, and counts nobody else alive."""
        chosen = [node for node in self.living if not among or node.name in among]
        peers = {node.peer for node in chosen}
        statuses = [node.status() for node in chosen]
        return all(
            status is not None
            and linked_of(status) == peers - {status["peer"]}
            and len(status["linked"]) == status["members"]["alive"] == len(peers) - 1
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


def records_in(profile: Profile, publisher: DemoNode) -> list[SignedRecord]:
    """What a node's database holds of another node's records."""
    key = Keystore(publisher.profile).node().public
    with closing(sqlite3.connect(f"{profile.database.as_uri()}?mode=ro", uri=True)) as connection:
        rows = connection.execute("SELECT wire FROM record WHERE publisher = ?", (key,)).fetchall()
    return [SignedRecord.from_wire(bytes(row[0]), verify_raw) for row in rows]


def linked_of(status: View) -> set[str]:
    return {str(peer["peer"]) for peer in status["linked"]}


@contextmanager
def real_swarm(folder: Path, engine: dict[str, object] | None = None) -> Iterator[RealSwarm]:
    swarm = RealSwarm(folder, engine)
    try:
        yield swarm
    finally:
        swarm.stop()


@dataclass(slots=True, eq=False)
class _Pair:
    """One relayed connection: `near` came from the caller, `far` goes to the target; None once closed or never open."""

    near: socket.socket | None
    far: socket.socket | None
    find_caller: Callable[[], str]
    known: str | None = None
    holed: bool = False  # something that was sent on it has not arrived

    def caller(self) -> str:
        """Who called; looked up once, and only when somebody wants to know."""
        if self.known is None:
            self.known = self.find_caller()
        return self.known

    def sockets(self) -> list[socket.socket]:
        return [sock for sock in (self.near, self.far) if sock is not None]


class Wire:
    """A relay on a port of its own to a port that may be listened on or not.

    `mode`: "open" passes bytes; "to" swallows those towards the target and "from" those that come from it (one-way
    loss); "cut" ends every connection and takes no new one.

    What is cut by `is_cut(caller)`, where `caller()` tells who is at the other end, is cut as a firewall does it:
    connections stay open on either side, an end that closes closes alone, and who dials gets no answer and no refusal.
    A connection that has lost something is ended once the way is free again, for a stream of TCP has no holes.
    """

    def __init__(
        self,
        target: int,
        who: Callable[[int, int], str] = lambda _caller_port, _wire_port: "",
        is_cut: Callable[[Callable[[], str]], bool] = lambda _caller: False,
    ) -> None:
        self.target = target
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port = int(self._listener.getsockname()[1])
        self.mode = "open"
        self._who, self._is_cut = who, is_cut
        self._pairs: list[_Pair] = []
        self._selector = selectors.DefaultSelector()
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    @property
    def address(self) -> str:
        return f"/ip4/127.0.0.1/tcp/{self.port}"

    def callers(self) -> list[str]:
        """Who is at the near end of each connection."""
        return sorted(pair.caller() for pair in list(self._pairs))

    def close(self) -> None:
        self._over.set()
        self._thread.join(15)
        self._listener.close()
        for pair in list(self._pairs):
            self._drop(pair)
        self._selector.close()

    def _run(self) -> None:
        self._selector.register(self._listener, selectors.EVENT_READ, None)
        while not self._over.is_set():
            for pair in list(self._pairs):
                if self.mode == "cut" or (pair.holed and not self._is_cut(pair.caller)):
                    self._drop(pair)
            for key, _ in self._selector.select(0.05):
                if key.data is None:
                    self._accept()
                elif key.fileobj.fileno() >= 0:  # type: ignore[union-attr]
                    self._pass(key.fileobj, key.data)  # type: ignore[arg-type]

    def _accept(self) -> None:
        near, (_, caller_port) = self._listener.accept()
        if self.mode == "cut":
            near.close()
            return
        pair = _Pair(near, None, partial(self._who, caller_port, self.port))
        pair.holed = self._is_cut(pair.caller)
        try:
            if not pair.holed:
                pair.far = socket.create_connection(("127.0.0.1", self.target), 1)
        except OSError:
            near.close()
            return
        self._pairs.append(pair)
        for sock in pair.sockets():
            sock.settimeout(5)
            self._selector.register(sock, selectors.EVENT_READ, pair)

    def _pass(self, source: socket.socket, pair: _Pair) -> None:
        data = b""
        with suppress(OSError):
            data = source.recv(65_536)
        if self._is_cut(pair.caller):
            self._swallow(source, pair, data)
            return
        other = pair.far if source is pair.near else pair.near
        try:
            if data and other is not None and self.mode != ("to" if source is pair.near else "from"):
                other.sendall(data)
        except OSError:
            data = b""
        if not data:
            self._drop(pair)

    def _swallow(self, source: socket.socket, pair: _Pair, data: bytes) -> None:
        pair.holed = True
        if data:
            return
        self._selector.unregister(source)
        source.close()
        if source is pair.near:
            pair.near = None
        else:
            pair.far = None

    def _drop(self, pair: _Pair) -> None:
        self._pairs.remove(pair)
        for sock in pair.sockets():
            self._selector.unregister(sock)
            sock.close()


class Fabric:
    """All that lies between the nodes of a swarm: each announces the address of a wire of its own and nothing else.

    A wire finds the process that calls by its socket, so the test can cut pairs of nodes, whoever dialled whom:

        fabric.partition({"a", "b"}, {"c", "d", "e"})
        fabric.heal()
    """

    def __init__(self, swarm: RealSwarm) -> None:
        self._swarm = swarm
        self._cut: frozenset[frozenset[str]] = frozenset()
        self._owners: dict[str, str] = {}  # open file of a node, as /proc names it -> node, as last looked
        self._looking = threading.Lock()
        self.wires: dict[str, Wire] = {}

    def add(self, name: str, *members: str) -> DemoNode:
        """A node that is reached through the fabric only."""

        def is_cut(caller: Callable[[], str]) -> bool:
            cut = self._cut
            return bool(cut) and frozenset((caller(), name)) in cut

        wire = self.wires[name] = Wire(free_port(), self._caller, is_cut)
        return self._swarm.add(name, *members, port=wire.target, announce=(wire.address,))

    def partition(self, *sides: Collection[str]) -> None:
        """Nothing passes between nodes of two sides any more; a node of no side is cut off from nobody."""
        pairs = combinations(sides, 2)
        self._cut = frozenset(frozenset((a, b)) for one, two in pairs for a in one for b in two)

    def heal(self) -> None:
        self._cut = frozenset()

    def close(self) -> None:
        for wire in self.wires.values():
            wire.close()

    def _caller(self, caller_port: int, wire_port: int) -> str:
        """The node whose process holds the other end; empty when it is none of the swarm's, or gone already.

        Who misses looks at all processes, and who waited meanwhile finds its own there: many calls share one look.
        """
        inode = _inode(caller_port, wire_port)
        if not inode:
            return ""
        with self._looking:
            if inode not in self._owners:
                nodes = [(name, node.pid) for name, node in self._swarm.nodes.items()]
                self._owners = {file: name for name, pid in nodes if pid is not None for file in open_files(pid)}
            return self._owners.get(inode, "")


def _inode(local_port: int, remote_port: int) -> str:
    """Of the socket from one port of 127.0.0.1 to another, as a file; empty when there is none (/proc/net/tcp)."""
    loopback = socket.inet_aton("127.0.0.1")[::-1].hex().upper()
    ends = f" {loopback}:{local_port:04X} {loopback}:{remote_port:04X} "
    line = Path("/proc/net/tcp").read_text().partition(ends)[2].partition("\n")[0].split()
    return f"socket:[{line[6]}]" if line and line[6] != "0" else ""


def open_files(pid: int) -> set[str]:
    """What a process has open, as /proc names it."""
    found: set[str] = set()
    with suppress(OSError):  # the process has ended
        for entry in os.listdir(f"/proc/{pid}/fd"):
            with suppress(OSError):
                found.add(os.readlink(f"/proc/{pid}/fd/{entry}"))
    return found


@contextmanager
def fabric_of(swarm: RealSwarm) -> Iterator[Fabric]:
    fabric = Fabric(swarm)
    try:
        yield fabric
    finally:
        fabric.close()


class _Models(BaseHTTPRequestHandler):
    """A model server with one model that answers after a moment: its nodes offer agents and can work."""

    takes_s = 0.0
    says: Callable[[str], str] = staticmethod(lambda _prompt: SAID)

    def do_GET(self) -> None:
        rows = {"data": [{"id": "tiny", "max_model_len": 4096}]}
        self._answer(200 if self.path == "/v1/models" else 404, "application/json", json.dumps(rows).encode())

    def do_POST(self) -> None:
        asked = self.rfile.read(int(self.headers.get("Content-Length", 0))).decode()
        if self.path != "/v1/chat/completions":
            self._answer(404, "application/json", b"{}")
            return
        time.sleep(self.takes_s)
        said = {"choices": [{"delta": {"content": self.says(asked)}, "finish_reason": None}]}
        ended = {"choices": [{"delta": {}, "finish_reason": "stop"}]}
        used = {"choices": [], "usage": {"prompt_tokens": 7, "completion_tokens": 3}}
        lines = [json.dumps({"model": "tiny", **event}) for event in (said, ended, used)]
        self._answer(200, "text/event-stream", "".join(f"data: {line}\n\n" for line in [*lines, "[DONE]"]).encode())

    def _answer(self, status: int, kind: str, body: bytes) -> None:
        with suppress(OSError):  # the node has been killed meanwhile
            self.send_response(status)
            self.send_header("Content-Type", kind)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002, ARG002 - the base class's
        return


@contextmanager
def model_server(
    takes_s: float = 0.0, says: Callable[[str], str] = lambda _prompt: SAID
) -> Iterator[dict[str, object]]:
    """Settings of an engine that says `says(request)` to everything, `takes_s` after it was asked."""
    handler = type("Models", (_Models,), {"takes_s": takes_s, "says": staticmethod(says)})
    server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
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
