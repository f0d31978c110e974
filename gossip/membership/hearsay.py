"""Statements that the mesh brings: what each is worth, and what follows.

A statement is judged by what is cheap first: its form, its age, who may say it, whether it is news. Last comes the
signature, then the budget of its signer, so that nobody can use up another's. `reject` is for what no honest
neighbour would have passed on (no statement, or a forged one); stale, repeated and premature ones are `ignore`: an
honest neighbour may know less, or have another clock.

Nothing of these counts: what is said of or by a key without admission; accusations by a node that is itself down here
(who was away tells of its own absence); what is older than `past_ms` or further ahead than `future_ms`.

Where a newcomer's word is faster than the record that admits it, the verdict waits for the record: the mesh brings a
message once, and an `ignore` would end its way here. The last `early_max` such words are kept, of each key the newest;
one that finds no place is `later`, so a copy of it is asked about anew, and what nobody admits the mesh forgets. A full
index admits a key without keeping its record, and tells nobody; so each sweep looks at all that wait.

**Lives.** A higher incarnation outranks a lower one, unless a linked peer is seen in another life than the statement is
of. A lower one counts only if it is much later than all that its owner told: who replays a `left` of an earlier life
has nothing that is.
"""

from __future__ import annotations

from collections.abc import Callable

from gossip.events import Judged, Verdict
from gossip.membership.accusations import Accusations
from gossip.membership.budget import Budget
from gossip.membership.census import Census
from gossip.membership.config import MemberConfig
from gossip.membership.neighbours import Neighbours
from gossip.membership.presence import Presence
from gossip.membership.probes import ProbeNow, Step
from gossip.membership.roster import Member, Roster
from gossip.membership.statement import TOPIC, Statement, life_of, read_statement
from protocol.clock import SwarmClock
from protocol.errors import DecodeError
from protocol.identity import Verify
from protocol.machine import Count, Effect, Local
from protocol.messages import message_id
from protocol.peer import PeerID


