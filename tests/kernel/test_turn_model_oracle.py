"""The fold against the executable model of the rules: the same random histories, op by op, give the same task.

The model (`../shared/model`) draws a history with honest and faulty nodes, skewed clocks and partitions. It is told
again with real signed ops, and once more to the model under the ids of these, since ties are broken by id. Cancels
and settles, which its world does not draw, are added here. Without the model's folder these tests are skipped.
"""

from __future__ import annotations

import dataclasses
import importlib
import random
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import HealthCheck, given, reject, settings, strategies as st

from protocol.op import DEPS_MAX, Op
from protocol.records import Claim, Done, Release, Renew, SealVote, Seen, Unit
from tests.fold_world import (
    Replica,
    cancel,
    deny,
    feed,
    forge,
    join,
    keys,
    open_record,
    portrait,
    scratch,
    settle,
    shuffled,
    stamp,
    tokens,
)
from tests.kernel.attack import no_closure
from tests.kernel.attacks_on_turns import (
    an_end_is_a_step,
    epochs_need_not_rise,
    the_last_vote_counts,
    votes_are_listed_only,
)

MODEL = Path(__file__).resolve().parents[3] / "shared" / "model"
CANCEL, SETTLE = 23, 24  # actions beside those of the model's world


@pytest.fixture(scope="module")
def oracle() -> SimpleNamespace:
    if not (MODEL / "model.py").exists():
        pytest.skip("no executable model beside this checkout (../shared/model)")
    names = ("model", "world")
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(MODEL))
        for name in names:
            patch.delitem(sys.modules, name, raising=False)
        loaded = {name: importlib.import_module(name) for name in names}
        for name in names:
            patch.delitem(sys.modules, name)
    return SimpleNamespace(**loaded)


@st.composite
def histories(draw: st.DrawFn) -> dict[str, Any]:
    byz = draw(st.lists(st.integers(0, 5), max_size=2, unique=True))
    plain = [0, 1, 2, 3, 0, 1, 2, 3, 4, 4, 4, 5, 9, 9, 9, 10, 11, 12, 13, 14, 15, 18, 19, 20, 20, 21, 22]
    what = st.sampled_from([*plain, 16, 16, 17, 16 if byz else 4, CANCEL if draw(st.booleans()) else 4])
    late = st.lists(st.tuples(st.integers(0, 5), st.sampled_from([CANCEL, SETTLE]), st.integers(0, 65535)), max_size=2)
    who = st.sampled_from([0, 1, 2, 3, 4, 5, *byz, *byz])
    act = st.tuples(who, what, st.integers(0, 65535))
    return {
        "P": draw(st.integers(1, 5)),
        "byz": byz,
        "f": draw(st.sampled_from([0, 0, 1])),
        "budget": draw(st.sampled_from([60, 100, 300])),
        "skews": draw(st.lists(st.sampled_from([0, 0, -30, 30, -600]), min_size=6, max_size=6)),
        "acts": draw(st.lists(act, min_size=15, max_size=60)) + draw(late),
    }


def live_through(m: SimpleNamespace, h: dict[str, Any]) -> Any:
    names = tuple(m.world.AUTHORS[: h["P"]])
    cfg = m.model.Cfg(participants=names, holders=names, f=h["f"], budget=h["budget"])
    byz = frozenset(m.world.AUTHORS[b] for b in h["byz"])
    w = m.world.World(cfg, m.model.FIXED, byz, dict(zip(m.world.AUTHORS, h["skews"], strict=True)))
    for who, what, x in h["acts"]:
        a = m.world.AUTHORS[who]
        if what == CANCEL:
            w.emit(a, "cancel", {"key": x}, named=[w.open.id])  # it must have the open in its past here
        elif what == SETTLE:
            dones = [o.id for o in w.view(a).live.values() if o.kind == "done"]
            if dones:
                w.emit(a, "settle", {"done": dones[x % len(dones)]}, named=[dones[x % len(dones)], w.open.id])
        else:
            w.act(who, what, x)
    return w


