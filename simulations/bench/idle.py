"""`bench idle`: what a daemon without an engine costs while nothing happens, alone and in a swarm of eight.

Memory is what the kernel calls resident; beside it stands a bare interpreter that has imported the very libraries that
the daemon imports, none of ours. CPU and bytes are taken over a window of WINDOW_S after SETTLE_S without a change.
Bytes are what a node's connections carry above TCP, encryption included (simulations/bench/sockets.py). The lonely
node and the swarm are measured in the same window.
"""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from statistics import median
from typing import Final

from node.demo.nodes import DemoNode
from simulations.bench.children import Child
from simulations.bench.figure import Beside, Line, Skipped, held, told, wall_s
from simulations.bench.options import Options
from simulations.bench.processes import Memory, cpu_of, memory_of
from simulations.bench.real_nodes import NO_ENGINE, real_nodes
from simulations.bench.sockets import sent_by

NAME: Final = "idle"
SWARM: Final = 8
SETTLE_S: Final = 20.0
WINDOW_S: Final = 30.0
MEMORY_MB_MAX: Final = 150.0
CPU_PERCENT_MAX: Final = 1.0
IMPORTS_S: Final = 60.0
BARE: Final = "the same imports alone"

# The top-level packages that a daemon has loaded and that are not ours, each with every part of it that is loaded.
_PROBE: Final = """
import json, sys, warnings
warnings.simplefilter("ignore")
before = set(sys.modules)
import node.cli, node.cli.up
ours = ("node", "kernel", "gossip", "dht", "protocol", "simulations")
print(json.dumps([name for name in sys.modules if name not in before and name.partition(".")[0] not in ours]))
"""
_BARE: Final = """
import importlib, json, sys, warnings
warnings.simplefilter("ignore")
for name in json.loads(sys.stdin.readline())["names"]:
    try:
        importlib.import_module(name)
    except Exception:
        pass  # a part that only its own package can load; it has been loaded with that
print(json.dumps({"up": True}), flush=True)
sys.stdin.read()
"""


@dataclass(frozen=True, slots=True)
class Cost:
    """What one process took over a window; `sent_per_minute` None where the kernel does not tell."""

    memory: Memory
    cpu_percent: float
    sent_per_minute: float | None


def run(options: Options) -> Iterator[Line]:
    """Memory, CPU and traffic of idle nodes."""
    options.tell("idle: a bare interpreter with the imports of a daemon")
    bare = imports_alone()
    with real_nodes() as nodes:
        options.tell(f"idle: one node alone and a swarm of {SWARM}")
        alone = nodes.add(NO_ENGINE, alone=True)
        swarm = [nodes.add(NO_ENGINE) for _ in range(SWARM)]
        for node in nodes.all:
            node.start()
        nodes.until_up(nodes.all)
        nodes.until_linked(swarm, SWARM - 1)
        options.tell(f"idle: {SETTLE_S:.0f} s to settle, {WINDOW_S:.0f} s to measure")
        time.sleep(SETTLE_S)
        lonely, *many = costs([alone, *swarm], WINDOW_S)
    yield from figures("alone", [lonely], bare)
    yield from figures(f"in a swarm of {SWARM}", many, bare)


def figures(where: str, costs: list[Cost], bare: Memory) -> Iterator[Line]:
    """The lines of the nodes in one place: the median, and for the targets the worst."""
    resident = [cost.memory.resident for cost in costs]
    yield held(
        NAME, f"{where}: memory", (max(resident), "MB"), Beside(bare.resident, BARE),
        f"<= {MEMORY_MB_MAX:.0f} MB", ok=max(resident) <= MEMORY_MB_MAX,
    )  # fmt: skip
    private = median(cost.memory.private for cost in costs)
    yield told(NAME, f"{where}: memory of its own, not shared", private, "MB", Beside(bare.private, BARE))
    cpu = median(cost.cpu_percent for cost in costs)
    yield held(
        NAME, f"{where}: CPU", (cpu, "% of a core"), None, f"<= {CPU_PERCENT_MAX:g} %", ok=cpu <= CPU_PERCENT_MAX
    )
    sent = [cost.sent_per_minute for cost in costs if cost.sent_per_minute is not None]
    if sent:
        yield told(NAME, f"{where}: sent", median(sent), "B/min")
    else:
        yield Skipped(NAME, f"{where}: sent", "this kernel does not tell what sockets have sent")


def imports_alone() -> Memory:
    """Memory of an interpreter that has loaded what a daemon loads, without anything of ours."""
    probe = subprocess.run(  # noqa: S603 - the interpreter at hand, a program of ours
        [sys.executable, "-c", _PROBE], check=True, capture_output=True, text=True, timeout=IMPORTS_S
    )
    with Child([sys.executable, "-c", _BARE]) as bare:
        bare.ask({"names": json.loads(probe.stdout)}, IMPORTS_S)
        return memory_of(bare.pid)


def costs(nodes: list[DemoNode], window_s: float) -> list[Cost]:
    """What each of the running nodes takes over a window; nothing is asked of them meanwhile."""
    pids = [node.process.pid for node in nodes if node.process is not None]
    begun, cpu, sent = wall_s(), [cpu_of(pid) for pid in pids], _sent(pids)
    time.sleep(window_s)
    passed, after, later = wall_s() - begun, [cpu_of(pid) for pid in pids], _sent(pids)
    return [
        Cost(
            memory_of(pid),
            (after[index] - cpu[index]) / passed * 100,
            None if sent is None or later is None else (later[pid] - sent[pid]) / passed * 60,
        )
        for index, pid in enumerate(pids)
    ]


def _sent(pids: list[int]) -> dict[int, int] | None:
    try:
        return sent_by(pids)
    except OSError:
        return None
