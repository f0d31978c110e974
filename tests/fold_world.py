"""Histories of one task space made of real signed ops, written by hand or drawn at random.

One unit of time is UNIT_MS milliseconds: a lease is 30 units, eps is 5. Budgets count tokens only.
"""

from __future__ import annotations

import hashlib
import random
from collections.abc import Iterable
from dataclasses import dataclass, field
from functools import cache, lru_cache
from typing import Any

from gossip.space_log import LogRules, SpaceLog
from kernel.turns.fold import TaskFold
from protocol.clock import hlc_from_ms
from protocol.codec import decode, encode
from protocol.contract import INT63_MAX, Vector
from protocol.identity import KeyPair, digest, verify_raw
from protocol.op import Op, OpKind, decode_op
from protocol.records import (
    KIND_OF,
    Cancel,
    Claim,
    Deny,
    Done,
    Join,
    Next,
    Open,
    Quota,
    Release,
    Renew,
    SealVote,
    Seen,
    Settle,
    Unit,
    body_bytes,
    sign_body,
)
from protocol.spaces import task_space

UNIT_MS = 10
LEASE, EPS = 30, 5
SWARM = bytes(32)
CLIENT_KEY = "key-1"
FAR_MS = 2**46
NAMES = "ABCDEM"


@cache
def keys(name: str) -> KeyPair:
    return KeyPair(hashlib.sha256(f"author {name}".encode()).digest())


USER, ADMIN = "user", "admin"
SPACE = task_space(SWARM, keys(USER).public, CLIENT_KEY)
verify = lru_cache(maxsize=1 << 16)(verify_raw)


def tokens(amount: int) -> Vector:
    return (amount, 0, 0, 0)


def stamp(units: int) -> int:
    return hlc_from_ms(units * UNIT_MS)


def check_join(author: bytes, chain: tuple[bytes, ...]) -> tuple[int, int] | None:
    """A certificate of these tests is its window in units; an empty map admits nobody."""
    match decode(chain[0], bytes_max=100):
        case (int(nbf), int(exp)):
            return nbf * UNIT_MS, exp * UNIT_MS
        case _:
            return None


def check_open(space: bytes, record: Open) -> bool:
    return task_space(SWARM, record.by, record.client_key) == space


def rules(**changes: Any) -> LogRules:
    given: dict[str, Any] = {
        "check_join": check_join,
        "check_open": check_open,
        "verify": verify,
        "admins": (keys(ADMIN).public,),
        **changes,
    }
    return LogRules(**given)


def join(nbf: int = 0, exp: int = 1 << 30) -> Join:
    return Join(cert=(encode((nbf, exp)),))


@lru_cache(maxsize=256)
def open_record(
    *,
    participants: str = "ABCDE",
    holders: str = "ABCDE",
    budget: int = 100,
    slice_max: int = 40,
    renew_max: int = 2,
    max_steps: int = 99,
    f: int = 0,
    objective: str = "why",
    quota: Quota | None = None,
) -> Open:
    draft = Open(
        client_key=CLIENT_KEY,
        by=bytes(32),
        objective=objective,
        contract=(budget, None, None, None),
        deadline_ms=FAR_MS,
        lease_ms=LEASE * UNIT_MS,
        eps_ms=EPS * UNIT_MS,
        renew_max=renew_max,
        max_steps=max_steps,
        slice_max=(slice_max, INT63_MAX, INT63_MAX, INT63_MAX),
        f=f,
        participants=tuple(keys(a).public for a in participants),
        holders=tuple(keys(a).public for a in holders),
        quota=quota or Quota(),
        next=Next(role="analyst", agent="one"),
        sig=bytes(64),
    )
    return sign_body(keys(USER), SPACE, draft)


def cancel() -> Cancel:
    return sign_body(keys(USER), SPACE, Cancel(by=bytes(32), sig=bytes(64)))


