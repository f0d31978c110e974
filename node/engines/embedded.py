"""The engine that works on a fresh machine: llama.cpp in a child process, on a Unix socket.

One child per node. It ends when its stdin closes, so it never outlives the node, not even one that
is killed (embedded_child.py). Everything said to it goes through `OpenAIEngine`, the one client
for all servers: leaving a call closes its connection, and that stops the generation.

`run` keeps the child alive, and is where all of it lives and ends:

    starting -> ready -> restarting -> ready …      and from anywhere -> closed

When the child dies, the calls in flight fail at once with `EngineUnavailable`, `health()` turns
false, and it is started again after a pause that doubles up to `restart_s_max`; a child that was
ready for `stable_s` resets the pause. A child that does not answer its health page
`HEALTH_MISSES_MAX` times in a row is killed and counts as dead. A call made while the first start
is under way waits for it; one made while the engine is down is refused at once, because another
peer may serve it.
"""

from __future__ import annotations

import json
import logging
import shutil
import subprocess
import sys
import tempfile
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Literal

import trio

from kernel.engine import (
    Capabilities,
    Completion,
    EngineTimeout,
    EngineUnavailable,
    Message,
    OnText,
    Quality,
    Request,
)
from node.engines.http import open_client
from node.engines.openai import OpenAIConfig, OpenAIEngine
from protocol.errors import EngineError

log = logging.getLogger(__name__)

State = Literal["starting", "ready", "restarting", "closed"]

FOLDER_PREFIX: Final = "masos-engine-"
CHILD: Final = Path(__file__).with_name("embedded_child.py")
READY_LINE_BYTES_MAX: Final = 4096
START_S_MAX: Final = 60.0
"""Loading takes 0.4 s from the page cache and < 4 s from a disk [measured]."""
STOP_S_MAX: Final = 2.0
HEALTH_PERIOD_S: Final = 5.0
HEALTH_MISSES_MAX: Final = 3
WARM_UP: Final = Request(messages=(Message("user", "Count from one to twenty."),), max_new_tokens=24, deadline_s=30.0)
"""Proves that the child answers, and measures its speed for the capability record."""


@dataclass(frozen=True, slots=True)
class EmbeddedConfig:
    """A model file and what it may use.

    Attributes:
        model_file: the GGUF.
        model: the name that capability records and answers carry.
        context_tokens: window of one request; memory grows by 46 KB a token (at two slots) for
            the default model.
        slots: requests that run at once; more wait inside the engine.
        threads: CPU threads while it generates. More than one wait for each other by spinning: on
            two cores that others want too, one gives 38 to 53 tokens/s, two give 3 to 31
            [measured]. Two are worth it on a machine that nothing else uses (101 to 144).
        quality: what its answers may be taken for.
        logprobs: as in `OpenAIConfig`.
        restart_s_min, restart_s_max: first and longest pause before a restart.
        stable_s: a child that was ready for so long starts the pauses anew.
        log_file: where llama.cpp's warnings go; None drops them.
    """

    model_file: Path
    model: str
    context_tokens: int = 2048
    slots: int = 2
    threads: int = 1
    quality: Quality = "demo"
    logprobs: bool = False
    restart_s_min: float = 0.5
    restart_s_max: float = 30.0
    stable_s: float = 60.0
    log_file: Path | None = None


class EmbeddedEngine:
    """An `Engine` that owns its process; `nursery.start_soon(engine.run)` gives it life."""

    def __init__(self, config: EmbeddedConfig) -> None:
        self._config = config
        self._state: State = "starting"
        self._reason = "the engine is starting"
        self._server: OpenAIEngine | None = None
        self._pid: int | None = None
        self._changed = trio.Event()
        self._scope = trio.CancelScope()
        self._running = False
        self._ended = trio.Event()

    @property
    def state(self) -> State:
        """Where the child stands."""
        return self._state

    @property
    def reason(self) -> str:
        """Why the engine is not ready, for people; empty while it is."""
        return self._reason

    @property
    def pid(self) -> int | None:
        """Process id of the child while there is one."""
        return self._pid

    async def run(self) -> None:
        """Keeps a child alive until it is cancelled or `aclose` is called; start it once.

        Readiness is a state to look at, not a wait in the node's start.
        """
        self._running = True
        pause_s = self._config.restart_s_min
        try:
            with self._scope:
                while True:
                    if await self._live() >= self._config.stable_s:
                        pause_s = self._config.restart_s_min
                    await trio.sleep(pause_s)
                    pause_s = min(2 * pause_s, self._config.restart_s_max)
        finally:
            self._become("closed", "the engine is closed")
            self._ended.set()

    async def aclose(self) -> None:
        """Ends the child and waits for it; calls in flight fail."""
        self._scope.cancel()
        self._become("closed", "the engine is closed")
        if self._running:
            await self._ended.wait()

    async def generate(self, request: Request, on_text: OnText | None = None) -> Completion:
        """As in the port."""
        with trio.move_on_after(request.deadline_s):
            return await (await self._ready()).generate(request, on_text)
        raise EngineTimeout(f"the engine was not ready within {request.deadline_s:g} s")

    async def score(self, prefix: str, options: tuple[str, ...]) -> tuple[float, ...]:
        """As in the port."""
        return await (await self._ready()).score(prefix, options)

    async def count_tokens(self, text: str) -> int:
        """As in the port."""
        return await (await self._ready()).count_tokens(text)

    async def capabilities(self) -> Capabilities:
        """As in the port."""
        return await (await self._ready()).capabilities()

    async def health(self) -> bool:
        """As in the port."""
        return self._server is not None and await self._server.health()

    async def _ready(self) -> OpenAIEngine:
        """The client of the living child; waits for a start under way only."""
        with trio.move_on_after(START_S_MAX):
            while self._state == "starting":
                await self._changed.wait()
        if self._server is None:
            raise EngineUnavailable(self._reason)
        return self._server

    def _become(self, state: State, reason: str = "") -> None:
        if self._state == "closed":
            return
        self._state, self._reason = state, reason
        self._changed.set()
        self._changed = trio.Event()

    async def _live(self) -> float:
        """One life of a child; seconds for which it was ready."""
        ready_at: float | None = None
        try:
            async with _child(self._config) as (process, server):
                self._pid = process.pid
                await server.generate(WARM_UP)
                self._server, ready_at = server, trio.current_time()
                self._become("ready")
                log.info("engine %s is ready, pid %d", self._config.model, process.pid)
                await _watch(process, server)
                reason = f"the engine process ended with status {process.returncode}"
        except EngineError as exc:
            reason = exc.message
        finally:
            self._server = self._pid = None
        self._become("restarting", reason)
        log.warning("engine %s is down: %s", self._config.model, reason)
        return 0.0 if ready_at is None else trio.current_time() - ready_at


