"""The daemon: one profile, one node, in the foreground, until it is told to stop.

    lock → keys and swarm → self-test of the network library → database, next life → transport, engine → node
         → control API → wait → the same backwards

The lock comes first and goes last. The life's number is on disk before a peer or a client can see it; the mark of a
clean stop is written after the driver has written its last op, and only when the stop went through in order.

SIGTERM or SIGINT stops in order: turns are given back, writes finish, peers are told. A second one stops at once,
which is what a crash is, and the next start treats it so. Errors leave as one `SwarmError`, whatever groups they
came in; only a bug of ours leaves as anything else.

This is the one place where the real clock, the real randomness and the real network are handed out.
"""

from __future__ import annotations

import logging
import os
import random
import signal
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping
from contextlib import AbstractAsyncContextManager, asynccontextmanager, closing, contextmanager, nullcontext
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Final

import trio

from kernel.engine import Engine
from node.clock import BootClock
from node.config import Config, EngineSection
from node.control.app import build_app
from node.control.credentials import Address, read_token, remove_address, write_address
from node.control.server import serving
from node.core import Membership
from node.engines.embedded import EmbeddedConfig, EmbeddedEngine
from node.engines.encoder import UseEncoder
from node.engines.models import default_models_dir, is_present, model_facts, model_path
from node.engines.openai import OpenAIConfig, OpenAIEngine
from node.life import Life, begin_life, end_life
from node.node import Node, Parts, load_member
from node.profile import Profile, ProfileLock
from node.relay import RelayConfig
from node.selftest import self_test
from node.store import SqliteStore
from node.swarm import renew_own
from node.transport import Libp2pTransport
from protocol.errors import ConfigError, SwarmError
from protocol.peer import PeerID, peer_text

log = logging.getLogger("masos.daemon")

SIGNALS: Final = (signal.SIGINT, signal.SIGTERM)
STOP_ENGINE_S: Final = 5.0


@dataclass(frozen=True, slots=True)
class Started:
    """What is told once the daemon answers."""

    profile: Path
    pid: int
    peer: str
    swarm: str
    swarm_id: str
    incarnation: int
    clean: bool
    listen: tuple[str, ...]
    control: str
    engine: str


OnStarted = Callable[[Started], None]


@dataclass(frozen=True, slots=True)
class _Engine:
    """An engine with what keeps it going."""

    engine: Engine | None = None
    run: Callable[[], Awaitable[None]] | None = None
    trouble: Callable[[], str] = lambda: ""


def run_daemon(profile: Profile, config: Config, environ: Mapping[str, str], on_started: OnStarted) -> None:
    """Run until a signal; returns after a stop in order.

    Raises:
        SwarmError: it could not start, or had to stop; nothing of it is left running.
        KeyboardInterrupt: it was told twice to stop, and did so at once.
    """
    with profile.lock() as lock:
        clock = BootClock()
        token = read_token(profile)
        now_ms = (clock.now_us() + clock.wall_offset_us()) // 1000
        if renew_own(profile, now_ms):
            log.info("this node certified itself anew")
        member, psk = load_member(profile, now_ms)
        engine = build_engine(config.engine, profile, environ)
        if config.node.self_test:
            trio.run(self_test)
        running: list[Node] = []  # the transport is made before the node that knows the members
        transport = Libp2pTransport(
            member.node.seed(),
            config.node.listen,
            psk=psk,
            announce=config.node.announce,
            relay=RelayConfig(config.node.relay, admits=lambda peer: any(node.admits(peer) for node in running)),
        )
        with closing(SqliteStore(profile.database)) as store:
            life = begin_life(store)
            if not life.clean and life.inst > 1:
                log.warning("the last stop was not clean: peers are asked what they know of this node")
            parts = Parts(
                member=member,
                transport=transport,
                store=store,
                encoder=UseEncoder(),
                clock=clock,
                rng=random.Random(os.urandom(32)),
                engine=engine.engine,
                run_engine=engine.run,
                engine_trouble=engine.trouble,
                discovery=partial(_on_lan, member, transport) if config.node.mdns else nullcontext,
            )
            running.append(Node(parts, config))
            daemon = _Daemon(profile, config, lock, running[0])
            with _one_error():
                in_order = trio.run(daemon.run, life, member, token, on_started)
            if not in_order:
                raise KeyboardInterrupt
            end_life(store, life)
            log.info("stopped")


def _on_lan(member: Membership, transport: Libp2pTransport) -> AbstractAsyncContextManager[None]:
    """Look for nodes of the swarm on the local network. Imported here: its library costs 5 MB to who does not ask."""
    from node.mdns import LanDiscovery  # noqa: PLC0415 - see above

    lan = LanDiscovery(member.genesis.swarm_id, PeerID(member.node.public))
    return lan.run(transport.listen_addrs(), transport.connect)


