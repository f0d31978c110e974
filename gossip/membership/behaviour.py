"""Who is alive: SWIM with Lifeguard, over links, signed statements and the mesh (arXiv 1707.00788; memberlist).

- **What a node sees itself.** It probes its links in turn, in random order (gossip/membership/probes.py), and hears
  every frame on them. A lost link makes its peer suspect here at once; the helpers and links.py, which redials, have
  the next word.
- **What it hears.** Each member says again and again, signed, that it is alive (presence.py); suspicions, deaths and
  leaves are signed too (statement.py, hearsay.py, accusations.py). Above 16 members nodes keep 12 to 32 links only, so
  a member without a link to this node is watched by its own neighbours, whose statements come by the topic `members`.
  It is down when they say so and it does not answer, or when nothing came of it for as long as its last word holds. A
  newcomer asks its first neighbours for the words of all (tables.py).
- **Why the mesh and no piggyback.** SWIM puts its news on pings since it has no other channel. Here is one that
  reaches everybody in few hops, sends each message once per link, and forwards only what was found good; a second
  path would need the same bounds, checks and memory of what was seen, and would be slower.
- **Leaving** is said at once when the operator stops the node, before the last writes are pushed: who hears it gives
  no more work to it. A Bye `leaving` on the link says the same.
- **Isolation and sleep.** Without links a node says nothing about anybody, and what it doubted meanwhile stays its
  own; when links return their peers are up by that, the others by their presence, which they say sooner when they see
  a member return that they took for down. After a suspend every own suspicion waits anew.
- **Above `members_max` members** the machine stands down: only links count (census.py); `status` says so.

`MemberUp` and `MemberDown` alternate for each member, and say what changed in the view of this node alone. What no
machine can promise: a member that is up here may have died a moment ago, and two nodes may differ for as long as a
message takes.

What an insider can do: make members without a link to this node suspect until their answer comes, 16 times at once and
6 times a minute; show a member that just died as alive for one time to live of its last own word, to nodes that
lost their link to it or never got statements which the liar withheld.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Final

from gossip.events import Arrived, Leaving, Linked, MemberUp, RecordChanged, Unlinked
from gossip.membership.accusations import SUSPECT, Accusations
from gossip.membership.awareness import Awareness
from gossip.membership.census import Census
from gossip.membership.config import MemberConfig
from gossip.membership.hearsay import Hearsay
from gossip.membership.neighbours import Neighbours
from gossip.membership.presence import TIMER as PRESENCE, Presence
from gossip.membership.probes import PROBE, Outcome, ProbeNow, Probes, Step
from gossip.membership.relays import RELAY, Relays
from gossip.membership.requests import MACHINE, REQ_FIRST, REQ_LAST, Requests
from gossip.membership.roster import Member, Roster
from gossip.membership.statement import TABLE, TOPIC, first_inc, life_of
from gossip.membership.tables import AGAIN, Tables
from gossip.membership.views import MemberStatus, MemberView
from protocol.capability import PeerValue
from protocol.clock import SwarmClock
from protocol.identity import KeyPair, Verify
from protocol.machine import (
    Boot,
    CancelTimer,
    Count,
    DialFailed,
    Effect,
    Local,
    Notify,
    Received,
    SendDropped,
    SetTimer,
    Stopping,
    Suspended,
    TimerFired,
    TimerKey,
)
from protocol.messages import Bye, Frame, Hello, IWant, ProbedFor, ProbeFor
from protocol.peer import PeerID

_TICK = TimerKey(MACHINE, "tick")
_SWEEP = TimerKey(MACHINE, "sweep")
_LEAVING: Final = "leaving"  # code of the Bye of a node that stops (gossip/links.py)


class Membership:
    """The machine. `admitted`: is the admission of this key to the swarm known and valid now?"""

    def __init__(
        self,
        keys: KeyPair,
        clock: SwarmClock,
        config: MemberConfig,
        rng: random.Random,
        *,
        verify: Verify,
        admitted: Callable[[bytes], bool],
    ) -> None:
        self._config = config
        self._clock = clock
        self._admitted = admitted
        self._tick_us = 0
        self._awareness = Awareness(config)
        self._neighbours = Neighbours(rng)
        self._roster = Roster(config)
        self._census = Census(config)
        self._presence = Presence(keys, clock, config, rng, self._awareness)
        self._accusations = Accusations(config, self._roster, self._neighbours, self._presence, clock)
        tables = (self._roster, self._accusations, self._presence, self._census)
        self._hearsay = Hearsay(
            config, clock, *tables, neighbours=self._neighbours, verify=verify, admitted=self._is_admitted
        )
        requests = Requests()
        self._probes = Probes(config, self._neighbours, self._awareness, requests, clock.wall_ms)
        self._relays = Relays(config, self._neighbours, requests)
        self._tables = Tables(config, self._roster, self._neighbours)

    # ---- the view

    @property
    def lag_us(self) -> Callable[[], int] | None:
        """Tells how late the loop of this node runs; it is added to the waits for others."""
        return self._awareness.lag_us

    @lag_us.setter
    def lag_us(self, lag_us: Callable[[], int] | None) -> None:
        self._awareness.lag_us = lag_us

    def alive(self) -> list[PeerID]:
        """Members that are up, in PeerID order, self not among them."""
        return [member.peer for member in self._roster.members() if member.is_up]

    def state_of(self, peer: PeerID) -> str:
        """`alive`, `suspect`, `dead`, `left`, or `unknown`."""
        member = self._roster.get(peer)
        return member.state if member is not None else "unknown"

    def view_of(self, peer: PeerID) -> MemberView | None:
        """All that is known of a member; None where it never was heard of, or is forgotten."""
        member = self._roster.get(peer)
        if member is None:
            return None
        return MemberView(member.state, member.why, member.since_us, member.inc, peer in self._neighbours)

    def status(self) -> MemberStatus:
        """The view in numbers."""
        counts = self._roster.counts()
        alive, suspect, dead, left = (counts[state] for state in ("alive", "suspect", "dead", "left"))
        health, inc = self._awareness.multiplier, self._presence.inc
        return MemberStatus(alive, suspect, dead, left, len(self._neighbours), inc, health, self._census.counting)

    # ---- events

    def handle(self, event: object, now_us: int) -> list[Effect]:
        """Links, membership frames, statements and time; everything else is nothing to this machine."""
        match event:
            case Boot(inst, _, _):
                timers: list[Effect] = [self._tick(now_us), SetTimer(_SWEEP, now_us + self._config.sweep_every_us)]
                return [*timers, *self._presence.begin(inst, now_us)]
            case Linked(peer, hello):
                return self._greet(self._on_linked(peer, hello, now_us), now_us)
            case Unlinked(peer, in_order) if peer in self._neighbours:
                return self._on_unlinked(peer, now_us, in_order=in_order)
            case Received(peer, frame) if peer in self._neighbours:
                return self._on_frame(peer, frame, now_us)
            case Arrived(peer, topic, items) if topic == TOPIC:
                steps = self._hearsay.on_items(items, now_us, asked=self._tables.answers(peer, now_us))
                return self._greet(self._settle(steps, now_us), now_us)
            case RecordChanged(record, True) if isinstance(record.value, PeerValue):
                steps = self._hearsay.on_items(self._hearsay.early(PeerID(record.publisher)), now_us)
                return self._greet(self._settle(steps, now_us), now_us)
            case DialFailed(peer, _):
                return self._on_dial_failed(peer, now_us)
            case SendDropped(peer, kind, int(req)) if REQ_FIRST <= req <= REQ_LAST:
                return self._on_dropped(peer, kind, req, now_us)
            case Suspended(us):
                return self._on_suspended(us, now_us)
            case Stopping() | Leaving():
                return self._on_stopping(now_us)
            case TimerFired(TimerKey(machine, what, ref)) if machine == MACHINE:
                return self._on_timer(what, ref, now_us)
            case _:
                return []

    def _on_timer(self, what: str, ref: object, now_us: int) -> list[Effect]:
        if what == RELAY:
            return self._relays.on_silent(ref)
        if what == SUSPECT:
            return self._accusations.on_timer(ref, now_us)
        if what == PRESENCE.what:
            anybody, size = len(self._neighbours) > 0, self._roster.present() + 1
            return self._presence.on_timer(size, now_us, anybody=anybody, standing_down=self._census.counting)
        if self._presence.leaving:
            return []
        if what == AGAIN:
            return [] if self._census.counting else self._tables.ask_again(now_us)
        if what == PROBE:
            return self._settle(self._probes.on_timer(ref, now_us), now_us)
        return self._on_tick(now_us) if what == _TICK.what else self._on_sweep(now_us)

    # ---- links

    def _on_linked(self, peer: PeerID, hello: Hello, now_us: int) -> list[Effect]:
        self._neighbours.add(peer, hello, now_us)
        effects = self._settle(self._probes.on_heard(peer), now_us)
        if not self._census.counting:
            effects += self._tables.on_linked(peer, now_us)
        if len(self._neighbours) == 1:
            effects += self._presence.found(now_us)
        known = self._roster.get(peer)
        member = known or self._roster.add(peer, first_inc(hello.inst), now_us)
        # Its wall clock is no swarm time: it says no more than how old a word of an earlier life must look.
        now_ms = self._clock.now_ms(now_us)
        member.floor_ms = max(member.floor_ms, now_ms, min(hello.wall_ms, now_ms + self._config.future_ms))
        if known is None:
            return [*effects, *self._roster.set(member, "alive", "", now_us)]
        if hello.inst != life_of(member.inc):
            # Another life. A Hello is the word of its owner, so it holds though the number may be lower (a backup).
            member.inc, member.at_ms, member.left_told = first_inc(hello.inst), 0, False
            return [*effects, *self._accusations.cleared(member, now_us)]
        return [*effects, *self._heard(member, now_us)]

    def _on_unlinked(self, peer: PeerID, now_us: int, *, in_order: bool) -> list[Effect]:
        member = self._roster.get(peer)
        if member is not None:
            self._freshen(member)
        parting = self._neighbours.remove(peer) or in_order
        self._tables.on_unlinked(peer)
        effects = self._settle(self._probes.on_unlinked(peer, now_us), now_us) + self._relays.on_unlinked(peer)
        if member is None or member.state == "left":
            return effects
        if self._census.counting or self._presence.leaving or not self._admitted(peer):
            return [*effects, *self._drop(member, "link lost", now_us)]
        if parting or member.state == "dead":
            return effects
        effects += self._accusations.doubt(member, "link lost", now_us)
        return [*effects, *self._settle(self._probes.begin(peer, "link lost", now_us), now_us)]

    def _on_dial_failed(self, peer: PeerID, now_us: int) -> list[Effect]:
        member = self._roster.get(peer)
        if member is None or peer in self._neighbours or self._presence.leaving or self._census.counting:
            return []
        effects = self._settle(self._probes.on_dial_failed(peer), now_us)
        if not member.is_up:
            return effects
        return [*effects, *self._settle(self._probes.begin(peer, "dial failed", now_us), now_us)]

    def _on_frame(self, peer: PeerID, frame: Frame, now_us: int) -> list[Effect]:
        member = self._roster.get(peer)
        if isinstance(frame, Bye):
            self._neighbours.part(peer)
            said = member is not None and frame.code == _LEAVING
            return self._roster.set(member, "left", "left", now_us) if member is not None and said else []
        self._neighbours.heard(peer, now_us)
        effects = self._settle(self._probes.on_heard(peer), now_us) + self._relays.on_heard(peer)
        if member is not None and not member.is_up:
            effects += self._heard(member, now_us)
        match frame:
            case ProbeFor():
                return [*effects, *self._relays.on_asked(peer, frame, self._clock.wall_ms(now_us), now_us)]
            case ProbedFor():
                return [*effects, *self._settle(self._probes.on_answer(peer, frame, now_us), now_us)]
            case IWant(topic, ids) if topic == TOPIC and TABLE in ids and not self._census.counting:
                return [*effects, *self._tables.on_asked(peer, now_us)]
            case _:
                return effects

    def _heard(self, member: Member, now_us: int) -> list[Effect]:
        """First-hand sign of life in a life that is known; what trails a `left` is none."""
        if member.state == "left" and now_us - member.since_us < self._config.left_hold_us:
            return []
        return self._accusations.heard(member, now_us)

    def _freshen(self, member: Member) -> None:
        """Frames on a link are signs of life too; they are noted per link, and here when somebody asks."""
        if member.peer in self._neighbours:
            member.fresh_us = max(member.fresh_us, self._neighbours.heard_us(member.peer))

    def _on_dropped(self, peer: PeerID, kind: str, req: int, now_us: int) -> list[Effect]:
        counted: list[Effect] = [Count("member_frames_dropped")]
        if kind == "Ping":
            counted += self._relays.on_dropped(req)
        return [*counted, *self._settle(self._probes.on_dropped(peer, req, now_us), now_us)]

    def _is_admitted(self, peer: bytes) -> bool:
        return peer in self._neighbours or peer == self._presence.me or self._admitted(peer)

    # ---- probes

    def _on_tick(self, now_us: int) -> list[Effect]:
        late_us = now_us - self._tick_us
        timer = self._tick(now_us)
        if late_us > self._config.stall_us:
            self._awareness.worse()
        target = self._neighbours.next()
        if target is None or self._census.counting or late_us > self._config.stall_us:
            return [timer]
        member = self._roster.get(target)
        if member is None or member.state == "left":
            return [timer]
        return [timer, *self._settle(self._probes.begin(target, "turn", now_us), now_us)]

    def _tick(self, now_us: int) -> Effect:
        self._tick_us = now_us + self._awareness.stretched(self._config.probe_every_us)
        return SetTimer(_TICK, self._tick_us)

    def _settle(self, steps: Step, now_us: int) -> list[Effect]:
        """The effects of probes, and what follows from their outcomes."""
        effects: list[Effect] = []
        for step in steps:
            match step:
                case Outcome():
                    effects += self._on_outcome(step, now_us)
                case ProbeNow(target):
                    if target in self._neighbours and not self._presence.leaving:
                        effects += self._settle(self._probes.begin(target, "turn", now_us), now_us)
                case _:
                    effects.append(step)
        return effects

    def _on_outcome(self, outcome: Outcome, now_us: int) -> list[Effect]:
        member = self._roster.get(outcome.target)
        if member is None or member.state == "left":
            return []
        if outcome.alive:
            self._freshen(member)
            return self._accusations.vouched(member, now_us)
        effects = self._accusations.doubt(member, "no answer", now_us)
        return [*effects, *(self._accusations.accuse(member, now_us) if outcome.conclusive else [])]

    # ---- time

    def _on_sweep(self, now_us: int) -> list[Effect]:
        effects: list[Effect] = [SetTimer(_SWEEP, now_us + self._config.sweep_every_us)]
        effects += self._greet(self._settle(self._hearsay.admitted_since(now_us), now_us), now_us)
        for member in self._roster.members():
            effects += self._sweep(member, now_us)
        if self._census.ends(now_us):
            effects += [Notify(MACHINE, ("standing_down", False)), *self._presence.remind(1, now_us)]
        return effects

    def _sweep(self, member: Member, now_us: int) -> list[Effect]:
        held, ttl_us = member.suspicion, member.ttl_us(self._config)
        if member.state in ("dead", "left"):
            if now_us - member.since_us > self._config.forget_us and member.peer not in self._neighbours:
                self._roster.forget(member.peer)
            return []
        if not self._is_admitted(member.peer):
            return self._drop(member, "no longer admitted", now_us)
        if held is not None and held.began_us is None and now_us - held.noted_us > ttl_us:
            member.suspicion = None
        if member.is_up and member.peer not in self._neighbours and now_us - member.fresh_us > ttl_us:
            return self._roster.set(member, "dead", "silent", now_us)
        return []

    def _drop(self, member: Member, why: str, now_us: int) -> list[Effect]:
        """Down, with nothing to be refuted."""
        gone = self._settle(self._probes.drop(member.peer), now_us)
        member.suspicion = None
        return [
            *gone,
            CancelTimer(TimerKey(MACHINE, SUSPECT, member.peer)),
            *self._roster.set(member, "dead", why, now_us),
        ]

    def _on_suspended(self, us: int, now_us: int) -> list[Effect]:
        for member in self._roster.members():
            self._freshen(member)
            member.fresh_us = min(now_us, member.fresh_us + us)
        self._tick_us += us
        slept: list[Effect] = [*self._settle(self._probes.drop_all(), now_us), *self._relays.drop_all()]
        return [*slept, *self._accusations.rearm(now_us), *self._presence.remind(1, now_us)]

    def _on_stopping(self, now_us: int) -> list[Effect]:
        if self._presence.leaving:
            return []
        stopped: list[Effect] = [CancelTimer(_TICK), CancelTimer(_SWEEP)]
        return [*stopped, *self._settle(self._probes.drop_all(), now_us), *self._presence.leave(now_us)]

    # ---- size

    def _count_members(self, now_us: int) -> list[Effect]:
        """One more than this machine is made for: stand down."""
        if self._census.counting or self._roster.present() <= self._config.members_max:
            return []
        present = [member for member in self._roster.members() if member.state in ("alive", "suspect")]
        self._census.start([member.peer for member in present], now_us)
        effects: list[Effect] = [Notify(MACHINE, ("standing_down", True)), Count("members_standing_down")]
        effects += self._settle(self._probes.drop_all(), now_us)
        for member in present:
            if member.peer not in self._neighbours:
                effects += self._drop(member, "too many members to track: only links count", now_us)
        return effects

    def _greet(self, effects: list[Effect], now_us: int) -> list[Effect]:
        """Who sees a member return says soon that it is there too; one too many, and the machine stands down."""
        ups = [each.event.peer for each in effects if isinstance(each, Local) and isinstance(each.event, MemberUp)]
        if not ups:
            return effects
        returned = [peer for peer in ups if (member := self._roster.get(peer)) is not None and member.returned]
        soon = self._presence.remind(self._roster.present() + 1, now_us) if returned else []
        return [*effects, *soon, *self._count_members(now_us)]
