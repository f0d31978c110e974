"""The 22 histories that broke an earlier wording of the rules, told with real signed ops.

Each has the answer that the rules give, and the wrong one that it gives again as soon as its rule is taken out:
so the history proves the rule, and a fold that loses it fails here.
"""
# ruff: noqa: ARG005 - a stand-in takes what the rule takes whose place it has

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest

from gossip.acceptance import Acceptance
from gossip.retention import Retention
from gossip.space_log import SpaceLog
from kernel.turns.fold import LEVELS, TaskFold
from kernel.turns.fold_claims import ClaimTable
from kernel.turns.fold_dones import DoneTable
from protocol.codec import encode
from protocol.contract import ZERO, add
from protocol.op import Op, OpKind
from protocol.records import Release, Renew, Seen
from tests.fold_world import History, cancel, feed, keys

Patch = pytest.MonkeyPatch
FOUR = "BCDE"


@dataclass(frozen=True)
class Attack:
    answer: Callable[[], Any]
    right: Any
    without: Callable[[Patch], None]
    wrong: Any


ATTACKS: list[Attack] = []


def attack(*, right: Any, without: Callable[[Patch], None], wrong: Any) -> Callable[[Callable[[], Any]], None]:
    return lambda answer: ATTACKS.append(Attack(answer, right, without, wrong))


def past(log: SpaceLog, op_id: bytes) -> set[bytes]:
    """Kept ops in an op's past, reached through kept ops only."""
    seen: set[bytes] = set()
    todo = [op_id]
    while todo:
        op = log.get(todo.pop())
        for ref in op.refs if op else ():
            if ref not in seen and log.get(ref) is not None:
                seen.add(ref)
                todo.append(ref)
    return seen


def chains(h: History, fork: str) -> tuple[list[str], list[str]]:
    """The chain before and after the fork is known."""
    return h.names(h.fold(without=[fork]).chain), h.names(h.fold().chain)


def no_closure(patch: Patch) -> None:
    """A burn takes what lies in the past of kept ops."""
    patch.setattr(Retention, "_drags_in", lambda self, op: ())


# ---- 1


def parent_anywhere_in_the_past(patch: Patch) -> None:
    no_closure(patch)
    patch.setattr(
        ClaimTable,
        "_continued",
        lambda self, op, parent: (
            self._steps.get(parent)
            if parent in self._log.opens_in_past(op.id) or parent in past(self._log, op.id)
            else None
        ),
    )


@attack(
    right=((["a1", "b1"], ["a1", "b1"]), (["a1"], ["a1"])),
    without=parent_anywhere_in_the_past,
    wrong=((["a1", "b1"], ["a1", "b1"]), (["a1", "b1"], ["a1"])),
)
def a01() -> Any:
    """B names its parent a1, or knows it only through M's op; M, no participant, forks under B's 4 of 5 votes."""

    def told(*, bare: bool) -> Any:
        h = History()
        h.turn("a1", "A", "open")
        h.unit("m1", "M", deps=["a1"])
        h.unit("m2", "M")
        h.turn("b1", "B", "a1", deps=["m2"], bare=bare)
        for x in "CDE":
            h.seen(f"v{x}", x, "a1", "b1")
        h.unit("m1x", "M", prev="jM")
        return chains(h, "m1x")

    return told(bare=False), told(bare=True)


# ---- 2


def release_anywhere_in_the_past(patch: Patch) -> None:
    no_closure(patch)
    ended = ClaimTable._ended

    def loose(self: ClaimTable, op: Op, body: Any, after: Any, terms: Any) -> bool:
        records = [(self._log.get(i), self._log.record(i)) for i in past(self._log, op.id)]
        return ended(self, op, body, after, terms) or any(
            isinstance(r, Release) and r.claim == after.id and o is not None and o.author == after.author
            for o, r in records
        )

    patch.setattr(ClaimTable, "_ended", loose)


