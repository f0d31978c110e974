"""Attacks on claims, votes, finality, seals and budgets."""
# ruff: noqa: ARG005 - a stand-in takes what the rule takes whose place it has

from __future__ import annotations

from typing import Any

from kernel.turns.fold import LEVELS, TaskFold
from kernel.turns.fold_claims import ClaimTable
from kernel.turns.fold_dones import DoneTable
from protocol.contract import ZERO, add
from protocol.op import Op, OpKind
from protocol.records import Renew
from tests.fold_world import History
from tests.kernel.attack import FOUR, Patch, attack, chains, claim_ok, past

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
