"""The engine of a simulated node: answers jobs from a script, after the time that tokens take.

What comes out is a function of the seed and of the job alone, so a turn that runs twice says the same thing twice,
and no order of events changes a text. The decision is the product's own `kernel.decide.decide`. Vectors come from a
hash of the words ("scripted"): texts that share words are similar, which is enough for edges to appear.

A script can make a turn fail, or hang: a hanging engine never answers and can only be aborted.
"""

from __future__ import annotations

import hashlib
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import Final, Literal

from kernel.agents.roles import CONCLUDER, ROSTER
from kernel.decide import decide
from kernel.embedding import quantise
from kernel.engine import Capabilities
from kernel.jobs import Decide, Embed, Embedded, Receipt, RunTurn, Summarise, Summarised, TurnResult
from kernel.memory.manager import limited, rolled_on
from protocol.contract import INT63_MAX
from protocol.errors import EngineError, SwarmError
from protocol.machine import JobDone, JobFailed, JobId, JobProgress, JobSpec
from simulations.heap import EventHeap
from simulations.rng import stream

ENCODER: Final = "scripted"
JOBS_MAX: Final = 64  # in flight, as node/driver.py
PROGRESS_STEPS: Final = 4
_WORDS: Final = ("notice", "party", "term", "clause", "days", "quote", "says", "thirty", "written", "agreement")

Behaviour = Literal["answer", "fail", "hang"]
Script = Callable[[RunTurn], Behaviour]


@dataclass(frozen=True, slots=True)
class EngineConfig:
    """A token-latency model; speeds of a small model on a CPU [judgement]."""

    prompt_tokens_per_s: int = 400
    reply_tokens_per_s: int = 30
    reply_tokens: tuple[int, int] = (20, 120)
    prompt_tokens: int = 300  # on top of the memory that is given
    decide_us: int = 50_000
    embed_us: int = 20_000  # per text
    summarise_us: int = 5_000
    slots: int = 1  # turns at a time; the others wait
    boot_us: int = 1_500_000  # from the start of the node to the first report
    context_tokens: int = 4_096
    roles: tuple[str, ...] = ROSTER.names


def always_answer(spec: RunTurn) -> Behaviour:
    """The script of an engine that works."""
    del spec
    return "answer"


@dataclass(frozen=True, slots=True)
class Plan:
    """What will become of a job: an answer or an error after a time, or nothing ever."""

    after_us: int | None
    result: object
    tokens: int = 0


