"""A swarm of real daemons on this machine that stays: made once, started and stopped at will.

    <folder>/playground.json     marks the folder as ours; which nodes there are, and the pid of each that was started
             /lock               held while a verb changes anything here
             /node1 … nodeN      profiles like any other, each with its log in daemon.log

Every node has a port of its own on loopback, fixed in its config.toml: a swarm of which all nodes stop must find
itself again by the addresses that it remembers. Tickets are made offline and name the first nodes.

Which nodes get an engine when nothing is said: a daemon without one takes about 120 MB of memory, one with the embedded
model and its process about 500 MB [measured]. So up to `ENGINES_MAX` nodes all have one; of a larger swarm the first
`ENGINES_FEW` do, and the others hold memory, vote and pass on.

Two programs can be at work here, so changes are made under the folder's lock; daemons run in sessions of their own
and outlive the verb that started them.
"""

from __future__ import annotations

import fcntl
import json
import shutil
import socket
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from node.config import load_config
from node.demo.making import Entropy, enter_swarm, make_profile
from node.demo.nodes import OF_ONE_NODE, DemoNode, View, wait_for
from node.demo.processes import Ended, Started, runs, stop_all
from node.keystore import Keystore
from node.profile import Profile, default_profile, write_private
from protocol.errors import ConfigError, LocalError
from protocol.peer import peer_text

NODES_MAX: Final = 32
ENGINES_MAX: Final = 4
ENGINES_FEW: Final = 2
PORTS: Final = range(27_500, 28_000)  # below the ephemeral range, and none that a neighbour of masos uses
BOOTSTRAPS: Final = 3  # first nodes that a ticket names
UP_S: Final = 60.0
UP_PER_NODE_S: Final = 8.0  # imports and handshakes of many daemons share few cores
DIAL_BACKOFF_S: Final = 5.0  # a node that was stopped is back at once when it starts again
SWARM: Final = "local"
MARKER: Final = "playground.json"
_MARKER_BYTES_MAX: Final = 64 * 1024

Tell = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class Engines:
    """What the nodes that are made now get; `kind` None chooses by number. `settings` are more keys of [engine]."""

    kind: str | None = None
    settings: Mapping[str, object] = field(default_factory=dict)

    def of(self, position: int, count: int) -> str:
        """The engine of the node at a position, from 0, of so many."""
        if self.kind is not None:
            return self.kind
        return "embedded" if count <= ENGINES_MAX or position < ENGINES_FEW else "none"


def default_folder(environ: Mapping[str, str]) -> Path:
    """masos-local beside the default profile."""
    plain = {name: value for name, value in environ.items() if name != "MASOS_PROFILE"}
    return default_profile(plain).with_name("masos-local")