class TooManyDeps(Exception):
    """The model has no bound on deps; such a history has no real ops."""


class Teller:
    """Tells a history of the model again, with real ops and with the model's ops under the ids of these."""

    def __init__(self, world: Any) -> None:
        self.cfg = world.cfg
        self.ids: dict[str, bytes] = {}
        self.real: list[Op] = []
        self.model: list[Any] = []
        for op in world.all.values():
            self._tell(op)

    def _id(self, name: str | None) -> bytes | None:
        return None if not name else self.root if name.startswith("root:") else self.ids[name]

    def _tell(self, op: Any) -> None:
        if len(set(op.deps) - {op.prev}) > DEPS_MAX:
            raise TooManyDeps
        real = forge(
            *(op.author, self._record(op)),
            seq=op.seq,
            prev=self._id(op.prev),
            deps=[self.ids[d] for d in op.deps],
            hlc=stamp(op.hlc),
            votes=tuple(self.ids[v] for v in op.votes),
            inst=op.inst,
        )
        self.ids[op.id] = real.id
        if op.kind == "open":
            self.root = real.body_hash
        self.real.append(real)
        self.model.append(self._renamed(op, real))

    def _renamed(self, op: Any, real: Op) -> Any:
        name = {old: new.hex() for old, new in self.ids.items()}
        return dataclasses.replace(
            op,
            id=real.id.hex(),
            prev=None if op.prev is None else name[op.prev],
            deps=tuple(name[d] for d in op.deps),
            votes=tuple(name[v] for v in op.votes),
            body={k: name.get(v, v) if isinstance(v, str) else v for k, v in op.body.items()},
        )

    def _record(self, op: Any) -> Any:
        b = op.body
        match op.kind:
            case "join":
                return join(b["nbf"], b["exp"])
            case "open":
                cfg = self.cfg
                return open_record(
                    participants="".join(cfg.participants),
                    holders="".join(cfg.holders),
                    budget=cfg.budget,
                    slice_max=cfg.slice_max,
                    renew_max=cfg.renew_max,
                    max_steps=cfg.max_steps,
                    f=cfg.f,
                )
            case "claim":
                return Claim(
                    parent=self._id(b["parent"]),
                    e=b["e"],
                    after=self._id(b.get("after")),
                    ended=self._id(b.get("ended")),
                    slice=tokens(b["slice"]),
                )
            case "done":
                return Done(
                    claim=self._id(b["claim"]),
                    unit=self._id(b["unit"]),
                    outcome=b["outcome"],
                    used=tokens(b["used"]),
                )
            case _:
                return self._plain_record(op, b)

    def _plain_record(self, op: Any, b: dict[str, Any]) -> Any:
        match op.kind:
            case "unit":
                return Unit(agent="one", role="analyst", content=repr(b))
            case "renew":
                return Renew(claim=self._id(b["claim"]))
            case "release":
                return Release(claim=self._id(b["claim"]), reason=str(b["n"]))
            case "deny":
                return deny(b["author"], b["keep"])
            case "seal_vote":
                return SealVote(done=self._id(b["done"]))
            case "cancel":
                return cancel()
            case "settle":
                return settle(self._id(b["done"]))
            case "seen":
                return Seen()
            case kind:
                raise AssertionError(kind)


def says_model(v: Any) -> dict[str, Any]:
    claims = [o for o in v.live.values() if o.kind == "claim"]
    dones = [o for o in v.live.values() if o.kind == "done"]
    form = {o.id for o in dones if v.done_form(o)}
    return {
        "kept": sorted(v.live),
        "burnt": sorted(v.point),
        "chain": list(v.chain),
        "outcome": v.outcome(),
        "claims": {o.id: (v.claim_ok(o.id), v.spent_before(o.id) if v.claim_ok(o.id) else 0) for o in claims},
        "form": sorted(form),
        "valid": sorted(o.id for o in dones if v.done_valid(o.id)),
        "votes": {k: d for k, d in v.vote.items() if k[1].startswith("root:") or k[1] in form},
        "sealed": sorted(d for d in v.sealed if d in form),
        "spent": {d: v.spent(d) for d in form},
    }


