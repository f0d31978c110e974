"""The scheduler's port: from what is known to the next role, the end, or "no usable answer".

`Role`, `Finish` and `Unparsable` are three types, so that an end can never be taken for a failure (masos-kernel.md C1).
The no-repeat rule is a mask on the roles, made here, not a wish in a prompt (C3). Every policy sees the same
observation and nothing else.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Protocol

SUMMARY_CHARS_MAX: Final = 1_200
OBSERVED_SUMMARY_CHARS_MAX: Final = 300
"""Of the previous unit's summary [source: masos-kernel.md §2]."""


@dataclass(frozen=True, slots=True)
class Observation:
    """What a policy knows.

    Attributes:
        objective: the task.
        summary: the global summary.
        last_summary: the summary of the unit before, cut to 300 characters.
        roles_so_far: of the effective chain, oldest first.
        legal: the roles that may come next; the mask is applied.
        steps_left: turns that may still run.
        answered: the last turn concluded.
        documents: whether the user gave material.
    """

    objective: str
    summary: str
    last_summary: str
    roles_so_far: tuple[str, ...]
    legal: tuple[str, ...]
    steps_left: int
    answered: bool
    documents: bool


@dataclass(frozen=True, slots=True)
class Role:
    """This role comes next."""

    name: str
    why: str


@dataclass(frozen=True, slots=True)
class Finish:
    """The work is done."""

    why: str


@dataclass(frozen=True, slots=True)
class Unparsable:
    """The policy gave no usable answer; the caller falls back to the heuristic one."""

    text: str


Choice = Role | Finish | Unparsable


class Policy(Protocol):
    """Chooses what comes next; equal observations give equal choices in serving."""

    @property
    def name(self) -> str:
        """As named in a task's `policies`."""
        ...

    def choose_role(self, observation: Observation) -> Choice:
        """The next role among `observation.legal`, the end, or neither."""
        ...


def legal_roles(roles: tuple[str, ...], roles_so_far: tuple[str, ...]) -> tuple[str, ...]:
    """The roles without the one that ran last; all of them when it is the only one."""
    last = roles_so_far[-1] if roles_so_far else None
    return tuple(role for role in roles if role != last) or roles
