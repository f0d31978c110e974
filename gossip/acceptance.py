"""Which ops count: a verdict from the op and its causal past alone (protocol.md §3 and §5, replication.md §2.3).

A replica that judged by arrival, by clock or by load would refuse for ever what another keeps, so nothing here
knows any of them. The verdict reads only the entries of the op's refs, each of which carries what the rules
need from everything behind it: the certificate in force, the token bucket of the author's chain, the opens in
the past, whether a cancel or a settle lies there. So one verdict costs O(refs).

The rules, in the order in which they are tried:
  chain    the first op of an author is a `join` with seq 0; then seq = prev.seq + 1, same author, `inst` never
           goes back (one chain across instances)
  time     hlc is above that of every ref, and inside the window of the certificate in force. A join is judged by
           the certificate it brings: else an author whose certificate ran out could never go on
  edges    every op id that the body or `votes` names stands in deps or prev. A `parent` may be a body hash, which
           nobody can tell from an op id here; the fold demands it among the refs (kernel/turns/fold_claims.py)
  rights   open, cancel, settle, deny and a signed redact carry a valid signature of who may say so: the user whose
           space it is, or an admin
  quota    a token bucket and a byte count along the author's own chain, by HLC. The rate is that of the open with
           the smallest body hash in the op's past, else the default; never more than the certificate in force grants,
           which is what bounds an author where nobody opened a task, and whose user signs generous opens

Bodies that fit no model are kept without effect: a later version may know better. `rehold` is such a kind as yet.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Final, assert_never

from protocol.certificate import granted_quota, tighter
from protocol.clock import HLC_PER_MS, hlc_from_ms
from protocol.codec import Value
from protocol.errors import DecodeError
from protocol.identity import SIGNATURE_BYTES, Verify
from protocol.op import Op, OpKind
from protocol.records import (
    Cancel,
    Deny,
    Join,
    Open,
    Quota,
    Record,
    Redact,
    Settle,
    body_map,
    named_ids,
    parse_body,
    signed_part,
)

Window = tuple[int, int]  # (nbf, exp) of a certificate, in milliseconds
CheckJoin = Callable[[bytes, tuple[bytes, ...]], Window | None]
CheckOpen = Callable[[bytes, Open], bool]

_TOKEN: Final = 1000 * HLC_PER_MS  # one op in bucket units: a rate of 1 op/s fills one unit per HLC tick
_NO_OPENS: Final[frozenset[bytes]] = frozenset()


@dataclass(frozen=True, slots=True)
class LogRules:
    """What a log asks of its swarm, and the bounds of what it holds without having accepted it.

    Attributes:
        check_join: (author, certificate chain) -> window in ms, None for a chain that admits nobody. It must be a
            function of its arguments: the verdict of every replica hangs on it.
        check_open: (space, open) -> True iff the space is the one derived from the open's user and client key.
        verify: (public key, message, signature) -> bool.
        admins: keys that may deny and redact.
        default_quota: for authors with no open in their past.
        pending_max, pending_bytes_max: ops that wait for others; the oldest goes first (replication.md §2.3).
        quarantine_max: ops from the future; the farthest goes first.
        rejected_max: ids remembered as refused, so that what stands on them is refused without a fetch.
        aside_max: ops above a burn that nothing kept refers to, held so that they can come back.
    """

    check_join: CheckJoin
    check_open: CheckOpen
    verify: Verify
    admins: tuple[bytes, ...] = ()
    default_quota: Quota = field(default_factory=Quota)
    pending_max: int = 10_000
    pending_bytes_max: int = 64 * 1024 * 1024
    quarantine_max: int = 10_000
    rejected_max: int = 10_000
    aside_max: int = 10_000


class Branch:
    """A stretch of one author's chain without a fork inside it. Labels depend on arrival, `in_chain` does not."""

    __slots__ = ("base", "first_seq", "last_seq")

    def __init__(self, base: Branch | None, first_seq: int) -> None:
        self.base = base
        self.first_seq = first_seq
        self.last_seq = first_seq


