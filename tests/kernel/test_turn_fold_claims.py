"""Single rules of the fold: what claims, renewals, releases and slices are worth (protocol.md §7.1 and §7.8)."""

from __future__ import annotations

import pytest

from kernel.turns.fold import ClaimView, DoneView, TaskFold
from protocol.contract import INT63_MAX, ZERO
from protocol.records import Claim, Done, Release, Seen
from tests.fold_world import (
    EPS,
    LEASE,
    History,
    deny,
    open_record,
    stamp,
    tokens,
)


def claim(h: History, fold: TaskFold, name: str) -> ClaimView:
    found = fold.claim(h.id(name))
    assert found is not None
    return found


def done(h: History, fold: TaskFold, name: str) -> DoneView:
    found = fold.done(h.id(name))
    assert found is not None
    return found


# ---- claims


def test_a_claim_needs_the_open_in_its_past_or_the_done_among_its_refs() -> None:
    h = History()
    h.turn("a1", "A", "open")
    h.claim("blind", "B", "open", bare=True)
    h.claim("far", "C", "a1", bare=True, deps=["open"])
    h.put("nobody", "D", Claim(parent=bytes(32), e=0), deps=["open"])
    h.put("near", "E", Seen(), deps=["open"])
    h.claim("through", "E", "open", bare=True)
    fold = h.fold()
    assert [claim(h, fold, n).ok for n in ("blind", "far", "nobody", "through")] == [False, False, False, True]
    assert fold.claims_on(bytes(32)) == []


def test_a_first_epoch_names_no_earlier_claim_and_a_later_one_the_one_before() -> None:
    h = History()
    h.claim("a", "A", "open")
    h.claim("first", "B", "open", after="a", at=10**6)
    h.claim("jump", "C", "open", e=2, after="a", at=10**6)
    h.claim("next", "D", "open", e=1, after="a", at=10**6)
    h.claim("none", "E", "open", e=1, at=10**6)
    h.claim("greedy", "M", "open", slice=41)
    h.claim("heir", "A", "open", e=1, after="greedy", at=2 * 10**6)
    fold = h.fold()
    names = ("first", "jump", "next", "none", "greedy", "heir")
    assert [claim(h, fold, n).ok for n in names] == [False, False, True, False, False, False]
    assert [c.id for c in fold.claims_on(h.root)] == [h.id("a"), h.id("next")]


def test_a_later_epoch_follows_a_claim_on_the_same_parent() -> None:
    h = History()
    h.turn("a1", "A", "open")
    h.claim("b", "B", "a1", e=1, after="a1.c", at=10**6)
    assert not claim(h, h.fold(), "b").ok


def test_e_rises_above_all_earlier_claims_and_not_only_the_last() -> None:
    h = History()
    h.claim("m0", "M", "open")
    h.claim("m1", "M", "open", e=1, after="m0", at=1_000)
    h.claim("low", "M", "open", at=1_001)
    h.claim("again", "M", "open", e=1, after="m0", at=1_002)
    fold = h.fold()
    assert [claim(h, fold, n).ok for n in ("m0", "m1", "low", "again")] == [True, True, False, False]


def test_a_repeated_claim_keeps_its_own_author_out() -> None:
    h = History()
    h.claim("m0", "M", "open")
    h.claim("m1", "M", "open", e=1, after="m0", at=1_000)
    h.claim("m2", "M", "open", e=2, after="m1", at=1_001)
    h.claim("b2", "B", "open", e=2, after="m1", at=1_001)
    fold = h.fold()
    assert [claim(h, fold, n).ok for n in ("m2", "b2")] == [False, True]


def test_each_branch_of_a_forked_author_has_its_own_first_claim() -> None:
    h = History()
    h.claim("left", "M", "open")
    h.claim("right", "M", "open", prev="jM")
    fold = h.fold()
    assert [(claim(h, fold, n).ok, claim(h, fold, n).repeat) for n in ("left", "right")] == [(True, False)] * 2


def test_a_taker_stamps_end_plus_eps_and_not_before() -> None:
    for early, ok in ((1, False), (0, True)):
        h = History()
        h.claim("a", "A", "open")
        h.claim("b", "B", "open", e=1, after="a", at=h.t + LEASE + EPS - early)
        assert claim(h, h.fold(), "b").ok is ok


def test_renewals_move_the_end_until_renew_max() -> None:
    h = History()
    start = h.t + 1
    h.claim("a", "A", "open")
    for n, at in enumerate((20, 45, 70), start=1):
        h.renew(f"r{n}", "A", "a", at=start + at)
    fold, a = h.fold(), h.id("a")
    assert (fold.renews(a), fold.last_renew(a)) == (2, h.id("r2"))
    assert fold.lease_end(a) == stamp(start + 45 + LEASE)
    h.claim("b", "B", "open", e=1, after="a", ended="r1", at=start + 20 + LEASE + EPS)
    h.claim("c", "C", "open", e=1, after="a", ended="r3", at=start + 45 + LEASE + EPS - 1)
    h.claim("d", "D", "open", e=1, after="a", ended="r3", at=start + 45 + LEASE + EPS)
    assert [claim(h, h.fold(), n).ok for n in ("b", "c", "d")] == [True, False, True]


