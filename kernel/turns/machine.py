"""Taking turns without an orchestrator: rank, lease, renewal, takeover, votes (protocol.md §7).

One method per input, each on one task. `consider` is the heart: whenever something about a task changed, it works
out whether this node should claim the next step now, later (a timer), or not at all. A turn of this node then goes

    claim (durable) → RunTurn → unit (durable) → Decide → done (durable, pushed: the offer to the next peer)

and ends early, with the engine call really stopped, when its lease ends by the own clock, a done of the parent is
heard, the user cancels, the machine slept, or an own op of it is refused. Nothing here waits for gossip or reads a
clock.

After the deadline every participant claims by rank, whatever is missing and whoever would fit, to write that end: so
every task ends, on whatever node is left.
"""

from __future__ import annotations

from collections.abc import Callable

from gossip.replication import Draft, Replication
from kernel.allocator.select import BudgetTooSmall
from kernel.bounds import check_size, head_bytes, model_bounds
from kernel.config import KernelConfig
from kernel.decide import decide
from kernel.jobs import Candidate, Decide, Decision, RunTurn, Summarise, Summarised, TurnResult
from kernel.metered import SliceSpent
from kernel.task import Run, Task, candidates_of
from kernel.turns.rank import Free, claim_floor, current_claim, free_since, own_open_claim, rank_order, step_of_next
from protocol.clock import SwarmClock, hlc_to_ms
from protocol.contract import ZERO, Vector, add as add_vector, exhausted, remaining
from protocol.errors import SwarmError, UsageError
from protocol.identity import h64
from protocol.machine import AbortJob, CancelTimer, Count, Effect, JobIds, SetTimer, StartJob, TimerKey
from protocol.op import Op
from protocol.records import (
    NAME_CHARS_MAX,
    Claim,
    Done,
    Next,
    Outcome,
    Record,
    Release,
    Renew,
    Seen,
    Summary,
    Unit,
)

MACHINE = "turns"
NOTE_BYTES_MAX = 2_000  # of a step summary; protocol.records counts the same in characters
GIVEN_MAX = 64  # memory units named in the receipt of a unit (protocol.records.Unit)
SUMMARY_BYTES_MAX = 8_000  # protocol.records.Summary, in characters


