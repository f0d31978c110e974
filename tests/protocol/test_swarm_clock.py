"""Stamps only grow; a clock wrong by minutes neither mutes nor deafens its node (protocol.md §4, case C4)."""

from __future__ import annotations

import statistics

from hypothesis import given, strategies as st

from node.swarm import BACKDATE_MS
from protocol.capability import RECORD_TTL_MS
from protocol.clock import (
    HLC_PER_MS,
    OFFSET_MS_MAX,
    OFFSET_SAMPLES_MAX,
    QUARANTINE_MS,
    SKEW_WARN_MS,
    HybridClock,
    SwarmClock,
    hlc_from_ms,
    hlc_to_ms,
)

NOW_MS = 1_700_000_000_000
MINUTES_10 = 600_000
moments = st.integers(0, 2**45)


@given(st.integers(0, 2**47), st.lists(st.tuples(moments, st.integers(0, 2**61)), max_size=20))
def test_stamps_grow_strictly_and_lie_after_time_and_floor(high: int, asked: list[tuple[int, int]]) -> None:
    clock, last = HybridClock(high), high
    for swarm_ms, floor in asked:
        stamp = clock.stamp(swarm_ms, floor)
        assert stamp > max(last, floor)
        assert stamp >= hlc_from_ms(swarm_ms)
        assert stamp == max(last + 1, floor + 1, hlc_from_ms(swarm_ms))  # and no later than they demand
        assert clock.high_water == stamp
        last = stamp


@given(moments)
def test_a_millisecond_and_its_stamps_belong_together(ms: int) -> None:
    assert hlc_to_ms(hlc_from_ms(ms)) == ms == hlc_to_ms(hlc_from_ms(ms + 1) - 1)
    assert hlc_from_ms(1) == HLC_PER_MS


def node(offset_ms: int) -> SwarmClock:
    """A node whose wall clock is off; boot time zero is NOW_MS."""
    return SwarmClock((NOW_MS + offset_ms) * 1000)


def meet(*clocks: SwarmClock) -> None:
    """Everybody tells everybody what its wall clock shows, at boot time zero."""
    for i, clock in enumerate(clocks):
        for j, other in enumerate(clocks):
            if i != j:
                clock.sample(bytes([j]), other.wall_ms(0), 0)


@given(st.lists(st.integers(-OFFSET_MS_MAX // 2, OFFSET_MS_MAX // 2), min_size=2, max_size=7))
def test_nodes_that_all_met_agree_on_the_time_whatever_their_clocks_say(offsets: list[int]) -> None:
    clocks = [node(offset) for offset in offsets]
    meet(*clocks)
    agreed = {clock.now_ms(0) for clock in clocks}
    assert len(agreed) == 1
    assert agreed == {NOW_MS + int(statistics.median_low(offsets))}


@given(st.integers(-MINUTES_10, MINUTES_10), st.integers(3, 6), st.integers(0, 10**10))
def test_one_wrong_clock_among_right_ones_is_corrected(wrong: int, n: int, later_us: int) -> None:
    clocks = [node(wrong), *[node(0) for _ in range(n - 1)]]
    meet(*clocks)
    for clock in clocks:
        assert clock.now_ms(later_us) == NOW_MS + later_us // 1000
    assert clocks[0].skewed == (abs(wrong) > SKEW_WARN_MS)
    assert not clocks[1].skewed


@given(st.integers(-(2**46), 2**46), st.integers(3, 9))
def test_a_minority_that_lies_without_measure_moves_nothing(lie: int, n: int) -> None:
    clock = node(0)
    for peer in range(n):
        told = lie if peer < (n - 1) // 2 else 0
        clock.sample(bytes([peer]), NOW_MS + told, 0)
    assert clock.now_ms(0) == NOW_MS


def test_own_ops_of_a_node_with_a_wrong_clock_are_not_from_the_future() -> None:
    fast = node(MINUTES_10)
    alone = hlc_to_ms(HybridClock().stamp(fast.now_ms(0)))
    assert alone > NOW_MS + QUARANTINE_MS  # alone it cannot know
    meet(fast, node(0), node(0))
    assert hlc_to_ms(HybridClock().stamp(fast.now_ms(0))) <= NOW_MS + QUARANTINE_MS


@given(st.integers(-MINUTES_10, MINUTES_10))
def test_setting_the_wall_clock_does_not_move_the_time_that_peers_agreed_on(step: int) -> None:
    """A step of the own clock must not stamp ops minutes ahead until the next pings arrive."""
    clock = node(0)
    meet(clock, node(0), node(0))
    clock.set_wall_offset((NOW_MS + step) * 1000)
    assert clock.wall_ms(0) == NOW_MS + step
    assert clock.now_ms(0) == NOW_MS


def test_the_newest_sample_of_a_peer_counts_and_leaving_takes_it_away() -> None:
    clock = node(0)
    for told in (90_000, 50_000, 7_000):
        clock.sample(b"a", NOW_MS + told, 0)
        clock.sample(b"b", NOW_MS + told, 0)
    assert clock.offset_ms == 7_000
    clock.forget(b"a")
    clock.forget(b"b")
    clock.forget(b"never seen")
    assert clock.offset_ms == 0


def test_samples_are_bounded_and_the_oldest_goes_first() -> None:
    clock = node(0)
    for peer in range(10 * OFFSET_SAMPLES_MAX):
        clock.sample(peer.to_bytes(4, "big"), NOW_MS + (0 if peer < 9 * OFFSET_SAMPLES_MAX else 60_000), 0)
    assert len(clock._peers) == OFFSET_SAMPLES_MAX
    assert clock.offset_ms == 60_000


def test_a_clock_before_the_own_admission_is_no_sample() -> None:
    """Of two clocks the earlier one leads; one that is wrong by days must not mute the right one."""
    clock = SwarmClock(NOW_MS * 1000, floor_ms=NOW_MS - 60_000)
    clock.sample(b"a", NOW_MS - 3 * 86_400_000, 0)
    assert clock.now_ms(0) == NOW_MS
    clock.sample(b"a", NOW_MS - 30_000, 0)
    assert clock.now_ms(0) == NOW_MS - 30_000


@given(st.integers(-NOW_MS, 2**46), st.integers(1, 9))
def test_peers_who_all_lie_move_the_time_by_the_bound_and_warn(lie: int, n: int) -> None:
    """Were there no bound, 4 of 7 members who name a day in the next year would end every record and certificate."""
    clock = node(0)
    for peer in range(n):
        clock.sample(bytes([peer]), NOW_MS + lie, 0)
    moved = clock.now_ms(0) - NOW_MS
    assert abs(moved) <= OFFSET_MS_MAX
    if n > 1 or lie < 0:  # of two clocks the earlier one leads
        assert moved == max(-OFFSET_MS_MAX, min(OFFSET_MS_MAX, lie))
        assert clock.median_ms == lie
        assert clock.skewed == (abs(lie) > SKEW_WARN_MS)
        for peer in range(n):
            clock.forget(bytes([peer]))
        assert clock.now_ms(0) == NOW_MS


def test_the_bound_fits_the_lead_of_certificates_and_the_clocks_that_must_work() -> None:
    assert MINUTES_10 < OFFSET_MS_MAX <= BACKDATE_MS
    assert OFFSET_MS_MAX < RECORD_TTL_MS // 6  # a moved clock ends no record that is signed anew in time
