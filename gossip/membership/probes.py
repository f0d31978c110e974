"""Probes: ping a neighbour; if it is silent, ask others to ping it; say what came of it (SWIM §3, Lifeguard §3).

A probe begins in one of three ways, which differ in what silence means:

- `turn`: a linked peer has its turn, or somebody accused it. Ping, wait; then ask `helpers` others, wait. Silence of
  all of them, after the own, is a failure.
- `link lost`: nothing left to ping. Helpers that have no link to the peer either are replaced, up to `helpers_max`.
  If only such are found, the outcome waits for a redial by links.py: a new link ends the probe, a failed dial or
  `redial_wait_us` makes it a failure.
- `dial failed`: a member that is not linked could not be dialled, which says little (NAT, a full table). Only a
  helper that is linked to it and heard nothing makes this a failure.

Any frame of the target ends its probe well. A failure is `conclusive` only if some other neighbour was heard since
the probe began: a node that hears nobody learns nothing about others. A timer that fires late is no silence of the
peer but a stall of this node: the stage is repeated and the own health gets worse.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final, Literal

from gossip.membership.awareness import Awareness
from gossip.membership.config import MemberConfig
from gossip.membership.neighbours import Neighbours
from gossip.membership.requests import MACHINE, Requests
from protocol.machine import CancelTimer, Effect, Send, SetTimer, TimerKey
from protocol.messages import Ping, ProbedFor, ProbeFor
from protocol.peer import PeerID
from protocol.transport import Lane

PROBE: Final = "probe"  # what the timer of one is called
Cause = Literal["turn", "link lost", "dial failed"]
Answer = Literal["none", "no link", "silent"]


@dataclass(frozen=True, slots=True)
class Outcome:
    """What a probe showed by other ways than a frame of the target itself."""

    target: PeerID
    alive: bool
    conclusive: bool


@dataclass(frozen=True, slots=True)
class ProbeNow:
    """Somebody accused this member: see for oneself if it is linked."""

    target: PeerID


Step = list[Effect | Outcome | ProbeNow]


@dataclass(slots=True)
class _Asked:
    at_us: int
    answer: Answer = "none"


@dataclass(slots=True)
class _Probe:
    target: PeerID
    cause: Cause
    began_us: int
    req: int
    stage: Literal["ping", "ask", "redial"] = "ping"
    due_us: int = 0
    asked: dict[PeerID, _Asked] = field(default_factory=dict)
    undialled: bool = False  # a dial failed since


class Probes:
    """At most one probe per peer. `wall_ms` gives the clock sample that goes with a ping."""

    def __init__(
        self,
        config: MemberConfig,
        neighbours: Neighbours,
        awareness: Awareness,
        requests: Requests,
        wall_ms: Callable[[int], int],
    ) -> None:
        self._config = config
        self._neighbours = neighbours
        self._awareness = awareness
        self._requests = requests
        self._wall_ms = wall_ms
        self._probes: dict[PeerID, _Probe] = {}

    def begin(self, target: PeerID, cause: Cause, now_us: int) -> Step:
        """Start a probe, unless one runs."""
        if target in self._probes:
            return []
        probe = _Probe(target, cause, now_us, self._requests.next())
        self._probes[target] = probe
        if cause != "turn":
            return self._ask(probe, now_us)
        ping = Send(target, Lane.CONTROL, Ping(probe.req, self._wall_ms(now_us)), probe.req)
        return [ping, self._wait(probe, self._awareness.stretched(self._config.probe_timeout_us), now_us)]

    def on_heard(self, target: PeerID) -> Step:
        """A frame of the target, or a new link to it: it lives."""
        probe = self._probes.get(target)
        if probe is None:
            return []
        self._awareness.better()
        return self._end(probe)

    def on_answer(self, helper: PeerID, answer: ProbedFor, now_us: int) -> Step:
        """A helper says what it heard; it counts once, and only if it was asked."""
        probe = self._probes.get(PeerID(answer.target))
        asked = probe.asked.get(helper) if probe is not None and probe.req == answer.req else None
        if probe is None or asked is None or asked.answer != "none" or probe.stage != "ask":
            return []
        if answer.alive:
            return [*self._end(probe), Outcome(probe.target, alive=True, conclusive=True)]
        # A helper with a link waits 80 % of the timeout before it gives up; this one had nothing to wait for.
        at_once = now_us - asked.at_us < self._config.probe_timeout_us // 2
        return self._answered(probe, helper, "no link" if at_once else "silent", now_us)

    def on_dropped(self, peer: PeerID, req: object, now_us: int) -> Step:
        """A ping or a question found no room in its queue: go on without it."""
        probe = next((each for each in self._probes.values() if each.req == req), None)
        if probe is None:
            return []
        if probe.stage == "ping" and probe.target == peer:
            return self._ask(probe, now_us)
        return self._answered(probe, peer, "no link", now_us) if peer in probe.asked else []

    def on_unlinked(self, peer: PeerID, now_us: int) -> Step:
        """A link ended: the probe of this peer is void, and it answers no question any more."""
        steps = self.drop(peer)
        for probe in list(self._probes.values()):
            if peer in probe.asked:
                steps += self._answered(probe, peer, "no link", now_us)
        return steps

    def on_dial_failed(self, peer: PeerID) -> Step:
        """A peer whose link was lost could not be reached anew."""
        probe = self._probes.get(peer)
        if probe is None:
            return []
        probe.undialled = True
        return self._fail(probe) if probe.stage == "redial" else []

    def on_timer(self, target: object, now_us: int) -> Step:
        """A stage is over."""
        probe = self._probes.get(PeerID(target)) if isinstance(target, bytes) else None
        if probe is None:
            return []
        if now_us - probe.due_us > self._config.stall_us:
            self._awareness.worse()
            return [self._wait(probe, self._awareness.stretched(self._config.probe_timeout_us), now_us)]
        match probe.stage:
            case "ping":
                return self._ask(probe, now_us)
            case "ask":
                self._awareness.worse(sum(asked.answer == "none" for asked in probe.asked.values()))
                return self._conclude(probe, now_us)
            case "redial":
                return self._fail(probe)

    def drop(self, target: PeerID) -> Step:
        """Nothing is to be learned of it any more."""
        probe = self._probes.get(target)
        return self._end(probe) if probe is not None else []

    def drop_all(self) -> Step:
        """This node slept, or stops."""
        return [effect for probe in list(self._probes.values()) for effect in self._end(probe)]

    # ---- stages

    def _ask(self, probe: _Probe, now_us: int) -> Step:
        probe.stage = "ask"
        questions = self._questions(probe, self._config.helpers, now_us)
        if not questions:
            self._awareness.worse()
            return self._conclude(probe, now_us)
        return [*questions, self._wait(probe, self._awareness.stretched(self._config.probe_timeout_us), now_us)]

    def _questions(self, probe: _Probe, count: int, now_us: int) -> Step:
        count = min(count, self._config.helpers_max - len(probe.asked))
        helpers = self._neighbours.helpers({probe.target, *probe.asked}, max(0, count))
        probe.asked |= {helper: _Asked(now_us) for helper in helpers}
        question = ProbeFor(probe.req, probe.target)
        return [Send(helper, Lane.CONTROL, question, probe.req) for helper in helpers]

    def _answered(self, probe: _Probe, helper: PeerID, answer: Answer, now_us: int) -> Step:
        probe.asked[helper].answer = answer
        if probe.stage != "ask":
            return []
        steps = self._questions(probe, 1, now_us) if answer == "no link" else []
        if any(asked.answer == "none" for asked in probe.asked.values()):
            return steps
        return self._conclude(probe, now_us)

    def _conclude(self, probe: _Probe, now_us: int) -> Step:
        silent = any(asked.answer == "silent" for asked in probe.asked.values())
        if probe.cause == "dial failed" and not silent:
            return self._end(probe)
        nobody_knows = all(asked.answer == "no link" for asked in probe.asked.values())
        if probe.cause == "link lost" and nobody_knows and not probe.undialled:
            probe.stage = "redial"
            return [self._wait(probe, self._config.redial_wait_us, now_us)]
        return self._fail(probe)

    def _fail(self, probe: _Probe) -> Step:
        conclusive = self._neighbours.heard_since(probe.began_us, probe.target)
        return [*self._end(probe), Outcome(probe.target, alive=False, conclusive=conclusive)]

    def _end(self, probe: _Probe) -> Step:
        del self._probes[probe.target]
        return [CancelTimer(_timer(probe.target))]

    def _wait(self, probe: _Probe, wait_us: int, now_us: int) -> Effect:
        probe.due_us = now_us + wait_us
        return SetTimer(_timer(probe.target), probe.due_us)


def _timer(target: PeerID) -> TimerKey:
    return TimerKey(MACHINE, PROBE, target)
