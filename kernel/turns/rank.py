"""Who tries to take a step, and when: ranks from replicated data, in integers (protocol.md §7.3).

Rank 0 is the peer that the finished turn named; the others follow by fit and by a hash of (parent, node), so every
node computes nearly the same order without a message, and a hash spreads the load over steps. Rank r waits r·τ
after the step became free and cancels on hearing a claim. Differences between nodes cost a duplicate execution at
worst, never a second effective completion.
"""

from __future__ import annotations

from dataclasses import dataclass

from kernel.task import Task
from kernel.turns.fold import ClaimView
from protocol.identity import h64


@dataclass(frozen=True, slots=True)
class Free:
    """Since when (boot microseconds) a step may be claimed, and by whom not first: the author of the dead claim."""

    since_us: int
    last: bytes | None


def rank_order(parent: bytes, nodes: tuple[bytes, ...], named: bytes | None, fit: frozenset[bytes]) -> list[bytes]:
    """Nodes by rank: the named one, then those that fit, then by H64(parent ‖ node)."""
    return sorted(nodes, key=lambda node: (node != named, node not in fit, h64(parent, node), node))


def step_of_next(task: Task) -> int:
    """The number of the step that comes next, from 1."""
    return task.fold.step_of(task.tip) + 1


def current_claim(task: Task) -> ClaimView | None:
    """The valid claim of the highest epoch on the tip."""
    claims = task.fold.claims_on(task.tip)
    return claims[-1] if claims else None


def keeps_out(task: Task, claim: ClaimView, taker: bytes) -> bool:
    """False for a claim whose end nobody need wait for (protocol.md §7.1b).

    Its author is burnt or denied, or had claimed this step before and the taker is somebody else.
    """
    op = task.log.get(claim.id)
    return not ((op is not None and task.log.void(op)) or (claim.repeat and claim.author != taker))


def free_since(task: Task, taker: bytes) -> Free:
    """When the next step is free, by this node's own clock since it learned of things.

    A running lease ends for others lease + eps after its claim, or last renewal, was heard here; no clock of
    another node is trusted for that.
    """
    claim, learned = current_claim(task), task.learned
    if claim is None:
        return Free(learned[task.tip], None)
    release = task.fold.released(claim.id)
    if release is not None:
        return Free(learned[release], claim.author)
    if not keeps_out(task, claim, taker):
        return Free(learned[claim.id], claim.author)
    heard = learned[task.fold.last_renew(claim.id) or claim.id]
    return Free(heard + (task.open.lease_ms + task.open.eps_ms) * 1000, claim.author)
