"""What a run of `bench discover` saw, the same for every system."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from simulations.bench.children import Json

KILLED_SHARE: Final = 0.3
FINDS_MAX: Final = 24  # of survivors by survivors, where each takes real time

Times = tuple[float | None, ...]
"""Seconds per try; None where nothing was found in time."""


@dataclass(frozen=True, slots=True)
class Seen:
    """One swarm of one size.

    Attributes:
        joins: from the start of joining until a random earlier node finds the new one.
        finds: of survivors by survivors, after KILLED_SHARE of the nodes were killed.
        ups: as `joins`, but from when the new node itself answers; where starting is a cost of its own.
        late: as `joins`, of nodes that join after the kill.
    """

    n: int
    joins: Times
    finds: Times
    ups: Times = ()
    late: Times = ()


def share(times: Times) -> float:
    """Of the tries that found something; 1 of none."""
    return sum(each is not None for each in times) / len(times) if times else 1.0


def met(times: Times) -> Sequence[float]:
    """The seconds of those that did."""
    return [each for each in times if each is not None]


def seen_of(line: Json) -> Seen:
    """What a baseline's script tells: {"n", "joins_s", "finds_s"}.

    Raises:
        ValueError: it tells something else.
    """
    try:
        return Seen(int(line["n"]), _times(line["joins_s"]), _times(line["finds_s"]))
    except (KeyError, TypeError) as exc:
        raise ValueError(f"not what was asked for: {str(line)[:100]}") from exc


def _times(values: list[float | None]) -> Times:
    return tuple(None if each is None else float(each) for each in values)
