"""Agents for a role that nobody known here runs, asked of the DHT and remembered for a while.

    seek(space, role) ─► Embed(what the role does) ─► Local(Find) for each vector ─► FindDone … ─► Local(Sought(space))

A light node holds no records of others, and a full one may have had no room for some: both see tasks and turns that
need a role which, as far as they know, nobody runs. The capability directory knows more (kernel/searches.py asks it
for people, this file for tasks).

Rules of this file
- Two texts are asked for: the role's own, and that of an agent that runs all roles, which is what most nodes say.
- What is found counts as an offer if its record is valid and live, names the role, and no newer version of its slot is
  known here. It counts until it expires, for `OFFER_US` at most; `OFFERS_MAX` agents are kept, the newest.
- A seek ends once, for every space that waits for it: with what the DHT named, or with a note that says why nothing.
  It may only add candidates; whether they live and take part is membership's and the task's to say.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final

from dht.events import Find, FindDone
from kernel.agents.roles import ROSTER
from kernel.config import MACHINE
from kernel.discovery import capability_text
from kernel.jobs import Candidate, Embed, Embedded
from kernel.searches import CANDIDATES_MAX, FIND_DHT_US, Index, Reach, Slot
from kernel.task import candidate_of
from protocol.admission import EncoderSpec
from protocol.capability import AgentValue, SignedRecord
from protocol.clock import SwarmClock
from protocol.machine import (
    CancelTimer,
    Count,
    Effect,
    JobDone,
    JobFailed,
    JobId,
    JobIds,
    Local,
    SetTimer,
    StartJob,
    TimerKey,
)

OFFERS_MAX: Final = 256  # agents that the DHT named, remembered
OFFER_US: Final = 600_000_000
SPACES_MAX: Final = 256  # tasks that wait for one role; as many submits may be under way
ROLES_MAX: Final = 16  # sought at once
SEEK: Final = "seek"  # names the timers of this file
NO_INDEX: Final = "this node keeps no index of all agents"


@dataclass(frozen=True, slots=True)
class Sought:
    """A seek for a task ended. `note` says why it may have found nobody."""

    space: bytes
    note: str


@dataclass(slots=True)
class _Seek:
    """A role that is sought.

    Attributes:
        spaces: who waits for it.
        asked: numbers under which the DHT was asked and has not answered.
        notes: what went wrong.
    """

    role: str
    spaces: dict[bytes, None]
    asked: dict[int, None] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)


class Scout:
    """The part of the kernel that asks the DHT who could take a turn."""

    def __init__(self, encoder: EncoderSpec, index: Index, reach: Reach, clock: SwarmClock, jobs: JobIds) -> None:
        self._encoder = encoder.id
        self._index = index
        self._reach = reach
        self._clock = clock
        self._jobs = jobs
        self._seeks: dict[str, _Seek] = {}  # by role
        self._embedding: dict[JobId, _Seek] = {}
        self._asked: dict[int, _Seek] = {}
        self._last = 0
        self._found: dict[Slot, tuple[SignedRecord, int]] = {}  # with the boot time of its end here; oldest first
        self._offers: dict[bytes, Candidate] = {}  # the same, by publisher

    @property
    def offers(self) -> dict[bytes, Candidate]:
        """What the DHT named, by peer; not to be changed."""
        return self._offers

    def owns(self, event: JobDone | JobFailed | FindDone | TimerKey) -> bool:
        """True for an answer or a timer of a seek."""
        match event:
            case FindDone(request):
                return request in self._asked
            case TimerKey():
                return event.what == SEEK
            case _:
                return event.job in self._embedding

    def seek(self, space: bytes, role: str) -> list[Effect]:
        """Ask who runs a role; `Sought` follows, unless nothing is returned.

        Nothing is done where the index is complete, for the DHT knows nobody beyond it, and where too much waits.
        """
        if not role or self._reach.index_complete():
            return []
        if not self._reach.codebooks:
            return [Local(Sought(space, f"{NO_INDEX}, and has no codebook of the encoder to ask the DHT with"))]
        seek = self._seeks.get(role)
        if seek is not None:
            if len(seek.spaces) >= SPACES_MAX:
                return []
            seek.spaces[space] = None
            return [Count("roles_sought_together")]
        if len(self._seeks) >= ROLES_MAX:
            return []
        seek = self._seeks[role] = _Seek(role, {space: None})
        job = self._jobs.next()
        self._embedding[job] = seek
        texts = dict.fromkeys((capability_text("", (), (role,)), capability_text("", (), ROSTER.names)))
        return [Count("roles_sought"), StartJob(job, Embed(tuple(texts)))]

    def on_job(self, event: JobDone | JobFailed, now_us: int) -> list[Effect]:
        """The vectors of a role are there, or will not be."""
        seek = self._embedding.pop(event.job)
        if not isinstance(event, JobDone) or not isinstance(event.result, Embedded):
            why = event.error.message if isinstance(event, JobFailed) else "no vector"
            seek.notes.append(f"the encoder failed: {why}")
            return self._end(seek)
        effects: list[Effect] = []
        for vector in dict.fromkeys(event.result.vectors):
            if any(vector):
                self._last -= 1  # searches count upwards: the two never meet
                self._asked[self._last], seek.asked[self._last] = seek, None
                effects.append(SetTimer(TimerKey(MACHINE, SEEK, self._last), now_us + FIND_DHT_US))
                effects.append(Local(Find(self._last, self._encoder, vector, CANDIDATES_MAX)))
        return effects or self._end(seek)

    def on_found(self, done: FindDone, now_us: int) -> list[Effect]:
        """The DHT answered one of the questions."""
        seek = self._asked.pop(done.request)
        del seek.asked[done.request]
        if done.error is not None:
            seek.notes.append(f"the DHT did not answer: {done.error.message}")
        for _, record in done.found:
            self._take(record, seek.role, now_us)
        self._count()
        return [CancelTimer(TimerKey(MACHINE, SEEK, done.request)), *(self._end(seek) if not seek.asked else [])]

    def on_timer(self, key: TimerKey) -> list[Effect]:
        """The DHT took too long for one of them."""
        seek = self._asked.pop(key.ref, None) if isinstance(key.ref, int) else None
        if seek is None or not isinstance(key.ref, int):
            return []
        del seek.asked[key.ref]
        seek.notes.append(f"no answer of the DHT within {FIND_DHT_US // 1_000_000} s")
        return [Count("seeks_timed_out"), *(self._end(seek) if not seek.asked else [])]

    def _end(self, seek: _Seek) -> list[Effect]:
        del self._seeks[seek.role]
        why = seek.notes[0] if seek.notes else f"the DHT named nobody who is known to live and runs {seek.role}"
        return [Local(Sought(space, f"{NO_INDEX}, and {why}")) for space in seek.spaces]

    # ---- what is remembered

    def _take(self, record: SignedRecord, role: str, now_us: int) -> None:
        """The signature was checked by the DHT; nothing else that it says is taken for granted."""
        now_ms, value = self._clock.now_ms(now_us), record.value
        if not isinstance(value, AgentValue) or role not in value.roles:
            return
        if not record.live(now_ms) or not record.acceptable(now_ms) or not self._index.allows(record):
            return
        slot = (record.publisher, record.key)
        known = self._found.pop(slot, None)
        newest = record if known is None or record.version >= known[0].version else known[0]
        left_us = (newest.expiry_ms - now_ms) * 1_000
        self._found[slot] = (newest, now_us + min(left_us, OFFER_US))
        if len(self._found) > OFFERS_MAX:
            del self._found[next(iter(self._found))]

    def forget(self, record: SignedRecord) -> None:
        """The index heard of this slot: it is asked from now on."""
        if self._found.pop((record.publisher, record.key), None) is not None:
            self._count()

    def expire(self, now_us: int) -> None:
        """Drop what had its time."""
        gone = [slot for slot, (_, until_us) in self._found.items() if until_us <= now_us]
        for slot in gone:
            del self._found[slot]
        if gone:
            self._count()

    def _count(self) -> None:
        agents: dict[bytes, dict[str, AgentValue]] = {}
        for (publisher, _), (record, _) in self._found.items():
            if isinstance(record.value, AgentValue):
                agents.setdefault(publisher, {})[record.value.agent] = record.value
        self._offers = {publisher: candidate_of(publisher, agents[publisher]) for publisher in sorted(agents)}
