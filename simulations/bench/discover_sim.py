"""Being found in a simulated swarm: the product's cores, frames and signatures, in virtual time.

The swarm runs at full size but for a few nodes, which join late, one after the other. Every engine names a model of
its own, so a find for that model finds one node. Engines are up as soon as their nodes are: what remains is linking,
publishing, spreading and finding. Network and disk are those of the simulator's defaults.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from typing import Final

from kernel.agents.roles import ROSTER
from kernel.commands import FindAgents
from kernel.discovery import Filters, capability_text
from kernel.engine import Capabilities
from protocol.peer import peer_text
from simulations.bench.figure import wall_s
from simulations.bench.seen import KILLED_SHARE, Seen
from simulations.engine import EngineConfig, ScriptedEngine
from simulations.host import SimHost
from simulations.rng import stream
from simulations.swarm import SECOND_US, SimSwarm, SwarmConfig

LATE_MAX: Final = 16
AFTER_KILL: Final = 4
ENGINE_BOOT_US: Final = 10_000
BEGIN_S: Final = 300.0
ANSWER_S: Final = 30.0
FIND_S: Final = 60.0
POLL_S: Final = 0.02
FINDS_PER_SURVIVOR: Final = 4
TEXT: Final = capability_text("", (), ROSTER.names)


class TooSlow(Exception):
    """The run needs more time than it was given."""


class NamedEngine(ScriptedEngine):
    """A scripted engine under a model name of its own."""

    def __init__(self, config: EngineConfig, seed: int, dim: int, model: str) -> None:
        super().__init__(config, seed, dim)
        self._model = model

    def capabilities(self) -> Capabilities:
        """As the scripted engine's, but for the name."""
        return replace(super().capabilities(), model=self._model)


def model_of(index: int) -> str:
    """No such name is a part of another."""
    return f"bench-{index:05d}"


def simulated(size: int, seed: int, limit_s: float = math.inf) -> Seen:
    """Join late, be found; kill 30 %, find; join after that, be found. Times are virtual seconds.

    Raises:
        Violation: the swarm does not come up at all.
        TooSlow: this machine needs more than `limit_s` of its own time.
    """
    end_s = wall_s() + limit_s
    late = min(LATE_MAX, size // 4)
    engine = EngineConfig(boot_us=ENGINE_BOOT_US)
    swarm = SimSwarm(SwarmConfig(n=size + AFTER_KILL, engine=engine, wire="frozen"), seed, checkers=())
    for host in swarm.hosts:
        host.engine = NamedEngine(engine, seed, swarm.config.dim, model_of(host.index))
    rng = stream(seed, "bench discover", size)
    first = swarm.hosts[: size - late]
    for host in first:
        swarm.heap.after(rng.randrange(swarm.config.boot_spread_us + 1), host.start)
    swarm.run_until(_in_time(lambda: all(_knows(host, len(first)) for host in first), end_s), BEGIN_S)

    joins = tuple(_joined(swarm, swarm.hosts[index], rng.randrange(index), end_s) for index in range(size - late, size))
    for index in rng.sample(range(1, size), int(KILLED_SHARE * size)):
        swarm.crash(index)
    alive = swarm.up()
    finds: list[float | None] = []
    for _ in range(FINDS_PER_SURVIVOR * len(alive)):
        wanted, asked = rng.sample(alive, 2)
        finds.append(_until_found(swarm, asked, wanted, end_s))
    after = tuple(_joined(swarm, host, rng.choice(alive).index, end_s) for host in swarm.hosts[size:])
    return Seen(size, joins, tuple(finds), late=after)


def _knows(host: SimHost, offers: int) -> bool:
    return host.up and len(host.core.kernel.offers()) >= offers


def _in_time(until: Callable[[], bool], end_s: float) -> Callable[[], bool]:
    def checked() -> bool:
        if wall_s() > end_s:
            raise TooSlow
        return until()

    return checked


def _joined(swarm: SimSwarm, host: SimHost, asked: int, end_s: float) -> float | None:
    host.start()
    return _until_found(swarm, swarm.hosts[asked], host, end_s)


def _until_found(swarm: SimSwarm, asked: SimHost, wanted: SimHost, end_s: float) -> float | None:
    """Virtual seconds from now until a node is found by another."""
    begun_us, peer = swarm.heap.now_us, peer_text(wanted.peer)
    while swarm.heap.now_us < begun_us + FIND_S * SECOND_US:
        ask = asked.ask(FindAgents(TEXT, Filters(model=model_of(wanted.index)), 1))
        swarm.run_until(_in_time(lambda: ask.done, end_s), ANSWER_S)  # noqa: B023 - called in this turn of the loop only
        if ask.ok and isinstance(ask.result, dict) and any(hit["peer"] == peer for hit in ask.result["agents"]):
            return (ask.done_us - begun_us) / SECOND_US
        swarm.run_for(POLL_S)
    return None
