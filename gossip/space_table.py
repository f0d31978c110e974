"""Which spaces this node holds, with bounds that no single peer can use up.

A space is kept once it holds an accepted op: until then it is *unproved*, not stored, not told, and only
`spaces_unproved_max` of them wait for more. Of the kept ones at most `spaces_per_author_max` may have been begun by one
author (that of the first kept op), so that one member cannot fill the table.
"""

from __future__ import annotations

from gossip.config import GossipConfig
from gossip.space_log import LogRules, SpaceLog
from protocol.errors import Refused


class SpaceTable:
    """The logs by space."""

    def __init__(self, config: GossipConfig, rules: LogRules) -> None:
        self._config = config
        self._rules = rules
        self.logs: dict[bytes, SpaceLog] = {}
        self._unproved: dict[bytes, None] = {}
        self._begun: dict[bytes, int] = {}  # author -> kept spaces that it began

    def kept(self) -> list[bytes]:
        """Every kept space, in byte order."""
        return sorted(space for space in self.logs if space not in self._unproved)

    def is_kept(self, space: bytes) -> bool:
        """True iff ops of the space are stored and told."""
        return space in self.logs and space not in self._unproved

    def log_for(self, space: bytes) -> SpaceLog:
        """The log of a space, or a new one that is not in the table yet.

        Raises:
            Refused: the table is full.
        """
        log = self.logs.get(space)
        if log is not None:
            return log
        if len(self.logs) - len(self._unproved) >= self._config.spaces_max:
            raise Refused(f"this node holds {self._config.spaces_max} spaces already")
        return SpaceLog(space, rules=self._rules)

    def open(self, space: bytes) -> SpaceLog:
        """The log of a space that this node writes or has stored; kept from now on.

        Raises:
            Refused: the table is full.
        """
        log = self.logs[space] = self.log_for(space)
        self._unproved.pop(space, None)
        return log

    def loaded(self, log: SpaceLog) -> None:
        """The stored ops of a space are in its log: it counts for who began it, as before the restart."""
        beginner = _beginner(log)
        if beginner is not None:
            self._begun[beginner] = self._begun.get(beginner, 0) + 1

    def note(self, log: SpaceLog, *, waiting: bool) -> bool:
        """After an op was offered to a log: True iff the space has become kept through it."""
        space = log.space
        if self.is_kept(space):
            return False
        beginner = _beginner(log)
        if beginner is not None and self._begun.get(beginner, 0) < self._config.spaces_per_author_max:
            self._begun[beginner] = self._begun.get(beginner, 0) + 1
            self.logs[space] = log
            self._unproved.pop(space, None)
            return True
        if space not in self.logs and (waiting or len(log)):
            self.logs[space] = log
            self._unproved[space] = None
            if len(self._unproved) > self._config.spaces_unproved_max:
                oldest = next(iter(self._unproved))
                del self._unproved[oldest], self.logs[oldest]
        return False


def _beginner(log: SpaceLog) -> bytes | None:
    """The author of the first kept op."""
    return next((op.author for op in log.kept()), None)