def settle(done: bytes) -> Settle:
    return sign_body(keys(USER), SPACE, Settle(done=done, by=bytes(32), sig=bytes(64)))


def deny(author: str, keep: int, by: str = ADMIN) -> Deny:
    return sign_body(keys(by), SPACE, Deny(author=keys(author).public, keep=keep, by=bytes(32), sig=bytes(64)))


def forge(
    author: str,
    record: Any,
    *,
    seq: int,
    prev: bytes | None,
    deps: Iterable[bytes],
    hlc: int,
    votes: tuple[bytes, ...] = (),
    inst: int = 0,
    kind: int | None = None,
    space: bytes = SPACE,
) -> Op:
    """Sign any op at all, also one that `make_op` would not write; `record` may be raw body bytes."""
    body = record if isinstance(record, bytes) else body_bytes(record)
    kind = int(KIND_OF[type(record)]) if kind is None else kind
    header = encode(
        (
            *(1, kind, space, keys(author).public, inst, seq, prev),
            tuple(sorted(set(deps) - {prev})),
            *(hlc, len(body), hashlib.sha256(body).digest(), (votes,) if votes else ()),
        )
    )
    op_id = digest("op", header)
    return decode_op(header, keys(author).sign_raw(op_id), body)


@dataclass
class History:
    """A history written by hand. Names stand for ids; an op refers to what it names unless told otherwise."""

    opener: str = "A"
    terms: dict[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.ops: dict[str, Op] = {}
        self.last: dict[str, Op] = {}
        self.t = 100
        for a in NAMES:
            self.put(f"j{a}", a, join())
        self.record = open_record(**self.terms)
        self.put("open", self.opener, self.record)
        self.root = self.ops["open"].body_hash

    def id(self, name: str) -> bytes:
        return self.ops[name].id

    def put(
        self,
        name: str,
        author: str,
        record: Any,
        *,
        deps: Iterable[str] = (),
        named: Iterable[bytes | None] = (),
        prev: str | None = None,
        votes: Iterable[str] = (),
        at: int = 0,
        inst: int = 0,
        kind: int | None = None,
    ) -> Op:
        """Append to the author's chain (behind `prev` if given), stamped with the next unit or `at`."""
        self.t = max(self.t + 1, at)
        before = self.ops[prev] if prev else self.last.get(author)
        ballot = tuple(self.id(v) for v in votes)
        refs = {*(self.id(d) for d in deps), *(i for i in named if i is not None), *ballot}
        op = forge(
            *(author, record),
            seq=before.seq + 1 if before else 0,
            prev=before.id if before else None,
            deps=refs,
            hlc=stamp(at or self.t),
            votes=ballot,
            inst=inst,
            kind=kind,
        )
        self.ops[name] = self.last[author] = op
        return op

    def parent(self, name: str) -> tuple[bytes, bytes]:
        """(what a claim calls its parent, the op to refer to)."""
        return (self.root if name == "open" else self.id(name)), self.id(name)

    def claim(
        self,
        name: str,
        author: str,
        parent: str,
        *,
        e: int = 0,
        slice: int = 20,  # noqa: A002 - the word of the protocol
        after: str = "",
        ended: str = "",
        bare: bool = False,
        **where: Any,
    ) -> Op:
        """A claim; a `bare` one does not refer to what it names."""
        node, ref = self.parent(parent)
        before, end = (self.id(after) if after else None), (self.id(ended) if ended else None)
        record = Claim(parent=node, e=e, after=before, ended=end, slice=tokens(slice))
        return self.put(name, author, record, named=() if bare else (ref, before, end), **where)

    def unit(self, name: str, author: str, *, claim: str = "", **where: Any) -> Op:
        ref = self.id(claim) if claim else None
        return self.put(
            *(name, author, Unit(claim=ref, agent="one", role="analyst", content=name)), named=(ref,), **where
        )

    def done(
        self,
        name: str,
        author: str,
        claim: str,
        unit: str | None,
        *,
        outcome: str = "next",
        used: int = 10,
        **where: Any,
    ) -> Op:
        ref = self.id(unit) if unit else None
        record = Done(claim=self.id(claim), unit=ref, outcome=outcome, used=tokens(used))  # type: ignore[arg-type]
        return self.put(name, author, record, named=(self.id(claim), ref), **where)

    def turn(
        self,
        name: str,
        author: str,
        parent: str,
        *,
        outcome: str = "next",
        used: int = 10,
        votes: Iterable[str] = (),
        **claim: Any,
    ) -> Op:
        """Claim `name.c`, unit `name.u`, done `name`."""
        self.claim(f"{name}.c", author, parent, **claim)
        self.unit(f"{name}.u", author, claim=f"{name}.c", votes=votes)
        return self.done(name, author, f"{name}.c", f"{name}.u", outcome=outcome, used=used)

    def seen(self, name: str, author: str, *votes: str, **where: Any) -> Op:
        return self.put(name, author, Seen(), votes=votes, **where)

    def renew(self, name: str, author: str, claim: str, **where: Any) -> Op:
        return self.put(name, author, Renew(claim=self.id(claim)), named=(self.id(claim),), **where)

    def release(self, name: str, author: str, claim: str, **where: Any) -> Op:
        return self.put(name, author, Release(claim=self.id(claim)), named=(self.id(claim),), **where)

    def seal(self, name: str, author: str, done: str, **where: Any) -> Op:
        return self.put(name, author, SealVote(done=self.id(done)), named=(self.id(done),), **where)

    def all(self, without: Iterable[str] = ()) -> list[Op]:
        gone = set(without)
        return [op for name, op in self.ops.items() if name not in gone]

    def fold(self, without: Iterable[str] = ()) -> TaskFold:
        return feed(self.all(without)).fold

    def names(self, ids: Iterable[bytes]) -> list[str]:
        known = {op.id: name for name, op in self.ops.items()}
        return [known[i] for i in ids]


@dataclass
class Replica:
    """A log with its incremental fold."""

    log: SpaceLog
    fold: TaskFold

    def take(self, op: Op, swarm_ms: int = FAR_MS) -> str:
        added = self.log.add(op, swarm_ms=swarm_ms)
        self.fold.update(added)
        return added.status


def replica(**changes: Any) -> Replica:
    log = SpaceLog(SPACE, rules=rules(**changes))
    return Replica(log, TaskFold(log))


def feed(ops: Iterable[Op], **changes: Any) -> Replica:
    """A replica that got the ops in this order, far in the future."""
    node = replica(**changes)
    for op in ops:
        node.take(op)
    return node


def scratch(node: Replica) -> TaskFold:
    """The fold made anew from what a replica keeps, by way of a new log."""
    return feed(sorted(node.log.kept(), key=lambda op: (op.hlc, op.id))).fold


def shuffled(ops: Iterable[Op], seed: int, copies: int = 2) -> list[Op]:
    order = list(ops) * copies
    random.Random(seed).shuffle(order)
    return order


def portrait(fold: TaskFold, log: SpaceLog) -> dict[str, Any]:
    """Everything that a fold says, for comparison."""
    claims = sorted(op.id for op in log.kept() if op.kind == OpKind.CLAIM)
    dones = sorted(op.id for op in log.kept() if op.kind == OpKind.DONE)
    return {
        "kept": sorted(op.id for op in log.kept()),
        "root": fold.root,
        "chain": fold.chain,
        "outcome": fold.outcome,
        "settled": fold.settled,
        "claims": [fold.claim(i) for i in claims],
        "leases": [(fold.renews(i), fold.last_renew(i), fold.released(i), fold.units_of(i)) for i in claims],
        "dones": [fold.done(i) for i in dones],
        "votes": [(fold.voters(i), fold.finality(i)) for i in dones],
        "ballots": [fold.ballots(keys(a).public) for a in "ABCDEF"],
        "digest": fold.state_digest(),
    }
