"""Single ops, and logs that got them."""

from __future__ import annotations

from typing import Any

from gossip.space_log import SpaceLog
from protocol.op import Op
from protocol.records import Seen, Unit
from tests.fold_world import (
    feed,
    forge,
    join,
    stamp,
)

UNIT = Unit(agent="one", role="analyst", content="x")


def log_of(*ops: Op, **changes: Any) -> SpaceLog:
    return feed(ops, **changes).log


def op(author: str, record: Any, prev: Op | None, *, hlc: int = 0, deps: tuple[Op, ...] = (), **more: Any) -> Op:
    fields: dict[str, Any] = {
        "seq": prev.seq + 1 if prev else 0,
        "prev": prev.id if prev else None,
        "deps": [d.id for d in deps],
        "hlc": hlc or max([x.hlc for x in (*deps, *((prev,) if prev else ()))], default=stamp(10)) + 1,
    }
    return forge(author, record, **{**fields, **more})


JOIN = op("A", join(), None)
FIRST = op("A", UNIT, JOIN)
OTHER = op("B", join(), None)


def burnt(count: int = 3) -> tuple[list[Op], list[Op]]:
    """(A's chain of units, twins of its first unit)"""
    chain = [JOIN]
    for _ in range(count):
        chain.append(op("A", UNIT, chain[-1]))
    twins = [op("A", Seen(), JOIN, hlc=stamp(900 + n)) for n in range(3)]
    return chain, twins
