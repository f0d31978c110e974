"""What a node has seen of its peers is counted from the histories themselves."""

from __future__ import annotations

from kernel.trust import Trust, first_hand
from tests.fold_world import EPS, LEASE, History, keys

LATER = 200 + LEASE + EPS  # well past the end of any lease taken at the start


def seen(*histories: History) -> dict[str, Trust]:
    figures = first_hand(history.fold() for history in histories)
    return {name: figures[keys(name).public] for name in "ABCDE" if keys(name).public in figures}


def test_nobody_is_known_before_anybody_worked() -> None:
    assert seen() == {}
    assert seen(History()) == {}


def test_turns_on_the_path_count_for_their_authors() -> None:
    h = History()
    h.turn("a1", "A", "open")
    h.turn("b2", "B", "a1")
    h.turn("a3", "A", "b2", outcome="answer")
    assert seen(h) == {"A": Trust(2, 0), "B": Trust(1, 0)}
    assert seen(h, h) == {"A": Trust(4, 0), "B": Trust(2, 0)}


def test_a_claim_that_was_taken_over_counts_against_its_author_and_a_running_one_does_not() -> None:
    h = History()
    h.claim("gone", "A", "open")
    assert seen(h) == {}
    h.turn("b1", "B", "open", e=1, after="gone", at=LATER)
    assert seen(h) == {"A": Trust(0, 1), "B": Trust(1, 0)}


def test_giving_a_turn_back_is_free() -> None:
    h = History()
    h.claim("back", "A", "open")
    h.release("r", "A", "back")
    h.turn("b1", "B", "open", e=1, after="back", ended="r", at=h.t + 1)
    assert seen(h) == {"B": Trust(1, 0)}


def test_an_end_as_failed_counts_against_and_a_beaten_result_for_nothing() -> None:
    h = History()
    h.turn("a1", "A", "open")
    h.turn("b1", "B", "open", e=1, after="a1.c", at=LATER)
    h.seen("v", "D", "a1")  # two votes beat the later epoch
    h.claim("c", "C", "a1")
    h.done("c2", "C", "c", None, outcome="failed")
    assert seen(h) == {"A": Trust(1, 0), "C": Trust(0, 1)}


def test_the_figure_is_the_mean_of_a_beta_and_never_certain() -> None:
    assert Trust().permille == 500
    assert (Trust(1, 0).permille, Trust(0, 1).permille) == (666, 333)
    assert Trust(8, 2).permille == 750
    assert 0 < Trust(0, 500).permille < 10
    assert Trust(500, 0).permille < 1000


def test_outcomes_alone_lift_a_peer_in_the_mesh_and_never_cut_it_off() -> None:
    assert Trust(1, 1).points == 0
    assert 15 <= Trust(50, 0).points <= 20
    assert -10 < Trust(0, 10_000).points < Trust(0, 1).points < 0
