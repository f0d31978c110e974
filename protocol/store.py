"""The port to durable storage: rows that machines persist, and what they read back.

Writing is an effect (`Persist(job, rows)`), answered by `JobDone(job, None)` once the rows are on disk: durable
and atomic per Persist. Nothing is acknowledged to anybody before that answer. Reading is synchronous.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Protocol

from protocol.op import Op


@dataclass(frozen=True, slots=True)
class OpRow:
    """An op to keep. `sync`: on disk, through a power cut too, before the answer."""

    op: Op
    sync: bool


@dataclass(frozen=True, slots=True)
class BodyGone:
    """Drop the body of an op (redaction)."""

    op_id: bytes


@dataclass(frozen=True, slots=True)
class RecordRow:
    """A signed capability or peer record; replaces the one with the same (publisher, key)."""

    publisher: bytes
    key: bytes
    wire: bytes


@dataclass(frozen=True, slots=True)
class RecordGone:
    """Drop a record."""

    publisher: bytes
    key: bytes


@dataclass(frozen=True, slots=True)
class MetaRow:
    """A small named value: incarnation, clean-stop mark, clock high water."""

    key: str
    value: bytes


@dataclass(frozen=True, slots=True)
class ReceiptRow:
    """A peer's signed statement that it holds an op."""

    op_id: bytes
    holder: bytes
    level: int
    sig: bytes


@dataclass(frozen=True, slots=True)
class SealVoteRow:
    """The one seal vote of this node in a space; on disk before it is sent (protocol.md §7.7)."""

    space: bytes
    done: bytes


Row = OpRow | BodyGone | RecordRow | RecordGone | MetaRow | ReceiptRow | SealVoteRow


class StoreReader(Protocol):
    """Synchronous reads of what is durable."""

    def meta(self, key: str) -> bytes | None:
        """The value last persisted under a key."""
        ...

    def spaces(self) -> list[bytes]:
        """Every space with at least one op, in byte order."""
        ...

    def ops(self, space: bytes) -> Iterator[Op]:
        """All ops of a space, ordered by (hlc, id), bodies included unless redacted."""
        ...

    def records(self) -> Iterator[bytes]:
        """All records in wire form, ordered by (publisher, key)."""
        ...

    def receipts(self, op_id: bytes) -> list[tuple[bytes, int]]:
        """(holder, level) of the receipts kept for an op, in byte order."""
        ...

    def seal_vote(self, space: bytes) -> bytes | None:
        """The done that this node sealed in a space."""
        ...
