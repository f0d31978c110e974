"""Whom silence makes a ghost, and when it says nothing."""

from __future__ import annotations

from hypothesis import given, strategies as st

from gossip.events import MemberDown, MemberUp
from kernel.liveness import DOWN_MAX, SILENT, Liveness
from protocol.peer import PeerID
from tests.strategies import keypair

ME, OTHER, THIRD = (PeerID(keypair(name).public) for name in ("me", "other", "third"))
SILENCE_US = 1_000


def liveness(silence_us: int | None = SILENCE_US) -> Liveness:
    return Liveness(ME, lambda _members: silence_us)


def test_a_publisher_that_stays_silent_is_down_and_one_sign_of_life_undoes_it() -> None:
    it = liveness()
    it.hold(ME, 0)
    it.hold(OTHER, 5)
    it.hold(OTHER, 900)  # its record changed: held since before
    assert not it.not_alive(5 + SILENCE_US)
    assert it.not_alive(6 + SILENCE_US) == {OTHER: SILENT}
    it.note(MemberUp(OTHER))
    assert not it.not_alive(10 * SILENCE_US)
    it.note(MemberDown(OTHER, "link lost"))
    assert it.not_alive(10 * SILENCE_US) == {OTHER: "link lost"}
    assert it.workers() == {ME}


def test_what_is_held_no_more_starts_anew() -> None:
    it = liveness()
    it.hold(OTHER, 0)
    it.release(OTHER)
    assert not it.not_alive(10 * SILENCE_US)
    it.hold(OTHER, 9 * SILENCE_US)
    assert not it.not_alive(10 * SILENCE_US)


def test_who_was_alone_heard_nobody_in_that_time() -> None:
    it = liveness()
    it.hold(OTHER, 0)
    assert OTHER in it.not_alive(5 * SILENCE_US)
    it.on_first_link(5 * SILENCE_US)
    assert not it.not_alive(6 * SILENCE_US)
    assert OTHER in it.not_alive(6 * SILENCE_US + 1)


def test_where_silence_says_nothing_only_membership_speaks() -> None:
    it = liveness(None)
    it.hold(OTHER, 0)
    it.note(MemberDown(THIRD, "left"))
    assert it.not_alive(10**12) == {THIRD: "left"}


def test_the_swarm_is_at_least_as_large_as_what_is_known_of_it() -> None:
    sizes: list[int] = []

    def silence_us(members: int) -> None:
        sizes.append(members)

    it = Liveness(ME, silence_us)
    it.not_alive(0)
    for number in range(5):
        it.hold(PeerID(keypair(f"p{number}").public), 0)
    it.not_alive(0)
    for number in range(9):
        it.note(MemberUp(PeerID(keypair(f"m{number}").public)))
    it.not_alive(0)
    assert sizes == [1, 5, 10]


def test_the_down_are_bounded_and_the_longest_down_goes_first() -> None:
    it = liveness()
    peers = [PeerID(number.to_bytes(32, "big")) for number in range(DOWN_MAX + 2)]
    for peer in peers:
        it.note(MemberDown(peer, "dead"))
    assert list(it.not_alive(0)) == peers[2:]


@given(st.lists(st.tuples(st.integers(0, 2_000), st.sampled_from(("up", "down", "hold", "release"))), max_size=20))
def test_nobody_is_up_and_down_and_this_node_never_is_down(told: list[tuple[int, str]]) -> None:
    it = liveness()
    now_us = 0
    for wait_us, what in told:
        now_us += wait_us
        for peer in (ME, OTHER):
            if what == "hold":
                it.hold(peer, now_us)
            elif what == "release":
                it.release(peer)
            elif peer == OTHER:
                it.note(MemberUp(peer) if what == "up" else MemberDown(peer, "dead"))
        assert not it.workers() & it.not_alive(now_us).keys()
