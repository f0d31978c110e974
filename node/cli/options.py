"""Options that verbs share, and the edge of the world that they need: environment, wall time, randomness."""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Annotated, Final

import typer

from node.cli.output import Form, Screen, form_of
from node.clock import BootClock
from node.profile import Profile, default_profile
from protocol.errors import UsageError

ProfileOption = Annotated[
    Path | None,
    typer.Option("--profile", metavar="PATH", help="The node's folder; else $MASOS_PROFILE, else the XDG place."),
]
OutputOption = Annotated[Form, typer.Option("-o", "--output", help="human, json or jsonl.")]
JsonOption = Annotated[bool, typer.Option("--json", help="Short for -o json.")]
TimeoutOption = Annotated[
    str | None, typer.Option("--timeout", metavar="TIME", help="Wait no longer, such as 90s, 10m or 2h.")
]
ListenOption = Annotated[
    list[str] | None, typer.Option("--listen", metavar="MULTIADDR", help="Address to bind; may be repeated.")
]
RelayOption = Annotated[
    str | None, typer.Option("--relay", metavar="USE", help="off, client (be reached through one) or serve (be one).")
]
EngineOption = Annotated[str | None, typer.Option("--engine", metavar="KIND", help="embedded, openai or none.")]

_DURATION: Final = re.compile(r"(\d+(?:\.\d+)?)(ms|s|m|h|d)?")
_SECONDS: Final = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86_400.0}


def profile_of(chosen: Path | None) -> Profile:
    """The profile that a verb works on."""
    return Profile(chosen if chosen is not None else default_profile(os.environ))


def screen_of(output: Form, *, json_form: bool) -> Screen:
    """Where a verb writes."""
    return Screen(form_of(output, json_form=json_form))


def seconds_of(text: str, option: str) -> float:
    """A duration: a number with ms, s, m, h or d; seconds without one.

    Raises:
        UsageError: it is none, or nothing.
    """
    found = _DURATION.fullmatch(text.strip())
    seconds = float(found[1]) * _SECONDS[found[2] or "s"] if found else 0.0
    if seconds <= 0:
        raise UsageError(f"{option}: {text[:40]!r} is no duration", hint="write 90s, 10m, 2h or 3d")
    return seconds


def flags_of(listen: list[str] | None, engine: str | None, relay: str | None = None) -> dict[str, dict[str, object]]:
    """Options as settings that stand above file and environment."""
    flags: dict[str, dict[str, object]] = {}
    if listen:
        flags["node"] = {"listen": tuple(listen)}
    if relay is not None:
        flags.setdefault("node", {})["relay"] = relay
    if engine is not None:
        flags["engine"] = {"kind": engine}
    return flags


def wall_ms() -> int:
    """Wall time of this machine."""
    clock = BootClock()
    return (clock.now_us() + clock.wall_offset_us()) // 1000


def entropy(size: int) -> bytes:
    """Fresh randomness for keys and names that a verb makes."""
    return os.urandom(size)  # noqa: TID251 - keys of a new profile are drawn at this edge and handed inwards
