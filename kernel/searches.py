"""Searches under way: a text becomes a vector, the vector meets the records, and the DHT where those are not all.

    FindAgents ─► Embed ─┬─────────────────────────────► find over the index ─► Reply        the index is complete
                         └► Local(Find) ─► FindDone ─► find over index + DHT ─► Reply        it is not

A node that was refused a record because its table is full, or that keeps no table (a light node), asks the shards of
the capability directory as well (protocol.md §8, replication.md §8).

Rules of this file
- Of each slot the greatest version counts, wherever it comes from, and what ended counts too: a withdrawal that is
  known here silences an offer that a holder still gives. The verdicts are those of kernel/discovery.py over the merged
  records, so where index and DHT hold the same the answer is that of the index alone.
- The DHT can add and cannot fail a search: refused, late or alone, the index answers and the reply says why.
- Each search is answered once. Both waits together hold `FINDS_MAX` searches, the second lasts `FIND_DHT_US`.
- The DHT compares vectors and knows no filters, and its answers have room for 16 records of a shard. So it is asked for
  twice the hits, or for all that its shards can give where filters or an explanation need more to choose from. Behind
  narrow filters in a large swarm an agent that passes can stay unseen; that no holder evaluates filters keeps them off
  the wire.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Final

from dht.directory import PROBES_MAX
from dht.events import Find, FindDone
from kernel.commands import FindAgents
from kernel.discovery import (
    LIMIT_MAX,
    SCORE_ONE,
    Filters,
    FindResult,
    Hit,
    Query,
    Rejection,
    Threshold,
    find,
    threshold_of,
)
from kernel.trust import PERMILLE, Trust
from protocol.admission import EncoderSpec
from protocol.capability import AgentValue, SignedRecord
from protocol.errors import Refused, UsageError
from protocol.machine import CancelTimer, Count, Effect, JobId, Local, Reply, SetTimer, TimerKey
from protocol.messages import DHT_RECORDS_MAX
from protocol.peer import PeerID, peer_text

TEXT_CHARS_MAX: Final = 2_000  # of a query; the encoder judges longer texts by their start anyway
FINDS_MAX: Final = 32  # searches that wait for a vector or for the DHT
FIND_DHT_US: Final = 12_000_000  # a look-up that meets dead nodes: two dials or requests that run out
CANDIDATES_MAX: Final = PROBES_MAX * DHT_RECORDS_MAX  # all that the shards of one search can give
ENDED_MAX: Final = 64  # records that ended, kept for explanations
REJECTED_MAX: Final = 100  # shown by an explanation

Line = dict[str, object]
Slot = tuple[bytes, bytes]


@dataclass(frozen=True, slots=True)
class View:
    """What else this node knows of the peers behind the records: who is linked, up or down, and what it saw of them."""

    linked: frozenset[bytes]
    trust: Mapping[bytes, Trust]
    down: Mapping[bytes, str] = field(default_factory=dict)
    up: frozenset[bytes] = frozenset()

    def alive(self, peer: bytes) -> bool | None:
        """None where nothing was heard that says it."""
        return False if peer in self.down else True if peer in self.up else None


def _complete() -> bool:
    return True


def _unknown(_members: int) -> int | None:
    return None


@dataclass(frozen=True, slots=True)
class Reach:
    """How far searches go.

    Attributes:
        index_complete: whether the records held here are all there are; asked at each search.
        codebooks: those of the swarm's encoder that the DHT of this node was given, in wire form, oldest first.
            With none the DHT is not asked.
        silence_us: how long a live member of a swarm of so many may be silent; None where silence says nothing.
    """

    index_complete: Callable[[], bool] = _complete
    codebooks: tuple[bytes, ...] = ()
    silence_us: Callable[[int], int | None] = _unknown


class Index:
    """The records of agents that this node holds: those live, and for a while those that ended."""

    def __init__(self) -> None:
        self._live: dict[Slot, SignedRecord] = {}
        self._ended: dict[Slot, SignedRecord] = {}  # oldest end first

    def __len__(self) -> int:
        return len(self._live)

    @property
    def live(self) -> Iterable[SignedRecord]:
        """What was live when it was last heard of; it may have expired since."""
        return self._live.values()

    def take(self, record: SignedRecord, *, live: bool) -> None:
        """A record came, changed or ended."""
        slot = _slot(record)
        self._ended.pop(slot, None)
        if live:
            self._live[slot] = record
            return
        self._live.pop(slot, None)
        self._ended[slot] = record
        if len(self._ended) > ENDED_MAX:
            del self._ended[next(iter(self._ended))]

    def allows(self, record: SignedRecord) -> bool:
        """False for a record of a slot that is known here, live or ended, by this version or a newer one."""
        slot = _slot(record)
        known = self._live.get(slot) or self._ended.get(slot)
        return known is None or record.version > known.version

    def merged(self, others: Iterable[SignedRecord]) -> list[SignedRecord]:
        """All of them and `others`, the greatest version of each slot."""
        best = self._live | self._ended
        for record in others:
            slot = _slot(record)
            old = best.get(slot)
            if old is None or record.version > old.version:
                best[slot] = record
        return list(best.values())


def _slot(record: SignedRecord) -> Slot:
    return (record.publisher, record.key)


@dataclass(frozen=True, slots=True)
class _Asked:
    """A search whose text is known by its vector."""

    request_id: int
    command: FindAgents
    vector: bytes


@dataclass(frozen=True, slots=True)
class _Way:
    """How an answer came about: what the DHT gave and cost, or why it gave nothing."""

    dht: bool = False
    records: tuple[SignedRecord, ...] = ()
    rpcs: int = 0
    rounds: int = 0
    note: str = ""


class Searches:
    """The searches of this node. `machine` names the owner of their timers."""

    def __init__(self, me: PeerID, encoder: EncoderSpec, index: Index, reach: Reach, machine: str) -> None:
        self._me = me
        self._encoder = encoder
        self._threshold = threshold_of(encoder)
        self._index = index
        self._reach = reach
        self._machine = machine
        self._embedding: dict[JobId, tuple[int, FindAgents]] = {}
        self._asking: dict[int, _Asked] = {}  # by the number under which the DHT was asked
        self._last = 0

    def check(self, command: FindAgents) -> None:
        """Whether a search may begin.

        Raises:
            UsageError: no text, too much of it, or an impossible limit.
            Refused: too many searches are under way.
        """
        if not command.text.strip():
            raise UsageError("there is nothing to look for", hint="say what the agent should be able to do")
        if len(command.text) > TEXT_CHARS_MAX:
            raise UsageError(f"the text is over {TEXT_CHARS_MAX} characters", hint="say it in a sentence or two")
        if command.limit is not None and not 1 <= command.limit <= LIMIT_MAX:
            raise UsageError(f"a limit of {command.limit} is outside 1..{LIMIT_MAX}")
        if len(self._embedding) + len(self._asking) >= FINDS_MAX:
            raise Refused("too many searches at once on this node", hint="try again in a moment")

    def begin(self, request_id: int, command: FindAgents, job: JobId) -> None:
        """A search that passed `check` waits for the vector that a job makes."""
        self._embedding[job] = (request_id, command)

    def embedded(self, job: JobId) -> tuple[int, FindAgents] | None:
        """The search that waited for a job, which has ended, by its request; None if none did."""
        return self._embedding.pop(job, None)

    # ---- from the vector on

    def on_vector(self, request_id: int, command: FindAgents, vector: bytes, at: tuple[int, int, View]) -> list[Effect]:
        """The text is embedded: answer, or ask the DHT first. `at`: boot time, swarm time, view."""
        now_us, now_ms, view = at
        if not any(vector):
            error = UsageError("the encoder sees nothing in this text", hint="say it in plain words")
            return [Reply(request_id, error)]
        asked = _Asked(request_id, command, vector)
        if self._reach.index_complete():
            return [self._reply(asked, _Way(), now_ms, view)]
        if not self._reach.codebooks:
            note = f"only the records held here were searched: there is no codebook for the encoder {self._encoder.id}"
            return [self._reply(asked, _Way(note=note), now_ms, view)]
        self._last += 1
        self._asking[self._last] = asked
        limit = _candidates(command, command.limit or self._threshold.k)
        return [
            SetTimer(self._timer(self._last), now_us + FIND_DHT_US),
            Local(Find(self._last, self._encoder.id, vector, limit)),
        ]

    def on_found(self, done: FindDone, now_ms: int, view: View) -> list[Effect]:
        """The DHT answered; one that comes after its time says nothing any more."""
        asked = self._asking.pop(done.request, None)
        if asked is None:
            return [Count("finds_answered_late")]
        if done.error is None:
            records = tuple(record for _, record in done.found if self._usable(record, now_ms))
            way = _Way(dht=True, records=records, rpcs=done.cost.rpcs, rounds=done.cost.rounds)
        else:
            note = f"only the records held here were searched: {done.error.message}"
            way = _Way(rpcs=done.cost.rpcs, rounds=done.cost.rounds, note=note)
        return [CancelTimer(self._timer(done.request)), self._reply(asked, way, now_ms, view)]

    def on_timer(self, number: int, now_ms: int, view: View) -> list[Effect]:
        """The DHT took too long."""
        asked = self._asking.pop(number, None)
        if asked is None:
            return []
        note = f"only the records held here were searched: no answer of the DHT within {FIND_DHT_US // 1_000_000} s"
        return [Count("finds_timed_out"), self._reply(asked, _Way(note=note), now_ms, view)]

    def _timer(self, number: int) -> TimerKey:
        return TimerKey(self._machine, "find", number)

    def _usable(self, record: SignedRecord, now_ms: int) -> bool:
        """The signature was checked by the DHT; nothing else that it says is taken for granted."""
        value = record.value
        if not isinstance(value, AgentValue) or value.vector is None or not record.acceptable(now_ms):
            return False
        return value.encoder == self._encoder.id and len(value.vector) == self._encoder.dim

    # ---- the answer

    def _reply(self, asked: _Asked, way: _Way, now_ms: int, view: View) -> Reply:
        command = asked.command
        threshold = Threshold(self._threshold.tau, command.limit or self._threshold.k)
        query, explain_max = Query(asked.vector, self._encoder.id, threshold), REJECTED_MAX if command.explain else 0
        records = self._index.merged(way.records)
        filters = replace(command.filters, down=view.down)
        found = find(records, query, filters, now_ms, view.trust, explain_max=explain_max)
        answer: Line = {
            "encoder": self._encoder.id,
            "threshold": round(threshold.tau.p / threshold.tau.q, 4),
            "limit": threshold.k,
            "live": len(self._index),
            "source": "index+dht" if way.dht else "index",
            "index_complete": self._reach.index_complete(),
            "candidates": len(way.records),
            "rpcs": way.rpcs,
            "rounds": way.rounds,
            "note": way.note,
            "agents": [hit_line(hit, self._me, now_ms, view) for hit in found.hits],
            **(_explanation(found, now_ms, view) if command.explain else {}),
        }
        return Reply(asked.request_id, answer)


def _candidates(command: FindAgents, hits: int) -> int:
    """How many records to ask the DHT for."""
    choosy = command.explain or command.filters != Filters()
    return CANDIDATES_MAX if choosy else min(CANDIDATES_MAX, 2 * hits)


# ---- plain data


def hit_line(hit: Hit, me: PeerID, now_ms: int, view: View) -> Line:
    """A hit as this node sees it."""
    value, peer = hit.value, hit.record.publisher
    return {
        "peer": peer_text(peer),
        "agent": value.agent,
        "score": None if hit.score is None else hit.score / SCORE_ONE,
        "encoder": value.encoder,
        "roles": list(value.roles),
        "description": value.description,
        "skills": list(value.skills),
        "tags": list(value.tags),
        "taxonomy": value.taxonomy,
        "tools": list(value.tools),
        "permissions": list(value.permissions),
        "model": value.model,
        "backend": value.backend,
        "quality": value.quality,
        "context_tokens": value.context_tokens,
        "tokens_per_s": value.tokens_per_s,
        "price_micro_money": value.price_micro_money,
        "data_policy": value.data_policy,
        "age_ms": max(0, now_ms - hit.record.issued_ms),
        "expires_ms": hit.record.expiry_ms - now_ms,
        "trust": None if hit.trust is None else hit.trust.permille / PERMILLE,
        "turns_seen": 0 if hit.trust is None else hit.trust.effective + hit.trust.failed,
        "mine": peer == me,
        "linked": peer in view.linked,
        "alive": peer == me or view.alive(peer),
    }


def _explanation(found: FindResult, now_ms: int, view: View) -> Line:
    return {
        "rejected": [_rejection_line(each, now_ms, view) for each in found.rejected],
        "rejected_more": found.more,
    }


def _rejection_line(rejection: Rejection, now_ms: int, view: View) -> Line:
    return {
        "peer": peer_text(rejection.record.publisher),
        "agent": rejection.value.agent,
        "reason": rejection.reason,
        "why": rejection.why,
        "score": None if rejection.score is None else rejection.score / SCORE_ONE,
        "age_ms": max(0, now_ms - rejection.record.issued_ms),
        "alive": view.alive(rejection.record.publisher),
    }
