"""Dones, votes and seals: which done is the winner of its parent (protocol.md §7.4 to §7.7).

A done is well-formed by the ops it names; it stands unless its author is burnt or denied there, and stands even
then with a majority of votes or a seal. Of an author's votes for one parent the first in its chain counts, valid
target or not; a done is its author's own vote. Burnt and denied authors have no votes, so the votes that count
come from authors with a single chain, in the order of that chain whatever the delivery.

winner(parent) = sealed, then most votes of participants, then the higher epoch, then the smaller id.
"""

from __future__ import annotations

from dataclasses import replace

from gossip.space_log import SpaceLog
from kernel.turns.fold_claims import ClaimTable, is_unit, last_in_chain
from kernel.turns.fold_records import ClaimView, DoneView, Step
from protocol.contract import ZERO, Vector, add, least
from protocol.op import Op
from protocol.records import ENDS, Done, SealVote


class DoneTable:
    """Records of dones with their votes. It adds well-formed dones to `steps`, where claims find them."""

    def __init__(self, log: SpaceLog, steps: dict[bytes, Step], claims: ClaimTable) -> None:
        self._log = log
        self._steps = steps
        self._claims = claims
        self._dones: dict[bytes, DoneView] = {}  # `valid` is not kept here: see `stands`
        self._by: dict[tuple[bytes, bytes], list[DoneView]] = {}  # (author, claim) -> its dones, well-formed or not
        self._kids: dict[bytes, list[bytes]] = {}  # parent -> well-formed dones
        self._best: dict[bytes, bytes | None] = {}  # parent -> winner
        self._votes: dict[tuple[bytes, bytes], bytes] = {}  # (author, parent) -> done
        self._seals: dict[bytes, dict[bytes, None]] = {}  # done -> authors of seal votes

    # ---- dones

    def index_done(self, op: Op, body: Done) -> None:
        """Keep the record of a done; without a known claim it is nothing."""
        claim = self._claims.get(body.claim)
        if claim is None:
            return
        own = self._by.setdefault((op.author, claim.id), [])
        form = self._well_formed(op, body, claim, own)
        spent = self._spent(claim, body) if form else ZERO
        done = DoneView(
            *(op.id, op.author, claim.id, claim.parent, body.unit, body.outcome, body.next),
            spent=spent,
            form=form,
            valid=False,
        )
        own.append(done)
        self._dones[op.id] = done
        if form and claim.step is not None:
            step = claim.step
            self._steps[op.id] = Step(step.terms, step.depth + 1, spent, goes_on=self._goes_on(body))
            self._kids.setdefault(claim.parent, []).append(op.id)

    def _well_formed(self, op: Op, body: Done, claim: ClaimView, own: list[DoneView]) -> bool:
        return (
            claim.ok
            and claim.author == op.author
            and self._is_first(op, own)
            and self._names_unit(body)
            and self._in_steps(body, claim)
        )

    def _is_first(self, op: Op, own: list[DoneView]) -> bool:
        """The first done of its claim in the author's chain."""
        return last_in_chain(self._log, own, op) is None

    def _names_unit(self, body: Done) -> bool:
        if body.unit is None:
            return body.outcome in ENDS and body.outcome != "answer"
        return is_unit(self._log, body.unit)

    def _in_steps(self, body: Done, claim: ClaimView) -> bool:
        """The done of step max_steps carries an end."""
        return claim.step is not None and (
            not self._goes_on(body) or claim.step.depth + 1 < claim.step.terms.open.max_steps
        )

    def _goes_on(self, body: Done) -> bool:
        return body.outcome not in ENDS

    def _spent(self, claim: ClaimView, body: Done) -> Vector:
        return add(claim.before, least(body.used, claim.slice))

    # ---- votes and seals

    def cast(self, op: Op) -> list[bytes]:
        """Count what an op votes for; the parents whose winner may have changed."""
        if self._log.void(op):
            return []
        moved = []
        for target in self._ballot_of(op):
            done = self._dones.get(target)
            if done is not None and self._votes.setdefault((op.author, done.parent), target) == target:
                moved.append(done.parent)
        return moved

    def _ballot_of(self, op: Op) -> tuple[bytes, ...]:
        """Its votes, then itself if it is a done."""
        return (*op.votes, op.id) if op.id in self._dones else op.votes

    def index_seal(self, op: Op, body: SealVote) -> bytes | None:
        """Count a kept seal vote, though its author burns later; the parent whose winner may have changed."""
        done = self._dones.get(body.done)
        if done is None:
            return None
        self._seals.setdefault(done.id, {})[op.author] = None
        return done.parent

    # ---- the winner

    def settle(self, parent: bytes) -> bool:
        """Choose the winner of a parent anew; True iff it changed."""
        before = self._best.get(parent)
        valid = [done_id for done_id in self._kids.get(parent, ()) if self.stands(done_id)]
        self._best[parent] = min(valid, key=self._rank, default=None)
        return self._best[parent] != before

    def _rank(self, done_id: bytes) -> tuple[bool, int, int, bytes]:
        claim = self._claims.get(self._dones[done_id].claim)
        assert claim is not None
        return (not self.sealed(done_id), -self.count(done_id), -claim.e, done_id)

    def stands(self, done_id: bytes) -> bool:
        """A well-formed done stands unless its author is void; and then with a majority or a seal."""
        op = self._log.get(done_id)
        if op is None or not self._dones[done_id].form:
            return False
        return not self._log.void(op) or self._outlives_author(done_id)

    def _outlives_author(self, done_id: bytes) -> bool:
        return self._steps[done_id].terms.majority(self.count(done_id)) or self.sealed(done_id)

    # ---- views

    def get(self, done_id: bytes) -> DoneView | None:
        """The record of a done; None for what is no done of a known claim."""
        done = self._dones.get(done_id)
        return None if done is None else replace(done, valid=self.stands(done_id))

    def parents(self) -> list[bytes]:
        """Everything that a well-formed done continues, in byte order."""
        return sorted(self._kids)

    def of(self, parent: bytes) -> list[DoneView]:
        """Valid dones that continue a parent, by id."""
        return [replace(self._dones[i], valid=True) for i in sorted(self._kids.get(parent, ())) if self.stands(i)]

    def winner(self, parent: bytes) -> bytes | None:
        """The done that continues a parent."""
        return self._best.get(parent)

    def voters(self, done_id: bytes) -> tuple[bytes, ...]:
        """Participants whose vote for the parent is this done, in the order of the open."""
        done = self._dones.get(done_id)
        step = None if done is None else self._steps.get(done.parent)
        if done is None or step is None:
            return ()
        return tuple(a for a in step.terms.participants if self._votes.get((a, done.parent)) == done_id)

    def count(self, done_id: bytes) -> int:
        """Votes of participants that are neither burnt nor denied."""
        return len(self.voters(done_id))

    def sealed(self, done_id: bytes) -> bool:
        """More than (R+f)/2 of the holders sealed a well-formed done."""
        step, votes = self._steps.get(done_id), self._seals.get(done_id)
        return step is not None and votes is not None and step.terms.sealed(sum(h in votes for h in step.terms.holders))

    def vote_of(self, author: bytes, parent: bytes) -> bytes | None:
        """The author's first vote for a parent; it counts if the author is a participant."""
        return self._votes.get((author, parent))

    def votes(self) -> list[tuple[bytes, bytes, bytes]]:
        """(author, parent, done) of every first vote, in byte order."""
        return sorted((author, parent, done) for (author, parent), done in self._votes.items())

    def seals(self) -> list[bytes]:
        """Sealed dones, in byte order."""
        return sorted(done_id for done_id in self._seals if self.sealed(done_id))
