"""Claims, renewals and releases: who may run the turn that continues a parent (protocol.md §7.1 and §7.8).

A claim is judged by the ops it names and its author's own chain, by nothing else in its past. So a record, once
made, stays: nothing that arrives later can concern it, except a burn or a deny, and these make the fold anew.

What an author did earlier is read from its own chain, forks told apart (`SpaceLog.in_chain`). For an author that
is not burnt the newest record is the answer, so each rule costs O(1).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol, TypeVar

from gossip.space_log import SpaceLog
from kernel.turns.fold_records import ClaimView, RenewMark, Step, Terms
from protocol.contract import ZERO, Vector, add, fits, least, remaining
from protocol.op import Op, OpKind
from protocol.records import Claim, Release, Renew, Unit


class _HasId(Protocol):
    @property
    def id(self) -> bytes: ...


T = TypeVar("T", bound=_HasId)


def last_in_chain(log: SpaceLog, records: Sequence[T], op: Op) -> T | None:
    """The newest record that lies before the op in its author's chain; records of one author, in causal order."""
    return next((record for record in reversed(records) if log.in_chain(record.id, op.id)), None)


class ClaimTable:
    """Records of claims and of what its authors say about them. `steps` is what can be continued; read only here."""

    def __init__(self, log: SpaceLog, steps: Mapping[bytes, Step]) -> None:
        self._log = log
        self._steps = steps
        self._claims: dict[bytes, ClaimView] = {}
        self._on: dict[bytes, list[bytes]] = {}  # parent -> valid claims
        self._by: dict[tuple[bytes, bytes], list[ClaimView]] = {}  # (author, parent) -> its claims, valid or not
        self._renews: dict[bytes, list[RenewMark]] = {}  # claim -> marks
        self._mark_of: dict[bytes, RenewMark] = {}  # renew -> its mark
        self._releases: dict[bytes, tuple[int, bytes]] = {}  # claim -> (hlc, id) of its author's first release
        self._declines: dict[bytes, set[bytes]] = {}  # done -> who declined it
        self._units: dict[bytes, list[tuple[int, bytes]]] = {}  # claim -> (hlc, id) of units written under it

    # ---- claims

    def index_claim(self, op: Op, body: Claim) -> ClaimView:
        """Judge a claim and keep its record."""
        own = self._by.setdefault((op.author, body.parent), [])
        earlier = last_in_chain(self._log, own, op)
        step = self._continued(op, body.parent)
        before = None
        if step is not None and self._rises(earlier, body.e):
            before = self._judge(op, body, step)
        view = ClaimView(
            *(op.id, op.author, op.hlc, body.parent, body.e, body.slice),
            before=ZERO if before is None else before,
            ok=before is not None,
            repeat=earlier is not None,
            highest=body.e if earlier is None else max(body.e, earlier.highest),
            step=step,
        )
        own.append(view)
        self._claims[op.id] = view
        if view.ok:
            self._on.setdefault(body.parent, []).append(op.id)
        return view

    def _judge(self, op: Op, body: Claim, step: Step) -> Vector | None:
        """What the path to a valid claim has spent or set aside; None for a claim that is not valid."""
        after = None if body.after is None else self._claims.get(body.after)
        if not self._entitled(op, body, after, step.terms):
            return None
        before = self._before(step, after)
        return before if self._fits(body.slice, before, step.terms) else None

    def _continued(self, op: Op, parent: bytes) -> Step | None:
        """(a): the body hash of an open in the past, or a well-formed done among the refs that goes on."""
        if parent in self._log.opens_in_past(op.id):
            return self._steps.get(parent)
        step = self._steps.get(parent) if parent in op.refs else None
        return step if step is not None and step.goes_on else None

    def _entitled(self, op: Op, body: Claim, after: ClaimView | None, terms: Terms) -> bool:
        """(b): the first epoch, or the next one after a valid claim that is over for this author."""
        if body.e == 0:
            return body.after is None
        if after is None or not after.ok or after.parent != body.parent or after.e + 1 != body.e:
            return False
        return self._void(after) or self._kept_nobody_out(op, after) or self._ended(op, body, after, terms)

    def _void(self, claim: ClaimView) -> bool:
        op = self._log.get(claim.id)
        return op is not None and self._log.void(op)

    def _kept_nobody_out(self, op: Op, after: ClaimView) -> bool:
        return after.repeat and after.author != op.author

    def _ended(self, op: Op, body: Claim, after: ClaimView, terms: Terms) -> bool:
        """`ended` is a release or a renew of `after` by its author, or nil; nothing else is an end."""
        end = after.hlc + terms.lease
        if body.ended is not None:
            word, record = self._log.get(body.ended), self._log.record(body.ended)
            if word is None or word.author != after.author:
                return False
            if isinstance(record, Release):
                return record.claim == after.id
            if not isinstance(record, Renew) or record.claim != after.id:
                return False
            end = self._mark_of[word.id].end
        return op.hlc >= end + terms.eps

    def _rises(self, earlier: ClaimView | None, e: int) -> bool:
        """(c): e is greater than in every earlier claim of the author on that parent."""
        return earlier is None or e > earlier.highest

    def _before(self, step: Step, after: ClaimView | None) -> Vector:
        """§7.8: spent(parent) and the slices of all claims on the `after` path."""
        return step.spent if after is None else add(after.before, after.slice)

    def _fits(self, wanted: Vector, before: Vector, terms: Terms) -> bool:
        """(d): 0 <= slice <= min(slice_max, max(0, B - before)), so a slice of nothing always fits."""
        return fits(wanted, least(terms.open.slice_max, remaining(terms.budget, before)))

    # ---- what is said about claims

    def index_renew(self, op: Op, body: Renew) -> None:
        """§7.1: same author, before the end that it moves, at most renew_max; else it changes nothing."""
        claim = self._claims.get(body.claim)
        if claim is None or claim.step is None or claim.author != op.author:
            return
        marks = self._renews.setdefault(claim.id, [])
        terms = claim.step.terms
        before = last_in_chain(self._log, marks, op)
        count, last, end = (before.count, before.last, before.end) if before else (0, None, claim.hlc + terms.lease)
        if op.hlc < end and count < terms.open.renew_max:
            count, last, end = count + 1, op.id, op.hlc + terms.lease
        mark = RenewMark(op.id, count, last, end)
        marks.append(mark)
        self._mark_of[op.id] = mark

    def index_release(self, op: Op, body: Release) -> None:
        """A turn given back by its owner, or an offer declined."""
        if body.done is not None:
            self._declines.setdefault(body.done, set()).add(op.author)
        claim = None if body.claim is None else self._claims.get(body.claim)
        if claim is not None and claim.author == op.author:
            word = (op.hlc, op.id)
            self._releases[claim.id] = min(word, self._releases.get(claim.id, word))

    def index_unit(self, op: Op, body: Unit) -> None:
        """A result written under a claim by its owner."""
        claim = None if body.claim is None else self._claims.get(body.claim)
        if claim is not None and claim.author == op.author:
            self._units.setdefault(claim.id, []).append((op.hlc, op.id))

    # ---- views

    def get(self, claim_id: bytes) -> ClaimView | None:
        """The record of a claim, valid or not."""
        return self._claims.get(claim_id)

    def on(self, parent: bytes) -> list[ClaimView]:
        """Valid claims on a parent, by (e, id)."""
        found = [self._claims[claim_id] for claim_id in self._on.get(parent, ())]
        return sorted(found, key=lambda claim: (claim.e, claim.id))

    def mark(self, claim_id: bytes) -> RenewMark | None:
        """The state of a claim's lease after the renew that reaches farthest."""
        return max(self._renews.get(claim_id, ()), key=lambda mark: (mark.end, mark.id), default=None)

    def lease_end(self, claim_id: bytes) -> int | None:
        """HLC at which the lease of a claim ends as far as is known; None for a claim on nothing known."""
        claim, mark = self._claims.get(claim_id), self.mark(claim_id)
        if claim is None or claim.step is None:
            return None
        return claim.hlc + claim.step.terms.lease if mark is None else mark.end

    def released(self, claim_id: bytes) -> bytes | None:
        """The op by which the owner gave the turn back."""
        word = self._releases.get(claim_id)
        return None if word is None else word[1]

    def declined(self, done_id: bytes, peer: bytes) -> bool:
        """True iff the peer declined the offer that a done is."""
        return peer in self._declines.get(done_id, ())

    def units(self, claim_id: bytes) -> tuple[bytes, ...]:
        """Units that the owner wrote under a claim, the earliest first."""
        return tuple(op_id for _, op_id in sorted(self._units.get(claim_id, ())))


def is_unit(log: SpaceLog, op_id: bytes) -> bool:
    """True iff a kept op is a unit; its body may be redacted."""
    op = log.get(op_id)
    return op is not None and op.kind == OpKind.UNIT