class _Daemon:
    """The async part of one run."""

    def __init__(self, profile: Profile, config: Config, lock: ProfileLock, node: Node) -> None:
        self._profile = profile
        self._config = config
        self._lock = lock
        self._node = node

    async def run(self, life: Life, member: Membership, token: str, on_started: OnStarted) -> bool:
        """True iff the stop went through in order."""
        stop = trio.Event()
        in_order = False
        with trio.open_signal_receiver(*SIGNALS) as received:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(_watch_signals, received, stop, nursery.cancel_scope)
                async with self._node.run(life), self._answering(token) as url:
                    status = await self._node.status()
                    on_started(
                        Started(
                            profile=self._profile.path,
                            pid=os.getpid(),
                            peer=peer_text(member.node.public),
                            swarm=member.genesis.name,
                            swarm_id=member.genesis.swarm_id.hex(),
                            incarnation=life.inst,
                            clean=life.clean,
                            listen=tuple(str(addr) for addr in _list(status["listen"])),
                            control=url,
                            engine=self._config.engine.kind,
                        )
                    )
                    await stop.wait()
                    log.info("stopping: turns are given back, writes finish; once more stops at once")
                in_order = True
                nursery.cancel_scope.cancel()
        return in_order

    @asynccontextmanager
    async def _answering(self, token: str) -> AsyncIterator[str]:
        """The control API, and the note that says where it is."""
        async with serving(build_app(self._node, token), self._config.control.port) as url:
            write_address(self._profile, Address(url, os.getpid()))
            self._lock.announce(url)
            try:
                yield url
            finally:
                remove_address(self._profile)


def _list(value: object) -> list[object]:
    return value if isinstance(value, list) else []


async def _watch_signals(received: AsyncIterator[int], stop: trio.Event, scope: trio.CancelScope) -> None:
    async for _ in received:
        if stop.is_set():
            log.warning("told twice: stopping at once")
            scope.cancel()
            return
        stop.set()


@contextmanager
def _one_error() -> Iterator[None]:
    """Errors come out of nurseries in groups; the operator gets the first that was raised on purpose.

    A group that holds anything else is a bug and passes as it is.
    """
    try:
        yield
    except BaseExceptionGroup as group:
        expected, bugs = group.split(SwarmError)
        if bugs is not None or expected is None:
            raise
        raise _first(expected) from group


def _first(group: BaseExceptionGroup[SwarmError]) -> SwarmError:
    inner = group.exceptions[0]
    return _first(inner) if isinstance(inner, BaseExceptionGroup) else inner


# ---- engines


def build_engine(section: EngineSection, profile: Profile, environ: Mapping[str, str]) -> _Engine:
    """The engine that the settings name; nothing is started or asked yet.

    Raises:
        ConfigError: a model that is not on this machine, an unusable URL or key.
    """
    match section.kind:
        case "none":
            return _Engine()
        case "embedded":
            return _embedded(section, profile, environ)
        case "openai":
            return _openai(section, environ)


def _embedded(section: EngineSection, profile: Profile, environ: Mapping[str, str]) -> _Engine:
    facts, folder = model_facts(section.model), default_models_dir(environ)
    if not is_present(facts, folder):
        raise ConfigError(
            f"model {facts.name} is not on this machine",
            hint=f"fetch it with `masos model pull {facts.name}`, or run without: `masos up --engine none`",
        )
    engine = EmbeddedEngine(
        EmbeddedConfig(
            model_file=model_path(facts, folder),
            model=facts.name,
            context_tokens=min(section.context_tokens or facts.context_tokens, facts.context_tokens),
            threads=section.threads,
            quality=facts.quality,
            log_file=profile.path / "engine.log",
        )
    )
    return _Engine(engine, engine.run, lambda: engine.reason)


def _openai(section: EngineSection, environ: Mapping[str, str]) -> _Engine:
    assert section.base_url is not None, "node/config.py asks for it"
    config = OpenAIConfig(
        base_url=section.base_url,
        model=section.model,
        api_key_env=section.key_env,
        api_key_file=Path(section.key_file) if section.key_file else None,
        context_tokens=section.context_tokens,
    )
    engine = OpenAIEngine(config, environ)

    async def run() -> None:
        """Leave the server when the node ends."""
        try:
            await trio.sleep_forever()
        finally:
            with trio.move_on_after(STOP_ENGINE_S) as leave:
                leave.shield = True
                await engine.aclose()

    return _Engine(engine, run)