def says_fold(node: Replica, v: Any) -> dict[str, Any]:
    log, fold = node.log, node.fold
    hexed = {op.id.hex(): op.id for op in log.kept()}
    claims = {o.id: fold.claim(hexed[o.id]) for o in v.live.values() if o.kind == "claim" and o.id in hexed}
    dones = {o.id: fold.done(hexed[o.id]) for o in v.live.values() if o.kind == "done" and o.id in hexed}
    form = sorted(i for i, d in dones.items() if d is not None and d.form)
    parents = {v.root: fold.root} | {p: hexed[p] for p in form}
    voted = {
        (a, name): done.hex()
        for a in v.cfg.participants
        for name, p in parents.items()
        if p is not None and (done := fold.vote_of(keys(a).public, p)) is not None
    }
    return {
        "kept": sorted(hexed),
        "burnt": sorted(a for a in "ABCDEF" if log.burnt(keys(a).public)),
        "chain": [d.hex() for d in fold.chain],
        "outcome": fold.outcome,
        "claims": {i: (c.ok, c.before[0]) for i, c in claims.items() if c is not None},
        "form": form,
        "valid": sorted(i for i, d in dones.items() if d is not None and d.valid),
        "votes": voted,
        "sealed": [d.hex() for d in fold._dones.seals()],
        "spent": {i: fold.spent(hexed[i])[0] for i in form},
    }


@settings(suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much, HealthCheck.data_too_large])
@given(h=histories(), seed=st.integers(0, 1 << 16))
def test_fold_agrees_with_the_model(oracle: SimpleNamespace, h: dict[str, Any], seed: int) -> None:
    try:
        teller = Teller(live_through(oracle, h))
    except TooManyDeps:
        reject()
    view = oracle.model.View(teller.model, teller.cfg, oracle.model.FIXED)
    expected = says_model(view)
    node = feed(teller.real)
    assert says_fold(node, view) == expected
    other = feed(shuffled(teller.real, seed))
    assert says_fold(other, view) == expected
    assert portrait(other.fold, other.log) == portrait(node.fold, node.log) == portrait(scratch(other), other.log)


def drawn(seed: int) -> dict[str, Any]:
    """A history that depends on the seed alone, with one faulty author."""
    r = random.Random(seed)
    byz = [r.randrange(6)]
    plain = [0, 1, 2, 0, 1, 2, 3, 4, 4, 4, 5, 9, 9, 9, 10, 13, 14, 16, 16, 17, 18, 18, 21]
    return {
        "P": 5,
        "byz": byz,
        "f": 0,
        "budget": 300,
        "skews": [0] * 6,
        "acts": [(r.choice([*range(6), *byz * 3]), r.choice(plain), r.randrange(1 << 16)) for _ in range(80)],
    }


@pytest.mark.parametrize(
    "without",
    [epochs_need_not_rise, no_closure, votes_are_listed_only, an_end_is_a_step, the_last_vote_counts],
)
def test_the_oracle_sees_a_rule_that_is_missing(
    oracle: SimpleNamespace, monkeypatch: pytest.MonkeyPatch, without: Any
) -> None:
    """The comparison has teeth: among fixed histories some tell a fold without the rule apart."""
    without(monkeypatch)
    for seed in range(60):
        teller = Teller(live_through(oracle, drawn(seed)))
        view = oracle.model.View(teller.model, teller.cfg, oracle.model.FIXED)
        if says_fold(feed(teller.real), view) != says_model(view):
            return
    pytest.fail("nothing told them apart")
