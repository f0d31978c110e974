"""What agents the swarm offers: this node's own record, everybody's records, and the answer to `find`.

    EngineReport ─► Embed(text of the offer) ─► Publish(record with its vector)          again when either changes
    FindAgents   ─► Embed(text of the query) ─► find over the records held ─► Reply

Rules of this file
- Embedding is a job, so it never keeps the machine. The same text is not embedded twice in one life.
- The record waits for its vector, because a record without one would be signed and spread for nothing. Only when the
  encoder fails it goes out without, for turns do not need it, and the embedding is tried again.
- What ended is kept for a while for `find --explain`, and offered to nobody.
- Figures of the answer are this node's view: ages and expiry by its swarm time, trust by what it saw itself.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Final

from gossip.events import Publish, Withdraw
from kernel.commands import EngineReport, FindAgents, Offer
from kernel.discovery import (
    LIMIT_MAX,
    SCORE_ONE,
    Filters,
    FindResult,
    Hit,
    Query,
    Rejection,
    Threshold,
    capability_text,
    find,
    threshold_of,
)
from kernel.engine import Capabilities
from kernel.jobs import Embed, Embedded
from kernel.trust import PERMILLE, Trust
from protocol.admission import EncoderSpec
from protocol.capability import AgentValue, SignedRecord
from protocol.clock import SwarmClock
from protocol.errors import EngineError, Refused, UsageError
from protocol.machine import (
    AbortJob,
    CancelTimer,
    Count,
    Effect,
    JobDone,
    JobFailed,
    JobId,
    JobIds,
    Local,
    Reply,
    SetTimer,
    StartJob,
    TimerKey,
)
from protocol.peer import PeerID, peer_text
from protocol.records import NAME_CHARS_MAX

AGENT: Final = "default"  # the name under which a node publishes what its engine's agents do
TEXT_CHARS_MAX: Final = 2_000  # of a query; the encoder judges longer texts by their start anyway
FINDS_MAX: Final = 32  # queries whose vector is being made
ENDED_MAX: Final = 64  # records that ended, kept for explanations
REJECTED_MAX: Final = 100  # shown by an explanation
EMBED_RETRY_US: Final = 30_000_000

Line = dict[str, object]
_Slot = tuple[bytes, bytes]


@dataclass(frozen=True, slots=True)
class View:
    """What else this node knows of the peers behind the records: who is linked, and what it saw of them."""

    linked: frozenset[bytes]
    trust: Mapping[bytes, Trust]


class Offers:
    """The part of the kernel that knows who offers what. `retry` is the timer by which it is called again."""

    def __init__(
        self, me: PeerID, encoder: EncoderSpec, clock: SwarmClock, jobs: JobIds, view: Callable[[], View],
        retry: TimerKey,
    ) -> None:  # fmt: skip
        self._me = me
        self._encoder = encoder.id
        self._threshold = threshold_of(encoder)
        self._clock = clock
        self._jobs = jobs
        self._view = view
        self._retry = retry
        self._live: dict[_Slot, SignedRecord] = {}
        self._ended: dict[_Slot, SignedRecord] = {}  # oldest end first
        self._wanted: AgentValue | None = None  # to be published, without its vector
        self._text = ""  # what it is found by
        self._vectors: dict[str, bytes] = {}  # of the text embedded last
        self._embedding: tuple[JobId, str] | None = None
        self._finds: dict[JobId, tuple[int, FindAgents]] = {}

    # ---- the own record

    def on_engine(self, report: EngineReport) -> list[Effect]:
        """The engine came, changed or went: so does the own record."""
        if report.capabilities is None:
            return [*self.stop(), Local(Withdraw(AGENT))]
        self._wanted = own_value(report.capabilities, report.roles, report.offer, self._encoder)
        self._text = capability_text(report.offer.description, report.offer.skills, report.roles)
        return self.publish()

    def publish(self) -> list[Effect]:
        """Publish the own record, after embedding its text where that was not done yet; also the retry."""
        if self._wanted is None:
            return []
        vector = self._vectors.get(self._text)
        if vector is not None:
            return [Local(Publish(self._wanted.model_copy(update={"vector": vector})))]
        if self._embedding is not None and self._embedding[1] == self._text:
            return []
        stopped = self._stop_embedding()
        job = self._jobs.next()
        self._embedding = (job, self._text)
        return [*stopped, StartJob(job, Embed((self._text,)))]

    def stop(self) -> list[Effect]:
        """Nothing of the own is published any more until the next report."""
        self._wanted = None
        return [*self._stop_embedding(), CancelTimer(self._retry)]

    def _stop_embedding(self) -> list[Effect]:
        running, self._embedding = self._embedding, None
        return [] if running is None else [AbortJob(running[0])]

    # ---- everybody's records

    def on_record(self, record: SignedRecord, *, live: bool) -> None:
        """A record of an agent came, changed or ended."""
        slot = (record.publisher, record.key)
        self._ended.pop(slot, None)
        if live:
            self._live[slot] = record
            return
        self._live.pop(slot, None)
        self._ended[slot] = record
        if len(self._ended) > ENDED_MAX:
            del self._ended[next(iter(self._ended))]

    def agents(self, now_us: int) -> list[Line]:
        """One line per live record, by tier, publisher and key."""
        now_ms, view = self._clock.now_ms(now_us), self._view()
        found = find(self._live.values(), None, Filters(), now_ms, view.trust)
        return [self._hit_line(hit, now_ms, view) for hit in found.hits]

    # ---- find

    def on_find(self, request_id: int, command: FindAgents) -> list[Effect]:
        """Begin a search: its text is embedded first.

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
        if len(self._finds) >= FINDS_MAX:
            raise Refused("too many searches at once on this node", hint="try again in a moment")
        job = self._jobs.next()
        self._finds[job] = (request_id, command)
        return [StartJob(job, Embed((command.text,)))]

    def on_job(self, event: JobDone | JobFailed, now_us: int) -> list[Effect]:
        """The vector of the own offer or of a search is there, or will not be."""
        vector = _vector_of(event)
        asked = self._finds.pop(event.job, None)
        if asked is not None:
            request_id, command = asked
            if vector is None:
                error = event.error if isinstance(event, JobFailed) else EngineError("the encoder gave no vector")
                return [Reply(request_id, error)]
            return [Reply(request_id, self._answer(command, vector, now_us))]
        if self._embedding is None or self._embedding[0] != event.job:
            return []
        _, text = self._embedding
        self._embedding = None
        if vector is not None:
            self._vectors = {text: vector}
            return self.publish()
        retry: list[Effect] = [Count("offers_not_embedded"), SetTimer(self._retry, now_us + EMBED_RETRY_US)]
        return [*retry, Local(Publish(self._wanted))] if self._wanted is not None else retry

    def _answer(self, command: FindAgents, vector: bytes, now_us: int) -> object:
        if not any(vector):
            return UsageError("the encoder sees nothing in this text", hint="say it in plain words")
        now_ms, view = self._clock.now_ms(now_us), self._view()
        threshold = Threshold(self._threshold.tau, command.limit or self._threshold.k)
        records = [*self._live.values(), *self._ended.values()]
        query, explain_max = Query(vector, self._encoder, threshold), REJECTED_MAX if command.explain else 0
        found = find(records, query, command.filters, now_ms, view.trust, explain_max=explain_max)
        return {
            "encoder": self._encoder,
            "threshold": round(threshold.tau.p / threshold.tau.q, 4),
            "limit": threshold.k,
            "live": len(self._live),
            "agents": [self._hit_line(hit, now_ms, view) for hit in found.hits],
            **(self._explanation(found, now_ms) if command.explain else {}),
        }

    # ---- plain data

    def _hit_line(self, hit: Hit, now_ms: int, view: View) -> Line:
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
            "mine": peer == self._me,
            "linked": peer in view.linked,
        }

    def _explanation(self, found: FindResult, now_ms: int) -> Line:
        return {
            "rejected": [_rejection_line(each, now_ms) for each in found.rejected],
            "rejected_more": found.more,
        }


