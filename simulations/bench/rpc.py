"""`bench rpc`: a request and its answer over the open encrypted stream of two nodes, beside AutoGen's gRPC runtime.

Two layouts, like beside like. *Apart*: each part in a process of its own, as it is used: ours two nodes, AutoGen's
asking worker, host and answering worker, lattica's two nodes. *Together*: all parts of a system on one event loop,
which saves the kernel's switching between processes. Ours is encrypted (swarm key, Noise) and goes through frames as
the node does (simulations/bench/rpc_peer.py); AutoGen's is neither encrypted nor authenticated, and passes its host.

Each figure is the best of ROUNDS, in which the systems take turns: other load only ever adds.
"""

from __future__ import annotations

import socket
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import Final

from protocol.errors import LocalError
from simulations.bench.children import Child, ChildFailed
from simulations.bench.figure import Beside, Line, Skipped, held, told
from simulations.bench.foreign import AUTOGEN, LATTICA, Foreign, Missing
from simulations.bench.options import Options

NAME: Final = "rpc"
ROUNDS: Final = 3
IN_FLIGHT: Final = 100
UP_S: Final = 30.0
CALLS_S: Final = 60.0
TARGET: Final = ">= AutoGen's"


@dataclass(frozen=True, slots=True)
class Plan:
    """Calls of a size: so many one after the other, and so many with IN_FLIGHT at a time."""

    size: int
    sequential: int
    crowded: int

    @property
    def name(self) -> str:
        """For the figure."""
        return f"{self.size} B" if self.size < 1024 else f"{self.size // 1024} KiB"

    def line(self, in_flight: int) -> dict[str, int]:
        """What the asking end is told."""
        calls = self.sequential if in_flight == 1 else self.crowded
        return {"size": self.size, "calls": calls, "in_flight": in_flight}


PLANS: Final = (Plan(128, 400, 2_000), Plan(64 * 1024, 120, 300))
WARM: Final = {"size": 128, "calls": 50, "in_flight": 1}

Best = dict[tuple[int, int], dict[str, float]]
"""Per (size, in flight): p50_ms, p95_ms, per_s, cpu_ms, each the best of the rounds."""


@dataclass(slots=True)
class System:
    """A running system: the child that asks, and the best that was seen."""

    ask: Child
    best: Best = field(default_factory=dict)

    def round(self, plans: tuple[Plan, ...]) -> None:
        """Measure all plans once.

        Raises:
            ChildFailed: it does not answer.
        """
        for plan in plans:
            for in_flight in (1, IN_FLIGHT):
                seen = self.ask.ask(plan.line(in_flight), CALLS_S)
                self.best[plan.size, in_flight] = better(self.best.get((plan.size, in_flight)), seen)


def better(so_far: dict[str, float] | None, seen: dict[str, float]) -> dict[str, float]:
    """Figure by figure the better one: rates high, times low."""
    if so_far is None:
        return seen
    return {
        name: max(value, so_far[name]) if name == "per_s" else min(value, so_far[name]) for name, value in seen.items()
    }


def run(options: Options) -> Iterator[Line]:
    """Latency and rate, in both layouts, for 128 B and 64 KiB."""
    for layout, makers in (("apart", APART), ("together", TOGETHER)):
        options.tell(f"rpc: {', '.join(makers)} {layout}, {ROUNDS} rounds")
        with ExitStack() as stack:
            systems, skipped = _up(stack, makers, options)
            for _ in range(ROUNDS):
                for name, system in list(systems.items()):
                    try:
                        system.round(PLANS)
                    except ChildFailed as exc:
                        skipped.append(_skipped(name, exc))
                        del systems[name]
            yield from skipped
            yield from figures(layout, {name: system.best for name, system in systems.items()})


