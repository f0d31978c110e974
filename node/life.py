"""One life of a node's database: from a start to the stop that ended it.

`inst` counts the lives and goes into every job id and op header, so it is on disk before anything else happens
(replication.md §2.1). The clean-stop mark names the life that ended in order; a later start makes it stale by
itself, so there is nothing to take back and no moment in which a crash could leave a wrong mark.
A restored backup can carry a mark that was true once, so the core asks the peers for its own heads after every start;
the mark only shortens how long it waits when nobody can be asked (gossip/own_head.py, protocol.md §5).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from node.store import SqliteStore
from protocol.errors import StoreError
from protocol.store import MetaRow

INST_KEY: Final = "life.inst"
CLEAN_KEY: Final = "life.clean"
INST_MAX: Final = 2**32 - 1


@dataclass(frozen=True, slots=True)
class Life:
    """`inst` from 1. `clean`: the life before ended in order; False for the first, as the key may be older."""

    inst: int
    clean: bool


def begin_life(store: SqliteStore) -> Life:
    """Start the next life; its number is durable when this returns.

    Raises:
        StoreError: the disk failed, or the stored number is unusable.
    """
    last = store.meta(INST_KEY)
    inst = _number(last) + 1 if last is not None else 1
    if inst > INST_MAX:
        raise StoreError("the database has used up its incarnations", hint="make a new profile")
    store.apply((MetaRow(INST_KEY, inst.to_bytes(4, "big")),))
    return Life(inst, clean=last is not None and store.meta(CLEAN_KEY) == last)


def end_life(store: SqliteStore, life: Life) -> None:
    """Mark the life as ended in order: nothing of it is unwritten.

    Raises:
        StoreError: the disk failed; the next life then starts as after a crash.
    """
    store.apply((MetaRow(CLEAN_KEY, life.inst.to_bytes(4, "big")),))


def _number(value: bytes) -> int:
    if len(value) != 4:
        raise StoreError("the stored incarnation is damaged", hint="run `masos memory verify`")
    return int.from_bytes(value, "big")
