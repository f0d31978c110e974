"""One measured figure beside its baseline. Absolute times do not travel between machines; ratios do."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import asdict, dataclass

REPEATS = 5


@dataclass(frozen=True, slots=True)
class Figure:
    """A line of `masos bench`. `ratio` is value / baseline; `ok` is whether it meets the target of DESIGN.md §9."""

    bench: str
    figure: str
    value: float
    unit: str
    baseline: float
    baseline_is: str
    ratio: float
    target: str
    ok: bool

    def as_dict(self) -> dict[str, object]:
        """The JSON line."""
        return asdict(self)


def cpu_s(work: Callable[[], object]) -> float:
    """CPU seconds of this process for one call: the best of REPEATS, because other load only ever adds."""
    best = float("inf")
    for _ in range(REPEATS):
        begun = time.process_time()
        work()
        best = min(best, time.process_time() - begun)
    return best
