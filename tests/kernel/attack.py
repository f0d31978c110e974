"""A history that broke an earlier wording of the rules: its answer, the rule it proves, and what goes wrong without."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest

from gossip.retention import Retention
from gossip.space_log import SpaceLog
from kernel.turns.fold import TaskFold
from tests.fold_world import History

Patch = pytest.MonkeyPatch
FOUR = "BCDE"


@dataclass(frozen=True)
class Attack:
    """`without` takes the rule out; then the answer is `wrong`."""

    answer: Callable[[], Any]
    right: Any
    without: Callable[[Patch], None]
    wrong: Any


def attack(*, right: Any, without: Callable[[Patch], None], wrong: Any) -> Callable[[Callable[[], Any]], Attack]:
    """Makes an attack of a function that plays its history and gives the answer."""
    return lambda answer: Attack(answer, right, without, wrong)


def past(log: SpaceLog, op_id: bytes) -> set[bytes]:
    """Kept ops in an op's past, reached through kept ops only."""
    seen: set[bytes] = set()
    todo = [op_id]
    while todo:
        op = log.get(todo.pop())
        for ref in op.refs if op else ():
            if ref not in seen and log.get(ref) is not None:
                seen.add(ref)
                todo.append(ref)
    return seen


def chains(h: History, fork: str) -> tuple[list[str], list[str]]:
    """The chain before and after the fork is known."""
    return h.names(h.fold(without=[fork]).chain), h.names(h.fold().chain)


def no_closure(patch: Patch) -> None:
    """A burn takes what lies in the past of kept ops."""
    patch.setattr(Retention, "_drags_in", lambda _self, _op: ())


def claim_ok(h: History, fold: TaskFold, name: str) -> bool:
    claim = fold.claim(h.id(name))
    assert claim is not None
    return claim.ok
