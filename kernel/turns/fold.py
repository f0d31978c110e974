"""The state of a task as a pure function of the kept ops of its space (protocol.md §7).

    body hash of open ── claim ── done ── claim ── done ── … ── an end
                          └ claim ─ done          (a step can be claimed and done more than once)

The chain starts at the hash of the effective open's body, and from each node goes to the winner among the valid
dones that continue it, until an end or the tip. Cancel and settle stand above it.

Incrementally (§7.9): an op looks up the records of the ops it names, changes one parent, and the walk restarts
there only if it lies on the chain and its winner changed. A burn, a smaller f or a deny takes effects away from
ops that are there: then `SpaceLog` says `refold`, and the fold is made anew. Ops that come back from aside stand
under nothing that was folded before, and are taken like new ones. In either way the state is that of `rebuild`.

Duties of honest nodes (when to claim, which e, which renew to name) are the machine's; what is judged here is
what everybody can judge.
"""

from __future__ import annotations

import hashlib
from typing import Final

from gossip.space_log import Added, SpaceLog
from kernel.turns.fold_claims import ClaimTable
from kernel.turns.fold_dones import DoneTable
from kernel.turns.fold_records import ClaimView, DoneView, Step, Terms
from protocol.codec import encode
from protocol.contract import ZERO, Vector
from protocol.errors import NotFound
from protocol.identity import digest
from protocol.op import VOTES_MAX, Op
from protocol.records import Cancel, Claim, Done, Open, Record, Release, Renew, SealVote, Settle, Unit

__all__ = ["ClaimView", "DoneView", "TaskFold"]

LEVELS: Final = ("tentative", "majority", "final", "sealed")


