"""What agents the swarm offers: this node's own record, everybody's records, and the answer to `find`.

    EngineReport ─► Embed(text of the offer) ─► Publish(record with its vector)          again when either changes
    FindAgents   ─► Embed(text of the query) ─► kernel/searches.py ─► Reply

Rules of this file
- Embedding is a job, so it never keeps the machine. The same text is not embedded twice in one life.
- The record waits for its vector, because a record without one would be signed and spread for nothing. Only when the
  encoder fails it goes out without, for turns do not need it, and the embedding is tried again.
- A record with a vector names the codebooks under whose shards the DHT of this node puts it (dht/directory.py).
- What ended is kept for a while for `find --explain`, and offered to nobody.
- Figures of an answer are this node's view: ages and expiry by its swarm time, trust by what it saw itself.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Final

from dht.directory import CODEBOOKS_MAX
from dht.events import FindDone
from dht.placement import codebook_name
from gossip.events import Publish, Withdraw
from kernel.commands import EngineReport, FindAgents, Offer
from kernel.config import MACHINE
from kernel.discovery import Filters, capability_text, find
from kernel.engine import Capabilities
from kernel.jobs import Embed, Embedded
from kernel.scout import Scout
from kernel.searches import Index, Line, Reach, Searches, View, hit_line
from protocol.admission import EncoderSpec
from protocol.capability import AgentValue, SignedRecord
from protocol.clock import SwarmClock
from protocol.errors import EngineError
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
from protocol.peer import PeerID
from protocol.records import NAME_CHARS_MAX

AGENT: Final = "default"  # the name under which a node publishes what its engine's agents do
RETRY: Final = TimerKey(MACHINE, "embed")
EMBED_RETRY_US: Final = 30_000_000


class Offers:
    """The part of the kernel that knows who offers what."""

    def __init__(
        self,
        me: PeerID,
        encoder: EncoderSpec,
        clock: SwarmClock,
        jobs: JobIds,
        view: Callable[[int], View],
        reach: Reach,
    ) -> None:
        """`view` gives what else is known at a boot time."""
        self._me = me
        self._encoder = encoder.id
        self._codebooks = tuple(codebook_name(wire) for wire in reach.codebooks[-CODEBOOKS_MAX:])
        self._clock = clock
        self._jobs = jobs
        self._view = view
        self._index = Index()
        self._searches = Searches(me, encoder, self._index, reach, MACHINE)
        self.scout = Scout(encoder, self._index, reach, clock, jobs)
        self._wanted: AgentValue | None = None  # to be published, without its vector
        self._text = ""  # what it is found by
        self._vectors: dict[str, bytes] = {}  # of the text embedded last
        self._embedding: tuple[JobId, str] | None = None

    # ---- the own record

    def on_engine(self, report: EngineReport) -> list[Effect]:
        """The engine came, changed or went: so does the own record."""
        if report.capabilities is None:
            return [*self.stop(), Local(Withdraw(AGENT))]
        self._wanted = own_value(report.capabilities, report.roles, report.offer, self._encoder)
        self._text = capability_text(report.offer.description, report.offer.skills, report.roles)
        return self._publish()

    def _publish(self) -> list[Effect]:
        """Publish the own record, after embedding its text where that was not done yet; also the retry."""
        if self._wanted is None:
            return []
        vector = self._vectors.get(self._text)
        if vector is not None:
            found_by = {"vector": vector, "codebooks": self._codebooks}
            return [Local(Publish(self._wanted.model_copy(update=found_by)))]
        if self._embedding is not None and self._embedding[1] == self._text:
            return []
        stopped = self._stop_embedding()
        job = self._jobs.next()
        self._embedding = (job, self._text)
        return [*stopped, StartJob(job, Embed((self._text,)))]

    def stop(self) -> list[Effect]:
        """Nothing of the own is published any more until the next report."""
        self._wanted = None
        return [*self._stop_embedding(), CancelTimer(RETRY)]

    def _stop_embedding(self) -> list[Effect]:
        running, self._embedding = self._embedding, None
        return [] if running is None else [AbortJob(running[0])]

    # ---- everybody's records

    def on_record(self, record: SignedRecord, *, live: bool) -> None:
        """A record of an agent came, changed or ended."""
        self._index.take(record, live=live)
        self.scout.forget(record)

    def agents(self, now_us: int) -> list[Line]:
        """One line per live record of a node that is not down, by tier, publisher and key."""
        now_ms, view = self._clock.now_ms(now_us), self._view(now_us)
        found = find(self._index.live, None, Filters(down=view.down), now_ms, view.trust)
        return [hit_line(hit, self._me, now_ms, view) for hit in found.hits]

    # ---- find, jobs and time

    def on_find(self, request_id: int, command: FindAgents) -> list[Effect]:
        """Begin a search: its text is embedded first.

        Raises:
            UsageError: no text, too much of it, or an impossible limit.
            Refused: too many searches are under way.
        """
        self._searches.check(command)
        job = self._jobs.next()
        self._searches.begin(request_id, command, job)
        return [StartJob(job, Embed((command.text,)))]

    def on_found(self, done: FindDone, now_us: int) -> list[Effect]:
        """The DHT answered a search, or who runs a role."""
        if self.scout.owns(done):
            return self.scout.on_found(done, now_us)
        return self._searches.on_found(done, self._clock.now_ms(now_us), self._view(now_us))

    def on_timer(self, key: TimerKey, now_us: int) -> list[Effect]:
        """The own record is due again, or the DHT took too long."""
        if self.scout.owns(key):
            return self.scout.on_timer(key)
        if isinstance(key.ref, int):
            return self._searches.on_timer(key.ref, self._clock.now_ms(now_us), self._view(now_us))
        return self._publish()

    def on_job(self, event: JobDone | JobFailed, now_us: int) -> list[Effect]:
        """The vector of the own offer, of a search or of a role is there, or will not be."""
        if self.scout.owns(event):
            return self.scout.on_job(event, now_us)
        vector = _vector_of(event)
        asked = self._searches.embedded(event.job)
        if asked is not None:
            if vector is not None:
                at = (now_us, self._clock.now_ms(now_us), self._view(now_us))
                return self._searches.on_vector(*asked, vector, at)
            error = event.error if isinstance(event, JobFailed) else EngineError("the encoder gave no vector")
            return [Reply(asked[0], error)]
        if self._embedding is None or self._embedding[0] != event.job:
            return []
        _, text = self._embedding
        self._embedding = None
        if vector is not None:
            self._vectors = {text: vector}
            return self._publish()
        retry: list[Effect] = [Count("offers_not_embedded"), SetTimer(RETRY, now_us + EMBED_RETRY_US)]
        return [*retry, Local(Publish(self._wanted))] if self._wanted is not None else retry


def _vector_of(event: JobDone | JobFailed) -> bytes | None:
    if isinstance(event, JobDone) and isinstance(event.result, Embedded) and event.result.vectors:
        return event.result.vectors[0]
    return None


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