class ScriptedEngine:
    """What one node's engine and encoder would say. Pure: it holds nothing but its script."""

    def __init__(self, config: EngineConfig, seed: int, dim: int, script: Script = always_answer) -> None:
        self.config = config
        self.script = script
        self._seed = seed
        self._dim = dim

    def capabilities(self) -> Capabilities:
        """What the node reports of it."""
        return Capabilities(
            model="scripted",
            context_tokens=self.config.context_tokens,
            quality="demo",
            json_schema=False,
            logprobs=False,
            score=False,
            adapters=False,
            tokens_per_s=self.config.reply_tokens_per_s,
            backend="simulation",
        )

    def plan(self, spec: JobSpec) -> Plan:
        """The answer to a job and how long it takes."""
        match spec:
            case RunTurn():
                return self._turn(spec)
            case Decide():
                return Plan(self.config.decide_us, decide(spec))
            case Embed(texts):
                vectors = tuple(embed(text, self._dim) for text in texts)
                counts = tuple(len(text.split()) for text in texts)
                return Plan(self.config.embed_us * len(texts) + 1, Embedded(vectors, ENCODER, counts))
            case Summarise():
                text = spec.previous
                for view in spec.uncovered:
                    text = rolled_on(text, spec.step, view.summary)
                return Plan(self.config.summarise_us, Summarised(text, "rule"))
            case _:
                return Plan(1, EngineError(f"no script for {type(spec).__name__}"))

    def _turn(self, spec: RunTurn) -> Plan:
        config, behaviour = self.config, self.script(spec)
        rng = stream(self._seed, "turn", spec.space.hex(), spec.seed, spec.role)
        given = tuple((view.id, max(1, view.tokens), "scripted") for view in spec.chosen[:8])
        prompt = config.prompt_tokens + sum(tokens for _, tokens, _ in given)
        wanted = rng.randint(*config.reply_tokens)
        reply = min(wanted, spec.slice[0] - prompt)
        after_us = (
            prompt * 1_000_000 // config.prompt_tokens_per_s + max(reply, 0) * 1_000_000 // config.reply_tokens_per_s
        )
        if behaviour == "hang":
            return Plan(None, None, wanted)
        if behaviour == "fail":
            return Plan(after_us // 2, EngineError("the script says no"))
        if reply <= 0:
            return Plan(1_000, EngineError(f"a slice of {spec.slice[0]} tokens is too small for {prompt}"))
        text = f"{spec.role} step {spec.step}: " + " ".join(rng.choice(_WORDS) for _ in range(reply))
        answer = spec.role == CONCLUDER
        millis = min(after_us // 1_000 + 1, INT63_MAX)
        result = TurnResult(
            content=text,
            action="answer" if answer else "work",
            summary=limited(text, 20),
            emb=embed(text, self._dim),
            encoder=ENCODER,
            used=(prompt + reply, 1, millis, 0),
            model="scripted",
            receipt=Receipt(given, (), prompt, config.context_tokens),
            answer=answer,
        )
        return Plan(after_us, result, reply)


def embed(text: str, dim: int) -> bytes:
    """A bag of hashed words as `int8[dim]`; a blank text gives the zero vector."""
    counts = [0] * dim
    for word in text.lower().split():
        raw = hashlib.blake2b(word.encode(), digest_size=4).digest()
        counts[int.from_bytes(raw[:3], "big") % dim] += 1 if raw[3] & 1 else -1
    return quantise(counts, dim)


@dataclass(slots=True)
class Ran:
    """A turn that an engine has begun: for counting duplicates and aborts."""

    spec: RunTurn
    began_us: int
    ended: Literal["no", "answered", "failed", "aborted", "killed"] = "no"


@dataclass(slots=True)
class _Job:
    spec: JobSpec
    plan: Plan
    ran: Ran | None = None


@dataclass(slots=True)
class EngineJobs:
    """The jobs of one life of a node, on the heap: turns wait for a slot, everything else begins at once.

    Attributes:
        turns: every turn that began in this node's engine, over all lives.
    """

    engine: ScriptedEngine
    heap: EventHeap
    node: int
    emit: Callable[[object], None]
    turns: list[Ran]
    _jobs: dict[JobId, _Job] = field(default_factory=dict)
    _waiting: deque[JobId] = field(default_factory=deque)
    _busy: int = 0

    @property
    def in_flight(self) -> int:
        """Jobs that are not answered yet."""
        return len(self._jobs)

    def start(self, job: JobId, spec: JobSpec) -> None:
        """Take a job; too many at once are refused by an event, as in the driver."""
        if len(self._jobs) >= JOBS_MAX:
            error = EngineError("too much work in flight on this node", hint="try later")
            self.heap.after(0, partial(self.emit, JobFailed(job, error)), self.node)
            return
        self._jobs[job] = _Job(spec, self.engine.plan(spec))
        if isinstance(spec, RunTurn):
            self._waiting.append(job)
            self._next_turn()
        else:
            self._run(job)

    def abort(self, job: JobId) -> None:
        """Stop a job for good; no answer comes, and its slot is free."""
        gone = self._jobs.pop(job, None)
        if gone is None:
            return
        if gone.ran is not None:
            gone.ran.ended = "aborted"
            self._busy -= 1
        elif job in self._waiting:
            self._waiting.remove(job)
        self._next_turn()

    def kill(self) -> None:
        """The engine dies with its node."""
        for job in self._jobs.values():
            if job.ran is not None:
                job.ran.ended = "killed"
        self._jobs.clear()
        self._waiting.clear()

    def _next_turn(self) -> None:
        while self._waiting and self._busy < self.engine.config.slots:
            job = self._waiting.popleft()
            state = self._jobs[job]
            assert isinstance(state.spec, RunTurn)
            self._busy += 1
            state.ran = Ran(state.spec, self.heap.now_us)
            self.turns.append(state.ran)
            self._run(job)

    def _run(self, job: JobId) -> None:
        plan = self._jobs[job].plan
        if plan.after_us is None:
            return
        if isinstance(self._jobs[job].spec, RunTurn):
            for step in range(1, PROGRESS_STEPS):
                tokens = plan.tokens * step // PROGRESS_STEPS
                self.heap.after(plan.after_us * step // PROGRESS_STEPS, partial(self._progress, job, tokens), self.node)
        self.heap.after(plan.after_us, partial(self._over, job), self.node)

    def _progress(self, job: JobId, tokens: int) -> None:
        if job in self._jobs:
            self.emit(JobProgress(job, tokens, f"{tokens} tokens so far"))

    def _over(self, job: JobId) -> None:
        state = self._jobs.pop(job, None)
        if state is None:
            return
        failed = isinstance(state.plan.result, SwarmError)
        if state.ran is not None:
            state.ran.ended = "failed" if failed else "answered"
            self._busy -= 1
            self._next_turn()
        if isinstance(state.plan.result, SwarmError):
            self.emit(JobFailed(job, state.plan.result))
        else:
            self.emit(JobDone(job, state.plan.result))
