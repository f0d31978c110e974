"""`masos bench`: found by the command line through the entry-point group `masos.verbs`."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator
from typing import Annotated, Final

import typer

from protocol.errors import UsageError
from simulations.bench import codec
from simulations.bench.figure import Figure

BENCHES: Final[dict[str, Callable[[], Iterator[Figure]]]] = {"codec": codec.run}


def bench(
    name: Annotated[str, typer.Argument(metavar="NAME", help=f"all, or one of: {', '.join(BENCHES)}.")] = "all",
    *,
    json_form: Annotated[bool, typer.Option("--json", help="One JSON object per figure.")] = False,
) -> None:
    """Measure this machine: every figure beside a baseline from the same run."""
    if name != "all" and name not in BENCHES:
        raise UsageError(f"there is no bench {name[:40]!r}", hint=f"all, or one of: {', '.join(BENCHES)}")
    for each in BENCHES if name == "all" else (name,):
        for figure in BENCHES[each]():
            sys.stdout.write((json.dumps(figure.as_dict()) if json_form else _line(figure)) + "\n")
            sys.stdout.flush()


def _line(figure: Figure) -> str:
    verdict = "ok" if figure.ok else "MISSED"
    beside = f"{figure.baseline:g} ({figure.baseline_is})"
    return (
        f"{figure.bench:<9} {figure.figure}: {figure.value:g} {figure.unit}, beside {beside}: "
        f"ratio {figure.ratio:g}, target {figure.target}: {verdict}"
    )
