"""Request ids of this machine: links.py counts from 0, the DHT from 2^31, membership in between."""

from __future__ import annotations

from typing import Final

MACHINE: Final = "members"
REQ_FIRST: Final = 1 << 30
REQ_LAST: Final = (1 << 31) - 1


class Requests:
    """Hands them out, round and round."""

    def __init__(self) -> None:
        self._last = REQ_LAST

    def next(self) -> int:
        """An id that is free, as far as the bounded tables of this machine reach."""
        self._last = self._last + 1 if self._last < REQ_LAST else REQ_FIRST
        return self._last