class Hearsay:
    """Judges statements and applies those that are accepted."""

    def __init__(  # noqa: PLR0913 - the tables of one machine, each used
        self,
        config: MemberConfig,
        clock: SwarmClock,
        roster: Roster,
        accusations: Accusations,
        presence: Presence,
        census: Census,
        *,
        neighbours: Neighbours,
        verify: Verify,
        admitted: Callable[[bytes], bool],
    ) -> None:
        self._config = config
        self._clock = clock
        self._roster = roster
        self._neighbours = neighbours
        self._accusations = accusations
        self._presence = presence
        self._census = census
        signers_max = config.members_max + config.tombstones_max
        self._budget = Budget(config.budget_max, config.budget_refill_us, signers_max)
        self._early: dict[PeerID, Statement] = {}  # that came before the admission of their signers, oldest first
        self._gave_way: list[tuple[bytes, Verdict]] = []  # verdicts on those for which there is no place any more
        self._verify = verify
        self._admitted = admitted

    def on_items(self, items: tuple[bytes, ...], now_us: int, *, asked: bool = False) -> Step:
        """Judge and apply what came, in its order; one `Judged` for all. `asked`: by a peer that owes an answer."""
        steps: Step = []
        verdicts: list[tuple[bytes, Verdict]] = []
        for item in items:
            verdict, said = self._judge(item, now_us)
            if said is not None:
                verdict, applied = self._apply(said, now_us)
                steps += applied
                if asked and self._clock.now_ms(now_us) - said.at_ms > self._config.slack_ms:
                    verdict = "ignore"  # old: the others have it, and this node lacked it
            if verdict == "reject":
                steps.append(Count("member_statements_rejected"))
            if verdict is not None:
                verdicts.append((message_id(TOPIC, item), verdict))
        verdicts += self._gave_way
        self._gave_way = []
        return [Local(Judged(TOPIC, tuple(verdicts))), *steps] if verdicts else []

    def early(self, peer: PeerID) -> tuple[bytes, ...]:
        """The newest word of a key that was not admitted when it came; to be judged now, and forgotten here."""
        said = self._early.pop(peer, None)
        return () if said is None else (said.wire,)

    def admitted_since(self, now_us: int) -> Step:
        """Judge the words of those who are admitted by now though no record told it here: the index had no room."""
        peers = [peer for peer in self._early if self._admitted(peer)]
        return [step for peer in peers for step in self.on_items(self.early(peer), now_us)]

    # ---- judging

    def _judge(self, item: bytes, now_us: int) -> tuple[Verdict | None, Statement | None]:
        """The verdict, and the statement if it is to be applied; None: it is too early for one."""
        try:
            said = read_statement(item)
        except DecodeError:
            return "reject", None
        age_ms = self._clock.now_ms(now_us) - said.at_ms
        if not -self._config.future_ms <= age_ms <= self._config.past_ms or not self._is_news(said):
            return "ignore", None
        admitted = self._admitted(said.by) and self._admitted(said.subject)
        if not admitted and said.accuses:
            return "ignore", None
        if not said.genuine(self._verify):
            return "reject", None
        if not admitted:
            return self._keep(said), None
        cost = self._config.accusation_cost if said.accuses else 1
        return ("accept", said) if self._budget.take(said.by, cost, now_us) else ("ignore", None)

    def _keep(self, said: Statement) -> Verdict | None:
        held = self._early.get(said.by)
        if held is not None and (held.inc, held.at_ms) >= (said.inc, said.at_ms):
            return None if held == said else "ignore"
        if held is not None:
            del self._early[said.by]
            self._gave_way.append((message_id(TOPIC, held.wire), "ignore"))
        self._early[said.by] = said
        if len(self._early) > self._config.early_max:
            oldest = self._early.pop(next(iter(self._early)))
            self._gave_way.append((message_id(TOPIC, oldest.wire), "later"))
        return None

    def _is_news(self, said: Statement) -> bool:
        """Would it change what is known here?"""
        if said.by == self._presence.me:
            return False
        if self._census.counting:
            return not said.accuses and self._census.is_news(said.by, said.at_ms)
        if said.accuses and not self._may_accuse(said.by):
            return False
        if said.subject == self._presence.me:
            return True
        member = self._roster.get(said.subject)
        if said.accuses:
            return member is not None and self._accusations.adds(member, said)
        return member is None or self._supersedes(member, said)

    def _may_accuse(self, by: PeerID) -> bool:
        accuser = self._roster.get(by)
        return accuser is not None and accuser.state in ("alive", "suspect")

    def _supersedes(self, member: Member, said: Statement) -> bool:
        if not self._may_be_of_now(member, said):
            return False
        if said.inc != member.inc:
            # A lower incarnation of a much later time: its database was set back, and it cannot know the higher one.
            return said.inc > member.inc or said.at_ms > member.floor_ms + self._config.setback_ms
        if said.kind == "left":
            return not member.left_told
        return member.state != "left" and said.at_ms > member.at_ms

    def _may_be_of_now(self, member: Member, said: Statement) -> bool:
        """Where there is a link its Hello is the word of the owner itself: what is of another life must come after it.

        An earlier life is over while this one is linked. A later one may have begun, and the link not know it yet; said
        long before the Hello, it is of a database that was set back since.
        """
        life, of = self._neighbours.life(member.peer), life_of(said.inc)
        if life is None or of == life:
            return True
        return of > life and said.at_ms + self._config.setback_ms >= member.floor_ms

    # ---- applying

    def _apply(self, said: Statement, now_us: int) -> tuple[Verdict, Step]:
        if said.subject == self._presence.me:
            # Nobody needs to hear it from here: the answer, which reaches everybody, takes it back.
            return "ignore", [*self._presence.accused(said.inc, now_us)]
        member = self._roster.get(said.subject)
        if self._census.counting:
            self._census.count(said.by, said.at_ms, now_us)
            if member is None or said.kind != "left" or not self._supersedes(member, said):
                return "accept", []
            return "accept", [*self._own_word(member, said, now_us)]
        if not said.accuses:
            return "accept", [*self._own_word(member or self._roster.add(said.subject, said.inc, now_us), said, now_us)]
        assert member is not None  # or it were no news
        steps: Step = [*self._accusations.charge(member, said, now_us)]
        return "accept", [*steps, ProbeNow(member.peer)] if member.is_up else steps

    def _own_word(self, member: Member, said: Statement, now_us: int) -> list[Effect]:
        """A member says of itself that it lives or leaves."""
        another = said.inc != member.inc
        member.inc, member.at_ms, member.floor_ms = said.inc, said.at_ms, max(member.floor_ms, said.at_ms)
        if said.kind == "left":
            member.left_told = True
            return self._roster.set(member, "left", "left", now_us)
        member.fresh_us, member.word = now_us, said
        longest_us = self._config.hold_us(self._config.standing_period_us)
        member.hold_us = min(longest_us, max(self._config.presence_ttl_us, said.hold_s * 1_000_000))
        if another:
            member.left_told = False
            return self._accusations.cleared(member, now_us)
        return self._accusations.spoke(member, said, now_us)
