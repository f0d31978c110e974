"""The records of the fold: one per open, claim, renew and done, each final when it is made (protocol.md §7.9).

A done that burns or comes back changes which dones stand, never these records; they are made anew only with the
whole fold. A claim, and all that is built on it, is judged by the terms of the open at the root of its own parent
chain: an open with a smaller hash that arrives later makes another tree the effective one and judges nothing anew.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

from protocol.clock import hlc_from_ms
from protocol.contract import Vector, limits_to_vector
from protocol.records import Next, Open


@dataclass(frozen=True)
class Terms:
    """What an open fixes, in the units of the fold: HLC for time, vectors for budgets, each voter once."""

    root: bytes
    open: Open

    @cached_property
    def budget(self) -> Vector:
        """B of §7.8."""
        return limits_to_vector(self.open.contract)

    @cached_property
    def lease(self) -> int:
        """Length of a lease, as a difference of HLCs."""
        return hlc_from_ms(self.open.lease_ms)

    @cached_property
    def eps(self) -> int:
        """What a taker waits beyond the end, as a difference of HLCs."""
        return hlc_from_ms(self.open.eps_ms)

    @cached_property
    def participants(self) -> tuple[bytes, ...]:
        """The voters."""
        return tuple(dict.fromkeys(self.open.participants))

    @cached_property
    def holders(self) -> tuple[bytes, ...]:
        """Who may seal."""
        return tuple(dict.fromkeys(self.open.holders))

    def majority(self, votes: int) -> bool:
        """More than half of the participants: v > P/2."""
        return 2 * votes > len(self.participants)

    def final(self, votes: int) -> bool:
        """Beyond f faulty voters: v > (P+f)/2 and v-f > P/2."""
        return 2 * votes > len(self.participants) + self.open.f and self.majority(votes - self.open.f)

    def sealed(self, holders: int) -> bool:
        """More than (R+f)/2 of the R holders."""
        return 2 * holders > len(self.holders) + self.open.f


@dataclass(frozen=True, slots=True)
class Step:
    """Something that a claim can name as `parent`: the root of a task, or a well-formed done.

    `depth` is 0 for a root and the step number for a done; `goes_on` is False for an end.
    """

    terms: Terms
    depth: int
    spent: Vector
    goes_on: bool


@dataclass(frozen=True, slots=True)
class ClaimView:
    """A claim as judged by the ops it names and its author's chain.

    Attributes:
        before: what the path to this claim has spent or set aside (§7.8); zero when the claim is not `ok`.
        ok: the claim is valid (§7.1).
        repeat: not its author's first claim on the parent, so it keeps nobody else out.
        highest: the greatest e of its author on the parent, up to this claim.
        step: what it continues; None when that is unknown or over.
    """

    id: bytes
    author: bytes
    hlc: int
    parent: bytes
    e: int
    slice: Vector
    before: Vector
    ok: bool
    repeat: bool
    highest: int
    step: Step | None


@dataclass(frozen=True, slots=True)
class RenewMark:
    """After a renew: how many count on its claim, which one was the last, and when the lease ends (HLC)."""

    id: bytes
    count: int
    last: bytes | None
    end: int


@dataclass(frozen=True, slots=True)
class DoneView:
    """A done of a known claim. `form`: it is well-formed; `valid`: and it stands now (§7.1, 7.5, 7.7)."""

    id: bytes
    author: bytes
    claim: bytes
    parent: bytes
    unit: bytes | None
    outcome: str
    next: Next | None
    spent: Vector
    form: bool
    valid: bool
