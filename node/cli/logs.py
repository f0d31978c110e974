"""The log of a daemon, on stderr: lines for a person on a terminal, one JSON object a line otherwise.

    {"ts": RFC 3339 in UTC, "level", "event", "logger", "node", and "peer", "task" where a line has them}

What peers said can be in a message, so a person's lines are made printable.
"""

from __future__ import annotations

import json
import logging
from datetime import UTC, datetime
from typing import Final, TextIO

from node.cli.output import printable

EXTRAS: Final = ("peer", "task", "trace")
QUIET: Final = ("hypercorn", "httpx", "httpcore", "libp2p", "multiaddr")


class _Lines(logging.Formatter):
    """For a person: time, level where it matters, message."""

    def format(self, record: logging.LogRecord) -> str:
        """One line, more for a traceback."""
        at = datetime.fromtimestamp(record.created, UTC).astimezone().strftime("%H:%M:%S")
        level = "" if record.levelno <= logging.INFO else f"{record.levelname.lower()}: "
        trace = f"\n{self.formatException(record.exc_info)}" if record.exc_info else ""
        return f"{at} {level}{printable(record.getMessage())}{trace}"


class _JsonLines(logging.Formatter):
    """For a program."""

    def __init__(self, node: str) -> None:
        super().__init__()
        self._node = node

    def format(self, record: logging.LogRecord) -> str:
        """One JSON object."""
        line = {
            "ts": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname.lower(),
            "event": record.getMessage(),
            "logger": record.name,
            "node": self._node,
        }
        line |= {name: str(getattr(record, name)) for name in EXTRAS if hasattr(record, name)}
        if record.exc_info:
            line["traceback"] = self.formatException(record.exc_info)
        return json.dumps(line)


def configure(stream: TextIO, node: str, *, verbose: bool) -> None:
    """Send the log of this process to a stream. `node`: short id of this node."""
    handler = logging.StreamHandler(stream)
    handler.setFormatter(_Lines() if stream.isatty() else _JsonLines(node))
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(logging.DEBUG if verbose else logging.INFO)
    for name in QUIET:
        logging.getLogger(name).setLevel(logging.WARNING)
