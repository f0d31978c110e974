"""Attacks by forks, refused ops and missing pasts: what a burn may take and what acceptance may look at."""
# ruff: noqa: ARG005 - a stand-in takes what the rule takes whose place it has

from __future__ import annotations

from typing import Any

from gossip.acceptance import Acceptance
from gossip.retention import Retention
from gossip.space_log import SpaceLog
from kernel.turns.fold_claims import ClaimTable
from kernel.turns.fold_dones import DoneTable
from protocol.codec import encode
from protocol.op import Op, OpKind
from protocol.records import Release, Seen
from tests.fold_world import History, cancel, feed, keys
from tests.kernel.attack import Patch, attack, chains, claim_ok, no_closure, past

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


# ---- 15


def a_burn_takes_signed_bodies(patch: Patch) -> None:
    patch.setattr(
        Retention,
        "_kept_of_itself",
        lambda self, entry: not self.above(entry.op) or entry.op.id in self.evidence(entry.op.author),
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
