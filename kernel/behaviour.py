"""The kernel as a machine: commands in, tasks carried on, replies and notices out.

It routes: what changed in a space goes to that task's views, then to the turn machine; jobs go back to the turn
that started them; commands are answered from the views. The way of a task is one line:

    Submit → Embed → open + document units (one durable write) → ack → named peer claims → RunTurn → unit → Decide →
    done{next} → … → done{answer} → everybody who watches sees it
"""

from __future__ import annotations

from collections.abc import Callable

from dht.events import FindDone
from gossip.events import (
    Acked,
    Durable,
    Linked,
    MemberDown,
    MemberUp,
    RecordChanged,
    SpaceChanged,
    SpaceOpened,
    Unlinked,
)
from gossip.replication import Draft, Replication
from kernel.bounds import tail_bytes
from kernel.commands import (
    CancelTask,
    EngineReport,
    FindAgents,
    FollowTask,
    KernelCommand,
    ListAgents,
    ListTasks,
    MemoryDigests,
    ShowTask,
    Submit,
)
from kernel.config import MACHINE, KernelConfig, Self
from kernel.decide import missing_role
from kernel.jobs import Candidate, Decide, Decision, Embed, Summarise, Summarised, TurnResult
from kernel.liveness import Liveness
from kernel.memory.pool import Pool
from kernel.memory.summary import Summaries
from kernel.offers import Offers
from kernel.scout import SEEK, Sought
from kernel.searches import Reach, View
from kernel.submits import Submits, Tasks
from kernel.task import RemoteProgress, Task, candidate_of
from kernel.task_view import task_line, task_view
from kernel.trust import Trust, first_hand
from kernel.turns.fold import TaskFold
from kernel.turns.machine import MACHINE as TURNS, Turns
from protocol.capability import AgentValue
from protocol.clock import SwarmClock
from protocol.errors import NotFound, Refused, SwarmError, UsageError
from protocol.machine import (
    AbortJob,
    Command,
    Count,
    Effect,
    JobDone,
    JobFailed,
    JobId,
    JobIds,
    JobProgress,
    Notify,
    Received,
    Reply,
    Send,
    StartJob,
    Stopping,
    Suspended,
    TimerFired,
    TimerKey,
)
from protocol.messages import TAIL_BYTES_MAX, Progress, Watch
from protocol.peer import PeerID
from protocol.records import Cancel, sign_body
from protocol.spaces import swarm_space
from protocol.transport import Lane

__all__ = ["Kernel", "Self"]

TRUST_TASKS_MAX = 1_000  # the newest tasks tell what peers are worth
_TASK_PREFIX_MIN = 4
_FOR_WANT = frozenset(("next", "no_capable_agent"))  # outcomes that another agent could change


