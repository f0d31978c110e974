"""How things share frames: in order, at most BATCH_OPS_MAX and BATCH_BYTES_MAX of bytes; a larger one goes alone."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import TypeVar

from protocol.messages import BATCH_BYTES_MAX, BATCH_OPS_MAX

T = TypeVar("T")


def packed(things: Iterable[T], bytes_of: Callable[[T], int]) -> Iterator[tuple[T, ...]]:
    """The packs; none of them is empty."""
    pack: list[T] = []
    size = 0
    for thing in things:
        more = bytes_of(thing)
        if pack and (len(pack) == BATCH_OPS_MAX or size + more > BATCH_BYTES_MAX):
            yield tuple(pack)
            pack, size = [], 0
        pack.append(thing)
        size += more
    if pack:
        yield tuple(pack)
