"""What a process takes, read from /proc."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Final

_TICKS: Final = os.sysconf("SC_CLK_TCK")
_FIELDS: Final = ("Rss", "Pss", "Private_Clean", "Private_Dirty")


@dataclass(frozen=True, slots=True)
class Memory:
    """In MB of 1,000,000 bytes. `resident` counts shared pages in full, `private` not at all."""

    resident: float
    private: float


def memory_of(pid: int) -> Memory:
    """Memory of a process now.

    Raises:
        OSError: there is no such process, or it is somebody else's.
    """
    return parse_rollup(Path(f"/proc/{pid}/smaps_rollup").read_text())


def parse_rollup(text: str) -> Memory:
    """The text of smaps_rollup."""
    kib = dict.fromkeys(_FIELDS, 0)
    for line in text.splitlines():
        name, _, rest = line.partition(":")
        if name in kib:
            kib[name] = int(rest.split()[0])
    return Memory(kib["Rss"] * 1.024e-3, (kib["Private_Clean"] + kib["Private_Dirty"]) * 1.024e-3)


def cpu_of(pid: int) -> float:
    """CPU seconds of a process so far, all threads.

    Raises:
        OSError: there is no such process.
    """
    return parse_stat(Path(f"/proc/{pid}/stat").read_text()) / _TICKS


def parse_stat(text: str) -> int:
    """Ticks in user and system mode; the name of the process, in brackets, may hold anything."""
    fields = text.rpartition(")")[2].split()
    return int(fields[11]) + int(fields[12])