@attack(
    right=((["b1"], ["b1"]), ([], [])),
    without=release_anywhere_in_the_past,
    wrong=((["b1"], ["b1"]), (["b1"], [])),
)
def a02() -> Any:
    """B takes over because of a release that it names, or that it knows only through M's op."""

    def told(ended: str) -> Any:
        h = History()
        h.claim("a.c", "A", "open")
        h.release("rel", "A", "a.c")
        h.unit("m1", "M", deps=["rel"])
        h.unit("m2", "M")
        h.turn("b1", "B", "open", deps=["m2"], e=1, after="a.c", ended=ended)
        for x in "CDE":
            h.seen(f"v{x}", x, "b1")
        h.unit("m1x", "M", prev="jM")
        return chains(h, "m1x")

    return told("rel"), told("")


# ---- 3


def dropped_ops_are_not_looked_at(patch: Patch) -> None:
    go, breaks = SpaceLog._pass, Acceptance._breaks_time

    def remember(self: SpaceLog, op: Op, *rest: Any) -> Any:
        self._acceptance.stubs = set(self._entries) - self._retention.kept.ids  # type: ignore[attr-defined]
        return go(self, op, *rest)

    def loose(self: Acceptance, op: Op, window: Any) -> Any:
        stubs = self.stubs & set(op.refs)  # type: ignore[attr-defined]
        return None if stubs else breaks(self, op, window)

    patch.setattr(SpaceLog, "_pass", remember)
    patch.setattr(Acceptance, "_breaks_time", loose)


@attack(right=(False, False, True), without=dropped_ops_are_not_looked_at, wrong=(False, True, False))
def a03() -> Any:
    """x is stamped before m1, an op of M above its fork: refused by who holds m1, whatever else is known of it."""
    h = History()
    h.unit("m0", "M", deps=["open"])
    h.turn("m1", "M", "open")
    h.seen("vA", "A", "m1")
    h.unit("x", "B", deps=["m1"], at=108)
    h.unit("m0x", "M", prev="jM", deps=["open"])
    base = [op for name, op in h.ops.items() if name[0] == "j" or name == "open"]
    branch = [h.ops[n] for n in ("m1.c", "m1.u", "m1")]
    one = feed([*base, h.ops["m0"], *branch, h.ops["vA"], h.ops["x"], h.ops["m0x"], *h.all()])
    two = feed([*base, h.ops["m0"], h.ops["m0x"], *branch, h.ops["x"], h.ops["vA"], *h.all()])
    digests = {node.fold.state_digest() for node in (one, two)}
    return h.id("x") in one.log, h.id("x") in two.log, len(digests) == 1


# ---- 4


def burnt_done() -> Any:
    h = History(terms={"participants": "ABCDE"})
    h.unit("m0", "M", deps=["open"])
    h.turn("m1", "M", "open")
    for x in "ABCD":
        h.seen(f"v{x}", x, "m1")
    h.unit("m0x", "M", prev="jM", deps=["open"])
    node = feed(h.all())
    return h.names(node.fold.chain), node.log.get(h.id("m1.u")) is not None


@attack(right=(["m1"], True), without=no_closure, wrong=([], False))
def a04() -> Any:
    """A done with 4 of 5 votes whose author burns: its claim and its unit stay, for kept ops stand on them."""
    return burnt_done()


def burnt_authors_have_no_done(patch: Patch) -> None:
    patch.setattr(DoneTable, "_outlives_author", lambda self, done_id: False)


@attack(right=(["m1"], True), without=burnt_authors_have_no_done, wrong=([], True))
def a04_stands() -> Any:
    """And the done itself stands, by its votes."""
    return burnt_done()


# ---- 5


def one_chain_per_instance(patch: Patch) -> None:
    def notes(self: Retention, op: Op) -> bool:
        slot = [i for i in self.chains[op.author].slots[op.seq] if self._entries[i].op.inst == op.inst]
        if len(slot) > 1:
            self.fork_at[op.author] = op.seq
        return len(slot) > 1

    patch.setattr(Retention, "_notes_fork", notes)


@attack(right=(True, True), without=one_chain_per_instance, wrong=(False, False))
def a05() -> Any:
    """A second instance goes on where the first has written already: the fork, and its proof is kept."""
    h = History()
    h.unit("m1", "M", deps=["open"])
    h.unit("m2", "M", inst=1)
    h.unit("m9", "M", prev="m1")
    node, m = feed(h.all()), keys("M").public
    return node.log.burnt(m), feed(node.log.kept()).log.burnt(m)


