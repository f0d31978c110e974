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
from protocol.clock import hlc_from_ms
from protocol.identity import h64


@dataclass(frozen=True, slots=True)
class Free:
    """Since when (boot microseconds) a step may be claimed; by whom not first: the author of the claim that ended."""

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
    """When the next step is free, by this node's own clock since it learned of things: when the last claim on it is.

    A running lease ends for others lease + eps after its claim, or last renewal, was heard here; no clock of another
    node is trusted for that. Every claim counts, not the one of the highest epoch alone: two owners may run after a
    partition, and when one of them dies the other is still at work.
    """
    claims = task.fold.claims_on(task.tip)
    if not claims:
        return Free(task.learned[task.tip], None)
    return max((_free_of(task, claim, taker) for claim in claims), key=lambda free: free.since_us)


def _free_of(task: Task, claim: ClaimView, taker: bytes) -> Free:
    """When one claim keeps the taker out no more."""
    learned = task.learned
    release = task.fold.released(claim.id)
    if release is not None:
        return Free(learned[release], claim.author)
    if not keeps_out(task, claim, taker):
        return Free(learned[claim.id], claim.author)
    heard = learned[task.fold.last_renew(claim.id) or claim.id]
    return Free(heard + (task.open.lease_ms + task.open.eps_ms) * 1000, claim.author)


def own_open_claim(task: Task, me: bytes) -> ClaimView | None:
    """A valid claim of this node on the tip that it did not give back; the oldest."""
    claims = task.fold.claims_on(task.tip)
    return next((c for c in claims if c.author == me and task.fold.released(c.id) is None), None)


def claim_floor(task: Task, taker: bytes) -> int:
    """The stamp that a claim by the taker must reach: lease + eps after the claim before it, 0 if that is over."""
    old = current_claim(task)
    if old is None or task.fold.released(old.id) is not None or not keeps_out(task, old, taker):
        return 0
    return task.fold.lease_end(old.id) + hlc_from_ms(task.open.eps_ms)