def _vector_of(event: JobDone | JobFailed) -> bytes | None:
    if isinstance(event, JobDone) and isinstance(event.result, Embedded) and event.result.vectors:
        return event.result.vectors[0]
    return None


def _rejection_line(rejection: Rejection, now_ms: int) -> Line:
    return {
        "peer": peer_text(rejection.record.publisher),
        "agent": rejection.value.agent,
        "reason": rejection.reason,
        "why": rejection.why,
        "score": None if rejection.score is None else rejection.score / SCORE_ONE,
        "age_ms": max(0, now_ms - rejection.record.issued_ms),
    }


def own_value(able: Capabilities, roles: Iterable[str], offer: Offer, encoder: str) -> AgentValue:
    """The record's value, without its vector. What a server says of itself is cut to what a record takes."""
    return AgentValue(
        agent=AGENT,
        roles=tuple(roles),
        description=offer.description,
        encoder=encoder,
        model=able.model[:NAME_CHARS_MAX],
        backend=able.backend[:NAME_CHARS_MAX],
        quality=able.quality,
        context_tokens=min(able.context_tokens, 2**31),
        tools=offer.tools,
        permissions=offer.permissions,
        skills=offer.skills,
        tags=offer.tags,
        taxonomy=offer.taxonomy,
        price_micro_money=offer.price_micro_money,
        tokens_per_s=min(able.tokens_per_s or 0, 2**31),
        data_policy=offer.data_policy,
    )
