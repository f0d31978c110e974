"""What this node has seen of its peers' turns, as one figure per peer (replication.md §9).

    trust = (effective + 1) / (effective + failed + 2)        the mean of Beta(1 + effective, 1 + failed)

First-hand only, and derived: it is counted anew from the folds of the tasks that this node holds, so nobody can report
it up or down, and no figure is kept that a burn or a refold would have to correct.

On the path from `open` to the tip of a task:
- a done on the path is *effective* for its author, unless it ends the task as `failed`: then it is *failed*;
- a claim without a done and without a release, which a later epoch took over, was abandoned: *failed*;
- a release counts for nothing (declining is free, protocol.md §7.2), and neither does a done that another one beat.

A peer that was never seen has no figure: unknown is not a half.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from kernel.turns.fold import TaskFold

PERMILLE = 1000
POINTS_BEST, POINTS_WORST = 20, 9


@dataclass(frozen=True, slots=True)
class Trust:
    """Turns of one peer."""

    effective: int = 0
    failed: int = 0

    @property
    def permille(self) -> int:
        """The figure in thousandths."""
        return PERMILLE * (self.effective + 1) // (self.effective + self.failed + 2)

    @property
    def points(self) -> int:
        """What it adds to the score of the peer in the mesh; 0 for a half.

        Not down to -50 (replication.md §7): a peer that crashes often fails turns and lies to nobody, so outcomes
        alone stay above the threshold (-10) at which gossip with it ends.
        """
        over = 2 * self.permille - PERMILLE
        return (POINTS_BEST if over > 0 else POINTS_WORST) * over // PERMILLE


def first_hand(folds: Iterable[TaskFold]) -> dict[bytes, Trust]:
    """The figure of every peer that these tasks saw at work."""
    seen: dict[bytes, Trust] = {}
    for fold in folds:
        for author, good in _outcomes(fold):
            old = seen.get(author, Trust())
            seen[author] = Trust(old.effective + good, old.failed + (not good))
    return seen


def _outcomes(fold: TaskFold) -> Iterator[tuple[bytes, bool]]:
    root = fold.root
    if root is None:
        return
    path = frozenset(fold.chain)
    for parent in (root, *fold.chain):
        claims, finished = fold.claims_on(parent), {done.claim: done for done in fold.dones_of(parent)}
        newest = max((claim.e for claim in claims), default=0)
        for claim in claims:
            done = finished.get(claim.id)
            if done is not None:
                if done.id in path:
                    yield claim.author, done.outcome != "failed"
            elif claim.e < newest and fold.released(claim.id) is None:
                yield claim.author, False
