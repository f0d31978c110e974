"""From doubt to death, and back: what is held against members, by this node and by others.

- **First-hand before hearsay.** A neighbour is never down here on the word of others: an accusation makes this node
  probe it at once, and only its own failure counts. So an insider that accuses everybody changes nothing for those
  who are linked to its victims.
- **Hearsay is passed on all the same**, within its signer's budget and only while it adds something: the accused must
  hear of it to refute it, and its neighbours are the way to it. If they kept it to themselves, those who believe it
  would never hear the answer.
- **An accusation is of one incarnation**, the one that its owner told last. Of an earlier one it is answered already;
  of a later one it is not believed, for nobody but the owner can know it.
- A suspect is dead when its wait is over *here* (gossip/membership/suspicion.py). Who accused it signs `dead` then,
  unless another did: that reaches nodes which missed the accusation, and the subject, if it lives.
- Doubts that were never said, since this node heard nobody, are never said later either: what isolation taught is
  worth nothing to others.
"""

from __future__ import annotations

from typing import Final

from gossip.membership.config import MemberConfig
from gossip.membership.neighbours import Neighbours
from gossip.membership.presence import Presence
from gossip.membership.requests import MACHINE
from gossip.membership.roster import Member, Roster
from gossip.membership.statement import Statement
from gossip.membership.suspicion import Suspicion
from protocol.clock import SwarmClock
from protocol.machine import CancelTimer, Count, Effect, SetTimer, TimerKey
from protocol.peer import PeerID, short

SUSPECT: Final = "suspect"  # what the timer of a suspicion is called