# ---- 6


def epochs_need_not_rise(patch: Patch) -> None:
    patch.setattr(ClaimTable, "_rises", lambda self, earlier, e: True)


@attack(right=[True, True, True, False], without=epochs_need_not_rise, wrong=[True, True, True, True])
def a06() -> Any:
    """e = 0 over a live lease and e = 1 over a live e = 1 are duties; the same author may not claim e = 0 again."""
    h = History()
    h.claim("a.c", "A", "open")
    h.claim("b.c", "B", "open", deps=["a.c"])
    h.claim("c.c", "C", "open", e=1, after="a.c", at=200)
    h.claim("d.c", "D", "open", e=1, after="a.c", deps=["c.c"], at=201)
    h.claim("b.c2", "B", "open", at=202)
    fold = h.fold()
    return [claim_ok(h, fold, n) for n in ("b.c", "c.c", "d.c", "b.c2")]


def claim_ok(h: History, fold: TaskFold, name: str) -> bool:
    claim = fold.claim(h.id(name))
    assert claim is not None
    return claim.ok


# ---- 7


def a_task_is_its_open_op(patch: Patch) -> None:
    patch.setattr(TaskFold, "_root_of", lambda self, op: op.id)
    patch.setattr(
        ClaimTable, "_continued", lambda self, op, parent: self._steps.get(parent) if parent in op.refs else None
    )


@attack(right=(["a1"], ["a1"]), without=a_task_is_its_open_op, wrong=(["a1"], []))
def a07() -> Any:
    """A client's retry through a second node: two open ops with one body are one task."""
    for nonce in range(64):
        h = History()
        h.root = TaskFold._root_of(TaskFold.__new__(TaskFold), h.ops["open"])
        h.turn("a1", "A", "open")
        for x in FOUR:
            h.seen(f"v{x}", x, "a1")
        h.put("open2", "M", h.record, at=h.t + nonce + 1)
        if h.id("open2") < h.id("open"):
            return chains(h, "open2")
    raise AssertionError("no second open with a smaller id")


# ---- 8


def finality_of_a_parent_alone(patch: Patch) -> None:
    patch.setattr(TaskFold, "finality", lambda self, done_id: LEVELS[self._level(done_id)])


@attack(
    right=(3, "tentative", ["c1", "c2"], ["a1"]),
    without=finality_of_a_parent_alone,
    wrong=(3, "final", ["c1", "c2"], ["a1"]),
)
def a08() -> Any:
    """Three of five vote for c2 on a branch that loses, nobody faulty: a majority that does not count."""
    for nonce in range(64):
        h = History()
        h.t += nonce
        h.turn("a1", "A", "open")
        h.turn("c1", "C", "open")
        if h.id("c1") < h.id("a1"):
            break
    h.seen("vD", "D", "a1")
    h.seen("vE", "E", "c1")
    h.turn("c2", "C", "c1")
    for x in "DE":
        h.seen(f"w{x}", x, "c2")
    h.seen("vB", "B", "a1")
    before, after = h.fold(without=["vB"]), h.fold()
    c2 = h.id("c2")
    return before.tally(c2), before.finality(c2), h.names(before.chain), h.names(after.chain)


# ---- 9


def all_claims_in_the_past_share_the_budget(patch: Patch) -> None:
    continued = ClaimTable._continued

    def remember(self: ClaimTable, op: Op, parent: bytes) -> Any:
        self.past = past(self._log, op.id)  # type: ignore[attr-defined]
        return continued(self, op, parent)

    def before(self: ClaimTable, step: Any, after: Any) -> Any:
        total = ZERO
        for claim in self._claims.values():
            known = claim.ok and claim.id in self.past  # type: ignore[attr-defined]
            total = add(total, claim.slice) if known else total
        return total

    def fits(self: ClaimTable, wanted: Any, before: Any, terms: Any) -> bool:
        return bool(0 <= wanted[0] <= terms.budget[0] - before[0])

    patch.setattr(ClaimTable, "_continued", remember)
    patch.setattr(ClaimTable, "_before", before)
    patch.setattr(ClaimTable, "_fits", fits)


