"""A node put together: core, driver, executor, engine, encoder, around one transport and one store.

Nothing of the outside world is made here; it is handed in, so that a test or the demo can hand in something else.

The engine is watched, never waited for. A node without a living engine holds memory, votes and answers its user; it
only offers no agents. `EngineReport` tells the core when one came, changed or went away: within `health_every_s` of
its death the capability is withdrawn, and other nodes take the turns. The first report of a life is always given,
because a record of an earlier life may still offer an engine that is gone.

Order of the end: the watch stops, then the driver (turns are given back, writes finish), last the engine.
"""

from __future__ import annotations

import logging
import random
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager, nullcontext
from dataclasses import dataclass, replace
from typing import Final, Protocol, cast

import trio

from gossip.reach import ReachTest, Reserve
from kernel.commands import EngineReport, MemoryDigests
from kernel.embedding import Encoder
from kernel.engine import Capabilities, Engine
from kernel.executor import Executor, Options
from node.clock import Clock
from node.company import tell_company
from node.config import Config
from node.core import Membership, NodeCore, Status
from node.driver import Driver, Network, OnProgress
from node.keystore import Keystore
from node.life import Life
from node.profile import Profile
from node.reach import run_reach_job
from node.store_verify import VerifyReport
from node.swarm import load_secrets
from protocol.admission import Genesis, check_chain
from protocol.errors import ConfigError, DecodeError, EngineError
from protocol.identity import verify_raw
from protocol.machine import Boot, Command, JobSpec, Reply
from protocol.peer import PeerID
from protocol.store import Row, StoreReader

log = logging.getLogger("masos.node")

ENGINE_ASK_S: Final = 5.0
"""For a healthy engine to say what it can do."""
ENGINE_START_POLL_S: Final = 0.25
"""Between looks at an engine that is not up; a look at a closed door costs nothing."""
SPEED_CHANGE: Final = 0.25
"""A measured speed that changed by less is not worth a new signed record."""

Digests = list[dict[str, object]]


class Store(StoreReader, Protocol):
    """A store as a node needs it."""

    def apply(self, rows: tuple[Row, ...]) -> None:
        """Write atomically and durably; blocks, raises StoreError."""
        ...

    def verify(self) -> VerifyReport:
        """Audit everything that is committed; blocks."""
        ...


@dataclass(frozen=True, slots=True)
class Parts:
    """The outside world of a node.

    Attributes:
        engine: None for a node that runs no turns.
        run_engine: keeps the engine's process alive until it is cancelled, where the node owns one.
        engine_trouble: why the engine is not up, as far as it says so itself.
        discovery: looks for peers on the local network while it is open, where the operator wants that.
    """

    member: Membership
    transport: Network
    store: Store
    encoder: Encoder
    clock: Clock
    rng: random.Random
    engine: Engine | None = None
    run_engine: Callable[[], Awaitable[None]] | None = None
    engine_trouble: Callable[[], str] = lambda: ""
    discovery: Callable[[], AbstractAsyncContextManager[None]] = nullcontext


@dataclass(frozen=True, slots=True)
class Readiness:
    """`ready` iff `reasons` is empty; `checks` says how each thing stands."""

    ready: bool
    reasons: tuple[str, ...]
    checks: dict[str, str]


def load_member(profile: Profile, now_ms: int) -> tuple[Membership, bytes]:
    """Who this profile is in its swarm, and the swarm key.

    Raises:
        ConfigError: no keys, no swarm, damaged files, or a certificate that is not valid now.
    """
    keys, secrets = Keystore(profile), load_secrets(profile)
    node = keys.node()
    try:
        genesis = Genesis.from_wire(secrets.genesis)
        admission = check_chain(genesis, secrets.chain, node.public)
    except DecodeError as exc:
        raise ConfigError(
            f"the swarm files of {profile.path} do not fit its keys: {exc.message}",
            hint="restore both from one backup, or join again in a new profile",
        ) from exc
    if now_ms > admission.exp_ms:
        raise ConfigError(
            "this node's certificate has expired",
            hint="ask an admin for a ticket and join again with it; check your clock",
        )
    return Membership(node, keys.user(), genesis, secrets.chain, secrets.bootstrap), secrets.psk