class Playground:
    """The swarm in a folder. Making one touches nothing.

    Args:
        entropy: fresh randomness for the keys of new nodes.
        tell: gets a line per thing that a waiting person should see.
    """

    def __init__(self, folder: Path, entropy: Entropy, tell: Tell) -> None:
        self.folder = folder.absolute()
        self._entropy = entropy
        self._tell = tell
        self._pids: dict[str, int | None] = {}

    # ---- what it does

    def kinds(self, count: int | None, engines: Engines) -> list[str]:
        """The engines of the nodes that `up` would have running; changes nothing.

        Raises:
            ConfigError: the folder's note or a node's settings cannot be read.
        """
        if (self.folder / MARKER).exists():
            self._load()
        wanted = self._wanted(count)
        there = [load_config(self._profile(name), {}).engine.kind for name in list(self._pids)[:wanted]]
        return [*there, *(engines.of(position, wanted) for position in range(len(there), wanted))]

    def _wanted(self, count: int | None) -> int:
        return count if count is not None else len(self._pids) or ENGINES_MAX

    def up(self, count: int | None, engines: Engines, now_ms: int) -> list[View]:
        """Have the first `count` nodes running and linked; makes and starts only what is missing.

        None means those that are there, or `ENGINES_MAX`. The rows of `status`, for these nodes.

        Raises:
            ConfigError: the folder is something else, is in use, or has no free port.
            LocalError: a daemon ended, or they were not linked in time; what runs goes on running.
        """
        with self._changing(make=True):
            wanted = self._wanted(count)
            self._make_missing(wanted, engines, now_ms)
            nodes = [self._node(name) for name in list(self._pids)[:wanted]]
            for node in nodes:
                self._start(node)
        limit_s = UP_S + UP_PER_NODE_S * wanted
        took_s = wait_for("full set of links", lambda: _all_linked(nodes), limit_s, nodes)
        self._tell(f"all {wanted} are linked ({took_s:.1f} s)")
        return [self._row(node) for node in nodes]

    def status(self) -> list[View]:
        """A row per node: name, peer, state, pid, address, linked, engine, profile.

        Raises:
            ConfigError: there is no playground.
        """
        self._load()
        return [self._row(self._node(name)) for name in self._pids]

    def down(self, *, purge: bool = False) -> list[View]:
        """Stop what `up` started; `purge` then removes the profiles. Rows of name, pid, ended.

        Raises:
            ConfigError: there is no playground, or another verb works on it.
            LocalError: to be purged, but a daemon that is not ours runs on one of its profiles.
        """
        with self._changing(make=False):
            names = list(self._pids)
            daemons = [Started(self._profile(name), self._pids[name]) for name in names]
            ended = stop_all(daemons)
            rows = [
                {"name": name, "pid": daemon.pid, "ended": how}
                for name, daemon, how in zip(names, daemons, ended, strict=True)
            ]
            self._pids = dict.fromkeys(names)
            self._save()
            if purge:
                self._purge(ended)
        return rows

    # ---- making

    def _make_missing(self, wanted: int, engines: Engines, now_ms: int) -> None:
        ports = _free_ports(self._taken_ports())
        for position in range(len(self._pids), wanted):
            name, kind = f"node{position + 1}", engines.of(position, wanted)
            profile = self._profile(name)
            if profile.database.exists():
                raise ConfigError(f"{profile.path} is a profile that was not made here", hint="move it away")
            if profile.path.exists():
                shutil.rmtree(profile.path)  # half made by a verb that was stopped; it has never run
            chosen: dict[str, dict[str, object]] = {
                "node": {"listen": (f"/ip4/127.0.0.1/tcp/{next(ports)}",)},
                "engine": {"kind": kind, **(engines.settings if kind == "openai" else {})},
                "timing": {"dial_backoff_max_s": DIAL_BACKOFF_S},
            }
            make_profile(profile, chosen, self._entropy)
            members = [self._profile(each) for each in list(self._pids)[:BOOTSTRAPS]]
            enter_swarm(profile, SWARM, members, self._entropy, now_ms)
            self._pids[name] = None
            self._save()

    def _taken_ports(self) -> frozenset[int]:
        listens = [load_config(self._profile(name), {}).node.listen for name in self._pids]
        return frozenset(int(addr.rpartition("/")[2]) for addrs in listens for addr in addrs)

    # ---- running

    def _profile(self, name: str) -> Profile:
        return Profile(self.folder / name)

    def _node(self, name: str) -> DemoNode:
        return DemoNode(name, self._profile(name), {}, unset=(*OF_ONE_NODE, "MASOS_ENGINE_"))

    def _start(self, node: DemoNode) -> None:
        holder = node.profile.holder()
        if holder is not None:
            self._tell(f"{node.name} runs already, pid {holder}")
            return
        node.start()
        self._pids[node.name] = node.pid
        self._save()
        self._tell(f"{node.name} started, pid {node.pid}")

    def _row(self, node: DemoNode) -> View:
        pid, status = node.profile.holder(), None
        if pid is not None:
            status = node.status()
        config = load_config(node.profile, {})
        return {
            "name": node.name,
            "peer": peer_text(Keystore(node.profile).node().public),
            "state": "down" if pid is None else "starting" if status is None else "up",
            "pid": pid,
            "ours": runs(Started(node.profile, self._pids[node.name])),
            "address": config.node.listen[0],
            "linked": len(status["linked"]) if status is not None else 0,
            "engine": config.engine.kind,
            "profile": str(node.profile.path),
        }

    # ---- the folder

    @contextmanager
    def _changing(self, *, make: bool) -> Iterator[None]:
        """Hold the folder, with what it says of its nodes."""
        if make:
            self._take_folder()
        self._load()
        with (self.folder / "lock").open("ab") as lock:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError as exc:
                raise ConfigError(
                    f"another verb works on the playground in {self.folder}", hint="wait for it, then try again"
                ) from exc
            self._load()  # as the one before us left it
            yield

    def _take_folder(self) -> None:
        """Make and mark the folder, unless it is a playground already.

        Raises:
            ConfigError: it holds something else, or cannot be made.
        """
        try:
            self.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            if (self.folder / MARKER).exists():
                return
            if any(self.folder.iterdir()):
                raise ConfigError(
                    f"{self.folder} holds something that is no playground", hint="choose an empty folder with --folder"
                )
            self._pids = {}
            self._save()
        except OSError as exc:
            raise ConfigError(
                f"cannot make {self.folder}: {exc.strerror}", hint="choose another with --folder"
            ) from exc

    def _load(self) -> None:
        try:
            with (self.folder / MARKER).open("rb") as file:
                value = json.loads(file.read(_MARKER_BYTES_MAX))
            nodes = {str(name): None if pid is None else int(pid) for name, pid in value["nodes"].items()}
        except FileNotFoundError as exc:
            raise ConfigError(
                f"there is no playground in {self.folder}", hint="make one with `masos swarm local up`"
            ) from exc
        except (OSError, ValueError, KeyError, TypeError, AttributeError) as exc:
            raise ConfigError(f"{self.folder / MARKER} cannot be read: {exc}") from exc
        if list(nodes) != [f"node{position + 1}" for position in range(len(nodes))]:
            raise ConfigError(f"{self.folder / MARKER} is damaged", hint="it names nodes that nobody made")
        self._pids = nodes

    def _save(self) -> None:
        write_private(self.folder / MARKER, json.dumps({"masos": "playground", "nodes": self._pids}).encode())

    def _purge(self, ended: list[Ended]) -> None:
        """Remove what was made here, name by name; whatever else lies in the folder stays, and so does the folder."""
        if "not ours" in ended or any(self._profile(name).holder() is not None for name in self._pids):
            raise LocalError(
                "a daemon that was not started here runs on one of the profiles", hint="stop it, then purge again"
            )
        for name in reversed(list(self._pids)):
            shutil.rmtree(self._profile(name).path)
            del self._pids[name]
            self._save()
        for name in (MARKER, "lock"):
            (self.folder / name).unlink()
        try:
            self.folder.rmdir()
        except OSError:
            self._tell(f"{self.folder} holds other things and stays")


def _all_linked(nodes: list[DemoNode]) -> bool:
    """Every node is linked to every other of them."""
    peers: dict[str, set[str]] = {}
    for node in nodes:
        status = node.status()
        if status is None:
            return False
        peers[str(status["peer"])] = {str(peer["peer"]) for peer in status["linked"]}
    return all(peers.keys() - {peer} <= linked for peer, linked in peers.items())


def _free_ports(taken: frozenset[int]) -> Iterator[int]:
    """Ports of the range that nobody listens on now, each once.

    Raises:
        ConfigError: there is none left.
    """
    for port in PORTS:
        if port in taken:
            continue
        with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as sock:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                sock.bind(("127.0.0.1", port))
            except OSError:
                continue
        yield port
    raise ConfigError(f"no port of {PORTS.start} to {PORTS.stop - 1} is free", hint="stop something that listens there")