def figures(layout: str, seen: dict[str, Best]) -> Iterator[Line]:
    """The lines of a layout: ours beside AutoGen's, and beside lattica's where it ran."""
    ours, autogen, lattica = seen["masos"], seen.get("autogen"), seen.get("lattica")
    for plan in PLANS:
        alone, crowd = ours[plan.size, 1], ours[plan.size, IN_FLIGHT]
        what = f"{plan.name} echo, {layout}"
        for key, name in (("p50_ms", "p50"), ("p95_ms", "p95")):
            yield told(NAME, f"{what}: {name}", alone[key], "ms", _beside(autogen, "AutoGen gRPC", plan, 1, key))
        yield _rate(f"{what}: one at a time", alone["per_s"], _beside(autogen, "AutoGen gRPC", plan, 1, "per_s"))
        beside = _beside(autogen, "AutoGen gRPC", plan, IN_FLIGHT, "per_s")
        yield _rate(f"{what}: {IN_FLIGHT} in flight", crowd["per_s"], beside)
        if lattica is not None:
            for in_flight, name in ((1, "one at a time"), (IN_FLIGHT, f"{IN_FLIGHT} in flight")):
                beside = _beside(lattica, "lattica", plan, in_flight, "per_s")
                rate = ours[plan.size, in_flight]["per_s"]
                yield told(NAME, f"{what}: {name}, beside lattica", rate, "calls/s", beside)


def _rate(figure: str, value: float, beside: Beside | None) -> Line:
    if beside is None:
        return told(NAME, figure, value, "calls/s")
    return held(NAME, figure, (value, "calls/s"), beside, TARGET, ok=value >= beside.value)


def _beside(best: Best | None, what: str, plan: Plan, in_flight: int, key: str) -> Beside | None:
    return None if best is None else Beside(best[plan.size, in_flight][key], what)


# ---- the systems


Maker = Callable[[ExitStack, Options], System]


def _up(stack: ExitStack, makers: dict[str, Maker], options: Options) -> tuple[dict[str, System], list[Skipped]]:
    """Start and warm each system; those that do not run here are skipped with a reason.

    Raises:
        LocalError: ours does not run.
    """
    systems: dict[str, System] = {}
    skipped: list[Skipped] = []
    for name, make in makers.items():
        try:
            system = make(stack, options)
            system.ask.ask(WARM, CALLS_S)
        except (Missing, ChildFailed) as exc:
            skipped.append(_skipped(name, exc))
        else:
            systems[name] = system
    return systems, skipped


def _skipped(name: str, exc: Exception) -> Skipped:
    if name == "masos":
        raise LocalError(f"the echo between two nodes failed: {exc}") from exc
    return Skipped(NAME, f"beside {name}", str(exc))


def _masos(stack: ExitStack, _options: Options) -> System:
    answer = stack.enter_context(Child(_peer("answer")))
    ask = stack.enter_context(Child(_peer("ask", answer.read(UP_S)["addr"])))
    ask.read(UP_S)
    return System(ask)


def _masos_together(stack: ExitStack, _options: Options) -> System:
    both = stack.enter_context(Child(_peer("one")))
    both.read(UP_S)
    return System(both)


def _peer(*args: str) -> list[str]:
    return [sys.executable, "-m", "simulations.bench.rpc_peer", *args]


def _foreign(foreign: Foreign, *roles: str) -> Maker:
    """Parts of a system, the asking one last; with a port for all, and the address that an earlier one told."""

    def make(stack: ExitStack, options: Options) -> System:
        rest = [str(free_port())]
        last: Child | None = None
        for role in roles:
            last = stack.enter_context(foreign.child(options, role, *rest))
            up = last.read(UP_S)
            if "addr" in up:
                rest = [str(free_port()), up["addr"]]
        assert last is not None
        return System(last)

    return make


def free_port() -> int:
    """A port of loopback that nobody listens on now."""
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        return int(sock.getsockname()[1])


APART: Final[dict[str, Maker]] = {
    "masos": _masos,
    "autogen": _foreign(AUTOGEN, "host", "answer", "ask"),
    "lattica": _foreign(LATTICA, "answer", "ask"),
}
TOGETHER: Final[dict[str, Maker]] = {"masos": _masos_together, "autogen": _foreign(AUTOGEN, "one")}
