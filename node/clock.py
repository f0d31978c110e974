"""The real clock: boot time that goes on during suspend, and the wall clock as an offset to it."""

from __future__ import annotations

import time
from typing import Protocol


class Clock(Protocol):
    """What the driver needs of time; simulation hands in its own."""

    def now_us(self) -> int:
        """Boot-time microseconds."""
        ...

    def awake_us(self) -> int:
        """Microseconds that do not count suspend."""
        ...

    def wall_offset_us(self) -> int:
        """Wall time minus boot time."""
        ...


class BootClock:
    """CLOCK_BOOTTIME, CLOCK_MONOTONIC and CLOCK_REALTIME of this machine."""

    def now_us(self) -> int:
        """Boot-time microseconds."""
        return time.clock_gettime_ns(time.CLOCK_BOOTTIME) // 1000

    def awake_us(self) -> int:
        """Monotonic microseconds."""
        return time.clock_gettime_ns(time.CLOCK_MONOTONIC) // 1000

    def wall_offset_us(self) -> int:
        """Wall time minus boot time."""
        return time.clock_gettime_ns(time.CLOCK_REALTIME) // 1000 - self.now_us()
