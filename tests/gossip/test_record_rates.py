"""A publisher changes its records at a bounded rate, and a peer pushes a bounded number of bad ones."""

from __future__ import annotations

from hypothesis import given, strategies as st

from gossip.config import GossipConfig
from gossip.record_rates import ChangeRates, Junk
from protocol.peer import PeerID

CONFIG = GossipConfig(record_burst=4, record_every_us=1_000_000, record_junk_max=3)
MINUTE_US = 60_000_000
PEER = PeerID(bytes(32))


@given(st.lists(st.integers(0, 3_000_000), max_size=60))
def test_in_any_stretch_of_time_no_more_than_the_burst_and_the_rate(pauses: list[int]) -> None:
    rates, now_us, taken = ChangeRates(CONFIG), 0, list[int]()
    for pause in pauses:
        now_us += pause
        if rates.may(b"p", now_us):
            rates.charge(b"p", now_us)
            taken.append(now_us)
    for i, begin in enumerate(taken):
        for j in range(i, len(taken)):
            assert j - i + 1 <= CONFIG.record_burst + (taken[j] - begin) // CONFIG.record_every_us


def test_one_publisher_is_not_charged_for_another_and_who_owes_nothing_is_forgotten() -> None:
    rates = ChangeRates(CONFIG)
    for _ in range(CONFIG.record_burst):
        assert rates.may(b"p", 0)
        rates.charge(b"p", 0)
    assert not rates.may(b"p", 0)
    assert rates.may(b"q", 0)
    assert rates.may(b"p", CONFIG.record_every_us)
    rates.sweep(CONFIG.record_every_us)
    assert len(rates) == 1
    rates.sweep(CONFIG.record_burst * CONFIG.record_every_us)
    assert len(rates) == 0


def test_bad_records_are_too_many_only_within_a_minute() -> None:
    junk = Junk(CONFIG)
    assert [junk.is_too_much(PEER, 0) for _ in range(4)] == [False, False, False, True]
    spread = Junk(CONFIG)
    assert not any(spread.is_too_much(PEER, n * MINUTE_US // 2) for n in range(40))
    spread.forget(PEER)