@attack(right=(True, True), without=all_claims_in_the_past_share_the_budget, wrong=(False, False))
def a09() -> Any:
    """Overspent by concurrency, or all asked for by one claimant that dies: a slice of 0 stays possible."""
    h = History(terms={"budget": 100})
    for x in "ABC":
        h.claim(f"{x}.c", x, "open", slice=40)
    h.claim("d.c", "D", "open", e=1, after="A.c", deps=["B.c", "C.c"], slice=0, at=10**6)
    g = History(terms={"budget": 100})
    g.claim("m.c", "M", "open", slice=100)
    g.claim("b.c", "B", "open", deps=["m.c"], slice=20, at=10**6)
    return claim_ok(h, h.fold(), "d.c"), claim_ok(g, g.fold(), "b.c")


# ---- 10


def nothing_is_ever_spent(patch: Patch) -> None:
    patch.setattr(DoneTable, "_spent", lambda self, claim, body: ZERO)


@attack(right=(200, False, True), without=nothing_is_ever_spent, wrong=(200, True, True))
def a10() -> Any:
    """Two sides of a partition spend up to B each, five steps of 20; no path goes beyond B, and 0 still fits."""
    h = History(terms={"budget": 100})
    for side in "AB":
        parent = "open"
        for n in range(5):
            h.turn(f"{side}{n}", side, parent, slice=20, used=20)
            parent = f"{side}{n}"
    h.claim("more", "A", "A4", slice=20)
    h.claim("none", "B", "B4", slice=0)
    fold = h.fold()
    done = [fold.done(op.id) for op in h.all() if op.kind == OpKind.DONE]
    used = sum(20 for d in done if d is not None and d.valid)
    return used, claim_ok(h, fold, "more"), claim_ok(h, fold, "none")


# ---- 11


def an_end_is_a_step(patch: Patch) -> None:
    patch.setattr(DoneTable, "_goes_on", lambda self, body: True)


@attack(right=(["a1"], "answer"), without=an_end_is_a_step, wrong=(["a1", "m1"], "open"))
def a11() -> Any:
    """A claim on an answer with five votes."""
    h = History()
    h.turn("a1", "A", "open", outcome="answer")
    for x in FOUR:
        h.seen(f"v{x}", x, "a1")
    h.turn("m1", "M", "a1", outcome="failed")
    fold = h.fold()
    return h.names(fold.chain), fold.outcome


# ---- 12


def a_repeated_claim_keeps_others_out(patch: Patch) -> None:
    patch.setattr(ClaimTable, "_kept_nobody_out", lambda self, op, after: False)


@attack(right=([True] * 6, True), without=a_repeated_claim_keeps_others_out, wrong=([True] * 6, False))
def a12() -> Any:
    """M stamps the end of its own lease again and again; B steps in right behind its second claim."""
    h = History()
    h.claim("m0", "M", "open", slice=0)
    for n in range(1, 6):
        h.claim(f"m{n}", "M", "open", e=n, after=f"m{n - 1}", slice=0, at=h.t + 35)
    h.claim("b", "B", "open", e=6, after="m5", at=h.t + 1)
    fold = h.fold()
    return [claim_ok(h, fold, f"m{n}") for n in range(6)], claim_ok(h, fold, "b")


# ---- 13


def a_claim_has_many_dones(patch: Patch) -> None:
    patch.setattr(DoneTable, "_is_first", lambda self, op, own: True)
    patch.setattr(DoneTable, "_names_unit", lambda self, body: True)


@attack(right=[True, False, False], without=a_claim_has_many_dones, wrong=[True, True, True])
def a13() -> Any:
    """Two more dones for one claim, one of them naming something that is no unit."""
    h = History()
    h.turn("m1", "M", "open")
    h.done("m2", "M", "m1.c", "m1.u", outcome="failed", used=0)
    h.done("m3", "M", "m1.c", "jA", outcome="answer", used=0)
    fold = h.fold()
    return [(d := fold.done(h.id(n))) is not None and d.valid for n in ("m1", "m2", "m3")]