class Kernel:
    """The machine."""

    def __init__(
        self,
        me: Self,
        logs: Replication,
        clock: SwarmClock,
        config: KernelConfig,
        jobs: JobIds,
        reach: Reach | None = None,
    ) -> None:
        self._me = PeerID(me.node.public)
        self._user = me.user
        self._genesis = me.genesis
        self._logs = logs
        self._clock = clock
        self._config = config
        self._jobs = jobs
        self._tasks: dict[bytes, Task] = {}
        self._linked: dict[PeerID, None] = {}
        self._trust: dict[bytes, Trust] | None = None  # None: a task has ended since it was counted
        self._agents: dict[bytes, dict[str, AgentValue]] = {}  # peer -> its live records, by agent
        self._offers: dict[bytes, Candidate] = {}  # peer -> these records as one
        self._job_of: dict[JobId, tuple[bytes, object]] = {}  # job -> (space, spec)
        self._following: dict[bytes, None] = {}
        self._turns = Turns(self._me, logs, clock, config, jobs, self._world)
        reach = reach or Reach()
        self._liveness = Liveness(self._me, lambda n: reach.silence_us(n) if reach.index_complete() else None)
        self._directory = Offers(self._me, me.genesis.encoder, clock, jobs, self._view, reach)
        self._scout = self._directory.scout
        tasks = Tasks(self.task, self._full, self._world, self._scout.seek)
        self._submits = Submits(me, logs, clock, config, jobs, tasks)

    def _view(self, now_us: int) -> View:
        down, up = self._liveness.not_alive(now_us), self._liveness.workers()
        return View(frozenset(self._linked), self._first_hand(), down, up)

    def _first_hand(self) -> dict[bytes, Trust]:
        return first_hand(task.fold for task in list(self._tasks.values())[-TRUST_TASKS_MAX:])

    def _world(self) -> tuple[dict[bytes, Candidate], frozenset[bytes]]:
        """Who offers what, and who is alive; what the DHT named counts where nothing is held of its node."""
        named = self._scout.offers
        return named | self._offers if named else self._offers, self._liveness.workers()

    def worth(self, peer: PeerID) -> int:
        """What this node saw of a peer's turns, as points of its score in the mesh; counted anew when a task ends."""
        if self._trust is None:  # once for all tasks that ended meanwhile: at Boot these are thousands
            self._trust = self._first_hand()
        trust = self._trust.get(peer)
        return trust.points if trust is not None else 0

    def offers(self) -> dict[bytes, Candidate]:
        """Live capability records by peer, own included."""
        return {peer: self._offers[peer] for peer in sorted(self._offers)}

    def task(self, space: bytes) -> Task | None:
        """A task as this node sees it; to look at, not to change."""
        return self._tasks.get(space)

    def task_count(self) -> int:
        """Tasks that this node holds."""
        return len(self._tasks)

    def _full(self) -> bool:
        return len(self._tasks) >= self._config.tasks_max

    def handle(self, event: object, now_us: int) -> list[Effect]:
        """Take one event; effects of jobs that it starts are noted, so that their answers find their way."""
        self._scout.expire(now_us)
        effects = self._route(event, now_us)
        for effect in effects:
            if isinstance(effect, StartJob) and effect.job not in self._job_of:
                self._job_of[effect.job] = (getattr(effect.spec, "space", b""), effect.spec)
            elif isinstance(effect, AbortJob):
                self._job_of.pop(effect.job, None)
        return effects

    def _route(self, event: object, now_us: int) -> list[Effect]:
        match event:
            case SpaceChanged() | SpaceOpened() | Durable() | Acked():
                return self._on_space(event, now_us)
            case JobDone() | JobFailed() | JobProgress():
                return self._on_job(event, now_us)
            case TimerFired(key):
                return self._on_timer(key, now_us)
            case Command(request_id, command):
                return self._on_command(request_id, command, now_us)
            case Linked() | Unlinked():
                return self._on_link(event, now_us)
            case MemberUp() | MemberDown():
                self._liveness.note(event)
                return self._consider_all(now_us)
            case RecordChanged(record, live) if isinstance(record.value, AgentValue):
                self._directory.on_record(record, live=live)
                return self._on_offer(record.publisher, record.value, now_us, live=live)
            case Received(peer, Watch() | Progress() as frame) if peer in self._linked:
                return self._on_progress_frame(peer, frame)
            case EngineReport():
                return self._directory.on_engine(event)
            case FindDone():
                return self._directory.on_found(event, now_us)
            case Sought(space, note):
                return self._on_sought(space, note, now_us)
            case Suspended():
                return [e for task in self._sorted() for e in self._turns.on_suspended(task, now_us)]
            case Stopping():
                self._turns.stopping = True
                ended = self._directory.stop()
                return ended + [e for task in self._sorted() for e in self._turns.give_back(task, "leaving", now_us)]
            case _:
                return []

    def _on_link(self, event: Linked | Unlinked, now_us: int) -> list[Effect]:
        match event:
            case Linked(peer, _):
                if not self._linked:
                    self._liveness.on_first_link(now_us)
                self._linked[peer] = None
                return [Send(peer, Lane.CONTROL, Watch(s, on=True)) for s in self._following]
            case Unlinked(peer):
                self._linked.pop(peer, None)
                for task in self._tasks.values():
                    task.watchers.pop(peer, None)
                return []

    def _sorted(self) -> list[Task]:
        return [self._tasks[space] for space in sorted(self._tasks)]

    def _consider_all(self, now_us: int) -> list[Effect]:
        return [effect for task in self._sorted() for effect in self._turns.consider(task, now_us)]

    # ---- spaces

    def _on_space(self, event: SpaceChanged | SpaceOpened | Durable | Acked, now_us: int) -> list[Effect]:
        if event.space == swarm_space(self._genesis.swarm_id):
            return []
        match event:
            case SpaceChanged(space, added):
                task = self._task(space, now_us)
                if task is None:
                    return [Count("tasks_full")]
                task.update(added, now_us)
                return [*self._turns.consider(task, now_us), *self._tell(task)]
            case SpaceOpened(space):
                task = self._tasks.get(space)
                return self._turns.on_opened(task, now_us) if task is not None else []
            case Durable(space, ids):
                task = self._tasks.get(space)
                done = self._turns.on_durable(task, ids, now_us) if task is not None else []
                return done + self._submits.note_ack(space, None, ids)
            case Acked(space, holder, ids):
                return self._submits.note_ack(space, holder, ids)

    def _task(self, space: bytes, now_us: int) -> Task | None:
        task = self._tasks.get(space)
        log = self._logs.log(space)
        if task is None and log is not None and not self._full():
            spec = self._genesis.encoder
            pool = Pool(log, tau=spec.tau, k=spec.k or None, encoder=spec.id, dim=spec.dim)
            task = self._tasks[space] = Task(space, log, TaskFold(log), pool, Summaries(log, pool))
            task.learn(log.kept(), now_us)  # the log may be ahead of this notice
        return task

    def _tell(self, task: Task) -> list[Effect]:
        """Watchers learn of every change; the kernel forgets what an ended task needs no more."""
        effects: list[Effect] = [Notify(f"task/{task.space.hex()}", "changed")]
        if task.fold.outcome != task.told_outcome:
            task.told_outcome = task.fold.outcome
            self._trust = None
            if task.fold.outcome != "open":
                task.remote, task.failures = None, {}
                self._following.pop(task.space, None)
        return effects

    # ---- jobs

    def _on_job(self, event: JobDone | JobFailed | JobProgress, now_us: int) -> list[Effect]:
        known = self._job_of.get(event.job)
        if known is None:
            return []
        space, spec = known
        if isinstance(event, JobProgress):
            return self._on_own_progress(space, event, now_us)
        del self._job_of[event.job]
        if isinstance(spec, Embed):
            opens = self._submits.owns(event.job)
            return self._submits.on_embedded(event, now_us) if opens else self._directory.on_job(event, now_us)
        task = self._tasks[space]
        if isinstance(spec, Summarise):
            if isinstance(event, JobDone) and isinstance(event.result, Summarised):
                return self._turns.on_summarised(task, spec, event.result, now_us)
            task.summary_job = None
            return [Count("summaries_failed")]
        if task.run is None or task.run.job != event.job:
            return [Count("late_job_answers")]
        match event:
            case JobDone(_, TurnResult() as result):
                return self._turns.on_turn_done(task, result, now_us)
            case JobDone(_, Decision() as decision):
                return self._seek_next(task, spec, decision) or self._turns.on_decided(task, decision, now_us)
            case JobFailed(_, error) if task.run.stage == "running":
                return self._turns.on_turn_failed(task, error, now_us)
            case _:
                return self._turns.on_decide_failed(task, now_us)

    def _seek_next(self, task: Task, spec: object, decision: Decision) -> list[Effect]:
        """Nobody known runs what should come next: ask the DHT before something else does; once a turn."""
        run = task.run
        if run is None or run.sought or not isinstance(spec, Decide) or decision.outcome not in _FOR_WANT:
            return []
        effects = self._scout.seek(task.space, missing_role(spec))
        if effects:
            run.sought, run.job = True, None
        return effects

    def _on_sought(self, space: bytes, note: str, now_us: int) -> list[Effect]:
        """The DHT named what it could: the submit or the decision that waited goes on."""
        effects, task = self._submits.on_sought(space, note, now_us), self._tasks.get(space)
        return effects + (self._turns.decide_again(task, now_us) if task is not None else [])

    def _on_timer(self, key: TimerKey, now_us: int) -> list[Effect]:
        if key.machine == MACHINE and key.what == "ack" and isinstance(key.ref, bytes):
            return self._submits.on_timer(key.ref)
        if key.machine == MACHINE and key.what in ("embed", "find", SEEK):
            return self._directory.on_timer(key, now_us)
        task = self._tasks.get(key.ref) if isinstance(key.ref, bytes) and key.machine == TURNS else None
        if task is None or task.fold.open is None:
            return []
        handlers: dict[str, Callable[[Task, int], list[Effect]]] = {
            "claim": self._turns.consider,
            "renew": self._turns.on_renew_timer,
            "lease": self._turns.on_lease_timer,
            "decide": self._turns.on_decide_timer,
            "vote": self._turns.on_vote_timer,
            "deadline": self._turns.on_deadline_timer,
        }
        return handlers[key.what](task, now_us)

    # ---- capability

    def _on_offer(self, publisher: bytes, value: AgentValue, now_us: int, *, live: bool) -> list[Effect]:
        agents = self._agents.setdefault(publisher, {})
        agents.pop(value.agent, None)
        if live:
            agents[value.agent] = value
        if agents:
            self._liveness.hold(publisher, now_us)
            self._offers[publisher] = candidate_of(publisher, agents)
        else:
            self._liveness.release(publisher)
            del self._agents[publisher]
            self._offers.pop(publisher, None)
        return self._consider_all(now_us)

    # ---- progress

    def _on_own_progress(self, space: bytes, event: JobProgress, now_us: int) -> list[Effect]:
        task = self._tasks.get(space)
        run = task.run if task is not None else None
        if task is None or run is None or run.job != event.job:
            return []
        run.tokens, run.tail = event.tokens, tail_bytes(event.tail, TAIL_BYTES_MAX)
        if now_us - run.told_us < self._config.progress_every_us:
            return []
        run.told_us = now_us
        frame = Progress(space, run.step, run.claim, run.tokens, run.tail)
        sends: list[Effect] = [Send(PeerID(peer), Lane.CONTROL, frame) for peer in sorted(task.watchers)]
        return [*sends, Notify(f"task/{space.hex()}", "progress")]

    def _on_progress_frame(self, peer: PeerID, frame: Watch | Progress) -> list[Effect]:
        task = self._tasks.get(frame.space)
        if task is None:
            return []
        match frame:
            case Watch(_, on):
                if not on:
                    task.watchers.pop(peer, None)
                elif len(task.watchers) < self._config.watchers_max:
                    task.watchers[peer] = None
                return []
            case Progress(space, _, claim, tokens, tail):
                view = task.fold.claim(claim)
                if view is None or view.author != peer:
                    return [Count("progress_refused")]
                task.remote = RemoteProgress(claim, tokens, tail_bytes(tail, TAIL_BYTES_MAX))
                return [Notify(f"task/{space.hex()}", "progress")]

    # ---- commands

    def _on_command(self, request_id: int, command: object, now_us: int) -> list[Effect]:
        if not isinstance(command, KernelCommand):
            return []
        try:
            match command:
                case Submit():
                    return self._submits.on_submit(request_id, command, now_us)
                case CancelTask():
                    return self._on_cancel(request_id, command, now_us)
                case FollowTask(task, on):
                    return self._on_follow(request_id, self._find(task), on=on)
                case ShowTask(task):
                    return [Reply(request_id, task_view(self._find(task), self._me))]
                case ListTasks():
                    return [Reply(request_id, [task_line(task) for task in self._sorted()])]
                case MemoryDigests():
                    return [Reply(request_id, self._digests())]
                case FindAgents():
                    return self._directory.on_find(request_id, command)
                case ListAgents():
                    return [Reply(request_id, self._directory.agents(now_us))]
        except SwarmError as exc:
            return [Reply(request_id, exc)]

    def _find(self, prefix: str) -> Task:
        hits = [task for task in self._sorted() if task.space.hex().startswith(prefix.lower())]
        if len(prefix) < _TASK_PREFIX_MIN or not hits:
            raise NotFound(f"no task {prefix!r} on this node", hint="see `masos task ls`")
        if len(hits) > 1:
            raise UsageError(f"{prefix!r} names {len(hits)} tasks", hint="give more of the id")
        return hits[0]

    def _digests(self) -> list[dict[str, object]]:
        return [
            {
                "space": task.space.hex(),
                "ops": len(task.log),
                "set": task.log.digest().hex(),
                "state": task.fold.state_digest().hex(),
            }
            for task in self._sorted()
        ]

    def _on_cancel(self, request_id: int, command: CancelTask, now_us: int) -> list[Effect]:
        task = self._find(command.task)
        if task.fold.open is None or task.open.by != self._user.public:
            raise Refused("this profile's user did not open the task", hint="cancel it where it was submitted")
        if task.fold.outcome == "open":
            body = sign_body(self._user, task.space, Cancel(reason=command.reason[:500], by=bytes(32), sig=bytes(64)))
            _, effects = self._logs.append(
                task.space, Draft(body, task.fold.open_op_ids(task.fold.root or b"")[:1]), now_us
            )
            return [*effects, Reply(request_id, {"task": task.space.hex(), "status": "cancelled"})]
        return [Reply(request_id, {"task": task.space.hex(), "status": task.fold.outcome})]

    def _on_follow(self, request_id: int, task: Task, *, on: bool) -> list[Effect]:
        if on and task.fold.outcome == "open":
            self._following[task.space] = None
        else:
            self._following.pop(task.space, None)
        sends: list[Effect] = [Send(peer, Lane.CONTROL, Watch(task.space, on=on)) for peer in sorted(self._linked)]
        return [*sends, Reply(request_id, {"task": task.space.hex()})]
