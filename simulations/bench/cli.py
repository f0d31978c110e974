"""`masos bench`: found by the command line through the entry-point group `masos.verbs`.

The command line loads this module for every verb, the daemon's included, so a bench is imported when it is run.
"""

from __future__ import annotations

import importlib
import json
import os
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Annotated, Final, cast

import typer

from protocol.errors import UsageError
from simulations.bench.figure import Line
from simulations.bench.options import Options

BENCHES: Final = ("codec", "rpc", "idle", "discover", "silent")
"""In the order of `all`; each is a module beside this one with `run(options)`."""


def bench(
    name: Annotated[str, typer.Argument(metavar="NAME", help=f"all, or one of: {', '.join(BENCHES)}.")] = "all",
    *,
    json_form: Annotated[bool, typer.Option("--json", help="One JSON object per figure.")] = False,
    large: Annotated[bool, typer.Option("--large", help="Also the sizes that take minutes.")] = False,
    install: Annotated[
        bool, typer.Option("--install/--no-install", help="Install missing baselines, each apart from masos.")
    ] = True,
    cache: Annotated[
        Path | None, typer.Option("--cache", metavar="PATH", help="Where baselines live; else the XDG cache.")
    ] = None,
) -> None:
    """Measure this machine: every figure beside a baseline from the same run. Progress goes to stderr."""
    if name != "all" and name not in BENCHES:
        raise UsageError(f"there is no bench {name[:40]!r}", hint=f"all, or one of: {', '.join(BENCHES)}")
    options = Options(cache or default_cache(), _tell, install=install, large=large)
    _tell(f"load of this machine: {_load()}")
    for each in BENCHES if name == "all" else (name,):
        for line in run_of(each)(options):
            sys.stdout.write((json.dumps(line.as_dict()) if json_form else line.line()) + "\n")
            sys.stdout.flush()


def run_of(name: str) -> Callable[[Options], Iterator[Line]]:
    """The function behind the name of a bench."""
    module = importlib.import_module(f"simulations.bench.{name}")
    return cast(Callable[[Options], Iterator[Line]], module.run)


def default_cache() -> Path:
    """masos/bench in $XDG_CACHE_HOME (if absolute, as XDG wants it), else in ~/.cache."""
    root = Path(os.environ.get("XDG_CACHE_HOME", ""))
    return (root if root.is_absolute() else Path.home() / ".cache") / "masos" / "bench"


def _load() -> str:
    """Of the last minute, and the cores that share it."""
    return f"{os.getloadavg()[0]:.2f} on {os.cpu_count()} cores"


def _tell(text: str) -> None:
    sys.stderr.write(f"{text}\n")
    sys.stderr.flush()