@dataclass(frozen=True, slots=True)
class Entry:
    """An accepted op with what its past says, as far as rules ask.

    `window` and `granted` are what the certificate in force says; `tokens` and `size` the state of the author's
    bucket after it; `opens` the body hashes of the opens in its past, itself included; `stops` says that a cancel or
    settle lies there, itself included; `signed` that its body is signed by a user or an admin, which no burn takes
    away; `index` is the place in the order of acceptance.
    """

    op: Op
    record: Record | None
    window: Window
    granted: Quota | None
    tokens: int
    size: int
    opens: frozenset[bytes]
    stops: bool
    signed: bool
    branch: Branch
    index: int


@dataclass(frozen=True, slots=True)
class _Grant:
    """What the certificate in force allows its author."""

    window: Window
    quota: Quota | None


@dataclass(slots=True)
class _Reading:
    """The body, once read: its map for names and signatures, its record for meaning."""

    fields: dict[str, Value]
    record: Record | None


class Acceptance:
    """The judge of one space. `entries` are the accepted ops; it reads them and never writes."""

    def __init__(self, space: bytes, rules: LogRules, entries: Mapping[bytes, Entry]) -> None:
        self._space = space
        self._rules = rules
        self._entries = entries
        self.opens: dict[bytes, Open] = {}  # body hash -> open; a function of the hash, so order does not matter
        self._next_index = 0

    def judge(self, op: Op) -> Entry | str:
        """The entry of an op whose refs are all accepted, or why it can never be one."""
        try:
            reading = self._read(op)
        except DecodeError as exc:
            return f"body: {exc.message}"
        prev = None if op.prev is None else self._entries[op.prev]
        opens = self._opens_before(op)
        grant = self._grant(op, reading.record, prev)
        if grant is None:
            return "no certificate admits the author"
        refusal = (
            self._breaks_chain(op, prev)
            or self._breaks_time(op, grant.window)
            or self._breaks_edges(op, reading.fields)
            or self._breaks_rights(op, reading, opens)
        )
        if refusal is not None:
            return refusal
        bucket = self._bucket(op, prev, self._quota(opens, grant.quota))
        if bucket is None:
            return "over the quota of its author"
        return self._entry(op, reading.record, grant, bucket, opens)

    def _read(self, op: Op) -> _Reading:
        if op.body is None:
            return _Reading({}, None)
        return _Reading(body_map(op.body), parse_body(op.kind, op.body))

    def _entry(
        self, op: Op, record: Record | None, grant: _Grant, bucket: tuple[int, int], opens: frozenset[bytes]
    ) -> Entry:
        if isinstance(record, Open):
            self.opens.setdefault(op.body_hash, record)
            opens |= {op.body_hash}
        self._next_index += 1
        return Entry(
            op=op,
            record=record,
            window=grant.window,
            granted=grant.quota,
            tokens=bucket[0],
            size=bucket[1],
            opens=opens,
            stops=isinstance(record, Cancel | Settle) or any(self._entries[ref].stops for ref in op.refs),
            signed=isinstance(record, Open | Cancel | Settle | Deny)
            or (isinstance(record, Redact) and record.by is not None),
            branch=self._branch(op),
            index=self._next_index,
        )

    def _branch(self, op: Op) -> Branch:
        if op.prev is None:
            return Branch(None, op.seq)
        branch = self._entries[op.prev].branch
        if branch.last_seq == op.seq - 1:
            branch.last_seq = op.seq
            return branch
        return Branch(branch, op.seq)

    # ---- chain and time

    def _breaks_chain(self, op: Op, prev: Entry | None) -> str | None:
        if prev is None:
            return None if op.kind == OpKind.JOIN else "the first op of an author is a join"
        before = prev.op
        if before.author != op.author or before.seq + 1 != op.seq:
            return "prev is not the op before it in its author's chain"
        return None if before.inst <= op.inst else "the instance goes back"

    def _breaks_time(self, op: Op, window: Window) -> str | None:
        if any(self._entries[ref].op.hlc >= op.hlc for ref in op.refs):
            return "stamped not after what it stands on"
        if not hlc_from_ms(window[0]) <= op.hlc <= hlc_from_ms(window[1]):
            return "stamped outside its author's certificate"
        return None

    def _grant(self, op: Op, record: Record | None, prev: Entry | None) -> _Grant | None:
        if isinstance(record, Join):
            window = self._rules.check_join(op.author, record.cert)
            return None if window is None else _Grant(window, granted_quota(record.cert))
        return None if prev is None else _Grant(prev.window, prev.granted)

    # ---- edges and rights

    def _breaks_edges(self, op: Op, fields: dict[str, Value]) -> str | None:
        if set(op.refs).issuperset((*named_ids(fields), *op.votes)):
            return None
        return "names an op that is neither in deps nor prev"

    def _breaks_rights(self, op: Op, reading: _Reading, opens: frozenset[bytes]) -> str | None:
        record = reading.record
        if not isinstance(record, Open | Cancel | Settle | Deny | Redact):
            return None
        if isinstance(record, Redact) and record.by is None and record.sig is None:
            return None  # speaks for its author's own ops only
        if isinstance(record, Open) and not self._rules.check_open(self._space, record):
            return "an open of another space"
        if record.by is None or record.sig is None or record.by not in self._signers(record, opens):
            return "not signed by a user or an admin who may say so"
        message = signed_part(self._space, op.kind, reading.fields)
        return None if self._rules.verify(record.by, message, record.sig) else "the signature in its body is wrong"

    def _signers(self, record: Open | Cancel | Settle | Deny | Redact, opens: frozenset[bytes]) -> tuple[bytes, ...]:
        match record:
            case Open(by=user):
                return (user,)  # the space is derived from this key
            case Cancel() | Settle():
                return self._users(opens)
            case Redact():
                return (*self._rules.admins, *self._users(opens))
            case Deny():
                return self._rules.admins
            case _:
                assert_never(record)

    def _users(self, opens: frozenset[bytes]) -> tuple[bytes, ...]:
        return tuple(self.opens[root].by for root in sorted(opens))  # one key, or the space would be another

    def outlives_burn(self, op: Op) -> bool:
        """True iff the body of an op that is not judged yet is signed by an admin or a user known here."""
        try:
            reading = self._read(op)
        except DecodeError:
            return False
        if not isinstance(reading.record, Open | Cancel | Settle | Deny | Redact) or reading.record.by is None:
            return False
        return self._breaks_rights(op, reading, frozenset(self.opens)) is None

    def _opens_before(self, op: Op) -> frozenset[bytes]:
        found = _NO_OPENS
        for ref in op.refs:
            theirs = self._entries[ref].opens
            if theirs is not found and not theirs <= found:
                found = theirs if found <= theirs else found | theirs
        return found

    # ---- quota

    def _quota(self, opens: frozenset[bytes], granted: Quota | None) -> Quota:
        asked = self.opens[min(opens)].quota if opens else self._rules.default_quota
        return tighter(asked, granted)

    def _bucket(self, op: Op, prev: Entry | None, quota: Quota) -> tuple[int, int] | None:
        """(tokens, bytes) after the op; None when it does not fit."""
        tokens = _refilled(quota, prev, op.hlc) - _TOKEN
        size = (prev.size if prev else 0) + len(op.header) + SIGNATURE_BYTES + len(op.body or b"")
        return None if tokens < 0 or size > quota.bytes_max else (tokens, size)

    def allowance(self, prev: Entry | None, hlc: int) -> int:
        """How many ops the quota lets an author write at a stamp, after `prev` and before any refill."""
        quota = self._quota(prev.opens if prev else _NO_OPENS, prev.granted if prev else None)
        return _refilled(quota, prev, hlc) // _TOKEN


def _refilled(quota: Quota, prev: Entry | None, hlc: int) -> int:
    full = quota.burst * _TOKEN
    return full if prev is None else min(full, prev.tokens + quota.ops_per_s * (hlc - prev.op.hlc))


def in_chain(earlier: Entry, later: Entry) -> bool:
    """True iff `earlier` lies before `later` in one and the same chain of one author, forks told apart."""
    branch: Branch | None = later.branch
    last = later.op.seq - 1
    while branch is not None and branch is not earlier.branch:
        last = branch.first_seq - 1
        branch = branch.base
    return branch is not None and earlier.op.seq <= last
