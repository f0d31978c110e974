"""Repair of the replicated log: heads exchange with log fetch (the correctness path; pushing only saves time).

Every `sync_every_us` ± 50 %, and at once on a new link, a node sends the 12-byte digests of its spaces. Where they
differ the two exchange Heads: per author the head's seq, and count and digest of the kept ids. Then each side asks

- `GetLog` for the seqs above its own head of an author whose chain is only longer there,
- `GetIds`, then `GetOps`, where the chains differ below the heads (forks, and what a burn keeps or drops),
- `GetOps` for ids that a held op refers to.

Every answer must match a request in flight (bounded per peer, with a timeout); anything else is dropped and counted.
An answer leads to the next question only if it brought something, and an id that a peer was asked for and did not
send is not asked of it again before the next round: nobody can make a node ask for ever.
The own head in a space is certain once a peer agrees on it that knows no less of the own chain; who knows less, or
nothing of the space, may simply be behind.
Range reconciliation replaces the per-author lists where spaces grow large; the frames around it stay.
"""

from __future__ import annotations

import random
from dataclasses import dataclass

from gossip.config import GossipConfig
from gossip.events import HeadUnsure, Linked, Missing, Unlinked
from gossip.replication import Replication
from gossip.retention import EMPTY_DIGEST
from gossip.space_log import SpaceLog
from protocol.machine import Boot, Count, Effect, Received, Send, SetTimer, TimerFired, TimerKey
from protocol.messages import (
    BATCH_OPS_MAX,
    DIGESTS_MAX,
    HEADS_MAX,
    IDS_MAX,
    Digests,
    Fetched,
    Frame,
    GetIds,
    GetLog,
    GetOps,
    Heads,
    IdList,
)
from protocol.op import Op
from protocol.peer import PeerID
from protocol.transport import FRAME_BYTES_MAX, Lane

MACHINE = "repair"
_ANSWER_BYTES_MAX = FRAME_BYTES_MAX[Lane.BULK] - 16 * 1024  # room for the frame around the ops
_SWEEP_US = 2_000_000
_VAIN_MAX = 4_096  # ids per peer and round that it did not send
_PAGE_IDS_MIN = IDS_MAX // 2  # a page of ids that does not end holds as many at least
_NO_OPS = (-1, 0, EMPTY_DIGEST)
_Ask = GetLog | GetOps | GetIds


@dataclass(frozen=True, slots=True)
class _Request:
    ask: _Ask
    at_us: int


