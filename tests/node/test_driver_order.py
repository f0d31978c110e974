"""The order in which the driver tells the core what happened while it waited."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any, cast

import trio
import trio.testing

from node.driver import Driver
from protocol.machine import Suspended, TimerFired, TimerKey


class FakeClock:
    """Boot time and awake time part when the machine sleeps."""

    def __init__(self) -> None:
        self.boot_us = self.woken_us = 10**9

    def now_us(self) -> int:
        return self.boot_us

    def awake_us(self) -> int:
        return self.woken_us

    def wall_offset_us(self) -> int:
        return 0


@dataclass
class FakeCore:
    """Remembers what it was told."""

    seen: list[object] = field(default_factory=list)

    def handle(self, event: object, _now_us: int) -> list[Any]:
        self.seen.append(event)
        return []


class NoNetwork:
    """A transport with nobody on it."""

    @asynccontextmanager
    async def run(self, _hello: object) -> AsyncIterator[None]:
        yield

    def listen_addrs(self) -> tuple[str, ...]:
        return ()

    async def events(self) -> AsyncIterator[object]:
        await trio.sleep_forever()
        yield None


class NoDisk:
    """A store that nothing is written to."""

    def apply(self, _rows: object) -> None:
        raise AssertionError("nothing to write")


async def no_job(_spec: object, _on_progress: object) -> object:
    raise AssertionError("nothing to do")


async def test_a_suspend_is_known_before_what_waited_through_it() -> None:
    """An answer that came while the machine slept must meet a core that knows its leases are lost."""
    clock, core = FakeClock(), FakeCore()
    driver = Driver(cast(Any, core), cast(Any, NoNetwork()), NoDisk(), no_job, clock)
    async with driver.run(1, clean=True):
        await trio.testing.wait_all_tasks_blocked()
        core.seen.clear()
        clock.boot_us += 3_600_000_000
        late = TimerFired(TimerKey("kernel", "late answer"))
        await driver.tell(late)
        await trio.testing.wait_all_tasks_blocked()
        assert core.seen[0] == Suspended(3_600_000_000)
        assert core.seen.index(late) > 0
