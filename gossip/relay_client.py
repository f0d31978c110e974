"""A place at a relay, for a node that nobody can dial: taken while it is wanted, renewed at half its time.

The place stands and falls with the link to the relay, which carries the circuits. One is held at a time; a relay that
refuses or fails is left alone for `relay_retry_us`, and another one is tried.
"""

from __future__ import annotations

import random
from dataclasses import dataclass

from gossip.reach import ReachConfig, Reserve, Reserved
from protocol.machine import AbortJob, CancelTimer, Count, Effect, JobId, JobIds, SetTimer, StartJob, TimerKey
from protocol.peer import PeerID


@dataclass(frozen=True, slots=True)
class _Place:
    relay: PeerID
    addrs: tuple[str, ...]
    renew_us: int
    until_us: int


class RelayClient:
    """The one place of this node; `timer` wakes its owner, who calls `tick` then and whenever something changed."""

    def __init__(self, config: ReachConfig, rng: random.Random, jobs: JobIds, timer: TimerKey) -> None:
        self._config = config
        self._rng = rng
        self._jobs = jobs
        self._timer = timer
        self._place: _Place | None = None
        self._asking: tuple[JobId, PeerID] | None = None
        self._refused_us: dict[PeerID, int] = {}  # within `relay_retry_us`

    @property
    def addrs(self) -> tuple[str, ...]:
        """Circuit addresses of the place that is held."""
        return self._place.addrs if self._place is not None else ()

    @property
    def relay(self) -> PeerID | None:
        """Where the place is."""
        return self._place.relay if self._place is not None else None

    def tick(self, relays: list[PeerID], now_us: int, *, wanted: bool) -> list[Effect]:
        """Do what is due. `relays`: linked peers that serve circuits."""
        if self._place is not None and (not wanted or now_us >= self._place.until_us):
            self._place = None
        if not wanted:
            return [*self._abort(), CancelTimer(self._timer)]
        if self._asking is not None or (self._place is not None and now_us < self._place.renew_us):
            return []
        since_us = now_us - self._config.relay_retry_us
        self._refused_us = {relay: at_us for relay, at_us in self._refused_us.items() if at_us > since_us}
        able = [relay for relay in relays if relay not in self._refused_us]
        if self._place is not None:
            able = [relay for relay in able if relay == self._place.relay]
        if not able:
            return [SetTimer(self._timer, self._next_us(now_us))] if relays else []
        relay, job = self._rng.choice(able), self._jobs.next()
        self._asking = job, relay
        return [StartJob(job, Reserve(relay)), Count("relay_asked")]

    def on_result(self, job: JobId, result: object, now_us: int) -> list[Effect]:
        """A job is over; nothing if it is not this one's. The owner calls `tick` after it."""
        if self._asking is None or self._asking[0] != job:
            return []
        _, relay = self._asking
        self._asking = None
        if not isinstance(result, Reserved) or not result.addrs or result.ttl_us <= 0:
            self._refused_us[relay] = now_us
            return [Count("relay_refused")]
        self._place = _Place(relay, result.addrs, now_us + result.ttl_us // 2, now_us + result.ttl_us)
        return [SetTimer(self._timer, self._place.renew_us), Count("relay_places")]

    def on_down(self, peer: PeerID) -> list[Effect]:
        """The link to a peer is gone, and with it a place there."""
        if self._place is not None and self._place.relay == peer:
            self._place = None
        return self._abort() if self._asking is not None and self._asking[1] == peer else []

    def _next_us(self, now_us: int) -> int:
        """When to look again: the first refusal is forgotten, or the place that could not be renewed ends."""
        waits = [at_us + self._config.relay_retry_us for at_us in self._refused_us.values()]
        waits += [self._place.until_us] if self._place is not None else []
        return max(now_us + 1, min(waits, default=now_us + self._config.relay_retry_us))

    def _abort(self) -> list[Effect]:
        if self._asking is None:
            return []
        job, _ = self._asking
        self._asking = None
        return [AbortJob(job)]