class Repair:
    """The machine."""

    def __init__(self, me: PeerID, logs: Replication, config: GossipConfig, rng: random.Random) -> None:
        self._me = me
        self._logs = logs
        self._config = config
        self._rng = rng
        self._req = 0
        self._requests: dict[PeerID, dict[int, _Request]] = {}
        self._vain: dict[PeerID, dict[bytes, None]] = {}
        self._listing: dict[PeerID, dict[bytes, None]] = {}  # spaces of a list whose last frame is to come

    def handle(self, event: object, now_us: int) -> list[Effect]:
        """Links, repair frames and time; everything else is nothing to this machine."""
        match event:
            case Boot():
                return [self._sync_timer(now_us), SetTimer(TimerKey(MACHINE, "sweep"), now_us + _SWEEP_US)]
            case Linked(peer, _):
                self._requests[peer] = {}
                return self._digests(peer)
            case Unlinked(peer):
                for table in (self._requests, self._vain, self._listing):
                    table.pop(peer, None)
                return []
            case HeadUnsure(source, space) if source in self._requests:
                return [Send(source, Lane.BULK, self._heads(space, want=True))]
            case Missing(source, space, ids):
                return self._want(source, space, ids, now_us)
            case Received(peer, frame) if peer in self._requests:
                return self._on_frame(peer, frame, now_us)
            case TimerFired(TimerKey(_, "sync")):
                self._vain.clear()
                digests = [effect for peer in sorted(self._requests) for effect in self._digests(peer)]
                return [self._sync_timer(now_us), *digests]
            case TimerFired(TimerKey(_, "sweep")):
                return self._on_sweep(now_us)
            case _:
                return []

    def _sync_timer(self, now_us: int) -> Effect:
        every = self._config.sync_every_us
        return SetTimer(TimerKey(MACHINE, "sync"), now_us + every // 2 + self._rng.randrange(every))

    def _on_sweep(self, now_us: int) -> list[Effect]:
        expired = 0
        for requests in self._requests.values():
            late = [req for req, r in requests.items() if now_us - r.at_us > self._config.request_timeout_us]
            expired += len(late)
            for req in late:
                del requests[req]
        timer: list[Effect] = [SetTimer(TimerKey(MACHINE, "sweep"), now_us + _SWEEP_US)]
        return [*timer, Count("repair_timeouts", expired)] if expired else timer

    def _on_frame(self, peer: PeerID, frame: Frame, now_us: int) -> list[Effect]:
        match frame:
            case Digests(_, spaces):
                return self._on_digests(peer, spaces, now_us)
            case Heads():
                return self._on_heads(peer, frame, now_us)
            case GetLog() | GetOps() | GetIds():
                return self._answer(peer, frame)
            case Fetched() | IdList():
                return self._on_answer(peer, frame, now_us)
            case _:
                return []

    # ---- opening

    def _digests(self, peer: PeerID) -> list[Effect]:
        rows = [(space, log.digest()) for space in self._logs.spaces() if (log := self._logs.log(space)) is not None]
        # The last frame of the list is not full, be it empty: so the peer knows that it has all of it.
        chunks = [rows[start : start + DIGESTS_MAX] for start in range(0, len(rows) + 1, DIGESTS_MAX)]
        return [Send(peer, Lane.BULK, Digests(self._next_req(), tuple(chunk))) for chunk in chunks]

    def _on_digests(self, peer: PeerID, theirs: tuple[tuple[bytes, bytes], ...], now_us: int) -> list[Effect]:
        effects: list[Effect] = []
        for space, digest in theirs:
            log = self._logs.log(space)
            if log is not None and log.digest() == digest:
                self._logs.own_head_told(space, peer, agrees=True)
                # Digests are over kept ops: equal ones do not say that nothing here waits for what is aside there.
                effects += self._want(peer, space, tuple(log.missing()[:IDS_MAX]), now_us)
            else:
                effects.append(Send(peer, Lane.BULK, self._heads(space, want=True)))
        listed = self._listing.setdefault(peer, {})
        listed.update((space, None) for space, _ in theirs)
        if len(theirs) == DIGESTS_MAX and len(listed) <= self._config.spaces_max:
            return effects
        del self._listing[peer]  # the peer listed all it has: what is missing there it does not know
        unknown = [space for space in self._logs.spaces() if space not in listed]
        for space in unknown:
            self._logs.own_head_told(space, peer, agrees=False)
        return effects + [Send(peer, Lane.BULK, self._heads(space, want=False)) for space in unknown]

    def _heads(self, space: bytes, *, want: bool) -> Heads:
        log = self._logs.log(space)
        authors = log.authors()[:HEADS_MAX] if log is not None else []
        rows = tuple((author, *log.author_digest(author)) for author in authors) if log is not None else ()
        return Heads(self._next_req(), space, want, rows)

    def _on_heads(self, peer: PeerID, heads: Heads, now_us: int) -> list[Effect]:
        effects: list[Effect] = [Send(peer, Lane.BULK, self._heads(heads.space, want=False))] if heads.want else []
        log = self._logs.log(heads.space)
        rows = {author: (seq, count, digest) for author, seq, count, digest in heads.authors}
        own_asked = False
        for author, theirs in rows.items():
            ask = self._ask_for(log, heads.space, author, theirs)
            if ask is not None:
                own_asked = own_asked or author == self._me
                effects += self._request(peer, ask, now_us)
        if log is not None:  # what waits here may stand on ops that no list of kept ids names
            effects += self._want(peer, heads.space, tuple(log.missing()[:IDS_MAX]), now_us)
        if log is not None and rows and not own_asked:
            agrees = rows.get(self._me, _NO_OPS) == log.author_digest(self._me)
            self._logs.own_head_told(heads.space, peer, agrees=agrees)
        return effects

    def _ask_for(
        self, log: SpaceLog | None, space: bytes, author: bytes, theirs: tuple[int, int, bytes]
    ) -> _Ask | None:
        if log is None or log.head(author) is None:
            return GetLog(0, space, author, 0, theirs[0])
        ours = log.author_digest(author)
        if ours == theirs:
            return None
        if theirs[0] > ours[0] and not log.burnt(author) and theirs[1] == theirs[0] + 1:
            return GetLog(0, space, author, ours[0] + 1, theirs[0])
        if theirs[0] < ours[0] and not log.burnt(author) and theirs[1] == theirs[0] + 1:
            return None  # a shorter chain without a fork: the peer asks us
        return GetIds(0, space, author, 0)

    # ---- asking

    def _want(self, peer: PeerID, space: bytes, ids: tuple[bytes, ...], now_us: int) -> list[Effect]:
        """Ask a peer for ops by id, unless they are asked for already."""
        asked = {
            i for requests in self._requests.values() for r in requests.values()
            if isinstance(r.ask, GetOps) for i in r.ask.ids
        }  # fmt: skip
        vain = self._vain.get(peer, {})
        fresh = [i for i in ids if i not in asked and i not in vain]
        if len(vain) >= _VAIN_MAX:
            return [Count("repair_in_vain")]
        effects: list[Effect] = []
        for start in range(0, len(fresh), IDS_MAX):
            effects += self._request(peer, GetOps(0, space, tuple(fresh[start : start + IDS_MAX])), now_us)
        return effects

    def _request(self, peer: PeerID, ask: _Ask, now_us: int) -> list[Effect]:
        requests = self._requests.get(peer)
        if requests is None or any(_same(r.ask, ask) for r in requests.values()):
            return []
        if len(requests) >= self._config.requests_per_peer_max:
            return [Count("repair_requests_full")]
        req = self._next_req()
        sent = _with_req(ask, req)
        requests[req] = _Request(sent, now_us)
        return [Send(peer, Lane.BULK, sent)]

    def _next_req(self) -> int:
        self._req = (self._req + 1) % 2**32
        return self._req

    def _on_answer(self, peer: PeerID, answer: Fetched | IdList, now_us: int) -> list[Effect]:
        request = self._requests[peer].pop(answer.req, None)
        if request is None or request.ask.space != answer.space:
            return [Count("answers_unasked")]
        match answer, request.ask:
            case IdList(), GetIds():
                return self._on_ids(peer, answer, request.ask.first, now_us)
            case Fetched(), GetLog() | GetOps():
                return self._on_fetched(peer, answer, request.ask, now_us)
            case _:
                return [Count("answers_unasked")]

    def _on_ids(self, peer: PeerID, answer: IdList, first: int, now_us: int) -> list[Effect]:
        log = self._logs.log(answer.space)
        fresh = tuple(i for i in answer.ids if log is None or not log.settled(i))
        effects = self._want(peer, answer.space, fresh, now_us)
        here = [op for i in answer.ids if log is not None and (op := log.get(i)) is not None]
        honest = len(answer.ids) >= _PAGE_IDS_MIN and all(op.seq >= first for op in here)
        vain = len(self._vain.get(peer, ())) >= _VAIN_MAX
        if answer.more is not None and answer.more > first and honest and not vain:
            effects += self._request(peer, GetIds(0, answer.space, answer.author, answer.more), now_us)
        return effects

    def _on_fetched(self, peer: PeerID, answer: Fetched, ask: GetLog | GetOps, now_us: int) -> list[Effect]:
        wires = (*answer.ops, *(wire for fork in answer.forks for wire in fork))
        effects = self._logs.ingest(peer, wires, now_us)
        log = self._logs.log(answer.space)
        if log is None:
            return effects
        if isinstance(ask, GetLog):
            head = log.head(ask.author)
            # Ask on only while the answer moved the chain: a peer that sends nothing new is not asked for ever.
            if answer.more and head is not None and ask.first <= head[0] < ask.last:
                effects += self._request(peer, GetLog(0, ask.space, ask.author, head[0] + 1, ask.last), now_us)
            elif ask.author == self._me and head is not None and head[0] >= ask.last:
                self._logs.own_head_told(ask.space, peer, agrees=True)
            return effects
        rest = tuple(i for i in ask.ids if not log.settled(i))
        if answer.more and len(rest) < len(ask.ids):  # cut at the frame's size
            return effects + self._want(peer, ask.space, rest, now_us)
        self._vain.setdefault(peer, {}).update((i, None) for i in rest)
        return effects

    # ---- answering

    def _answer(self, peer: PeerID, ask: _Ask) -> list[Effect]:
        log = self._logs.log(ask.space)
        match ask:
            case GetIds(req, space, author, first):
                ids, more = _id_page(log, author, first) if log is not None else ((), None)
                return [Send(peer, Lane.BULK, IdList(req, space, author, ids, more))]
            case GetLog(req, space, author, first, last):
                found = log.log(author, first, min(last, first + BATCH_OPS_MAX - 1)) if log is not None else []
                cut = last > first + BATCH_OPS_MAX - 1
                return [Send(peer, Lane.BULK, self._fetched(req, space, found, cut=cut, forks=()))]
            case GetOps(req, space, ids):
                held = [op for i in ids if log is not None and (op := log.held(i)) is not None]
                forks = self._forks(log, ids) if log is not None else ()
                return [Send(peer, Lane.BULK, self._fetched(req, space, held, cut=False, forks=forks))]

    def _forks(self, log: SpaceLog, ids: tuple[bytes, ...]) -> tuple[tuple[bytes, bytes], ...]:
        """For dropped ops: the two ops that burnt their authors."""
        pairs: dict[bytes, tuple[bytes, bytes]] = {}
        for op_id in ids:
            author = log.dropped_author(op_id)
            fork = log.fork_of(author) if author is not None and author not in pairs else None
            if author is not None and fork is not None:
                pairs[author] = (fork[0].wire(), fork[1].wire())
        return tuple(pairs[author] for author in sorted(pairs))[:1]

    def _fetched(
        self, req: int, space: bytes, ops: list[Op], *, cut: bool, forks: tuple[tuple[bytes, bytes], ...]
    ) -> Fetched:
        room = _ANSWER_BYTES_MAX - sum(len(wire) for pair in forks for wire in pair)
        wires: list[bytes] = []
        for op in ops:
            if not self._logs.tellable(op.id):
                continue  # the asker sees it at the next round
            wire = op.wire()
            if wires and (len(wire) > room or len(wires) == BATCH_OPS_MAX):  # a fork puts more ops than seqs on a page
                cut = True
                break
            room -= len(wire)
            wires.append(wire)
        return Fetched(req, space, tuple(wires), forks, (), cut)


def _id_page(log: SpaceLog, author: bytes, first: int) -> tuple[tuple[bytes, ...], int | None]:
    """Ids of an author from seq `first`, and the seq to go on from: the ops of a fork stay on one page."""
    ids = log.ids_from(author, first, IDS_MAX + 1)
    if len(ids) <= IDS_MAX:
        return tuple(ids), None
    seqs = [op.seq for i in ids if (op := log.get(i)) is not None]
    whole = [i for i, seq in zip(ids, seqs, strict=True) if seq < seqs[-1]]
    if len(whole) < _PAGE_IDS_MIN:  # hundreds of ops at one seq: who needs the rest asks for it by id
        return tuple(ids[:IDS_MAX]), seqs[-1] + 1
    return tuple(whole), seqs[-1]


def _same(a: _Ask, b: _Ask) -> bool:
    return type(a) is type(b) and _with_req(a, 0) == _with_req(b, 0)


def _with_req(ask: _Ask, req: int) -> _Ask:
    match ask:
        case GetLog(_, space, author, first, last):
            return GetLog(req, space, author, first, last)
        case GetOps(_, space, ids):
            return GetOps(req, space, ids)
        case GetIds(_, space, author, first):
            return GetIds(req, space, author, first)
