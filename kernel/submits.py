"""Submits on their way: vectors first, then one durable write, then the acknowledgement that was asked for.

    Submit ─► Embed ─► open + document units (all or nothing, one write) ─► durable ─► receipts ─► Reply
                   └─► seek ─► Sought ┘     nobody known runs the first step, and the index is not complete

Rules of this file
- Everything is built and measured before anything is appended: a task never begins that its submitter could not finish.
- `local`: the task is on this node's disk. `w1`: one other node has on its disk all of the task that this node wrote.
  What another node wrote is on two disks by the time it is here, because its author persists before it tells.
- A second submit under one client key asks for the same acknowledgement, and gets no other answer than the first one
  would: receipts on disk count, and where they do not suffice the ops are pushed again.
- `ack` is how long the user wants to wait, no part of the task: requests that differ only in it are one submit.
- An answer of the encoder counts for the submit that asked for it, by its job and not by its space.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Final

from gossip.replication import Draft, Replication
from kernel.commands import Ack, Submit
from kernel.config import MACHINE, KernelConfig, Self
from kernel.jobs import Candidate, Embed, Embedded
from kernel.submission import Swarm, attachment_ids, build_open, check, document_units, missing_role, same_request
from kernel.task import Task
from kernel.task_view import task_line
from protocol.clock import SwarmClock
from protocol.errors import Conflict, EngineError, Refused, RequestTimeout, SwarmError
from protocol.machine import AbortJob, Effect, JobDone, JobFailed, JobId, JobIds, Reply, SetTimer, StartJob, TimerKey
from protocol.records import Record
from protocol.spaces import task_space

PENDING_MAX: Final = 256  # submits that are not acknowledged yet, and requests that wait for one of them
EMBED_PART_US: Final = 1_000_000  # more time for each part of a document


@dataclass(slots=True)
class Pending:
    """A submit that is not acknowledged yet.

    Attributes:
        command: what the first request gave; the others differ from it in `ack` at most.
        waiting: what each request wants.
        existing: the task was there before.
        job: the vectors that it waits for; None once they came.
        vectors: these, while the DHT is asked who runs the first step; it is asked once.
        needs: ops by this node that must be acknowledged; of each set one is enough.
        acked: what other nodes hold, by their receipts.
    """

    command: Submit
    waiting: dict[int, Ack]
    existing: bool
    job: JobId | None = None
    vectors: Embedded | None = None
    needs: tuple[frozenset[bytes], ...] = ()
    acked: dict[bytes, set[bytes]] = field(default_factory=dict)

    @property
    def preparing(self) -> bool:
        """Nothing is written yet."""
        return self.job is not None or self.vectors is not None

    @property
    def held(self) -> bool:
        """Whether one other node holds all that is needed."""
        return not self.needs or any(
            all(not need.isdisjoint(ids) for need in self.needs) for ids in self.acked.values()
        )


@dataclass(frozen=True, slots=True)
class Tasks:
    """What a submit sees of the kernel: a task of this node, whether one more fits, offers and who is alive.

    `seek` asks the DHT for a role that a task needs; `Sought` follows unless it gives nothing (kernel/scout.py).
    """

    get: Callable[[bytes], Task | None]
    full: Callable[[], bool]
    world: Callable[[], tuple[dict[bytes, Candidate], frozenset[bytes]]]
    seek: Callable[[bytes, str], list[Effect]]


class Submits:
    """The part of the kernel that opens tasks."""

    def __init__(
        self, me: Self, logs: Replication, clock: SwarmClock, config: KernelConfig, jobs: JobIds, tasks: Tasks
    ) -> None:
        self._me = me.node.public
        self._user = me.user
        self._genesis = me.genesis
        self._logs = logs
        self._clock = clock
        self._config = config
        self._jobs = jobs
        self._tasks = tasks
        self._pending: dict[bytes, Pending] = {}
        self._embedding: dict[JobId, bytes] = {}  # job -> space

    # ---- asking

    def on_submit(self, request_id: int, command: Submit, now_us: int) -> list[Effect]:
        """Begin a submit, or join the one that is under way.

        Raises:
            UsageError: out of bounds.
            Conflict: the client key names another task.
            Refused: this node holds or awaits too much.
        """
        check(command)
        space = task_space(self._genesis.swarm_id, self._user.public, command.client_key)
        pending = self._pending.get(space)
        if pending is not None:
            return self._join(space, pending, request_id, command)
        if len(self._pending) >= PENDING_MAX:
            raise Refused(f"{PENDING_MAX} submits are under way on this node", hint="try again in a moment")
        task = self._tasks.get(space)
        exists = task is not None and task.fold.open is not None
        if task is None and self._tasks.full():
            raise Refused("this node holds as many tasks as it may", hint="submit on another node")
        pending = Pending(command, {request_id: command.ack}, exists)
        if task is not None and exists:
            _check_same(task, command)
            if task.complete_attachments() or task.fold.ended:
                return self._await_existing(space, pending, task, now_us)
        pending.job = self._jobs.next()
        self._pending[space], self._embedding[pending.job] = pending, space
        return [StartJob(pending.job, Embed(command.document)), self._timer(space, command, now_us)]

    def _join(self, space: bytes, pending: Pending, request_id: int, command: Submit) -> list[Effect]:
        if replace(pending.command, ack=command.ack) != command:
            raise Conflict("another task with this client key is being submitted", hint="use another client key")
        if len(pending.waiting) >= PENDING_MAX:
            raise Refused(f"{PENDING_MAX} requests wait for this submit", hint="try again in a moment")
        pending.waiting[request_id] = command.ack
        return self._settle(space)

    def _await_existing(self, space: bytes, pending: Pending, task: Task, now_us: int) -> list[Effect]:
        self._pending[space] = pending
        pushes = self._need_old(pending, task)
        replies = self._settle(space)
        waits = space in self._pending
        return [*replies, *(pushes if waits else []), *([self._timer(space, pending.command, now_us)] if waits else [])]

    def _timer(self, space: bytes, command: Submit, now_us: int) -> SetTimer:
        wait_us = self._config.ack_wait_us + EMBED_PART_US * len(command.document)
        return SetTimer(TimerKey(MACHINE, "ack", space), now_us + wait_us)

    # ---- writing

    def owns(self, job: JobId) -> bool:
        """True for the vectors of a submit."""
        return job in self._embedding

    def on_embedded(self, event: JobDone | JobFailed, now_us: int) -> list[Effect]:
        """The vectors are there, or will not be."""
        space = self._embedding.pop(event.job)
        pending = self._pending[space]  # a submit that ended has aborted its job
        pending.job = None
        if not isinstance(event, JobDone) or not isinstance(event.result, Embedded):
            error = event.error if isinstance(event, JobFailed) else EngineError("the encoder gave no vectors")
            return self._fail(space, error)
        seeking = self._seek(space, pending, now_us)
        if seeking:
            pending.vectors = event.result
            return [*seeking, self._timer(space, pending.command, now_us)]
        return self._write(space, pending, event.result, now_us)

    def on_sought(self, space: bytes, note: str, now_us: int) -> list[Effect]:
        """The DHT was asked who runs the first step."""
        pending = self._pending.get(space)
        if pending is None or pending.vectors is None:
            return []
        vectors, pending.vectors = pending.vectors, None
        return self._write(space, pending, vectors, now_us, note)

    def _seek(self, space: bytes, pending: Pending, now_us: int) -> list[Effect]:
        """Ask for who runs the first step of a new task, if nobody known does."""
        task = self._tasks.get(space)
        if task is not None and task.fold.open is not None:
            return []
        try:
            role = missing_role(space, pending.command, self._swarm(now_us))
        except SwarmError:
            return []  # what cannot be opened fails where it is built
        return self._tasks.seek(space, role)

    def _write(self, space: bytes, pending: Pending, vectors: Embedded, now_us: int, note: str = "") -> list[Effect]:
        task = self._tasks.get(space)
        effects: list[Effect] = []
        try:
            parts = attachment_ids(pending.command.document)
            units = list(zip(parts, document_units(pending.command, vectors), strict=True))
            if task is not None and task.fold.open is not None:  # it may have come from elsewhere meanwhile
                _check_same(task, pending.command)
                pending.existing = True
                effects += self._need_old(pending, task)
                records: list[Record] = [unit for digest, unit in units if digest not in task.contents]
            else:
                swarm = replace(self._swarm(now_us), note=note)
                task_open = build_open(self._user, space, pending.command, swarm, self._config.defaults)
                records = [task_open, *(unit for _, unit in units)]
            for record in records:
                op, more = self._logs.append(space, Draft(record), now_us)
                pending.needs += (frozenset((op.id,)),)
                effects += more
        except SwarmError as exc:
            return effects + self._fail(space, exc)
        return effects + self._settle(space)

    def _swarm(self, now_us: int) -> Swarm:
        offers, alive = self._tasks.world()
        return Swarm(offers, tuple(sorted(alive)), self._genesis.encoder.id, self._clock.now_ms(now_us))

    # ---- acknowledging

    def _need_old(self, pending: Pending, task: Task) -> list[Effect]:
        """Count what is there of a task and who holds it; the pushes that bring it to everybody once more."""
        root = task.fold.root
        sets = [() if root is None else task.fold.open_op_ids(root)]
        sets += [tuple(task.contents.get(digest, ())) for digest in dict.fromkeys(task.open.attachments)]
        pending.needs = tuple(frozenset(ids) for ids in sets if ids and all(self._wrote(task, i) for i in ids))
        ids = tuple(dict.fromkeys(i for alike in sets for i in alike if self._wrote(task, i)))
        for op_id in ids:
            for holder in self._logs.holders_of(op_id):
                pending.acked.setdefault(holder, set()).add(op_id)
        return self._logs.repush(task.space, ids)

    def _wrote(self, task: Task, op_id: bytes) -> bool:
        op = task.log.get(op_id)
        return op is not None and op.author == self._me

    def note_ack(self, space: bytes, holder: bytes | None, ids: tuple[bytes, ...]) -> list[Effect]:
        """Own ops are on this node's disk (`holder` None), or on another's."""
        pending = self._pending.get(space)
        if pending is None or pending.preparing:
            return []
        if holder is not None:
            pending.acked.setdefault(holder, set()).update(ids)
        return self._settle(space)

    def _settle(self, space: bytes) -> list[Effect]:
        """Answer the requests whose level is reached."""
        pending = self._pending[space]
        if pending.preparing or not self._durable(pending):
            return []
        level: Ack = "w1" if pending.held else "local"
        task = self._tasks.get(space)
        line = task_line(task) if task is not None else {"task": space.hex()}
        reply = {**line, "existing": pending.existing, "ack": level}
        reached = [request for request, ack in pending.waiting.items() if ack == "local" or level == "w1"]
        for request in reached:
            del pending.waiting[request]
        if not pending.waiting:
            del self._pending[space]
        return [Reply(request, reply) for request in reached]

    def _durable(self, pending: Pending) -> bool:
        return all(any(map(self._logs.tellable, need)) for need in pending.needs)

    def on_timer(self, space: bytes) -> list[Effect]:
        """Time is up for who still waits."""
        pending = self._pending.get(space)
        if pending is None:
            return []
        if pending.preparing:
            late = RequestTimeout(
                "the task was not prepared in time; nothing is written", hint="ask again with the same client key"
            )
            return self._fail(space, late)
        where = "on this node's disk only" if self._durable(pending) else "not written yet"
        return self._fail(
            space,
            RequestTimeout(
                f"no other node acknowledged the task in time; it is {where}",
                hint="the task goes on; ask again with the same client key, or submit with --ack local",
            ),
        )

    def _fail(self, space: bytes, error: SwarmError) -> list[Effect]:
        pending = self._pending.pop(space)
        aborts: list[Effect] = []
        if pending.job is not None:
            del self._embedding[pending.job]
            aborts.append(AbortJob(pending.job))
        return [*aborts, *(Reply(request, error) for request in pending.waiting)]


def _check_same(task: Task, command: Submit) -> None:
    if not same_request(task.open, command):
        raise Conflict(
            f"client key {command.client_key!r} already names task {task.space.hex()}", hint="use another client key"
        )