@asynccontextmanager
async def _child(config: EmbeddedConfig) -> AsyncIterator[tuple[trio.Process, OpenAIEngine]]:
    """A child that has loaded its model, with a client; both are gone when the block ends.

    Raises:
        EngineUnavailable: it could not be started, did not load, or did not say so in time.
    """
    try:
        folder = Path(tempfile.mkdtemp(prefix=FOLDER_PREFIX))
    except OSError as exc:
        raise EngineUnavailable(f"no folder for the engine's socket: {exc}") from exc
    socket = folder / "engine.sock"
    command = [sys.executable, "-P", str(CHILD), str(config.model_file), str(socket)]
    command += ["--alias", config.model, "--context", str(config.context_tokens)]
    command += ["--slots", str(config.slots), "--threads", str(config.threads)]
    try:
        async with _process(command, config.log_file) as process:
            await _read_ready(process)
            # The address only fills the Host header; the socket is where it goes.
            place = OpenAIConfig(
                base_url="http://engine",
                model=config.model,
                context_tokens=config.context_tokens,
                quality=config.quality,
                logprobs=config.logprobs,
            )
            server = OpenAIEngine(place, {}, client=open_client(place.base_url, uds=str(socket)))
            try:
                yield process, server
            finally:
                with trio.CancelScope(shield=True):
                    await server.aclose()
    finally:
        shutil.rmtree(folder, ignore_errors=True)


@asynccontextmanager
async def _process(command: list[str], log_file: Path | None) -> AsyncIterator[trio.Process]:
    """A started process that is gone when the block ends."""
    process = await _spawn(command, log_file)
    try:
        yield process
    finally:
        with trio.CancelScope(shield=True):
            await _stop(process)


async def _spawn(command: list[str], log_file: Path | None) -> trio.Process:
    """The started child, in a session of its own: an interrupt at the terminal is the node's."""
    stderr = None
    try:
        if log_file is not None:
            stderr = log_file.open("ab")
        return await trio.lowlevel.open_process(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL if stderr is None else stderr,
            start_new_session=True,
        )
    except OSError as exc:
        raise EngineUnavailable(f"the engine process cannot be started: {exc}") from exc
    finally:
        if stderr is not None:
            stderr.close()


async def _read_ready(process: trio.Process) -> None:
    """Returns when the child says that it is ready."""
    assert process.stdout is not None
    line = b""
    with trio.move_on_after(START_S_MAX) as scope:
        while not line.endswith(b"\n") and len(line) < READY_LINE_BYTES_MAX:
            part = await process.stdout.receive_some(READY_LINE_BYTES_MAX)
            if not part:
                status = await process.wait()
                raise EngineUnavailable(f"the engine process ended with status {status}")
            line += part
    if scope.cancelled_caught:
        raise EngineUnavailable(f"the engine did not load within {START_S_MAX:g} s")
    try:
        message = json.loads(line)
        reason = None if message["op"] == "ready" else str(message["message"])
    except (ValueError, KeyError, TypeError) as exc:
        raise EngineUnavailable("the engine process says something else than ready") from exc
    if reason is not None:
        raise EngineUnavailable(f"the engine cannot load: {reason}", hint="see `masos model pull`")


async def _watch(process: trio.Process, server: OpenAIEngine) -> None:
    """Returns when the child has ended; kills one that stopped answering."""
    misses = 0
    while process.returncode is None:
        with trio.move_on_after(HEALTH_PERIOD_S):
            await process.wait()
        if process.returncode is None:
            misses = 0 if await server.health() else misses + 1
        if misses >= HEALTH_MISSES_MAX:
            log.warning("engine pid %d does not answer: killed", process.pid)
            process.kill()


async def _stop(process: trio.Process) -> None:
    """Ends the child: by closing its stdin, and by force if that takes too long."""
    assert process.stdin is not None
    assert process.stdout is not None
    await process.stdin.aclose()
    with trio.move_on_after(STOP_S_MAX):
        await process.wait()
    if process.returncode is None:
        process.kill()
        await process.wait()
    await process.stdout.aclose()