class Accusations:
    """Moves members between alive, suspect and dead."""

    def __init__(
        self, config: MemberConfig, roster: Roster, neighbours: Neighbours, presence: Presence, clock: SwarmClock
    ) -> None:
        self._config = config
        self._roster = roster
        self._neighbours = neighbours
        self._presence = presence
        self._clock = clock

    def doubt(self, member: Member, why: str, now_us: int) -> list[Effect]:
        """This node itself misses a member: suspect here at once, said to nobody yet."""
        if not member.is_up:
            return []
        suspicion = self._note(member, self._clock.now_ms(now_us), now_us)
        return [*self._roster.set(member, "suspect", why, now_us), *self._run(member, suspicion, now_us)]

    def accuse(self, member: Member, now_us: int) -> list[Effect]:
        """Others are asked to doubt it too, unless enough do, or this node leaves."""
        suspicion, me = member.suspicion, self._presence.me
        if suspicion is None or member.state != "suspect" or me in suspicion.accusers or self._presence.leaving:
            return []
        if suspicion.full(self._config):
            return []
        suspicion.accusers[me] = None
        suspicion.announced = True
        said = self._presence.accuse("suspect", member.peer, member.inc, now_us)
        return [said, Count("members_accused"), *self._run(member, suspicion, now_us)]

    def adds(self, member: Member, said: Statement) -> bool:
        """Would this accusation change anything here?"""
        if said.inc != member.inc or member.state == "left":
            return False
        held = member.suspicion
        first_dead = said.kind == "dead" and (held is None or not held.dead_told)
        if member.state == "dead":
            return first_dead and held is not None
        return held is None or first_dead or not (said.by in held.accusers or held.full(self._config))

    def charge(self, member: Member, said: Statement, now_us: int) -> list[Effect]:
        """Another node accuses a member, and it adds something."""
        suspicion = self._note(member, min(said.at_ms, self._clock.now_ms(now_us)), now_us)
        if said.kind == "dead":
            suspicion.dead_told = True
        if not suspicion.full(self._config):
            suspicion.accusers[said.by] = None
        if member.state == "dead" or (member.is_up and member.peer in self._neighbours):
            return []
        why = f"suspected by {short(said.by)}"
        return [*self._roster.set(member, "suspect", why, now_us), *self._run(member, suspicion, now_us)]

    def heard(self, member: Member, now_us: int) -> list[Effect]:
        """First-hand: it lives. What others hold against it stays noted, for it is theirs to take back."""
        held = member.suspicion
        if held is None or not self._others(held):
            return self.cleared(member, now_us)
        held.began_us, held.announced, held.dead_told = None, False, False
        held.accusers.pop(self._presence.me, None)
        return [CancelTimer(_timer(member.peer)), *self._roster.set(member, "alive", "", now_us)]

    def vouched(self, member: Member, now_us: int) -> list[Effect]:
        """A helper heard it: enough to end an own doubt, not to answer for what others signed.

        Nor is it a sign of life of the member itself: when its last own one is over, nobody can stand in for it.
        """
        held = member.suspicion
        if now_us - member.fresh_us > member.ttl_us(self._config):
            return []
        if member.state not in ("suspect", "dead") or (held is not None and self._others(held)):
            return []
        return self.heard(member, now_us)

    def spoke(self, member: Member, said: Statement, now_us: int) -> list[Effect]:
        """Its own statement of the incarnation that is known: does it answer what is held against it?

        It does if it is of a later time than the accusation. Where clocks disagree it does if it is the second that
        came long after it: those cannot both have been under way when it died.
        """
        held = member.suspicion
        if held is not None and said.at_ms <= held.accused_ms + self._config.slack_ms:
            if now_us - held.echo_us >= self._config.echo_gap_us:
                held.echoes, held.echo_us = held.echoes + 1, now_us
            if held.echoes < 2:
                return []
        return self.cleared(member, now_us)

    def cleared(self, member: Member, now_us: int) -> list[Effect]:
        """Nothing is held against it any more."""
        member.suspicion = None
        return [CancelTimer(_timer(member.peer)), *self._roster.set(member, "alive", "", now_us)]

    def on_timer(self, peer: object, now_us: int) -> list[Effect]:
        """A suspect's wait is over, or was, before somebody else was counted."""
        member = self._roster.get(PeerID(peer)) if isinstance(peer, bytes) else None
        if member is None or member.state != "suspect" or member.suspicion is None:
            return []
        suspicion = member.suspicion
        if suspicion.began_us is None:
            return []
        late_us = now_us - suspicion.timer_us
        if late_us > self._config.stall_us:
            # This node slept: what refutes the suspicion may wait in its queues.
            suspicion.began_us += late_us + self._config.probe_timeout_us
        if now_us < suspicion.due_us(self._config, self._swarm_size()):
            return self._run(member, suspicion, now_us)
        return self._dies(member, suspicion, now_us)

    def rearm(self, now_us: int) -> list[Effect]:
        """The machine slept: every wait begins anew."""
        effects: list[Effect] = []
        for member in self._roster.members():
            if member.state == "suspect" and member.suspicion is not None:
                member.suspicion.began_us = now_us
                effects += self._run(member, member.suspicion, now_us)
        return effects

    def _dies(self, member: Member, suspicion: Suspicion, now_us: int) -> list[Effect]:
        effects = self._roster.set(member, "dead", member.why, now_us)
        assert suspicion.began_us is not None
        heard = self._neighbours.heard_since(suspicion.began_us, member.peer)
        if not heard or not suspicion.announced or suspicion.dead_told or self._presence.leaving:
            return effects
        suspicion.dead_told = True
        return [*effects, self._presence.accuse("dead", member.peer, member.inc, now_us)]

    def _others(self, held: Suspicion) -> bool:
        return any(by != self._presence.me for by in held.accusers)

    def _note(self, member: Member, accused_ms: int, now_us: int) -> Suspicion:
        if member.suspicion is None:
            member.suspicion = Suspicion(accused_ms, now_us, echo_us=now_us)
        member.suspicion.accused_ms = max(member.suspicion.accused_ms, accused_ms)
        return member.suspicion

    def _run(self, member: Member, suspicion: Suspicion, now_us: int) -> list[Effect]:
        """Let the wait run, and look again when it ends by what is known now."""
        if member.state != "suspect":
            return []
        if suspicion.began_us is None:
            suspicion.began_us, suspicion.echoes, suspicion.echo_us = now_us, 0, now_us
        suspicion.timer_us = max(now_us, suspicion.due_us(self._config, self._swarm_size()))
        return [SetTimer(_timer(member.peer), suspicion.timer_us)]

    def _swarm_size(self) -> int:
        return self._roster.present() + 1


def _timer(peer: PeerID) -> TimerKey:
    return TimerKey(MACHINE, SUSPECT, peer)
