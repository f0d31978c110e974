"""The nemesis: a plan of faults drawn from a seed, played against a swarm (swarm mode of simulation.md §7).

Safety first: faults for a bounded time, while users submit tasks. Then liveness: `SimSwarm.settle` heals everything
and demands that the swarm becomes quiet. A plan is data, so that a failing one can be shown and cut down.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import Final, Literal

from simulations.engine import EngineConfig
from simulations.link import NetConfig
from simulations.rng import stream
from simulations.store import DiskConfig
from simulations.swarm import MINUTE_US, SimSwarm, SwarmConfig

Kind = Literal[
    "crash", "power_cut", "crash_all", "rollback", "stop", "partition", "suspend", "set_clock", "slow_disk",
    "bad_engine", "submit", "cancel",
]  # fmt: skip
FAULTS: Final[tuple[Kind, ...]] = (
    "crash", "crash", "power_cut", "crash_all", "stop", "partition", "partition", "suspend", "set_clock", "slow_disk",
    "bad_engine",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Deed:
    """One fault, or one act of a user. `back_s`: when what it took away comes back."""

    at_s: float
    kind: Kind
    node: int
    back_s: float = 0.0
    value: int = 0


def draw_config(seed: int, base: SwarmConfig) -> SwarmConfig:
    """Latency, loss, clocks, disks and engines of a run, drawn from its seed."""
    rng = stream(seed, "nemesis", "config")
    net = NetConfig(
        latency_us=rng.choice((1_000, 20_000, 150_000)),
        jitter_us=rng.choice((0, 5_000, 100_000)),
        loss=rng.choice((0.0, 0.02, 0.15)),
        drop=rng.choice((0.0, 0.0, 0.05)),
    )
    disk = DiskConfig(sync_us=rng.choice((1_000, 5_000, 200_000)))
    engine = EngineConfig(reply_tokens_per_s=rng.choice((5, 30, 200)))
    skews = tuple(rng.choice((0, 0, 0, -1, 1)) * rng.randrange(10 * MINUTE_US) for _ in range(base.n))
    return replace(base, net=net, disk=disk, engine=engine, skews_us=skews)


def draw_plan(seed: int, n: int, seconds: float, deeds: int) -> tuple[Deed, ...]:
    """Two tasks and some faults within a time, in order."""
    rng = stream(seed, "nemesis", "plan")
    plan = [Deed(rng.uniform(4, seconds / 3), "submit", rng.randrange(n), value=k) for k in range(3)]
    for _ in range(deeds):
        at_s = rng.uniform(3, seconds)
        plan.append(Deed(at_s, rng.choice(FAULTS), rng.randrange(n), at_s + rng.uniform(0.2, 40), rng.getrandbits(n)))
    if rng.random() < 0.25:
        plan.append(Deed(rng.uniform(8, seconds), "rollback", rng.randrange(n), value=rng.getrandbits(16)))
    if rng.random() < 0.15:
        plan.append(Deed(rng.uniform(seconds / 3, seconds), "cancel", rng.randrange(n)))
    return tuple(sorted(plan, key=lambda deed: deed.at_s))


def play(swarm: SimSwarm, plan: tuple[Deed, ...], seconds: float) -> None:
    """Start the swarm, do everything in the plan at its time, then settle.

    Raises:
        Violation: a check failed.
    """
    swarm.start()
    for deed in plan:
        swarm.after(deed.at_s, partial(_do, swarm, deed))
        if deed.back_s:
            swarm.after(deed.back_s, partial(_undo, swarm, deed))
    swarm.run_for(max(seconds, *(deed.back_s for deed in plan)))
    for deed in plan:
        if deed.kind == "rollback" and not swarm.hosts[deed.node].up:
            backup = swarm.hosts[deed.node].disk.length * (deed.value % 1_000) // 1_000
            swarm.heal()  # who restores a backup has the others at hand; alone it could not know its own head
            swarm.restart(deed.node, rollback=backup)
    swarm.settle()


def _do(swarm: SimSwarm, deed: Deed) -> None:
    host = swarm.hosts[deed.node]
    if deed.kind == "partition":
        ones = [node for node in range(len(swarm.hosts)) if deed.value >> node & 1]
        swarm.partition(ones, [node for node in range(len(swarm.hosts)) if node not in ones])
        return
    if deed.kind == "crash_all":
        for each in swarm.up():
            swarm.crash(each.index, power=bool(deed.value & 1))
        return
    if not host.up or host.asleep:
        return
    acts: dict[str, Callable[[], object]] = {
        "crash": partial(swarm.crash, deed.node),
        "power_cut": partial(swarm.crash, deed.node, power=True),
        "rollback": partial(swarm.crash, deed.node),
        "stop": partial(swarm.stop, deed.node),
        "bad_engine": partial(swarm.script, deed.node, "hang" if deed.value & 1 else "fail"),
        "suspend": partial(swarm.suspend, deed.node, int((deed.back_s - deed.at_s) * 1_000_000)),
        "set_clock": partial(swarm.set_clock, deed.node, deed.value * MINUTE_US // 8),
        "slow_disk": partial(swarm.slow_disk, deed.node, 20),
        "submit": partial(_submit, swarm, deed),
        "cancel": partial(_cancel, swarm, deed.node),
    }
    acts[deed.kind]()


def _undo(swarm: SimSwarm, deed: Deed) -> None:
    match deed.kind:
        case "partition":
            swarm.heal()
        case "crash" | "power_cut" | "stop":
            swarm.restart_if_down(deed.node)
        case "crash_all":
            for host in swarm.hosts:
                swarm.restart_if_down(host.index)
        case "bad_engine":
            swarm.script(deed.node, "answer")
        case "slow_disk":
            swarm.slow_disk(deed.node, 1)
        case _:
            pass


def _submit(swarm: SimSwarm, deed: Deed) -> None:
    document = tuple(f"Part {n}: notice is given {n} days before the term ends." for n in range(deed.value % 3))
    contract = (None, None, None, None) if deed.value % 2 else (12_000, 9, 600_000, 0)
    swarm.submit(deed.node, f"task-{deed.value}", document=document, contract=contract)


def _cancel(swarm: SimSwarm, node: int) -> None:
    for client_key in swarm.submitted:
        if swarm.task(node, client_key) is not None:
            swarm.cancel(node, client_key)
            return


def random_run(seed: int, base: SwarmConfig | None = None, *, seconds: float = 60.0, deeds: int = 6) -> SimSwarm:
    """One run in swarm mode.

    Raises:
        Violation: a check failed.
    """
    config = draw_config(seed, base or SwarmConfig())
    swarm = SimSwarm(config, seed)
    play(swarm, draw_plan(seed, config.n, seconds, deeds), seconds)
    return swarm
