"""What this node says of itself: that it is alive, again and again and when somebody needs to know; and that it leaves.

The period grows with the swarm, so that all together make about one word a second (`MemberConfig.period_us`). Each word
says how long it holds, three periods of its speaker: listeners that count the swarm differently judge it alike. A node
that has just found its first links speaks as soon as they are part of the mesh.

Only this node raises its incarnation: at start by its life number, then by one for each accusation of the
incarnation it has. An accusation of an earlier one is answered too, for whoever made it missed the last answer. All
answers share one gap (`announce_gap_us`), so a flood of accusations makes no flood of answers.
"""

from __future__ import annotations

import random

from gossip.events import Broadcast
from gossip.membership.awareness import Awareness
from gossip.membership.config import MemberConfig
from gossip.membership.requests import MACHINE
from gossip.membership.statement import HOLD_S_MAX, TOPIC, Kind, first_inc, make_statement
from protocol.clock import SwarmClock
from protocol.identity import KeyPair
from protocol.machine import CancelTimer, Effect, Local, SetTimer, TimerKey
from protocol.peer import PeerID

TIMER = TimerKey(MACHINE, "presence")


class Presence:
    """The own incarnation and the own statements."""

    def __init__(
        self, keys: KeyPair, clock: SwarmClock, config: MemberConfig, rng: random.Random, awareness: Awareness
    ) -> None:
        self.me = PeerID(keys.public)
        self._keys = keys
        self._clock = clock
        self._config = config
        self._rng = rng
        self._awareness = awareness
        self._told_us: int | None = None
        self._due_us: int | None = None
        self._at_ms = 0
        self.inc = 0
        self.leaving = False

    def begin(self, life: int, now_us: int) -> list[Effect]:
        """A life begins."""
        self.inc, self.leaving, self._told_us = first_inc(life), False, None
        return self._schedule(now_us + self._varied(self._config.presence_every_us))

    def accused(self, inc: int, now_us: int) -> list[Effect]:
        """Somebody says that this node is suspect or dead in `inc`, and signed it."""
        if self.leaving or inc > self.inc:
            return []  # nobody can know an incarnation that was never told
        if inc == self.inc:
            self.inc += 1
            if self._awareness.multiplier == 1:  # an accusation is cheap for a liar: it doubles the own waits at most
                self._awareness.worse()
        return self._soon(now_us)

    def found(self, now_us: int) -> list[Effect]:
        """The first link, in this life or after a time without any: others come with it, and are told too."""
        gap_us = self._config.announce_gap_us
        return self._soon(now_us + gap_us + self._rng.randrange(2 * gap_us))

    def remind(self, swarm_size: int, now_us: int) -> list[Effect]:
        """Members may have lost sight of this node."""
        gap_us = self._config.announce_gap_us  # half of it at least: a new link is not part of the mesh at once
        within_us = max(gap_us, swarm_size * self._config.soon_per_member_us)
        return self._soon(now_us + gap_us // 2 + self._rng.randrange(within_us))

    def on_timer(self, swarm_size: int, now_us: int, *, anybody: bool, standing_down: bool) -> list[Effect]:
        """The time has come; `anybody`: there is a link to say it on."""
        self._due_us = None
        if self.leaving:
            return []
        period_us = self._config.standing_period_us if standing_down else self._config.period_us(swarm_size)
        wait_us = self._varied(period_us)
        if self._told_us is None:  # the first word: nodes that started together go on apart
            wait_us -= self._rng.randrange(period_us // 2)
        timer = self._schedule(now_us + wait_us)
        hold_s = min(HOLD_S_MAX, self._config.hold_us(period_us) // 1_000_000)
        return [*self._tell("alive", now_us, hold_s), *timer] if anybody else timer

    def leave(self, now_us: int) -> list[Effect]:
        """Say that this node leaves; once, and nothing after it."""
        if self.leaving:
            return []
        self.leaving = True
        return [CancelTimer(TIMER), *self._tell("left", now_us)]

    def accuse(self, kind: Kind, subject: bytes, inc: int, now_us: int) -> Effect:
        """A signed accusation of another."""
        return Local(Broadcast(TOPIC, (make_statement(self._keys, kind, subject, inc, self._clock.now_ms(now_us)),)))

    def _tell(self, kind: Kind, now_us: int, hold_s: int = 0) -> list[Effect]:
        now_ms = self._clock.now_ms(now_us)
        # Later than the last one, unless the clock was so far ahead that nobody took that.
        ahead = self._at_ms - now_ms > self._config.future_ms
        self._at_ms = now_ms if ahead else max(now_ms, self._at_ms + 1)
        self._told_us = now_us
        item = make_statement(self._keys, kind, self._keys.public, self.inc, max(0, self._at_ms), hold_s)
        return [Local(Broadcast(TOPIC, (item,)))]

    def _varied(self, period_us: int) -> int:
        return period_us - period_us // 10 + self._rng.randrange(period_us // 5 + 1)

    def _soon(self, at_us: int) -> list[Effect]:
        if self._told_us is not None:
            at_us = max(at_us, self._told_us + self._config.announce_gap_us)
        if self.leaving or (self._due_us is not None and self._due_us <= at_us):
            return []
        return self._schedule(at_us)

    def _schedule(self, at_us: int) -> list[Effect]:
        self._due_us = at_us
        return [SetTimer(TIMER, at_us)]
