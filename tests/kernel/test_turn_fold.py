"""Single rules of the fold: the task, its dones, votes, finality and ends (protocol.md §6 and §7)."""

from __future__ import annotations

from hashlib import sha256
from typing import Any

import pytest

from kernel.turns.fold import ClaimView, DoneView, TaskFold
from protocol.contract import ZERO
from protocol.errors import NotFound
from protocol.records import Claim, Done, Next, Release, Seen, body_bytes
from tests.fold_world import (
    History,
    cancel,
    deny,
    feed,
    keys,
    open_record,
    settle,
    shuffled,
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


# ---- an empty space, a fresh task


def test_nothing_is_known_of_an_empty_space() -> None:
    fold = feed([]).fold
    assert (fold.root, fold.open, fold.tip, fold.chain, fold.outcome, fold.ended) == (
        None,
        None,
        None,
        (),
        "open",
        False,
    )
    assert fold.ballots(keys("A").public) == ()
    assert fold.claim(bytes(32)) is None
    assert fold.done(bytes(32)) is None
    for ask in (fold.step_of, fold.spent, fold.terms, fold.lease_end):
        with pytest.raises(NotFound):
            ask(bytes(32))


def test_a_fresh_task_waits_at_its_root() -> None:
    h = History()
    fold = h.fold()
    assert fold.root == fold.tip == h.root
    assert fold.open == h.record
    assert fold.open_op_ids(h.root) == (h.id("open"),)
    assert fold.step_of(h.root) == 0
    assert fold.spent(h.root) == ZERO


def test_the_smallest_body_hash_is_the_task_and_trees_do_not_mix() -> None:
    """A claim is judged by the terms of its own root: a smaller open that comes later judges nothing anew."""
    h = History()
    record = next(r for n in range(64) if _hash(r := open_record(objective=f"o{n}", slice_max=10)) < h.root)
    h.turn("a1", "A", "open", slice=40)
    before = h.fold()
    h.put("small", "B", record)
    after = h.fold()
    assert h.names(before.chain) == ["a1"]
    assert after.root == h.ops["small"].body_hash
    assert after.chain == ()
    assert claim(h, after, "a1.c").ok
    assert after.winner(h.root) == h.id("a1")
    assert after.spent(h.id("a1")) == tokens(10)
    h.put("over", "C", Claim(parent=h.ops["small"].body_hash, e=0, slice=tokens(11)), named=[h.id("small")])
    h.put("fits", "D", Claim(parent=h.ops["small"].body_hash, e=0, slice=tokens(10)), named=[h.id("small")])
    fold = h.fold()
    assert not claim(h, fold, "over").ok
    assert claim(h, fold, "fits").ok


def _hash(record: Any) -> bytes:
    return sha256(body_bytes(record)).digest()


# ---- dones


def test_a_done_is_of_the_claims_author_and_its_first() -> None:
    h = History()
    h.claim("c", "A", "open")
    h.unit("u", "A", claim="c")
    h.done("foreign", "B", "c", "u")
    h.done("own", "A", "c", "u")
    h.done("again", "A", "c", "u", outcome="answer")
    fold = h.fold()
    assert [done(h, fold, n).form for n in ("foreign", "own", "again")] == [False, True, False]
    assert [d.id for d in fold.dones_of(h.root)] == [h.id("own")]
    assert done(h, fold, "own") == DoneView(
        *(h.id("own"), keys("A").public, h.id("c"), h.root, h.id("u"), "next", None),
        spent=tokens(10),
        form=True,
        valid=True,
    )


@pytest.mark.parametrize(
    ("outcome", "unit", "form"),
    [
        ("next", "u", True),
        ("next", None, False),
        ("answer", "u", True),
        ("answer", None, False),
        ("failed", None, True),
        ("failed", "u", True),
        ("next", "c", False),
        ("failed", "open", False),
    ],
)
def test_a_done_names_a_unit_except_for_ends_other_than_answer(outcome: str, unit: str | None, *, form: bool) -> None:
    h = History()
    h.claim("c", "A", "open")
    h.unit("u", "A", claim="c")
    h.done("d", "A", "c", unit, outcome=outcome)
    assert done(h, h.fold(), "d").form is form


def test_a_taker_completes_with_the_unit_of_a_dead_claim() -> None:
    h = History()
    h.claim("a", "A", "open")
    h.unit("u2", "A", claim="a", at=150)
    h.unit("u", "B", claim="a")
    h.unit("u1", "A", claim="a", at=152)
    h.claim("b", "B", "open", e=1, after="a", at=1000)
    h.done("d", "B", "b", "u2", outcome="answer", at=1001)
    fold = h.fold()
    assert fold.units_of(h.id("a")) == (h.id("u2"), h.id("u1"))
    assert fold.units_of(h.id("b")) == ()
    assert fold.outcome == "answer"
    assert fold.ended
    assert fold.tip == h.id("d")


def test_the_done_of_the_last_step_carries_an_end() -> None:
    h = History(terms={"max_steps": 2})
    h.turn("a1", "A", "open")
    h.turn("b2", "B", "a1")
    assert not done(h, h.fold(), "b2").form
    h.turn("c2", "C", "a1", e=1, after="b2.c", outcome="budget_exhausted", at=1000)
    fold = h.fold()
    assert h.names(fold.chain) == ["a1", "c2"]
    assert fold.outcome == "budget_exhausted"
    assert [fold.step_of(d) for d in fold.chain] == [1, 2]


def test_an_offer_is_declined_by_the_peer_itself() -> None:
    h = History()
    h.turn("a1", "A", "open")
    h.put("no", "B", Release(done=h.id("a1"), reason="busy"), named=[h.id("a1")])
    fold = h.fold()
    assert fold.declined(h.id("a1"), keys("B").public)
    assert not fold.declined(h.id("a1"), keys("C").public)


def test_a_done_says_what_comes_next() -> None:
    h = History()
    h.claim("c", "A", "open")
    h.unit("u", "A", claim="c")
    named = Next(role="critic", agent="two", peer=keys("B").public)
    h.put("d", "A", Done(claim=h.id("c"), unit=h.id("u"), outcome="next", next=named), named=[h.id("c"), h.id("u")])
    assert done(h, h.fold(), "d").next == named


# ---- votes, finality, ends


def test_votes_then_epoch_then_id_choose_the_winner() -> None:
    h = History()
    h.turn("a", "A", "open")
    h.turn("m", "M", "open", e=1, after="a.c", at=1000)
    assert h.fold().chain == (h.id("a"),)  # A's own vote beats the higher epoch
    h.turn("n", "M", "open", e=2, after="m.c", at=2000)
    g = h.fold(without=["a.u", "a"])
    assert g.chain == (h.id("n"),)
    h.seen("vB", "B", "m")
    h.seen("vC", "C", "m")
    fold = h.fold()
    assert fold.chain == (h.id("m"),)
    assert fold.tally(h.id("m")) == 2
    assert fold.voters(h.id("m")) == (keys("B").public, keys("C").public)
    assert fold.vote_of(keys("A").public, h.root) == h.id("a")
    assert fold.vote_of(keys("D").public, h.root) is None


def test_only_the_first_vote_of_a_participant_counts() -> None:
    h = History()
    h.turn("a", "A", "open")
    h.turn("b", "B", "open", votes=["a"])
    h.seen("vM", "M", "b")
    h.seen("vC", "C", "b", "a")
    fold = h.fold()
    assert fold.voters(h.id("a")) == (keys("A").public, keys("B").public)
    assert fold.voters(h.id("b")) == (keys("C").public,)


def test_a_vote_for_what_can_never_stand_is_a_vote() -> None:
    h = History()
    h.turn("a", "A", "open")
    h.claim("bad", "M", "open", slice=41)
    h.unit("bu", "M")
    h.done("bd", "M", "bad", "bu")
    h.seen("v1", "B", "bd")
    h.seen("v2", "B", "a")
    assert h.fold().voters(h.id("a")) == (keys("A").public,)


@pytest.mark.parametrize(
    ("f", "votes", "level"),
    [(0, 2, "tentative"), (0, 3, "final"), (1, 3, "majority"), (1, 4, "final"), (2, 4, "majority"), (2, 5, "final")],
)
def test_levels_of_finality(f: int, votes: int, level: str) -> None:
    h = History(terms={"f": f})
    h.turn("a", "A", "open")
    for x in "BCDE"[: votes - 1]:
        h.seen(f"v{x}", x, "a")
    assert h.fold().finality(h.id("a")) == level


def test_finality_never_exceeds_that_of_a_done_before() -> None:
    h = History(terms={"f": 1})
    h.turn("a", "A", "open")
    h.turn("b", "B", "a", votes=["a"])
    for x in "ACDE":
        h.seen(f"v{x}", x, "b")
    fold = h.fold()
    assert fold.tally(h.id("b")) == 5
    assert [fold.finality(d) for d in fold.chain] == ["tentative", "tentative"]
    h.seen("wC", "C", "a")
    assert [h.fold().finality(d) for d in fold.chain] == ["majority", "majority"]
    h.seen("wD", "D", "a")
    assert [h.fold().finality(d) for d in fold.chain] == ["final", "final"]


def test_a_sealed_done_wins_over_votes_and_holders_alone_seal() -> None:
    h = History(terms={"holders": "ABM"})
    h.turn("a", "A", "open")
    h.turn("m", "M", "open")
    for x in "CDE":
        h.seal(f"no{x}", x, "m")
    h.seal("sB", "B", "m")
    assert h.fold().chain == (h.id("a"),)
    h.seal("sM", "M", "m")
    fold = h.fold()
    assert fold.chain == (h.id("m"),)
    assert fold.finality(h.id("m")) == "sealed"
    assert fold.finality(h.id("a")) == "tentative"


def test_a_sealed_done_stands_though_its_author_burns() -> None:
    h = History()
    h.turn("m", "M", "open")
    for x in "BCD":
        h.seal(f"s{x}", x, "m")
    h.put("seen", "A", Seen(), deps=["sB", "sC", "sD"])
    h.unit("twin", "M", prev="jM", deps=["open"])
    assert h.fold(without=["sD", "seen"]).chain == ()
    fold = h.fold()
    assert fold.chain == (h.id("m"),)
    assert done(h, fold, "m").valid
    assert fold.tally(h.id("m")) == 0


def test_f_faulty_holders_do_not_make_a_seal() -> None:
    h = History(terms={"f": 1})
    h.turn("a", "A", "open")
    for x in "BCD":
        h.seal(f"s{x}", x, "a")
    assert h.fold().finality(h.id("a")) == "tentative"
    h.seal("sE", "E", "a")
    assert h.fold().finality(h.id("a")) == "sealed"


@pytest.mark.parametrize("outcome", ["answer", "no_capable_agent", "deadline", "loop", "held", "policy_denied"])
def test_nothing_continues_an_end(outcome: str) -> None:
    h = History()
    h.turn("a", "A", "open", outcome=outcome)
    h.turn("b", "B", "a")
    fold = h.fold()
    assert fold.outcome == outcome
    assert fold.ended
    assert h.names(fold.chain) == ["a"]
    assert not claim(h, fold, "b.c").ok


def test_a_late_answer_and_a_deadline_compete_by_votes() -> None:
    h = History()
    h.turn("a", "A", "open", outcome="deadline")
    h.turn("b", "B", "open", outcome="answer", e=1, after="a.c", at=1000)
    assert h.fold().outcome == "answer"  # one vote each: the higher epoch
    h.seen("v", "C", "a")
    assert h.fold().outcome == "deadline"


def stops(*order: str) -> tuple[str, bytes | None]:
    """Words of the user: c(ancel), s(ettle); a capital has the word before it in its past."""
    h = History()
    h.turn("a", "A", "open")
    last: str | None = None
    for n, word in enumerate(order):
        record = cancel() if word.lower() == "c" else settle(h.id("a"))
        deps = ["open", "a", *([last] if last and word.isupper() else [])]
        last = f"stop{n}"
        h.put(last, "BCDEM"[n], record, deps=deps)
    fold = feed(shuffled(h.all(), n)).fold
    assert fold.ended
    assert h.names(fold.chain) == ["a"]
    return fold.outcome, fold.settled and h.id("a")


def test_the_first_word_of_the_user_decides_and_a_cancel_among_equals() -> None:
    assert stops("c")[0] == "cancelled"
    settled = stops("s")
    assert settled[0] == "settled"
    assert settled[1] is not None
    assert stops("s", "C")[0] == "settled"
    assert stops("c", "S")[0] == "cancelled"
    assert stops("s", "c") == ("cancelled", None)
    assert stops("s", "S", "C")[0] == "settled"
    assert stops("s", "C", "c")[0] == "cancelled"


# ---- ballots and digests


def test_ballots_name_each_winner_once_until_they_are_cast() -> None:
    h = History()
    h.turn("a", "A", "open")
    h.turn("b", "B", "a", votes=["a"])
    fold, c = h.fold(), keys("C").public
    assert fold.ballots(c) == (h.id("a"), h.id("b")) == fold.ballots(keys("D").public)
    assert fold.ballots(keys("A").public) == (h.id("b"),)
    assert fold.ballots(keys("B").public) == ()
    assert fold.ballots(keys("M").public) == ()
    h.seen("v", "C", *("a", "b"))
    assert h.fold().ballots(c) == ()


def test_a_burnt_or_denied_author_has_no_ballots() -> None:
    h = History()
    h.turn("a", "A", "open")
    h.unit("x", "B", deps=["open"])
    h.unit("y", "B", prev="jB", deps=["open"])
    h.put("out", "C", deny("D", 0))
    fold = h.fold()
    assert fold.ballots(keys("B").public) == fold.ballots(keys("D").public) == ()
    assert fold.ballots(keys("E").public) == (h.id("a"),)


def test_ballots_are_at_most_eight() -> None:
    h = History(terms={"budget": 10_000})
    parent = "open"
    for n in range(11):
        h.turn(f"a{n}", "A", parent, slice=0)
        parent = f"a{n}"
    fold = h.fold()
    assert h.names(fold.ballots(keys("B").public)) == [f"a{n}" for n in range(8)]


def test_equal_sets_have_equal_digests_and_others_not() -> None:
    h = History()
    h.turn("a", "A", "open")
    h.seen("v", "B", "a")
    digests = {feed(shuffled(h.all(), seed)).fold.state_digest() for seed in range(3)}
    assert len(digests) == 1
    assert h.fold(without=["v"]).state_digest() not in digests


def test_work_per_op_does_not_grow_with_the_task() -> None:
    """§7.9: a long task folds its last turns with as many record look-ups as its first ones."""
    h = History(terms={"budget": 10**6, "max_steps": 1_000})
    parent = "open"
    for n in range(60):
        h.turn(f"s{n}", "ABCDE"[n % 5], parent, slice=1, used=1)
        for x in "ABCDE":
            h.seen(f"v{n}{x}", x, f"s{n}")
        parent = f"s{n}"
    node = feed([])
    cost: list[int] = []
    get = node.log.get
    calls = 0

    def counted(op_id: bytes) -> Any:
        nonlocal calls
        calls += 1
        return get(op_id)

    node.log.get = counted  # type: ignore[method-assign]
    for op in h.all():
        calls = 0
        node.take(op)
        cost.append(calls)
    assert max(cost[-50:]) <= max(cost[:50])
    assert len(node.fold.chain) == 60
