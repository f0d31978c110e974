"""One measured figure beside its baseline. Absolute times do not travel between machines; ratios do.

A bench yields figures and, for what it could not measure here, `Skipped` with the reason: a baseline that cannot be
installed costs its own line and no other.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass

REPEATS = 5


@dataclass(frozen=True, slots=True)
class Figure:
    """A line of `masos bench`.

    Attributes:
        baseline: None where nothing stands beside the figure; `baseline_is` says what does.
        ratio: value / baseline, None without one.
        target: as DESIGN.md §9 words it; empty for a figure that is only told.
        ok: whether the target is met; true without one.
    """

    bench: str
    figure: str
    value: float
    unit: str
    baseline: float | None
    baseline_is: str
    ratio: float | None
    target: str
    ok: bool

    def as_dict(self) -> dict[str, object]:
        """The JSON line."""
        return asdict(self)

    def line(self) -> str:
        """For a person."""
        parts = [f"{self.bench:<9} {self.figure}: {self.value:g} {self.unit}"]
        if self.baseline is not None and self.ratio is not None:
            parts.append(f"beside {self.baseline:g} ({self.baseline_is}): ratio {self.ratio:g}")
        if self.target:
            parts.append(f"target {self.target}: {'ok' if self.ok else 'MISSED'}")
        return ", ".join(parts)


@dataclass(frozen=True, slots=True)
class Skipped:
    """What a bench could not measure here, and why."""

    bench: str
    figure: str
    skipped: str

    def as_dict(self) -> dict[str, object]:
        """The JSON line."""
        return asdict(self)

    def line(self) -> str:
        """For a person."""
        return f"{self.bench:<9} {self.figure}: skipped, {self.skipped}"


Line = Figure | Skipped


@dataclass(frozen=True, slots=True)
class Beside:
    """A baseline: its value and what it is."""

    value: float
    what: str


def told(bench: str, figure: str, value: float, unit: str, beside: Beside | None = None) -> Figure:
    """A figure without a target."""
    return held(bench, figure, (value, unit), beside, "", ok=True)


def held(bench: str, figure: str, value: tuple[float, str], beside: Beside | None, target: str, *, ok: bool) -> Figure:
    """A figure that a target holds; `value` comes with its unit."""
    number, unit = value
    ratio = _rounded(number / beside.value) if beside is not None and beside.value else None
    return Figure(
        bench, figure, _rounded(number), unit,
        None if beside is None else _rounded(beside.value), "" if beside is None else beside.what,
        ratio, target, ok,
    )  # fmt: skip


def _rounded(value: float) -> float:
    """Three figures say all that a run on a shared machine can know."""
    return float(f"{value:.3g}") if abs(value) < 1000 else float(round(value))


def quantile(values: Sequence[float], q: float) -> float:
    """The value at rank q of 0..1, nearest rank; `values` holds at least one."""
    return sorted(values)[min(len(values) - 1, int(len(values) * q))]


def wall_s() -> float:
    """Seconds that a person waits; for differences only."""
    return time.perf_counter()


def polled(until_s: float, every_s: float) -> Iterator[float]:
    """Yields again and again, the seconds since the first time, until they are over."""
    begun = wall_s()
    while (passed := wall_s() - begun) < until_s:
        yield passed
        time.sleep(every_s)


def cpu_s(work: Callable[[], object]) -> float:
    """CPU seconds of this process for one call: the best of REPEATS, because other load only ever adds."""
    best = float("inf")
    for _ in range(REPEATS):
        begun = time.process_time()
        work()
        best = min(best, time.process_time() - begun)
    return best
