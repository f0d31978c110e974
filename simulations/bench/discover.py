"""`bench discover`: how long from joining until others find you, and what is still found when 30 % have been killed.

One measure everywhere: a node joins and publishes, a random earlier node looks for it again and again until it is
there; the time runs from the start of the joining. Then 30 % of the nodes are killed without a word, the first one
excepted, and random survivors look for other survivors at once.

- L1: the product's core in virtual time (discover_sim.py); nodes join late, at full size.
- Real processes (discover_real.py): nodes join one after the other, as those of the baselines do. Starting a process,
  imports included, is part of joining; the time from when the new daemon answers (`up to found`) is told as well, and
  stands beside the joining of the baselines, whose imports are done before the time runs.
- hivemind and kademlia: the same measure, all nodes in one process, which is up before the time runs. hivemind starts
  a daemon per node and encrypts; kademlia opens a socket and does not. Neither signs.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final

from simulations.bench.children import ChildFailed
from simulations.bench.discover_real import real
from simulations.bench.discover_sim import TooSlow, simulated
from simulations.bench.figure import Beside, Line, Skipped, held, quantile, told
from simulations.bench.foreign import HIVEMIND, KADEMLIA, Foreign, Missing
from simulations.bench.options import Options
from simulations.bench.seen import Seen, Times, met, seen_of, share

NAME: Final = "discover"
SIM_SIZES: Final = (8, 32, 128)
REAL_SIZES: Final = (8,)
REAL_LARGE: Final = (16,)
KADEMLIA_SIZES: Final = (8, 32)
KADEMLIA_LARGE: Final = (128,)
SIM_S: Final = 120.0  # of this machine, per size
SIM_LARGE_S: Final = 1_200.0
BASELINE_S: Final = 180.0  # per size
FOUND_MIN: Final = 1.0
KEPT_MIN: Final = 0.99
QUANTILES: Final = ((0.5, "p50"), (0.95, "p95"))

Others = dict[str, Seen]


def run(options: Options) -> Iterator[Line]:
    """L1, then the baselines, then real processes beside them."""
    limit_s = SIM_LARGE_S if options.large else SIM_S
    for size in SIM_SIZES:
        options.tell(f"discover: L1 with {size} nodes, at most {limit_s:.0f} s")
        try:
            yield from figures("L1", simulated(size, options.seed, limit_s), {}, "virtual s")
        except TooSlow:
            yield Skipped(NAME, f"L1, N={size}", f"not within {limit_s:.0f} s on this machine; --large gives it more")
    sizes = (*REAL_SIZES, *(REAL_LARGE if options.large else ()))
    kademlia_sizes = (*KADEMLIA_SIZES, *(KADEMLIA_LARGE if options.large else ()))
    beside: dict[int, Others] = {}
    for foreign, measured in ((HIVEMIND, sizes), (KADEMLIA, kademlia_sizes)):
        for line in baseline(foreign, measured, options):
            if isinstance(line, Skipped):
                yield line
                continue
            beside.setdefault(line.n, {})[foreign.name] = line
            yield from figures(foreign.name, line, {}, "s", targets=False)
    for size in sizes:
        options.tell(f"discover: {size} real processes")
        yield from figures("real", real(size, options.seed), beside.get(size, {}), "s")


def baseline(foreign: Foreign, sizes: Sequence[int], options: Options) -> Iterator[Seen | Skipped]:
    """What a baseline shows at each size, or why nothing."""
    try:
        options.tell(f"discover: {foreign.name} with {', '.join(map(str, sizes))} nodes")
        with foreign.child(options, ",".join(map(str, sizes)), str(options.seed)) as child:
            for _ in sizes:
                yield seen_of(child.read(BASELINE_S))
    except (Missing, ChildFailed, ValueError) as exc:
        yield Skipped(NAME, f"beside {foreign.name}", str(exc))


def figures(system: str, seen: Seen, others: Others, unit: str, *, targets: bool = True) -> Iterator[Line]:
    """The lines of a swarm, beside each baseline of its size."""
    where = f"{system}, N={seen.n}"
    joins = {name: other.joins for name, other in others.items()}
    yield from _times(f"{where}: join to found", seen.joins, unit, joins)
    yield from _times(f"{where}: up to found", seen.ups, unit, joins)
    yield _share(f"{where}: joined and found", seen.joins, FOUND_MIN if targets else None)
    yield from _times(
        f"{where}: find with 30 % killed", seen.finds, unit, {name: o.finds for name, o in others.items()}
    )
    yield _share(f"{where}: survivors found with 30 % killed", seen.finds, KEPT_MIN if targets else None)
    if seen.late:
        yield from _times(f"{where}: join to found with 30 % killed", seen.late, unit, {})
        yield _share(f"{where}: joined and found with 30 % killed", seen.late, KEPT_MIN if targets else None)


def _times(figure: str, times: Times, unit: str, others: dict[str, Times]) -> Iterator[Line]:
    """Quantiles of what was found, once alone, or once beside each baseline that found anything."""
    values = met(times)
    if not values:
        return
    stands: list[tuple[str, Sequence[float]]] = [(name, met(theirs)) for name, theirs in others.items() if met(theirs)]
    for q, name in QUANTILES:
        value = quantile(values, q)
        if not stands:
            yield told(NAME, f"{figure}, {name}", value, unit)
        for other, theirs in stands:
            yield told(NAME, f"{figure}, {name}, beside {other}", value, unit, Beside(quantile(theirs, q), other))


def _share(figure: str, times: Times, least: float | None) -> Line:
    value = share(times)
    if least is None:
        return told(NAME, f"{figure} (of {len(times)})", value, "share")
    return held(NAME, f"{figure} (of {len(times)})", (value, "share"), None, f">= {least:g}", ok=value >= least)
