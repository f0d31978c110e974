"""The vocabulary of every machine: events in, effects out (protocol.md §1).

    handle(event, now_us) -> list[Effect]        now_us: boot-time microseconds, integers only

A machine does no I/O and has no clock, randomness or keys but those handed to its constructor. Timers, writes
and slow work are effects; their outcomes come back as events. So the same machine runs under trio in production,
under a heap in simulation, and under hypothesis.

Production and simulation route events to machines in node/core.py, which drains `Local` effects first-in
first-out within the same call.
"""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass
from typing import NamedTuple, Protocol

from protocol.errors import SwarmError
from protocol.messages import Frame, Hello
from protocol.peer import PeerID, PeerInfo
from protocol.store import Row
from protocol.transport import Lane


class JobId(NamedTuple):
    """Contains the incarnation: an answer to a job of an earlier life is dropped."""

    inst: int
    n: int


class TimerKey(NamedTuple):
    """`machine` routes the timer back; the rest is the machine's own. Setting a key again moves the timer."""

    machine: str
    what: str
    ref: Hashable = None


@dataclass(frozen=True, slots=True)
class JobSpec:
    """Base of slow or outside work: RunTurn, Decide, Embed, Summarise (kernel/jobs.py)."""


# ---- events


@dataclass(frozen=True, slots=True)
class Boot:
    """First event of a life. `clean`: the last life stopped in order. Wall time = boot time + offset."""

    inst: int
    wall_offset_us: int
    clean: bool


@dataclass(frozen=True, slots=True)
class ClockOffset:
    """The wall clock was set."""

    wall_offset_us: int


@dataclass(frozen=True, slots=True)
class Suspended:
    """The machine slept for so long: all own leases count as lost."""

    us: int


@dataclass(frozen=True, slots=True)
class PeerUp:
    """A link is open and the peer said this Hello; it is not checked yet."""

    peer: PeerID
    hello: Hello


@dataclass(frozen=True, slots=True)
class PeerDown:
    """The link is gone."""

    peer: PeerID
    reason: str


@dataclass(frozen=True, slots=True)
class DialFailed:
    """No address gave a link."""

    peer: PeerID
    reason: str


@dataclass(frozen=True, slots=True)
class Received:
    """A well-formed frame from a linked peer."""

    peer: PeerID
    frame: Frame


@dataclass(frozen=True, slots=True)
class Misbehaved:
    """A linked peer sent bytes that are no frame."""

    peer: PeerID
    reason: str


@dataclass(frozen=True, slots=True)
class SendDropped:
    """A frame did not enter the queue of its link."""

    peer: PeerID
    kind: str
    ref: Hashable


@dataclass(frozen=True, slots=True)
class Writable:
    """A link that dropped frames has room again."""

    peer: PeerID


@dataclass(frozen=True, slots=True)
class TimerFired:
    """A timer came due."""

    key: TimerKey


@dataclass(frozen=True, slots=True)
class JobDone:
    """A job or a Persist is complete."""

    job: JobId
    result: object


@dataclass(frozen=True, slots=True)
class JobFailed:
    """A job or a Persist failed."""

    job: JobId
    error: SwarmError


@dataclass(frozen=True, slots=True)
class JobProgress:
    """A running job has partial output: tokens so far, and the last of the text."""

    job: JobId
    tokens: int
    tail: str


@dataclass(frozen=True, slots=True)
class Command:
    """Somebody at the control API asks; answered by `Reply` with the same id."""

    request_id: int
    command: object


@dataclass(frozen=True, slots=True)
class Stopping:
    """The operator stops the node; be done by the deadline."""

    deadline_us: int


Event = (
    Boot | ClockOffset | Suspended | PeerUp | PeerDown | DialFailed | Received | Misbehaved | SendDropped | Writable
    | TimerFired | JobDone | JobFailed | JobProgress | Command | Stopping
)  # fmt: skip

# ---- effects


@dataclass(frozen=True, slots=True)
class Send:
    """Send a frame; if it does not enter the queue, `SendDropped(peer, kind, ref)` comes back."""

    peer: PeerID
    lane: Lane
    frame: Frame
    ref: Hashable = None


@dataclass(frozen=True, slots=True)
class Dial:
    """Try to link to a peer."""

    info: PeerInfo


@dataclass(frozen=True, slots=True)
class Hangup:
    """End a link once what is queued is sent."""

    peer: PeerID
    reason: str


@dataclass(frozen=True, slots=True)
class SetTimer:
    """Fire `key` at boot time `at_us`."""

    key: TimerKey
    at_us: int


@dataclass(frozen=True, slots=True)
class CancelTimer:
    """Forget a timer."""

    key: TimerKey


@dataclass(frozen=True, slots=True)
class Persist:
    """Write rows, atomically; answered by JobDone."""

    job: JobId
    rows: tuple[Row, ...]


@dataclass(frozen=True, slots=True)
class StartJob:
    """Begin slow work."""

    job: JobId
    spec: JobSpec


@dataclass(frozen=True, slots=True)
class AbortJob:
    """Stop slow work for good; no answer of it is awaited."""

    job: JobId


@dataclass(frozen=True, slots=True)
class Local:
    """An event for the other machines of this node, drained within the same call."""

    event: object


@dataclass(frozen=True, slots=True)
class Reply:
    """Answer to a Command: a value, or the error to show."""

    request_id: int
    result: object


@dataclass(frozen=True, slots=True)
class Notify:
    """Something that watchers of a topic want to see."""

    topic: str
    value: object


@dataclass(frozen=True, slots=True)
class Count:
    """Add to a named counter."""

    name: str
    n: int = 1


Effect = (
    Send | Dial | Hangup | SetTimer | CancelTimer | Persist | StartJob | AbortJob | Local | Reply | Notify | Count
)  # fmt: skip


class Machine(Protocol):
    """What node/core.py composes."""

    def handle(self, event: object, now_us: int) -> list[Effect]:
        """Take one event at a boot time; never goes back in time."""
        ...


class JobIds:
    """Hands out the job ids of one life."""

    def __init__(self) -> None:
        self.inst = 0
        self._n = 0

    def start(self, inst: int) -> None:
        """A new life begins."""
        self.inst = inst
        self._n = 0

    def next(self) -> JobId:
        """A job id that was never used."""
        self._n += 1
        return JobId(self.inst, self._n)
