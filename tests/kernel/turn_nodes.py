"""Nodes that take turns on one task as their duties say, and nodes that do not; each with its own log and clock."""

from __future__ import annotations

import random
from typing import Any

from gossip.space_log import SpaceLog
from kernel.turns.fold import ClaimView, TaskFold
from protocol.clock import hlc_from_ms
from protocol.contract import least, remaining
from protocol.op import Op
from protocol.records import Claim, Done, Release, Renew, SealVote, Seen, Unit
from tests.fold_world import UNIT_MS, forge, join, keys, replica, tokens


class Node:
    """One author. `skew` is the error of its clock in units; time is the true one in units."""

    def __init__(self, name: str, skew: int = 0) -> None:
        self.name, self.skew = name, skew
        self.me = keys(name).public
        self.replica = replica()
        self.inst = 0
        self.sealed: list[bytes] = []
        self.written: list[Op] = []

    @property
    def log(self) -> SpaceLog:
        return self.replica.log

    @property
    def fold(self) -> TaskFold:
        return self.replica.fold

    def swarm_ms(self, t: int) -> int:
        return max(0, (t + self.skew) * UNIT_MS)

    # ---- writing

    def write(
        self, t: int, record: Any, named: tuple[bytes, ...] = (), votes: tuple[bytes, ...] = (), floor: int = 0
    ) -> Op:  # fmt: skip
        """Append as an honest author does: what is named and the heads in deps, the stamp above all of them."""
        head = self.log.head(self.me)
        deps = self.log.deps_for(self.me, (*named, *votes))
        return self._sign(t, record, head[1] if head else None, deps, votes, floor)

    def _sign(
        self, t: int, record: Any, prev: bytes | None, deps: tuple[bytes, ...], votes: tuple[bytes, ...], floor: int = 0
    ) -> Op:  # fmt: skip
        known = {op.id: op for op in (*self.written, *self.log.kept())}
        refs = [known[i] for i in (*deps, *((prev,) if prev else ())) if i in known]
        before = known[prev] if prev else None
        made = forge(
            *(self.name, record),
            seq=before.seq + 1 if before else 0,
            prev=prev,
            deps=deps,
            hlc=max([hlc_from_ms(self.swarm_ms(t)), floor, *(op.hlc + 1 for op in refs)]),
            votes=votes,
            inst=max(self.inst, before.inst if before else 0),
        )
        self.written.append(made)
        self.replica.take(made, swarm_ms=made.hlc >> 16)
        return made

    def join(self, t: int) -> None:
        self.write(t, join())

    # ---- honest turns

    def vote(self, t: int) -> None:
        if not self.log.silenced(self.me):
            self.write(t, Seen(), votes=self.fold.ballots(self.me))

    def own_claim(self) -> ClaimView | None:
        """The newest valid own claim on the tip that has no done of its own."""
        tip = self.fold.tip
        claims = self.fold.claims_on(tip) if tip else []
        mine = [c for c in claims if c.author == self.me]
        finished = {d.claim for d in (self.fold.done(op.id) for op in self.log.kept()) if d and d.author == self.me}
        return next((c for c in reversed(mine) if c.id not in finished), None)

    def step(self, t: int, x: int) -> None:
        """Complete the own turn, or claim the next one if nothing keeps this node from it."""
        if self.log.silenced(self.me) or self.fold.tip is None or self.fold.ended:
            self.vote(t)
        elif (claim := self.own_claim()) is not None and self.fold.released(claim.id) is None:
            self.complete(t, claim, "answer" if x % 11 == 0 else "next", x)
        else:
            self.claim(t, x)

    def complete(self, t: int, claim: ClaimView, outcome: str, x: int) -> None:
        units = self.fold.units_of(claim.id)
        if units:
            unit = units[0]
        else:
            body = Unit(claim=claim.id, agent="one", role="analyst", content=str(x))
            unit = self.write(t, body, (claim.id,), self.fold.ballots(self.me)).id
        last = self.fold.step_of(claim.parent) + 1 >= self.fold.terms(claim.parent).open.max_steps
        done = Done(
            claim=claim.id,
            unit=unit,
            outcome="budget_exhausted" if last and outcome == "next" else outcome,  # type: ignore[arg-type]
            used=tokens(x % 12),
        )
        self.write(t, done, (claim.id, unit), self.fold.ballots(self.me))

    def claim(self, t: int, x: int, *, patient: bool = True) -> None:
        tip = self.fold.tip
        assert tip is not None
        earlier = self.fold.claims_on(tip)
        terms = self.fold.terms(tip)
        ref = tip if tip in self.log else self.fold.open_op_ids(tip)[0]
        if not earlier:
            fits = least(remaining(terms.budget, self.fold.spent(tip)), tokens(terms.open.slice_max[0]))
            self.write(t, Claim(parent=tip, e=0, slice=least(fits, tokens(20))), (ref,), self.fold.ballots(self.me))
            return
        last = earlier[-1]
        ended = self.fold.released(last.id) or self.fold.last_renew(last.id)
        op = self.log.get(last.id)
        assert op is not None
        free = self.fold.released(last.id) is not None or self.log.void(op) or (last.repeat and last.author != self.me)
        floor = 0 if free else self.fold.lease_end(last.id) + terms.eps
        if patient and hlc_from_ms(self.swarm_ms(t)) < floor:
            self.vote(t)
            return
        before = tokens(last.before[0] + last.slice[0])
        left = least(remaining(terms.budget, before), tokens(terms.open.slice_max[0]))
        body = Claim(parent=tip, e=last.e + 1, after=last.id, ended=ended, slice=least(left, tokens(1 + x % 20)))
        named = (ref, last.id, *((ended,) if ended else ()))
        self.write(t, body, named, self.fold.ballots(self.me), floor)

    def renew(self, t: int) -> None:
        claim = self.own_claim()
        if claim is not None and not self.log.silenced(self.me):
            self.write(t, Renew(claim=claim.id), (claim.id,))

    def release(self, t: int) -> None:
        claim = self.own_claim()
        if claim is not None and not self.log.silenced(self.me):
            self.write(t, Release(claim=claim.id), (claim.id,))

    def seal(self, t: int) -> None:
        """A holder's duty: only what is final on its whole chain, and only above its earlier seals."""
        for n, done_id in enumerate(self.fold.chain):
            final = self.fold.finality(done_id) in ("final", "sealed")
            if final and done_id not in self.sealed and set(self.sealed) <= set(self.fold.chain[:n]):
                self.sealed.append(done_id)
                self.write(t, SealVote(done=done_id), (done_id,), self.fold.ballots(self.me))
                return

    # ---- what a faulty node does

    def fork(self, t: int, x: int) -> None:
        """Go back on the own chain and claim, vote or work there, with a past of its choice."""
        r = random.Random(x)
        base = r.choice(self.written)
        kept = list(self.log.kept())
        deps = {op.id for op in r.sample(kept, min(len(kept), 3))}
        votes = tuple(d.id for op in kept if (d := self.fold.done(op.id)) is not None and r.random() < 0.3)[:3]
        kind, tip = r.randrange(4), self.fold.tip
        record: Any = Unit(agent="one", role="analyst", content=f"fork {x}")
        claims = [op for op in self.written if self.fold.claim(op.id) is not None]
        if kind == 0 and tip is not None:
            record = Claim(parent=tip, e=r.randrange(3), slice=tokens(r.randrange(60)))
            deps |= {tip if tip in self.log else self.fold.open_op_ids(tip)[0]}
        elif kind == 1 and claims:
            claim = r.choice(claims)
            units = [op.id for op in kept if self.fold.units_of(claim.id) == (op.id,)]
            record = Done(claim=claim.id, unit=units[0] if units else None, outcome="failed")
            deps |= {claim.id, *units}
        elif kind == 2 and claims:
            record = Release(claim=claims[-1].id)
            deps |= {claims[-1].id}
        self._sign(t, record, base.id, tuple(deps | set(votes) - {base.id}), votes)

    def grab(self, t: int, x: int) -> None:
        """Claim at once, stamped at the end of the running lease, all that fits."""
        if self.fold.tip is not None and not self.fold.ended:
            self.claim(t, x, patient=False)

    # ---- hearing

    def pull(self, t: int, ops: list[Op]) -> None:
        for op in ops:
            self.replica.take(op, swarm_ms=self.swarm_ms(t))

    def wake(self, swarm_ms: int) -> None:
        self.fold.update(self.log.due(swarm_ms))
