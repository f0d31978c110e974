"""One task as a node sees it: the derived views, and what this node does in it right now."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Final, Literal

from gossip.space_log import Added, SpaceLog
from kernel.jobs import Candidate, TurnResult
from kernel.memory.pool import Pool, UnitView
from kernel.memory.summary import Summaries
from kernel.turns.fold import TaskFold
from protocol.capability import AgentValue
from protocol.contract import ZERO, Vector, add, least, limits_to_vector, remaining
from protocol.machine import JobId
from protocol.op import Op, OpKind
from protocol.records import Open

SAME_PART_MAX: Final = 16  # units with one content that are told apart
Stage = Literal["claiming", "running", "writing", "deciding"]


@dataclass(slots=True)
class Run:
    """A turn of this node, from its claim to its done."""

    claim: bytes
    parent: bytes
    step: int
    e: int
    slice: Vector
    lease_end_us: int
    stage: Stage = "claiming"
    job: JobId | None = None
    renews: int = 0
    result: TurnResult | None = None
    unit: bytes | None = None
    used: Vector = ZERO
    tokens: int = 0  # so far, from progress
    tail: str = ""
    told_us: int = 0
    sought: bool = False  # the DHT was asked for the agent that comes next; once a turn


@dataclass(frozen=True, slots=True)
class RemoteProgress:
    """The last progress that a lease owner reported."""

    claim: bytes
    tokens: int
    tail: str


@dataclass(slots=True)
class Task:
    """Views and local state of one task space."""

    space: bytes
    log: SpaceLog
    fold: TaskFold
    pool: Pool
    summaries: Summaries
    contents: dict[bytes, list[bytes]] = field(default_factory=dict)  # hash of a document part -> units that hold it
    learned: dict[bytes, int] = field(default_factory=dict)  # op id or root -> boot time it was heard here
    run: Run | None = None
    failures: dict[bytes, int] = field(default_factory=dict)  # parent -> own failed runs of that step
    summary_job: JobId | None = None
    watchers: dict[bytes, None] = field(default_factory=dict)
    remote: RemoteProgress | None = None
    told_outcome: str = ""
    opened_us: int = 0  # boot time at which this node became sure of its own head here: ranks count from then
    ahead: int = 0  # the highest stamp that lay too far ahead of swarm time when it was met

    def update(self, added: Added, now_us: int) -> None:
        """Take accepted ops into every view."""
        self.fold.update(added)
        self.pool.update(added)
        self.summaries.update(added)
        self.learn(self.log.kept() if added.refold else added.ops, now_us)

    def learn(self, ops: Iterable[Op], now_us: int) -> None:
        """Note when things were heard here, the first time; waits are measured from that, by the own clock.

        Every op that the views were built from must pass here before anything is decided: what was never heard
        would count as heard at boot, and its lease as long over.
        """
        for op in ops:
            if op.kind in (OpKind.CLAIM, OpKind.RENEW, OpKind.RELEASE, OpKind.DONE):
                self.learned.setdefault(op.id, now_us)
            elif op.kind == OpKind.OPEN:
                self.learned.setdefault(op.body_hash, now_us)
            elif op.kind == OpKind.UNIT:
                view = self.pool.unit(op.id)
                if view is not None and view.is_document:
                    self._note_part(view)

    def _note_part(self, view: UnitView) -> None:
        units = self.contents.setdefault(hashlib.sha256(view.content.encode()).digest(), [])
        if view.id not in units and len(units) < SAME_PART_MAX:
            units.append(view.id)

    @property
    def open(self) -> Open:
        """The effective task; only after `fold.open` exists."""
        task = self.fold.open
        assert task is not None
        return task

    @property
    def tip(self) -> bytes:
        """The parent of the next step; only after `fold.open` exists."""
        tip = self.fold.tip
        assert tip is not None
        return tip

    @property
    def budget(self) -> Vector:
        """The whole contract, unlimited components as 2^63 - 1."""
        return limits_to_vector(self.open.contract)

    def left(self) -> Vector:
        """What remains on the effective chain."""
        return remaining(self.budget, self.fold.spent(self.tip))

    def slice_for_claim(self, wanted: Vector) -> Vector:
        """The largest slice, within what is wanted, that a claim on the tip may take now (protocol.md §7.8)."""
        claims = self.fold.claims_on(self.tip)
        before = add(claims[-1].before, claims[-1].slice) if claims else self.fold.spent(self.tip)
        return least(wanted, least(self.open.slice_max, remaining(self.budget, before)))

    def complete_attachments(self) -> bool:
        """True once every attachment of the task is in the pool, as the content of a document unit."""
        return all(digest in self.contents for digest in self.open.attachments)

    def summary_text(self) -> str:
        """The global summary and what it does not cover yet, for a prompt or a person."""
        return self.summaries.read().text_for_prompt()


def candidate_of(peer: bytes, agents: Mapping[str, AgentValue]) -> Candidate:
    """A peer as one candidate: the roles of all its agents, with the figures of its weakest one.

    Who is named for a role must not be promised more than the agent behind it can do.
    """
    values = [agents[name] for name in sorted(agents)]
    weakest = min(values, key=lambda value: (value.quality != "demo", value.context_tokens, value.tokens_per_s))
    roles = dict.fromkeys(role for value in values for role in value.roles)
    return Candidate(
        peer=peer,
        agents=tuple(roles),
        model=weakest.model,
        quality=weakest.quality,
        context_tokens=weakest.context_tokens,
        tokens_per_s=weakest.tokens_per_s,
        alive=True,
        turns_done=0,
    )


def candidates_of(task: Task, offers: dict[bytes, Candidate], alive: frozenset[bytes]) -> tuple[Candidate, ...]:
    """The participants as the scheduler sees them, in the order of the task."""
    done = [view.author for i in task.fold.chain if (view := task.fold.done(i)) is not None]
    out: list[Candidate] = []
    for peer in task.open.participants:
        offer = offers.get(peer)
        out.append(
            Candidate(
                peer=peer,
                agents=offer.agents if offer else (),
                model=offer.model if offer else "",
                quality=offer.quality if offer else "",
                context_tokens=offer.context_tokens if offer else 0,
                tokens_per_s=offer.tokens_per_s if offer else 0,
                alive=peer in alive,
                turns_done=done.count(peer),
            )
        )
    return tuple(out)
