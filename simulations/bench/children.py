"""Child processes that speak lines of JSON: one answer on stdout per line on stdin.

A child is asked with a deadline and always ended by its handle: a script that hangs or dies costs its bench a reason,
not a process that stays. When our end of its stdin closes, a well-behaved child ends by itself.
"""

from __future__ import annotations

import json
import os
import re
import select
import signal
import subprocess
import tempfile
from contextlib import suppress
from typing import Any, Final, Self

from simulations.bench.figure import wall_s

Json = dict[str, Any]
_ERROR: Final = re.compile(r"[\w.]+(Error|Exception|Exit|Unreachable|Timeout)\b.*:")
END_S: Final = 10.0
LINE_BYTES_MAX: Final = 1 << 20
COMPLAINT_CHARS_MAX: Final = 200


class ChildFailed(Exception):
    """A child ended, said something else, or nothing in time; the message tells its last complaint."""


class Child:
    """A running child; use it as a context."""

    def __init__(self, command: list[str]) -> None:
        self._errors = tempfile.TemporaryFile()  # noqa: SIM115 - it lives as long as the child
        self._process = subprocess.Popen(  # noqa: S603 - commands of ours
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self._errors, start_new_session=True
        )
        self._held = b""

    @property
    def pid(self) -> int:
        """Of the process."""
        return self._process.pid

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_exc: object) -> None:
        self.close()

    def ask(self, question: Json, limit_s: float) -> Json:
        """Send a line and read its answer.

        Raises:
            ChildFailed: there is none.
        """
        assert self._process.stdin is not None
        try:
            self._process.stdin.write(json.dumps(question).encode() + b"\n")
            self._process.stdin.flush()
        except OSError as exc:
            raise ChildFailed(self._complaint("it ended")) from exc
        return self.read(limit_s)

    def read(self, limit_s: float) -> Json:
        """The next line of JSON; other lines, such as banners, are passed over.

        Raises:
            ChildFailed: none came.
        """
        end = wall_s() + limit_s
        while True:
            line, found, rest = self._held.partition(b"\n")
            if found:
                self._held = rest
                value = _object(line)
                if value is not None:
                    return value
                continue
            self._more(end - wall_s(), limit_s)

    def _more(self, left_s: float, limit_s: float) -> None:
        assert self._process.stdout is not None
        ready, _, _ = select.select([self._process.stdout], [], [], max(left_s, 0.0))
        if not ready:
            raise ChildFailed(self._complaint(f"no answer within {limit_s:.0f} s"))
        data = os.read(self._process.stdout.fileno(), 65_536)
        if not data or len(self._held) > LINE_BYTES_MAX:
            raise ChildFailed(self._complaint("it ended"))
        self._held += data

    def _complaint(self, what: str) -> str:
        self._errors.seek(max(0, self._errors.seek(0, os.SEEK_END) - 4096))
        return ": ".join([what, *last_words(self._errors.read().decode(errors="replace"))])[:COMPLAINT_CHARS_MAX]

    def close(self) -> None:
        """End it: by the end of its stdin, then by force."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        with suppress(OSError):  # it has ended, and what was not written goes nowhere
            self._process.stdin.close()
        try:
            self._process.wait(END_S)
        except subprocess.TimeoutExpired:
            os.killpg(self._process.pid, signal.SIGKILL)  # its own session: with the children that it has
            self._process.wait()
        self._process.stdout.close()
        self._errors.close()


def last_words(text: str) -> list[str]:
    """The line of a traceback, perhaps one of groups, that names the error; else the last line; at most one."""
    lines = [line.strip(" |+-\t") for line in text.splitlines()]
    spoken = [line for line in lines if line]
    errors = [line for line in spoken if _ERROR.match(line) and "sub-exception" not in line]
    return (errors or spoken)[-1:]


def _object(line: bytes) -> Json | None:
    try:
        value = json.loads(line)
    except ValueError:
        return None
    return value if isinstance(value, dict) else None
