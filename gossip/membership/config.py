"""Parameters of membership; units are in the names (replication.md §12, Lifeguard: arXiv 1707.00788)."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class MemberConfig:
    """Defaults fit a LAN and the internet; tests and the demo shorten the waits.

    Attributes:
        probe_every_us: one link is probed per period; a node with L links probes each every L periods, but each node
            is probed by all its neighbours, about once a period.
        probe_timeout_us: for the answer to a ping, and again for the answers of those who were asked to ping.
        helpers: how many are asked at once. At a frame loss of 10 % three leave a false accusation in 0.8 % of probes.
        helpers_max: how many are asked in all; who is not linked to the target is replaced by another.
        nack_part: in percent of the timeout; a helper that heard nothing says so before the asker gives up.
        redial_wait_us: after a lost link that nobody asked could judge: time for links.py to dial anew.
        suspicion_periods: probe periods that a suspect has to refute, times log10 of the swarm's size.
        confirmations: accusers beyond the first that shorten this to `suspicion_least_percent`.
        presence_every_us, presence_ttl_us: three signed words of a member may be lost before it counts as silent.
        presence_per_member_us: above 30 members each speaks so much rarer that the swarm makes one word a second.
        announce_gap_us: the least between two own statements; a flood of accusations cannot make a node shout.
        soon_per_member_us: who sees a member return that it took for down says its own presence within this, times
            the members: the other side may think the same of it, and the swarm makes at most 10 statements a second.
        tables: how many neighbours a node asks for the words of all, at its first links.
        table_again_us: then as many again, and once more after twice that: where many start together, the words of
            some were lost over links that were too young.
        table_gap_us: a neighbour is given them once in this time.
        table_wait_us: old words that an asked neighbour sends within it are the answer, and news to nobody else.
        members_max: above it the machine stands down and only links count.
        members_return: at so few it starts again.
        tombstones_max, forget_us: of members that are down. Kept for longer than any old statement is taken.
        future_ms, past_ms: statements outside are not taken; clocks wrong by 10 min do no harm (complaint 14).
        slack_ms: two clocks that agree on swarm time differ by less.
        echo_gap_us: two words of a suspect that come this far apart were not both under way when it died.
        setback_ms: a lower incarnation said by its owner so much later: its database was set back.
        left_hold_us: who said that it leaves and still speaks after this time did not.
        stall_us: a timer that fires so late says that this node slept, and nothing about others.
        lag_max_us: of the own loop lag that is added to timeouts.
        health_max: Lifeguard's multiplier of own timeouts goes from 1 to this.
        early_max: words kept of keys whose admission is not known yet; keys are free, so the oldest goes first. More
            than `members_max`, for a newcomer may be told the words of all before it has their records.
        budget_max, budget_refill_us: what one signer may make others handle: a statement about itself costs 1,
            an accusation `accusation_cost`. 16 accusations at once, 6 a minute then.
        relays_max: questions of others that wait for an answer here.
        relays_per_peer_max, relays_refill_us: one neighbour may have others pinged so often at once, 4 times a second
            then. A node that loses many links at the same time asks about each of them.
    """

    probe_every_us: int = 2_000_000
    probe_timeout_us: int = 1_000_000
    helpers: int = 3
    helpers_max: int = 12
    nack_part: int = 80
    redial_wait_us: int = 2_000_000
    suspicion_periods: int = 5
    suspicion_least_percent: int = 40
    confirmations: int = 3
    presence_every_us: int = 30_000_000
    presence_ttl_us: int = 90_000_000
    presence_per_member_us: int = 1_000_000
    announce_gap_us: int = 1_000_000
    soon_per_member_us: int = 100_000
    tables: int = 2
    table_again_us: int = 10_000_000
    table_gap_us: int = 5_000_000
    table_wait_us: int = 10_000_000
    members_max: int = 500
    members_return: int = 450
    tombstones_max: int = 1_000
    forget_us: int = 1_500_000_000
    future_ms: int = 600_000
    past_ms: int = 600_000
    slack_ms: int = 5_000
    echo_gap_us: int = 10_000_000
    setback_ms: int = 60_000
    left_hold_us: int = 60_000_000
    stall_us: int = 500_000
    lag_max_us: int = 2_000_000
    health_max: int = 8
    early_max: int = 512
    budget_max: int = 80
    budget_refill_us: int = 2_000_000
    accusation_cost: int = 5
    relays_max: int = 128
    relays_per_peer_max: int = 16
    relays_refill_us: int = 250_000
    sweep_every_us: int = 5_000_000

    def period_us(self, swarm_size: int) -> int:
        """Between two words of a member that counts so many, itself included."""
        return max(self.presence_every_us, swarm_size * self.presence_per_member_us)

    @property
    def standing_period_us(self) -> int:
        """The same while a machine stands down, when it cannot count them."""
        return max(10 * self.presence_every_us, self.period_us(self.members_max))

    def hold_us(self, period_us: int) -> int:
        """How long a word stands that is followed by the next after such a period."""
        return period_us * self.presence_ttl_us // self.presence_every_us