# ---- 14


def burnt_holders_never_sealed(patch: Patch) -> None:
    index = DoneTable.index_seal
    patch.setattr(DoneTable, "index_seal", lambda self, op, body: None if self._log.void(op) else index(self, op, body))


@attack(right=("sealed", "sealed"), without=burnt_holders_never_sealed, wrong=("sealed", "final"))
def a14() -> Any:
    """A seal does not fall when one of its three holders forks later."""
    h = History()
    h.turn("a1", "A", "open")
    for x in FOUR:
        h.seen(f"v{x}", x, "a1")
    h.unit("m0", "D")
    for x in "BCD":
        h.seal(f"s{x}", x, "a1")
    h.unit("w", "A", deps=["sB", "sC", "sD"])
    h.unit("m0x", "D", prev="vD", deps=["open"])
    a1 = h.id("a1")
    return h.fold(without=["m0x"]).finality(a1), h.fold().finality(a1)


# ---- 15


def a_burn_takes_signed_bodies(patch: Patch) -> None:
    patch.setattr(
        Retention,
        "_kept_of_itself",
        lambda self, entry: self.due_to_stay(entry.op),
    )


@attack(right=(True, "cancelled"), without=a_burn_takes_signed_bodies, wrong=(False, "open"))
def a15() -> Any:
    """The open and the user's cancel, relayed by a node that forks under them."""
    h = History(opener="M")
    h.put("mc", "M", cancel())
    for n in range(64):
        h.unit(f"o{n}", "M", prev="jM")
        if sum(h.id(f"o{k}") < h.id("open") for k in range(n + 1)) >= 2:
            break
    fold = h.fold()
    return fold.root is not None, fold.outcome


# ---- 16


def what_is_no_claim_counts_as_released(patch: Patch) -> None:
    entitled = ClaimTable._entitled
    patch.setattr(
        ClaimTable,
        "_entitled",
        lambda self, op, body, after, terms: after is None or entitled(self, op, body, after, terms),
    )


@attack(right=False, without=what_is_no_claim_counts_as_released, wrong=True)
def a16() -> Any:
    """A claim of epoch 10^9 after a unit of a burnt author."""
    h = History()
    for n in range(3):
        h.unit(f"m{n}", "M", deps=["open"])
    h.unit("m0x", "M", prev="jM", deps=["open"])
    h.turn("b1", "B", "open", e=10**9, after="m2")
    return claim_ok(h, h.fold(), "b1.c")


# ---- 17


def votes_are_listed_only(patch: Patch) -> None:
    patch.setattr(DoneTable, "_ballot_of", lambda self, op: op.votes)


@attack(right=(1, "final"), without=votes_are_listed_only, wrong=(0, "tentative"))
def a17() -> Any:
    """A done is its author's vote: in a swarm of one the answer is final at once."""
    h = History(terms={"participants": "A", "holders": "A"})
    h.turn("a1", "A", "open", outcome="answer")
    fold = h.fold()
    return fold.tally(h.id("a1")), fold.finality(h.id("a1"))


# ---- 18


def renewals_do_not_move_the_end(patch: Patch) -> None:
    ended = ClaimTable._ended

    def loose(self: ClaimTable, op: Op, body: Any, after: Any, terms: Any) -> bool:
        if body.ended is not None and isinstance(self._log.record(body.ended), Renew):
            return bool(op.hlc >= after.hlc + terms.lease + terms.eps)
        return ended(self, op, body, after, terms)

    patch.setattr(ClaimTable, "_ended", loose)


@attack(right=(True, False), without=renewals_do_not_move_the_end, wrong=(True, True))
def a18() -> Any:
    """Who leaves the last renew out takes a live lease, which nobody can check; who names it has to wait."""

    def told(ended: str) -> bool:
        h = History()
        start = h.t
        h.claim("a.c", "A", "open")
        h.renew("r1", "A", "a.c", at=start + 26)
        h.claim("m", "M", "open", e=1, after="a.c", ended=ended, at=start + 36)
        return claim_ok(h, h.fold(), "m")

    return told(""), told("r1")