def test_a_renew_after_the_end_or_by_somebody_else_moves_nothing() -> None:
    h = History()
    start = h.t + 1
    h.claim("a", "A", "open")
    h.renew("foreign", "B", "a", at=start + 10)
    h.renew("late", "A", "a", at=start + LEASE)
    fold = h.fold()
    assert fold.renews(h.id("a")) == 0
    assert fold.last_renew(h.id("a")) is None
    h.claim("b", "C", "open", e=1, after="a", ended="foreign", at=start + 1000)
    h.claim("c", "D", "open", e=1, after="a", ended="late", at=start + LEASE + EPS)
    assert [claim(h, h.fold(), n).ok for n in ("b", "c")] == [False, True]


def test_a_renew_of_another_claim_is_no_end() -> None:
    h = History()
    h.claim("a", "A", "open")
    h.claim("a2", "A", "open", e=1, after="a", at=1_000)
    h.renew("r", "A", "a2")
    h.claim("b", "B", "open", e=1, after="a", ended="r", at=10**6)
    assert not claim(h, h.fold(), "b").ok


def test_a_release_frees_at_once_and_other_words_do_not() -> None:
    h = History()
    h.claim("a", "A", "open")
    h.unit("u", "A", claim="a")
    h.put("decline", "A", Release(done=h.id("u")), named=[h.id("u")])
    h.release("given", "A", "a")
    h.claim("b", "B", "open", e=1, after="a", ended="u")
    h.claim("c", "C", "open", e=1, after="a", ended="decline")
    h.claim("d", "D", "open", e=1, after="a", ended="given")
    fold = h.fold()
    assert [claim(h, fold, n).ok for n in ("b", "c", "d")] == [False, False, True]
    assert fold.released(h.id("a")) == h.id("given")
    assert fold.released(h.id("d")) is None


@pytest.mark.parametrize("how", ["fork", "deny"])
def test_a_claim_of_a_burnt_or_denied_author_is_free(how: str) -> None:
    h = History()
    h.claim("m", "M", "open")
    h.claim("b", "B", "open", e=1, after="m")
    assert not claim(h, h.fold(), "b").ok
    if how == "fork":
        h.unit("twin", "M", prev="jM", deps=["open"])
    else:
        h.put("out", "A", deny("M", 0))
    assert claim(h, h.fold(), "b").ok
    if how == "deny":
        h.put("out2", "A", deny("M", 5))
        g = h.fold(without=["out"])
        assert not claim(h, g, "b").ok  # its claim lies below what the deny keeps


# ---- budget


def test_slices_and_spending_count_per_component() -> None:
    record = open_record()
    h = History()
    wide = (20, 1, 5, 0)
    h.put("c", "A", Claim(parent=h.root, e=0, slice=wide), named=[h.id("open")])
    h.unit("u", "A", claim="c")
    used = Done(claim=h.id("c"), unit=h.id("u"), outcome="next", used=(25, 0, 3, INT63_MAX))
    h.put("d", "A", used, named=[h.id("c"), h.id("u")])
    h.claim("e", "B", "d", slice=40)
    h.put("f", "C", Claim(parent=h.id("d"), e=0, slice=(41, 0, 0, 0)), named=[h.id("d")])
    fold = h.fold()
    assert claim(h, fold, "c").ok
    assert fold.spent(h.id("d")) == (20, 0, 3, 0)
    assert claim(h, fold, "e").before == (20, 0, 3, 0)
    assert claim(h, fold, "e").ok
    assert not claim(h, fold, "f").ok
    assert record.slice_max[1] == INT63_MAX
    assert fold.terms(h.root).budget == (100, *[INT63_MAX] * 3)


def test_an_after_path_sets_its_slices_aside() -> None:
    h = History(terms={"budget": 50})
    h.claim("a", "A", "open", slice=40)
    h.claim("b", "B", "open", e=1, after="a", slice=11, at=1000)
    h.claim("c", "C", "open", e=1, after="a", slice=10, at=1000)
    h.claim("d", "D", "open", e=2, after="c", slice=1, at=2000)
    h.claim("e", "E", "open", e=2, after="c", slice=0, at=2000)
    fold = h.fold()
    assert [claim(h, fold, n).ok for n in "abcde"] == [True, False, True, False, True]
    assert claim(h, fold, "e").before == tokens(50)
    assert claim(h, fold, "b").before == ZERO