class Node:
    """One node in one life."""

    def __init__(self, parts: Parts, config: Config) -> None:
        wanted, ours = parts.member.genesis.encoder.id, parts.encoder.encoder_id
        if wanted != ours:
            raise ConfigError(f"the swarm embeds with {wanted!r}, this node with {ours!r}", hint="join another swarm")
        self._parts = parts
        self._config = config
        settings = config.core(parts.member.genesis.mode)
        core = NodeCore(parts.member, settings, parts.rng, store=parts.store, verify=verify_raw)
        options = Options(style=config.engine.style)
        executor = Executor(parts.engine, parts.encoder, options)
        self._executor = executor
        self._driver = Driver(core, parts.transport, parts.store, self._run_job, parts.clock)
        core.members.lag_us = self._driver.lag_us
        self._told: EngineReport | None = None  # nothing was told yet
        self._engine_state = "none" if parts.engine is None else "starting"
        self._engine_error = ""

    @asynccontextmanager
    async def run(self, life: Life) -> AsyncIterator[None]:
        """Take part in the swarm while the context is open; leaving it stops in order.

        Raises:
            StoreError: the disk failed; the node stopped because of it.
            ConfigError: an address cannot be bound.
        """
        async with trio.open_nursery() as engine_nursery:
            if self._parts.run_engine is not None:
                engine_nursery.start_soon(self._parts.run_engine)
            running = self._driver.run(life.inst, clean=life.clean)
            async with running, self._parts.discovery(), trio.open_nursery() as watch_nursery:
                watch_nursery.start_soon(self._watch_engine)
                watch_nursery.start_soon(self._watch_peers)
                yield
                watch_nursery.cancel_scope.cancel()
            engine_nursery.cancel_scope.cancel()

    async def _watch_peers(self) -> None:
        links = self._driver.core.links
        async with self.subscribe("peers") as news:
            await tell_company(lambda: len(links.linked), lambda: len(links.known()), news)

    async def _run_job(self, spec: JobSpec, on_progress: OnProgress) -> object:
        if isinstance(spec, ReachTest | Reserve):
            return await run_reach_job(self._parts.transport, spec)
        return await self._executor.run(spec, on_progress)

    def admits(self, peer: PeerID) -> bool:
        """Whether a peer is a member and not denied, as far as this node knows."""
        core = self._driver.core
        return core.records.is_member(peer) and peer not in core.replication.denied

    # ---- what the control API needs

    async def ask(self, command: object, timeout_s: float = 30.0) -> object:
        """As `Driver.ask`."""
        return await self._driver.ask(command, timeout_s)

    def subscribe(self, prefix: str) -> AbstractAsyncContextManager[trio.MemoryReceiveChannel[tuple[str, object]]]:
        """As `Driver.subscribe`."""
        return self._driver.subscribe(prefix)

    async def status(self) -> dict[str, object]:
        """The core's status and the engine's."""
        core = cast(dict[str, object], await self.ask(Status()))
        return {**core, "engine": self._engine_line()}

    async def readiness(self) -> Readiness:
        """Whether the node can do its part: identity and store are there by construction, a listener, a peer."""
        status = await self.status()
        checks = {"identity": "ok", "store": "ok", "listener": "ok", "peers": "ok", "engine": self._engine_state}
        reasons: list[str] = []
        if not status["listen"]:
            checks["listener"] = "none"
            reasons.append("no address is announced: nobody can dial this node")
        if status["isolated"]:
            if status["known"]:
                checks["peers"] = "none"
                reasons.append("no peer is linked; see `refusals` in `masos status`")
            else:
                checks["peers"] = "solo"  # nobody to dial: a swarm's first node
        return Readiness(not reasons, tuple(reasons), checks)

    async def verify(self) -> VerifyReport:
        """Audit the database in a worker thread."""
        return await trio.to_thread.run_sync(self._parts.store.verify)

    async def rebuilt_digests(self) -> Digests:
        """`rebuilt_digests` of what is committed now, in a worker thread."""
        return await trio.to_thread.run_sync(rebuilt_digests, self._parts.member, self._config, self._parts.store)

    def _engine_line(self) -> dict[str, object]:
        able = self._told.capabilities if self._told is not None else None
        return {
            "kind": self._config.engine.kind,
            "state": self._engine_state,
            "reason": self._engine_error,
            "model": able.model if able is not None else None,
            "backend": able.backend if able is not None else None,
            "quality": able.quality if able is not None else None,
        }

    # ---- the engine

    async def _watch_engine(self) -> None:
        """Tell the core how the engine is, whenever that changes."""
        while True:
            report = await self._look_at_engine()
            if self._is_news(report):
                self._told = report
                await self._driver.tell(report)
                self._say(report)
            if self._parts.engine is None:
                return
            up = report.capabilities is not None
            every_s = self._config.engine.health_every_s
            await trio.sleep(every_s if up else min(every_s, ENGINE_START_POLL_S))

    async def _look_at_engine(self) -> EngineReport:
        engine = self._parts.engine
        if engine is None:
            return EngineReport(None)
        reason = "it does not answer"
        with trio.move_on_after(ENGINE_ASK_S):
            try:
                if await engine.health():
                    able = await engine.capabilities()
                    self._engine_state, self._engine_error = "up", ""
                    return EngineReport(able, self._config.engine.roles, self._config.capability())
            except EngineError as exc:
                reason = exc.message
        self._engine_error = self._parts.engine_trouble() or reason
        if self._engine_state != "starting" or self._told is not None:
            self._engine_state = "down"
        return EngineReport(None)

    def _is_news(self, report: EngineReport) -> bool:
        told = self._told
        if told is None or told.roles != report.roles:
            return True
        return _differ(told.capabilities, report.capabilities)

    def _say(self, report: EngineReport) -> None:
        able = report.capabilities
        if able is not None:
            log.info("engine %s is up (%s, quality %s)", able.model, able.backend, able.quality)
        elif self._parts.engine is None:
            log.info("no engine: this node offers no agents")
        else:
            log.info("engine is not up yet: %s", self._engine_error)


def _differ(told: Capabilities | None, now: Capabilities | None) -> bool:
    """Whether two reports say different things; a speed that wavers is none."""
    if told is None or now is None:
        return told is not now
    before, after = told.tokens_per_s or 0, now.tokens_per_s or 0
    if abs(after - before) > SPEED_CHANGE * max(before, 1):
        return True
    return replace(told, tokens_per_s=None) != replace(now, tokens_per_s=None)


def rebuilt_digests(member: Membership, config: Config, store: StoreReader) -> Digests:
    """Set and state digests of every task, derived anew from what the store holds; blocks, for all of the memory.

    The node's own core is booted on the store and asked, so there is no second way of deriving. As after a stop that
    was not clean it may write nothing before a peer spoke, and no effect of it is carried out.
    """
    core = NodeCore(member, config.core(member.genesis.mode), random.Random(0), store=store, verify=verify_raw)
    core.handle(Boot(1, 0, clean=False), 0)
    replies = [effect for effect in core.handle(Command(1, MemoryDigests()), 0) if isinstance(effect, Reply)]
    return cast(Digests, replies[0].result)