# ---- 19


@attack(
    right=("tentative", ["d1", "d2"], ["e1"]),
    without=finality_of_a_parent_alone,
    wrong=("final", ["d1", "d2"], ["e1"]),
)
def a19() -> Any:
    """A void done comes back by a third vote: what was built beside it was never majority on its chain."""
    h = History()
    h.unit("m0", "E", deps=["open"])
    h.turn("e1", "E", "open")
    h.seen("vA", "A", "e1")
    h.seen("vB", "B", "e1")
    h.unit("m0x", "E", prev="jE", deps=["open"])
    h.turn("d1", "D", "open", e=1, after="e1.c", deps=["vA", "vB", "m0x"])
    h.turn("d2", "D", "d1")
    for x in "AB":
        h.seen(f"w{x}", x, "d2")
    h.seen("vC", "C", "e1")
    before, after = h.fold(without=["vC"]), h.fold()
    return before.finality(h.id("d2")), h.names(before.chain), h.names(after.chain)


# ---- 20


@attack(right=True, without=no_closure, wrong=False)
def a20() -> Any:
    """M wrote an intent, B acknowledged it with an op, M forked: a later taker still finds the intent."""
    h = History()
    h.unit("m0", "M", deps=["open"])
    h.claim("m.c", "M", "open")
    body = encode({"claim": h.id("m.c"), "key": "mail-1"})
    h.put("int", "M", body, kind=OpKind.INTENT, named=[h.id("m.c")])
    h.put("ack", "B", Seen(), deps=["int"])
    h.unit("m0x", "M", prev="jM", deps=["open"])
    return feed(h.all()).log.get(h.id("int")) is not None


# ---- 21


def the_last_vote_counts(patch: Patch) -> None:
    def cast(self: DoneTable, op: Op) -> list[bytes]:
        dones = [d for v in self._ballot_of(op) if (d := self._dones.get(v)) is not None]
        for done in dones if not self._log.void(op) else ():
            self._votes[op.author, done.parent] = done.id
        return [done.parent for done in dones]

    patch.setattr(DoneTable, "cast", cast)


@attack(right=(2, ["b1"], "tentative"), without=the_last_vote_counts, wrong=(4, ["b1"], "final"))
def a21() -> Any:
    """An executor forks after two of five voted for it: its heir stays below a majority, but goes on."""
    h = History()
    h.unit("m0", "E", deps=["open"])
    h.turn("e1", "E", "open")
    for x in "AC":
        h.seen(f"v{x}", x, "e1")
    h.unit("m0x", "E", prev="jE", deps=["open"])
    h.turn("b1", "B", "open", e=1, after="e1.c", deps=["vA", "vC", "m0x"])
    for x in "DAC":
        h.seen(f"w{x}", x, "b1")
    fold = h.fold()
    return fold.tally(h.id("b1")), h.names(fold.chain), fold.finality(h.id("b1"))


# ---- 22


def anybody_releases(patch: Patch) -> None:
    patch.setattr(ClaimTable, "_ended", lambda self, op, body, after, terms: body.ended is not None)


@attack(right=False, without=anybody_releases, wrong=True)
def a22() -> Any:
    """A claim names itself free by a release that the owner did not write."""
    h = History()
    h.claim("a.c", "A", "open")
    h.release("fake", "M", "a.c")
    h.claim("m.c", "M", "open", e=1, after="a.c", ended="fake")
    return claim_ok(h, h.fold(), "m.c")


NAMED = [pytest.param(a, id=a.answer.__name__) for a in ATTACKS]


@pytest.mark.parametrize("case", NAMED)
def test_the_rules_give_the_right_answer(case: Attack) -> None:
    assert case.answer() == case.right


@pytest.mark.parametrize("case", NAMED)
def test_without_its_rule_the_answer_is_wrong(case: Attack, monkeypatch: Patch) -> None:
    case.without(monkeypatch)
    assert case.answer() == case.wrong != case.right


def test_every_history_is_here() -> None:
    assert {a.answer.__name__[:3] for a in ATTACKS} == {f"a{n:02}" for n in range(1, 23)}
