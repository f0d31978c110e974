"""Statements that the mesh brings: what each is worth, and what follows.

A statement is judged by what is cheap first: its form, its age, who may say it, whether it is news. Last comes the
signature, then the budget of its signer, so that nobody can use up another's. `reject` is for what no honest
neighbour would have passed on (no statement, or a forged one); stale, repeated and premature ones are `ignore`: an
honest neighbour may know less, or have another clock.

Nothing of these counts: what is said of or by a key without admission; accusations by a node that is itself down here
(who was away tells of its own absence); what is older than `past_ms` or further ahead than `future_ms`.

Where a newcomer's word is faster than the record that admits it, the verdict waits for the record: the mesh brings a
message once, and an `ignore` would end its way here. The last `early_max` such words are kept, one per key; what nobody
admits the mesh forgets.
"""

from __future__ import annotations

from collections.abc import Callable

from gossip.events import Judged, Verdict
from gossip.membership.accusations import Accusations
from gossip.membership.budget import Budget
from gossip.membership.census import Census
from gossip.membership.config import MemberConfig
from gossip.membership.presence import Presence
from gossip.membership.probes import ProbeNow, Step
from gossip.membership.roster import Member, Roster
from gossip.membership.statement import TOPIC, Statement, read_statement
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
        verify: Verify,
        admitted: Callable[[bytes], bool],
    ) -> None:
        self._config = config
        self._clock = clock
        self._roster = roster
        self._accusations = accusations
        self._presence = presence
        self._census = census
        self._budget = Budget(config)
        self._early: dict[PeerID, bytes] = {}  # words that came before the admission of their signers, oldest first
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
        return [Local(Judged(TOPIC, tuple(verdicts))), *steps] if verdicts else []

    def early(self, peer: PeerID) -> tuple[bytes, ...]:
        """The newest word of a key that was not admitted when it came; to be judged now, and forgotten here."""
        item = self._early.pop(peer, None)
        return () if item is None else (item,)

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
        if not self._admitted(said.by) or not self._admitted(said.subject):
            return self._keep(item, said), None
        if not said.genuine(self._verify):
            return "reject", None
        cost = self._config.accusation_cost if said.accuses else 1
        return ("accept", said) if self._budget.take(said.by, cost, now_us) else ("ignore", None)

    def _keep(self, item: bytes, said: Statement) -> Verdict | None:
        if said.accuses:
            return "ignore"
        self._early.pop(said.by, None)
        self._early[said.by] = item
        if len(self._early) > self._config.early_max:
            del self._early[next(iter(self._early))]
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
        if said.inc != member.inc:
            # A lower incarnation of a much later time: its database was set back, and it cannot know the higher one.
            return said.inc > member.inc or said.at_ms > member.at_ms + self._config.setback_ms
        if said.kind == "left":
            return not member.left_told
        return member.state != "left" and said.at_ms > member.at_ms

    # ---- applying

    def _apply(self, said: Statement, now_us: int) -> tuple[Verdict, Step]:
        if said.subject == self._presence.me:
            # Nobody needs to hear it from here: the answer, which reaches everybody, takes it back.
            return "ignore", [*self._presence.accused(said.inc, now_us)]
        member = self._roster.get(said.subject)
        if self._census.counting:
            self._census.count(said.by, said.at_ms, now_us)
            leaves = member is not None and said.kind == "left"
            return "accept", [*self._roster.set(member, "left", "left", now_us)] if member and leaves else []
        if not said.accuses:
            return "accept", [*self._own_word(member or self._roster.add(said.subject, said.inc, now_us), said, now_us)]
        assert member is not None  # or it were no news
        steps: Step = [*self._accusations.charge(member, said, now_us)]
        return "accept", [*steps, ProbeNow(member.peer)] if member.is_up else steps

    def _own_word(self, member: Member, said: Statement, now_us: int) -> list[Effect]:
        """A member says of itself that it lives or leaves."""
        another = said.inc != member.inc
        member.inc, member.at_ms = said.inc, said.at_ms
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
