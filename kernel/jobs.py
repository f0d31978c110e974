"""Slow work of the kernel, as data: what a job is given and what it gives back.

The machine emits `StartJob(job, spec)`; in production kernel/executor.py does the work with a real engine and
encoder, in simulation simulations/engine.py does it from a script. A spec carries everything: a job reads no
state of the node, so that it can run in another process and be repeated.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from kernel.memory.pool import UnitView
from protocol.contract import Vector
from protocol.machine import JobSpec
from protocol.records import Next, Outcome


@dataclass(frozen=True, slots=True)
class Candidate:
    """A node that could take the next turn, from its signed capability record (or its participation alone)."""

    peer: bytes
    agents: tuple[str, ...]  # roles it offers
    model: str
    quality: str  # quality tier of its engine
    context_tokens: int
    tokens_per_s: int
    alive: bool  # linked to this node now, or this node itself
    turns_done: int  # effective turns of it in this task


@dataclass(frozen=True, slots=True)
class RunTurn(JobSpec):
    """Run one agent once. `chosen`: the memory that the step before allocated; empty on a first step."""

    space: bytes
    claim: bytes
    step: int
    role: str
    agent: str
    objective: str
    summary: str  # the global summary as read by this node
    chosen: tuple[UnitView, ...]
    pool: tuple[UnitView, ...]  # candidates when nothing was chosen, in graph order, newest first
    slice: Vector  # what the turn may spend
    deadline_s: float
    seed: int


@dataclass(frozen=True, slots=True)
class Receipt:
    """What an agent was given: (unit id, tokens, why) in the order given, and what was left out."""

    given: tuple[tuple[bytes, int, str], ...]
    left_out: tuple[tuple[bytes, str], ...]
    prompt_tokens: int
    budget_tokens: int


@dataclass(frozen=True, slots=True)
class TurnResult:
    """What came out of a turn; `used` is [tokens, calls, ms, micro-money]."""

    content: str
    action: str
    summary: str
    emb: bytes | None
    encoder: str | None
    used: Vector
    model: str
    receipt: Receipt
    verdict: str | None = None  # e.g. the calibrated score of a chosen answer
    answer: bool = False  # the agent concludes: its content is the answer


@dataclass(frozen=True, slots=True)
class Decide(JobSpec):
    """Choose what comes after a finished turn, on the finishing node."""

    space: bytes
    claim: bytes
    step: int  # the step that just finished, from 1
    max_steps: int
    objective: str
    summary: str
    role: str  # of the finished turn
    roles_so_far: tuple[str, ...]  # effective chain, oldest first, the finished turn included
    answer: bool
    pool: tuple[UnitView, ...]
    candidates: tuple[Candidate, ...]
    left: Vector  # of the whole budget, after this turn
    slice_max: Vector
    policies: tuple[tuple[str, str], ...] = ()
    seed: int = 0


@dataclass(frozen=True, slots=True)
class Decision:
    """`next` iff outcome is `next`."""

    outcome: Outcome
    next: Next | None
    reason: str = ""


@dataclass(frozen=True, slots=True)
class Embed(JobSpec):
    """Vectors for texts under the swarm's encoder."""

    texts: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Embedded:
    """int8[dim] per text, as bytes, and token counts by the node's engine."""

    vectors: tuple[bytes, ...]
    encoder: str
    tokens: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Summarise(JobSpec):
    """Roll the global summary on by the units that it does not cover."""

    space: bytes
    objective: str
    previous: str
    uncovered: tuple[UnitView, ...]
    mode: Literal["engine", "rule"] = "rule"
    step: int = 0
    frontier: tuple[bytes, ...] = field(default=())


@dataclass(frozen=True, slots=True)
class Summarised:
    """The new summary, within its limits."""

    text: str
    model: str