class Turns:
    """The machine of all turns of this node; the kernel hands it tasks and events."""

    def __init__(
        self,
        me: bytes,
        logs: Replication,
        clock: SwarmClock,
        config: KernelConfig,
        jobs: JobIds,
        world: Callable[[], tuple[dict[bytes, Candidate], frozenset[bytes]]],
    ) -> None:
        """`world` gives the offers by peer (own included) and the peers alive now."""
        self._me = me
        self._logs = logs
        self._clock = clock
        self._config = config
        self._jobs = jobs
        self._world = world
        self.stopping = False  # the node leaves: it takes nothing on any more

    # ---- whenever a task changed

    def consider(self, task: Task, now_us: int) -> list[Effect]:
        """Bring what this node does in a task in line with what it knows."""
        if task.fold.open is None:
            return []
        if task.fold.outcome != "open":
            return [*self._stop(task), *self._vote_timer(task, now_us), *_cancel(task, "claim", "deadline")]
        effects = self._vote_timer(task, now_us)
        if task.run is not None:
            return effects if task.run.parent == task.tip else effects + self._stop(task)
        return effects + self._consider_claim(task, now_us)

    def on_opened(self, task: Task, now_us: int) -> list[Effect]:
        """This node may write here from now on; the others, back from the same outage, mostly since just now too."""
        task.opened_us = now_us
        return self.consider(task, now_us)

    def _consider_claim(self, task: Task, now_us: int) -> list[Effect]:
        if self.stopping or self._me not in task.open.participants or not self._logs.writable(task.space):
            return []
        mine = own_open_claim(task, self._me)
        if mine is not None:
            # A claim of this node without a run: of an earlier life, or given up. Nobody need wait for its end.
            return self._write(task, Release(claim=mine.id, reason="restarted"), (mine.id,), now_us)
        free, deadline_us = free_since(task, self._me), self._deadline_us(task, now_us)
        if deadline_us <= now_us:
            wait_us = self._order(task, free).index(self._me) * self._config.tau_us
            return self._claim_at(task, max(self._near_us(task, free, now_us), deadline_us) + wait_us, now_us)
        if not task.complete_attachments():
            return self._claim_at(task, deadline_us, now_us)
        if self._must_decline(task):
            return self._write(task, Release(done=task.tip, reason="no such agent here"), (task.tip,), now_us)
        turn_us = self._turn_us(task, free)
        if turn_us is None:
            return self._claim_at(task, deadline_us, now_us)
        return self._claim_at(task, min(self._near_us(task, free, now_us) + turn_us, deadline_us), now_us)

    def _claim_at(self, task: Task, at_us: int, now_us: int) -> list[Effect]:
        """Claim, or look again when it is time."""
        if at_us > now_us:
            return [SetTimer(TimerKey(MACHINE, "claim", task.space), at_us)]
        return self._claim(task, now_us)

    def _must_decline(self, task: Task) -> bool:
        """This node is named and cannot: saying so at once is free, silence would cost the others a wait."""
        nxt, done = self._next(task), task.fold.done(task.tip)
        if done is None or nxt.peer != self._me or task.fold.declined(task.tip, self._me):
            return False
        mine = self._world()[0].get(self._me)
        return mine is None or nxt.role not in mine.agents

    def _turn_us(self, task: Task, free: Free) -> int | None:
        """How long after it became free this node should claim the next step; None when a fitting peer will."""
        order, (_, alive) = self._order(task, free), self._world()
        fit, wait = self._fit(task), order.index(self._me) * self._config.tau_us
        if self._me not in fit:
            if any(peer in alive for peer in fit if peer in task.open.participants and peer != free.last):
                return None
            wait += self._config.no_agent_wait_us
        return wait + task.failures.get(task.tip, 0) * len(order) * self._config.tau_us

    def _order(self, task: Task, free: Free) -> list[bytes]:
        """The participants by rank, the one whose claim ended last behind all others."""
        named = self._next(task).peer
        passed_over = named is not None and (task.fold.declined(task.tip, named) or free.last == named)
        order = rank_order(task.tip, task.open.participants, None if passed_over else named, self._fit(task))
        order.sort(key=lambda node: node == free.last)
        return order

    def _fit(self, task: Task) -> frozenset[bytes]:
        role = self._next(task).role
        return frozenset(peer for peer, offer in self._world()[0].items() if role in offer.agents)

    def _near_us(self, task: Task, free: Free, now_us: int) -> int:
        """Boot time from which the next step is free, this node may write, and a claim lies no more than eps ahead.

        Others hold a claim back that lies further ahead, and would claim themselves meanwhile. A stamp lies ahead when
        somebody whose clock is wrong wrote just before. That delays a step by no more than the quarantine.
        """
        eps_ms, now_ms = task.open.eps_ms, self._clock.now_ms(now_us)
        stamp = self._logs.next_stamp(task.space, now_us)
        if hlc_to_ms(stamp) - eps_ms > now_ms:
            task.ahead = max(task.ahead, stamp)
        near_ms = hlc_to_ms(max(task.ahead, claim_floor(task, self._me))) - eps_ms
        near_us = now_us + (near_ms - now_ms) * 1000
        return max(task.opened_us, free.since_us, min(near_us, free.since_us + self._config.stamp_wait_us))

    def _next(self, task: Task) -> Next:
        done = task.fold.done(task.tip)
        named = done.next if done is not None else None
        return named if named is not None else task.open.next

    # ---- the claim and the lease

    def _claim(self, task: Task, now_us: int) -> list[Effect]:
        parent, fold = task.tip, task.fold
        old = current_claim(task)
        named = [parent] if fold.done(parent) is not None else [fold.open_op_ids(parent)[0]]
        ended = None
        if old is not None:
            ended = fold.released(old.id) or fold.last_renew(old.id)
            named += [old.id, *([ended] if ended else [])]
        wanted = self._next(task).slice if any(self._next(task).slice) else task.open.slice_max
        body = Claim(
            parent=parent,
            e=old.e + 1 if old is not None else 0,
            after=old.id if old is not None else None,
            ended=ended,
            slice=task.slice_for_claim(wanted),
        )
        op, effects = self._append(task, body, tuple(named), now_us, claim_floor(task, self._me))
        if op is None:
            return effects
        lease_us = task.open.lease_ms * 1000
        task.run = Run(op.id, parent, step_of_next(task), body.e, body.slice, now_us + lease_us)
        return [
            *effects,
            SetTimer(TimerKey(MACHINE, "renew", task.space), now_us + lease_us // 2),
            SetTimer(TimerKey(MACHINE, "lease", task.space), now_us + lease_us),
            SetTimer(TimerKey(MACHINE, "deadline", task.space), self._deadline_us(task, now_us)),
        ]

    def on_renew_timer(self, task: Task, now_us: int) -> list[Effect]:
        """Half the lease is over: move its end, while the turn goes on.

        A renewal that is stamped after the end that it should move has no effect (protocol.md §7.1), for nobody: then
        the lease ends here when it ends for the others.
        """
        run = task.run
        if run is None or run.renews >= task.open.renew_max or now_us >= run.lease_end_us:
            return []
        claim = task.fold.claim(run.claim)
        if claim is None or not claim.ok:
            return self._stop(task)
        end = task.fold.lease_end(run.claim)
        op, effects = self._append(task, Renew(claim=run.claim), (run.claim,), now_us)
        if op is None:
            return [*effects, *self._stop(task)]
        if op.hlc >= end:
            return [*effects, Count("renewals_without_effect")]
        lease_us = task.open.lease_ms * 1000
        run.renews += 1
        run.lease_end_us = now_us + lease_us
        return [
            *effects,
            SetTimer(TimerKey(MACHINE, "renew", task.space), now_us + lease_us // 2),
            SetTimer(TimerKey(MACHINE, "lease", task.space), run.lease_end_us),
        ]

    def on_lease_timer(self, task: Task, now_us: int) -> list[Effect]:
        """The own lease ended by the own clock: stop, whatever the turn was doing."""
        if task.run is None or now_us < task.run.lease_end_us:
            return []
        return [*self._stop(task), Count("leases_lost"), *self.consider(task, now_us)]

    def on_suspended(self, task: Task, now_us: int) -> list[Effect]:
        """The machine slept: the lease counts as lost, and is given back so that nobody waits for it."""
        if task.run is None:
            return []
        return [*self._stop(task), Count("leases_lost"), *self.consider(task, now_us)]

    def give_back(self, task: Task, reason: str, now_us: int) -> list[Effect]:
        """Stop the own turn and release its claim at once."""
        run = task.run
        if run is None:
            return []
        return [*self._stop(task), *self._write(task, Release(claim=run.claim, reason=reason), (run.claim,), now_us)]

    # ---- the turn

    def on_durable(self, task: Task, ids: tuple[bytes, ...], now_us: int) -> list[Effect]:
        """Own ops are on disk: a claim starts its turn, a unit its decision."""
        run = task.run
        if run is None:
            return []
        if run.stage == "claiming" and run.claim in ids:
            return self._begin(task, run, now_us)
        if run.stage == "writing" and run.unit in ids:
            return self._start_decide(task, run, now_us)
        return []

    def _begin(self, task: Task, run: Run, now_us: int) -> list[Effect]:
        offers, _ = self._world()
        nxt = self._next(task)
        mine = offers.get(self._me)
        end: Outcome | None = None
        if self._clock.now_ms(now_us) >= task.open.deadline_ms:
            end = "deadline"
        elif exhausted(run.slice) is not None:
            end = "budget_exhausted"
        elif mine is None or nxt.role not in mine.agents:
            end = "no_capable_agent"
        elif task.failures.get(run.parent, 0) >= self._config.turn_failures_max:
            end = "failed"
        if end is not None:
            return self._finish(task, run, Decision(end, None, _reason(end, run)), now_us)
        left_behind = self._unit_of_dead_claim(task, run)
        if left_behind is not None:
            run.unit, run.stage = left_behind, "writing"
            return [Count("turns_completed_from_unit"), *self._start_decide(task, run, now_us)]
        run.job, run.stage = self._jobs.next(), "running"
        return [StartJob(run.job, self._spec(task, run, nxt, now_us))]

    def _unit_of_dead_claim(self, task: Task, run: Run) -> bytes | None:
        """A result that an earlier owner of this step wrote before it died: complete with it, do not run again."""
        for claim in reversed(task.fold.claims_on(run.parent)):
            units = task.fold.units_of(claim.id) if claim.id != run.claim else ()
            if units:
                return units[0]
        return None

    def _spec(self, task: Task, run: Run, nxt: Next, now_us: int) -> RunTurn:
        left_ms = min(task.open.deadline_ms - self._clock.now_ms(now_us), run.slice[2])
        chosen = tuple(view for i in nxt.units if (view := task.pool.unit(i)) is not None)
        return RunTurn(
            space=task.space,
            claim=run.claim,
            step=run.step,
            role=nxt.role,
            agent=nxt.agent,
            objective=task.open.objective,
            summary=task.summary_text(),
            chosen=chosen,
            pool=task.pool.snapshot(self._config.pool_snapshot_max),
            slice=run.slice,
            deadline_s=left_ms / 1000,
            seed=h64(task.space, run.parent) >> 32,
        )

    def on_turn_done(self, task: Task, result: TurnResult, now_us: int) -> list[Effect]:
        """The agent answered: its result becomes a memory unit at once."""
        run = task.run
        assert run is not None
        run.job, run.result, run.used, run.stage = None, result, result.used, "writing"
        try:
            unit = self._unit(task, run, result)
        except UsageError as exc:
            return self.on_turn_failed(task, exc, now_us)
        op, effects = self._append(task, unit, (run.claim,), now_us)
        if op is None:
            return [*effects, *self._stop(task)]
        run.unit = op.id
        return effects

    def _unit(self, task: Task, run: Run, result: TurnResult) -> Unit:
        """The result as memory. Notes on it are cut to their bounds; the content itself is never cut here.

        Raises:
            UsageError: it does not fit an op.
        """
        nxt, mine = self._next(task), self._world()[0].get(self._me)
        given = tuple((unit_id, tokens) for unit_id, tokens, _ in result.receipt.given)
        with model_bounds("the result of the turn"):
            unit = Unit(
                claim=run.claim,
                agent=nxt.agent,
                role=nxt.role,
                action=result.action,
                content=result.content,
                summary=head_bytes(result.summary, NOTE_BYTES_MAX),
                tokens=result.used[0],
                emb=result.emb,
                encoder=result.encoder,
                verdict=head_bytes(result.verdict, NOTE_BYTES_MAX // 2) if result.verdict is not None else None,
                model=result.model[:NAME_CHARS_MAX],
                quality=mine.quality if mine is not None else "",
                context=given[:GIVEN_MAX],
            )
        check_size(unit, "the result of the turn")
        return unit

    def on_turn_failed(self, task: Task, error: SwarmError, now_us: int) -> list[Effect]:
        """The agent could not: give the turn back with the reason; after some failures the step ends."""
        run = task.run
        assert run is not None
        run.job = None
        if isinstance(error, BudgetTooSmall | SliceSpent):
            return self._finish(task, run, Decision("budget_exhausted", None, error.message), now_us)
        task.failures[run.parent] = task.failures.get(run.parent, 0) + 1
        return [Count("turns_failed"), *self.give_back(task, f"{error.code}: {error.message}"[:500], now_us)]

    # ---- the decision

    def _start_decide(self, task: Task, run: Run, now_us: int) -> list[Effect]:
        run.stage, run.job = "deciding", self._jobs.next()
        return [
            StartJob(run.job, self._decide_spec(task, run)),
            SetTimer(TimerKey(MACHINE, "decide", task.space), now_us + self._config.decide_us),
            *self._start_summary(task, run),
        ]

    def _decide_spec(self, task: Task, run: Run) -> Decide:
        unit = task.pool.unit(run.unit) if run.unit is not None else None
        roles = [self._role_of(task, done) for done in task.fold.chain]
        role = unit.role if unit is not None else self._next(task).role
        spent = add_vector(self._before(task, run), run.used)
        offers, alive = self._world()
        return Decide(
            space=task.space,
            claim=run.claim,
            step=run.step,
            max_steps=task.open.max_steps,
            objective=task.open.objective,
            summary=task.summary_text(),
            role=role,
            roles_so_far=(*roles, role),
            answer=unit is not None and unit.action == "answer",
            pool=task.pool.snapshot(self._config.pool_snapshot_max),
            candidates=candidates_of(task, offers, alive | {self._me}),
            left=remaining(task.budget, spent),
            slice_max=task.open.slice_max,
            policies=tuple(sorted(task.open.policies.items())),
            seed=h64(task.space, run.parent) >> 32,
        )

    def _before(self, task: Task, run: Run) -> Vector:
        claim = next((c for c in task.fold.claims_on(run.parent) if c.id == run.claim), None)
        return claim.before if claim is not None else ZERO

    def _role_of(self, task: Task, done_id: bytes) -> str:
        done = task.fold.done(done_id)
        unit = task.pool.unit(done.unit) if done is not None and done.unit is not None else None
        return unit.role if unit is not None else ""

    def on_decide_timer(self, task: Task, now_us: int) -> list[Effect]:
        """The scheduler took too long: the heuristic decides now, on the same observation."""
        run = task.run
        if run is None or run.stage != "deciding" or run.job is None:
            return []
        spec = self._decide_spec(task, run)
        aborted: list[Effect] = [AbortJob(run.job), Count("decisions_by_fallback")]
        return aborted + self.on_decided(task, decide(spec), now_us)

    def on_decide_failed(self, task: Task, now_us: int) -> list[Effect]:
        """The scheduler failed: the heuristic decides."""
        run = task.run
        assert run is not None
        return [Count("decisions_by_fallback"), *self.on_decided(task, decide(self._decide_spec(task, run)), now_us)]

    def on_decided(self, task: Task, decision: Decision, now_us: int) -> list[Effect]:
        """The successor is chosen, or the task ends."""
        run = task.run
        assert run is not None
        if self._clock.now_ms(now_us) >= task.open.deadline_ms and decision.outcome == "next":
            decision = Decision("deadline", None, "the deadline passed during the step")
        return self._finish(task, run, decision, now_us)

    def _finish(self, task: Task, run: Run, decision: Decision, now_us: int) -> list[Effect]:
        task.run = None
        done = Done(
            claim=run.claim,
            unit=run.unit,
            next=decision.next,
            outcome=decision.outcome,
            used=run.used,
            reason=decision.reason[:500],
        )
        named = (run.claim, *([run.unit] if run.unit is not None else []))
        timers = _cancel(task, "renew", "lease", "decide", "deadline")
        return timers + self._write(task, done, named, now_us)

    def decide_again(self, task: Task, now_us: int) -> list[Effect]:
        """The DHT was asked who runs the next step: decide with what is known now."""
        run = task.run
        if run is None or run.stage != "deciding" or run.job is not None:
            return []
        return self._start_decide(task, run, now_us)

    # ---- summary

    def _start_summary(self, task: Task, run: Run) -> list[Effect]:
        read = task.summaries.read()
        if task.summary_job is not None or not read.tail:
            return []
        task.summary_job = self._jobs.next()
        frontier = task.pool.frontier()
        spec = Summarise(task.space, task.open.objective, read.text, read.tail, step=run.step, frontier=frontier)
        return [StartJob(task.summary_job, spec)]

    def on_summarised(self, task: Task, spec: Summarise, result: Summarised, now_us: int) -> list[Effect]:
        """The rolling summary covers the frontier that the job saw."""
        task.summary_job = None
        covers = task.pool.covered(spec.frontier).bit_count()
        text, model = head_bytes(result.text, SUMMARY_BYTES_MAX), result.model[:NAME_CHARS_MAX]
        body = Summary(frontier=spec.frontier, covers_count=covers, text=text, model=model)
        return self._write(task, body, (), now_us)

    # ---- votes, deadline, writing

    def on_vote_timer(self, task: Task, now_us: int) -> list[Effect]:
        """Nothing else was said meanwhile: say what this node saw win."""
        if not task.fold.ballots(self._me) or not self._logs.writable(task.space):
            return []
        return self._write(task, Seen(), (), now_us)

    def _vote_timer(self, task: Task, now_us: int) -> list[Effect]:
        if not task.fold.ballots(self._me):
            return []
        return [SetTimer(TimerKey(MACHINE, "vote", task.space), now_us + self._config.vote_delay_us)]

    def on_deadline_timer(self, task: Task, now_us: int) -> list[Effect]:
        """The task's time is over while this node runs a turn of it: stop and say so."""
        run = task.run
        if run is None or task.fold.outcome != "open":
            return []
        if now_us < self._deadline_us(task, now_us):
            return [SetTimer(TimerKey(MACHINE, "deadline", task.space), self._deadline_us(task, now_us))]
        aborts: list[Effect] = [AbortJob(run.job)] if run.job is not None else []
        return aborts + self._finish(task, run, Decision("deadline", None, "the deadline passed"), now_us)

    def _deadline_us(self, task: Task, now_us: int) -> int:
        return now_us + (task.open.deadline_ms - self._clock.now_ms(now_us)) * 1000

    def _stop(self, task: Task) -> list[Effect]:
        """Leave the own turn; the engine call is stopped for good."""
        run, task.run = task.run, None
        if run is None:
            return []
        aborts: list[Effect] = [AbortJob(run.job)] if run.job is not None else []
        return [*aborts, *_cancel(task, "renew", "lease", "decide", "deadline")]

    def _write(self, task: Task, record: Record, named: tuple[bytes, ...], now_us: int) -> list[Effect]:
        return self._append(task, record, named, now_us)[1]

    def _append(
        self, task: Task, record: Record, named: tuple[bytes, ...], now_us: int, floor: int = 0
    ) -> tuple[Op | None, list[Effect]]:
        """Write an op with this node's votes; a refusal (burnt, expired, unsure head) is counted, not raised.

        What the refusal means for the own turn is the caller's to say: a vote or a summary means nothing to it.
        """
        draft = Draft(record, named, task.fold.ballots(self._me), floor)
        try:
            op, effects = self._logs.append(task.space, draft, now_us)
        except UsageError:
            return None, [Count("own_ops_refused")]
        return op, effects


def _cancel(task: Task, *names: str) -> list[Effect]:
    return [CancelTimer(TimerKey(MACHINE, name, task.space)) for name in names]


def _reason(end: Outcome, run: Run) -> str:
    match end:
        case "budget_exhausted":
            return f"nothing left of {exhausted(run.slice)}"
        case "no_capable_agent":
            return "no participant offers the agent that is needed"
        case "failed":
            return "the step failed too often"
        case _:
            return "the deadline passed"