class TaskFold:
    """One task. All times are HLCs; ids are op ids, a root is a body hash."""

    def __init__(self, log: SpaceLog) -> None:
        self._log = log
        self.rebuild()

    # ---- taking ops

    def update(self, added: Added) -> None:
        """Follow the log; to be called with everything that its `add` and `due` return, in order."""
        if added.refold:
            self.rebuild()
        else:
            self.apply(added.ops)

    def rebuild(self) -> None:
        """Fold all kept ops from scratch."""
        self._steps: dict[bytes, Step] = {}
        self._claims = ClaimTable(self._log, self._steps)
        self._dones = DoneTable(self._log, self._steps, self._claims)
        self._taken: set[bytes] = set()
        self._open_ids: dict[bytes, list[bytes]] = {}
        self._cancels: list[bytes] = []
        self._settles: list[tuple[bytes, bytes]] = []  # (op, the done it settles)
        self._chain: list[bytes] = []
        self._path: dict[bytes, int] = {}  # node of the walk -> how many dones lie before it
        self.apply(tuple(self._log.kept()))

    def apply(self, ops: tuple[Op, ...]) -> None:
        """Take newly kept ops, each after its refs."""
        for op in ops:
            if op.id not in self._taken:  # a log may be ahead of its notices when it is folded anew
                self._taken.add(op.id)
                self._index(op)

    def _index(self, op: Op) -> None:
        record = self._log.record(op.id)
        match record:
            case Open():
                self._index_open(op, record)
            case Claim():
                self._claims.index_claim(op, record)
            case Renew():
                self._claims.index_renew(op, record)
            case Release():
                self._claims.index_release(op, record)
            case Unit():
                self._claims.index_unit(op, record)
            case Done():
                self._dones.index_done(op, record)
            case Cancel() | Settle():
                self._index_word(op, record)
            case _:
                pass  # no effect of its own; its votes count below
        for parent in self._touched(op, record):
            if self._dones.settle(parent):
                self._walk_from(parent)

    def _index_word(self, op: Op, record: Cancel | Settle) -> None:
        """§7.6: of all cancels and settles those with no other of them in their past decide."""
        if self._log.stop_before(op.id):
            return
        if isinstance(record, Cancel):
            self._cancels.append(op.id)
        else:
            self._settles.append((op.id, record.done))

    def _index_open(self, op: Op, body: Open) -> None:
        root = self._root_of(op)
        self._open_ids.setdefault(root, []).append(op.id)
        if root not in self._steps:
            self._steps[root] = Step(Terms(root, body), 0, ZERO, goes_on=True)
            if root == self.root:
                self._restart()

    def _root_of(self, op: Op) -> bytes:
        return op.body_hash  # and not its id: two opens with one body are one task

    def _touched(self, op: Op, record: Record | None) -> list[bytes]:
        """The parents whose winner the op may change."""
        touched = self._dones.cast(op)
        if isinstance(record, SealVote):
            parent = self._dones.index_seal(op, record)
            touched += [] if parent is None else [parent]
        done = self._dones.get(op.id)
        return touched if done is None else [*touched, done.parent]

    # ---- the walk

    def _restart(self) -> None:
        self._chain, self._path = [], {}
        root = self.root
        if root is not None:
            self._path[root] = 0
            self._extend(root)

    def _walk_from(self, parent: bytes) -> None:
        """Walk anew behind a node whose winner changed; nothing to do when nobody walks there."""
        at = self._path.get(parent)
        if at is None or not self._steps[parent].goes_on:
            return
        for done_id in self._chain[at:]:
            self._path.pop(done_id, None)
        del self._chain[at:]
        self._extend(parent)

    def _extend(self, node: bytes) -> None:
        while self._steps[node].goes_on and (done_id := self._dones.winner(node)) is not None:
            self._chain.append(done_id)
            self._path[done_id] = len(self._chain)
            node = done_id

    # ---- the task

    @property
    def root(self) -> bytes | None:
        """The smallest body hash among the opens: the parent of the first step."""
        return min(self._open_ids, default=None)

    @property
    def open(self) -> Open | None:
        """The effective open."""
        root = self.root
        return None if root is None else self._steps[root].terms.open

    def open_op_ids(self, root: bytes) -> tuple[bytes, ...]:
        """The ops that carry an open with this body, in byte order."""
        return tuple(sorted(self._open_ids.get(root, ())))

    @property
    def chain(self) -> tuple[bytes, ...]:
        """The effective dones, first step first."""
        return tuple(self._chain)

    @property
    def tip(self) -> bytes | None:
        """What the next step continues."""
        return self._chain[-1] if self._chain else self.root

    @property
    def ended(self) -> bool:
        """True iff nothing more is to be done."""
        return self.outcome != "open"

    @property
    def outcome(self) -> str:
        """`open`, `cancelled`, `settled`, or the end that the chain has come to."""
        if self._cancels:
            return "cancelled"
        if self._settles:
            return "settled"
        tip = self.tip
        if tip is None or self._steps[tip].goes_on:
            return "open"
        done = self._dones.get(tip)
        assert done is not None
        return done.outcome

    @property
    def settled(self) -> bytes | None:
        """The done that the user settled on; None unless that decides."""
        return None if self._cancels or not self._settles else min(self._settles)[1]

    def state_digest(self) -> bytes:
        """32 bytes over kept ids, chain, votes, seals and outcome; equal for equal sets of ops."""
        ids = hashlib.sha256()
        for op_id in sorted(op.id for op in self._log.kept()):
            ids.update(op_id)
        return digest(
            "state",
            encode((ids.digest(), self.chain, self._dones.votes(), self._dones.seals(), self.root, self.outcome)),
        )

    # ---- steps and claims

    def step_of(self, parent: bytes) -> int:
        """0 for a root, the step number for a well-formed done.

        Raises:
            NotFound: nothing can continue this.
        """
        return self._step(parent).depth

    def spent(self, parent: bytes) -> Vector:
        """What the path from the open to a root or a well-formed done has spent.

        Raises:
            NotFound: nothing can continue this.
        """
        return self._step(parent).spent

    def terms(self, parent: bytes) -> Terms:
        """The terms of the open that a root or a well-formed done goes back to.

        Raises:
            NotFound: nothing can continue this.
        """
        return self._step(parent).terms

    def _step(self, parent: bytes) -> Step:
        step = self._steps.get(parent)
        if step is None:
            raise NotFound(f"no step {parent.hex()[:8]} in this task")
        return step

    def claim(self, claim_id: bytes) -> ClaimView | None:
        """A claim, valid or not."""
        return self._claims.get(claim_id)

    def claims_on(self, parent: bytes) -> list[ClaimView]:
        """Valid claims on a parent, by (e, id); those of burnt authors too."""
        return self._claims.on(parent)

    def lease_end(self, claim_id: bytes) -> int:
        """HLC at which the lease ends, as far as renewals are known.

        Raises:
            NotFound: no claim on anything known.
        """
        end = self._claims.lease_end(claim_id)
        if end is None:
            raise NotFound(f"no claim {claim_id.hex()[:8]} in this task")
        return end

    def last_renew(self, claim_id: bytes) -> bytes | None:
        """The last renew that counts; a taker names it in `ended`."""
        mark = self._claims.mark(claim_id)
        return None if mark is None else mark.last

    def renews(self, claim_id: bytes) -> int:
        """How many renews of the claim count."""
        mark = self._claims.mark(claim_id)
        return 0 if mark is None else mark.count

    def released(self, claim_id: bytes) -> bytes | None:
        """The release by which the owner gave the turn back."""
        return self._claims.released(claim_id)

    def declined(self, done_id: bytes, peer: bytes) -> bool:
        """True iff the peer declined what a done offers."""
        return self._claims.declined(done_id, peer)

    def units_of(self, claim_id: bytes) -> tuple[bytes, ...]:
        """Units that the claim's owner wrote under it: a taker completes with one of them instead of running."""
        return self._claims.units(claim_id)

    # ---- dones and votes

    def done(self, done_id: bytes) -> DoneView | None:
        """A done of a known claim."""
        return self._dones.get(done_id)

    def dones_of(self, parent: bytes) -> list[DoneView]:
        """Valid dones that continue a parent, by id."""
        return self._dones.of(parent)

    def winner(self, parent: bytes) -> bytes | None:
        """The done that continues a parent, on the chain or off it."""
        return self._dones.winner(parent)

    def vote_of(self, author: bytes, parent: bytes) -> bytes | None:
        """The author's first vote for a parent; it counts if the author is a participant."""
        return self._dones.vote_of(author, parent)

    def tally(self, done_id: bytes) -> int:
        """Votes of unburnt participants for a done."""
        return self._dones.count(done_id)

    def voters(self, done_id: bytes) -> tuple[bytes, ...]:
        """The unburnt participants who vote for a done."""
        return self._dones.voters(done_id)

    def finality(self, done_id: bytes) -> str:
        """`tentative`, `majority`, `final` or `sealed`: no more than any done before it on the chain."""
        at = self._path.get(done_id)
        return LEVELS[0 if not at else min(map(self._level, self._chain[:at]))]

    def _level(self, done_id: bytes) -> int:
        terms, votes = self._steps[done_id].terms, self._dones.count(done_id)
        if self._dones.sealed(done_id):
            return 3
        return 2 if terms.final(votes) else int(terms.majority(votes))

    def ballots(self, author: bytes) -> tuple[bytes, ...]:
        """At most 8 dones that the author owes a vote: winners of parents on which it has none; the chain first."""
        if self._log.silenced(author):
            return ()
        owed: list[bytes] = []
        parents = dict.fromkeys((*self._path, *self._dones.parents()))
        for parent in parents:
            done_id = self._dones.winner(parent)
            if done_id is None or self._dones.vote_of(author, parent) is not None:
                continue
            if author in self._steps[parent].terms.participants:
                owed.append(done_id)
        return tuple(owed[:VOTES_MAX])
