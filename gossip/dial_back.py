"""Testing for others whether they can be reached, without becoming a weapon in their hands.

A DialBack makes this node dial where another says. The bounds (libp2p's AutoNAT is the model):

- addresses are tested only at the host that the asker's link comes from (gossip/reach.py `testable`, which runs where
  the link is known: at the transport), at most eight of them, under one deadline;
- one test at a time, `waiting_max` wait, one peer every `serve_every_us`, `served_per_min_max` in all;
- who asks more is answered NOT_TRIED, which counts as no evidence. Everybody is answered.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from typing import Final

from gossip.reach import NOT_TRIED, REASON_CHARS_MAX, ReachConfig, Reached, ReachTest
from protocol.machine import AbortJob, Count, Effect, JobId, JobIds, Send, StartJob
from protocol.messages import DialBack, DialedBack
from protocol.peer import PeerID
from protocol.transport import Lane

_MINUTE_US: Final = 60_000_000


@dataclass(frozen=True, slots=True)
class _Asked:
    peer: PeerID
    frame: DialBack


class DialBackServer:
    """The answering half of reachability; `jobs` is shared with the other machines of the node."""

    def __init__(self, config: ReachConfig, jobs: JobIds) -> None:
        self._config = config
        self._jobs = jobs
        self._running: tuple[JobId, _Asked] | None = None
        self._waiting: deque[_Asked] = deque()
        self._served_us: dict[PeerID, int] = {}  # within `serve_every_us`; a new link does not reset it
        self._recent_us: deque[int] = deque(maxlen=config.served_per_min_max)

    def on_ask(self, peer: PeerID, frame: DialBack, now_us: int) -> list[Effect]:
        """A linked peer wants to know."""
        asked = _Asked(peer, frame)
        since_us = now_us - self._config.serve_every_us
        self._served_us = {each: at_us for each, at_us in self._served_us.items() if at_us > since_us}
        if peer in self._served_us:
            return self._decline(asked, "asked too often")
        if len(self._waiting) >= self._config.waiting_max or self._worked_enough(now_us):
            return self._decline(asked, "busy")
        self._served_us[peer] = now_us
        self._recent_us.append(now_us)
        self._waiting.append(asked)
        return self._next()

    def on_result(self, job: JobId, result: object) -> list[Effect]:
        """A job is over; nothing if it is not this one's."""
        if self._running is None or self._running[0] != job:
            return []
        _, asked = self._running
        self._running = None
        if isinstance(result, Reached) and result.tried:
            kept = tuple(addr for addr in asked.frame.addrs if addr in result.addrs)
            told = self._answer(asked, kept, result.reason)
        else:
            told = self._decline(asked, result.reason if isinstance(result, Reached) else "failed here")
        return told + self._next()

    def on_down(self, peer: PeerID) -> list[Effect]:
        """Nobody waits for the answer any more."""
        self._waiting = deque(asked for asked in self._waiting if asked.peer != peer)
        if self._running is None or self._running[1].peer != peer:
            return []
        job, _ = self._running
        self._running = None
        return [AbortJob(job), *self._next()]

    def _worked_enough(self, now_us: int) -> bool:
        recent = self._recent_us
        return len(recent) == recent.maxlen and now_us - recent[0] < _MINUTE_US

    def _next(self) -> list[Effect]:
        if self._running is not None or not self._waiting:
            return []
        asked = self._waiting.popleft()
        job = self._jobs.next()
        self._running = job, asked
        return [StartJob(job, ReachTest(asked.peer, asked.frame.addrs)), Count("dial_backs")]

    def _decline(self, asked: _Asked, why: str) -> list[Effect]:
        return [*self._answer(asked, (), f"{NOT_TRIED}: {why}"), Count("dial_backs_declined")]

    def _answer(self, asked: _Asked, reached: tuple[str, ...], reason: str) -> list[Effect]:
        return [Send(asked.peer, Lane.CONTROL, DialedBack(asked.frame.req, reached, reason[:REASON_CHARS_MAX]))]
