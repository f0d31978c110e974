"""What the log of a space takes, what it makes wait, what it refuses, and what it forgets."""

from __future__ import annotations

import dataclasses

import pytest

from protocol.codec import encode
from protocol.errors import UsageError
from protocol.op import Op, OpKind
from protocol.records import Cancel, Claim, Quota, Redact, Seen, sign_body
from tests.fold_world import (
    EPS,
    FAR_MS,
    SPACE,
    UNIT_MS,
    History,
    cancel,
    deny,
    join,
    keys,
    open_record,
    replica,
    rules,
    settle,
    stamp,
)
from tests.gossip.log_ops import FIRST, JOIN, OTHER, UNIT, burnt, log_of, op


def refused(made: Op, *before: Op) -> str:
    """Why an op is refused, whether its past comes first or last."""
    log = log_of(*before)
    added = log.add(made, swarm_ms=FAR_MS)
    late = log_of(made, *reversed(before))
    assert (made.id in late) is (added.status == "accepted")
    return added.reason if added.status == "rejected" else added.status


# ---- the gates


def test_a_forged_copy_leaves_no_trace() -> None:
    """Case S2: the true op is taken after any number of forged ones, also when its past is missing."""
    forged = dataclasses.replace(FIRST, sig=bytes(64))
    log = replica().log
    assert log.add(forged, swarm_ms=FAR_MS).status == "rejected"
    assert log.missing() == []
    assert log.head(FIRST.author) is None
    log.add(JOIN, swarm_ms=FAR_MS)
    assert log.add(forged, swarm_ms=FAR_MS).status == "rejected"
    assert log.add(FIRST, swarm_ms=FAR_MS).ops == (FIRST,)


def test_a_forged_op_is_no_evidence_of_a_fork() -> None:
    twin = dataclasses.replace(op("A", Seen(), JOIN), sig=bytes(64))
    log = log_of(JOIN, FIRST, twin)
    assert not log.burnt(JOIN.author)
    assert log.fork_of(JOIN.author) is None


def test_verified_spares_the_signature_only() -> None:
    unsigned = dataclasses.replace(JOIN, sig=bytes(64))
    log = replica().log
    assert log.add(unsigned, swarm_ms=FAR_MS, verified=True).status == "accepted"
    astray = dataclasses.replace(op("A", UNIT, JOIN, seq=7), sig=bytes(64))
    assert log.add(astray, swarm_ms=FAR_MS, verified=True).status == "rejected"


def test_a_bodyless_copy_is_not_taken_from_a_peer() -> None:
    bare = dataclasses.replace(FIRST, body=None)
    log = log_of(JOIN)
    assert log.add(bare, swarm_ms=FAR_MS).status == "rejected"
    assert log.add(FIRST, swarm_ms=FAR_MS).status == "accepted"
    again = log_of(JOIN)
    assert again.add(bare, swarm_ms=FAR_MS, verified=True).status == "accepted"
    assert again.record(FIRST.id) is None


def test_an_op_waits_for_what_it_stands_on() -> None:
    second = op("A", UNIT, FIRST, deps=(OTHER,))
    log = log_of(JOIN)
    waiting = log.add(second, swarm_ms=FAR_MS)
    assert (waiting.status, set(waiting.missing)) == ("pending", {FIRST.id, OTHER.id})
    assert log.missing() == sorted([FIRST.id, OTHER.id])
    assert log.add(second, swarm_ms=FAR_MS).status == "pending"
    assert log.add(FIRST, swarm_ms=FAR_MS).ops == (FIRST,)
    woken = log.add(OTHER, swarm_ms=FAR_MS)
    assert woken.ops == (OTHER, second)
    assert log.missing() == []
    assert log.add(second, swarm_ms=FAR_MS).status == "duplicate"


def test_pending_ids_are_not_missing() -> None:
    second, third = op("A", UNIT, FIRST), op("A", UNIT, op("A", UNIT, FIRST))
    log = log_of(JOIN, third, second)
    assert log.missing() == [FIRST.id]


def test_what_stands_on_a_refused_op_is_refused() -> None:
    bad = op("A", UNIT, JOIN, seq=5)
    child = op("B", UNIT, OTHER, deps=(bad,))
    grandchild = op("B", UNIT, child)
    log = log_of(JOIN, OTHER, grandchild, child)
    assert log.add(bad, swarm_ms=FAR_MS).status == "rejected"
    for made in (child, grandchild):
        assert log.add(made, swarm_ms=FAR_MS).status == "rejected"
    assert log.missing() == []


def test_a_future_op_waits_and_is_never_refused() -> None:
    now = FIRST.hlc >> 16
    ahead = op("A", UNIT, FIRST, hlc=(now + 60_500) << 16)
    child = op("A", UNIT, ahead)
    log = log_of(JOIN, FIRST)
    assert log.add(ahead, swarm_ms=now).status == "quarantined"
    assert log.add(child, swarm_ms=now).status == "pending"
    assert log.missing() == []
    assert log.next_due_ms() == now + 500
    assert log.due(now + 499).ops == ()
    assert log.due(now + 500).ops == (ahead, child)
    assert log.next_due_ms() is None


def test_a_claim_is_held_back_until_its_stamp_less_eps() -> None:
    h = History()
    claim = h.claim("c", "B", "open")
    log = log_of(*h.all(without=["c"]))
    due_ms = (claim.hlc >> 16) - EPS * UNIT_MS
    assert log.add(claim, swarm_ms=due_ms - 1).status == "quarantined"
    assert log.next_due_ms() == due_ms
    assert log.due(due_ms).ops == (claim,)


# ---- the verdict


@pytest.mark.parametrize(
    ("made", "before"),
    [
        (op("A", UNIT, None), ()),
        (op("A", join(), None, space=bytes(16)), ()),
        (op("A", encode({"cert": (encode({}),)}), None, kind=OpKind.JOIN), ()),
        (op("B", UNIT, JOIN), (JOIN,)),
        (op("A", UNIT, JOIN, seq=2), (JOIN,)),
        (op("A", UNIT, op("A", UNIT, JOIN, inst=3), inst=2), (JOIN, op("A", UNIT, JOIN, inst=3))),
        (op("A", UNIT, JOIN, hlc=JOIN.hlc), (JOIN,)),
        (op("A", UNIT, JOIN, deps=(FIRST,), hlc=FIRST.hlc), (JOIN, FIRST)),
        (op("A", encode([1]), JOIN, kind=OpKind.UNIT), (JOIN,)),
        (op("A", b"\x81\xa1a\xcc\x01", JOIN, kind=OpKind.UNIT), (JOIN,)),
        (op("A", Claim(parent=bytes(32), e=1, after=OTHER.id), JOIN), (JOIN, OTHER)),
        (op("A", Seen(), JOIN, votes=(OTHER.id,)), (JOIN, OTHER)),
    ],
    ids=[
        *("no-join", "other-space", "no-certificate", "foreign-prev", "seq-gap", "instance-back", "time-of-prev"),
        *("time-of-dep", "no-map", "not-canonical", "unnamed-edge", "unnamed-vote"),
    ],
)
def test_an_op_against_the_rules_is_refused(made: Op, before: tuple[Op, ...]) -> None:
    assert refused(made, *before) not in ("accepted", "pending", "quarantined", "duplicate")


def test_the_last_join_before_an_op_decides() -> None:
    first = op("A", join(0, 50), None)
    late = op("A", UNIT, first, hlc=stamp(51))
    assert "certificate" in refused(late, first)
    at_the_end = op("A", UNIT, first, hlc=stamp(50))
    assert refused(at_the_end, first) == "accepted"
    renewed = op("A", join(40, 90), first, hlc=stamp(60))
    assert refused(op("A", UNIT, renewed, hlc=stamp(90)), first, renewed) == "accepted"
    assert "certificate" in refused(op("A", UNIT, renewed, hlc=stamp(90) + 1), first, renewed)


def test_an_unknown_kind_and_a_misfit_body_are_kept_without_effect() -> None:
    unknown = op("A", encode({"new": 1}), JOIN, kind=200)
    reserved = op("A", encode({"key": "k"}), unknown, kind=OpKind.INTENT)
    misfit = op("A", encode({"e": "three"}), reserved, kind=OpKind.CLAIM)
    log = log_of(JOIN, unknown, reserved, misfit)
    assert [o.id for o in log.kept()] == [o.id for o in (JOIN, unknown, reserved, misfit)]
    assert log.record(misfit.id) is None


def test_an_open_is_of_its_user_and_its_space() -> None:
    record = open_record()
    assert refused(op("A", record, JOIN), JOIN) == "accepted"
    assert "signature" in refused(op("A", record.model_copy(update={"objective": "else"}), JOIN), JOIN)
    stolen = sign_body(keys("M"), SPACE, record)
    assert "another space" in refused(op("A", stolen, JOIN), JOIN)


def test_only_the_user_cancels_and_settles() -> None:
    h = History()
    base = h.all()
    seen = h.ops["open"]
    assert refused(op("B", cancel(), h.ops["jB"], deps=(seen,)), *base) == "accepted"
    foreign = sign_body(keys("M"), SPACE, Cancel(by=bytes(32), sig=bytes(64)))
    assert "not signed by" in refused(op("B", foreign, h.ops["jB"], deps=(seen,)), *base)
    blind = op("B", cancel(), h.ops["jB"])  # without the open in its past nobody knows whose space it is
    assert "not signed by" in refused(blind, *base)
    other = sign_body(keys("user"), bytes(16), Cancel(by=bytes(32), sig=bytes(64)))
    assert "signature" in refused(op("B", other, h.ops["jB"], deps=(seen,)), *base)
    named = settle(seen.id)
    assert refused(op("B", named, h.ops["jB"], deps=(seen,)), *base) == "accepted"


def test_only_an_admin_denies() -> None:
    assert refused(op("A", deny("B", 0), JOIN), JOIN) == "accepted"
    assert "not signed by" in refused(op("A", deny("B", 0, by="user"), JOIN), JOIN)


def test_a_redact_is_its_authors_or_signed() -> None:
    h = History()
    base, open_op = h.all(), h.ops["open"]
    own = Redact(target=open_op.id)
    assert refused(op("B", own, h.ops["jB"], deps=(open_op,)), *base) == "accepted"
    for name, verdict in (("user", "accepted"), ("admin", "accepted"), ("M", "not signed by a user or an admin")):
        signed = sign_body(keys(name), SPACE, own)
        assert refused(op("B", signed, h.ops["jB"], deps=(open_op,)), *base).startswith(verdict)
    half = Redact(target=open_op.id, by=keys("user").public)
    assert "not signed by" in refused(op("B", half, h.ops["jB"], deps=(open_op,)), *base)


# ---- quota


def test_a_burst_then_a_rate_along_the_own_chain() -> None:
    quota = Quota(ops_per_s=2, burst=3)
    log = replica(default_quota=quota).log
    last, taken = op("A", join(), None, hlc=1000 << 16), 1
    log.add(last, swarm_ms=FAR_MS)
    while log.add(following := op("A", UNIT, last), swarm_ms=FAR_MS).status == "accepted":
        last, taken = following, taken + 1
    assert taken == 3
    assert log.allowance(last.author, last.hlc + 1) == 0
    soon = op("A", UNIT, last, hlc=(1000 + 499) << 16)
    assert log.add(soon, swarm_ms=FAR_MS).reason == "over the quota of its author"
    fits = op("A", UNIT, last, hlc=(1000 + 500) << 16)
    assert log.allowance(last.author, fits.hlc) == 1
    assert log.add(fits, swarm_ms=FAR_MS).status == "accepted"


def test_the_open_with_the_smallest_hash_in_the_past_sets_the_quota() -> None:
    records = [open_record(objective=f"o{n}", quota=Quota(burst=n + 3)) for n in range(4)]
    opens = [JOIN]
    for record in records:
        opens.append(op("A", record, opens[-1]))
    for known in range(5):
        log, last, taken = log_of(*opens), op("B", join(), None), 1
        log.add(last, swarm_ms=FAR_MS)
        deps = (opens[known],)
        while taken < 20 and log.add(made := op("B", UNIT, last, deps=deps), swarm_ms=FAR_MS).status == "accepted":
            last, taken, deps = made, taken + 1, ()
        smallest = min(opens[1 : known + 1], key=lambda o: o.body_hash, default=None)
        # The join came before any open was in the past, so it took a token of the default quota's bucket.
        assert taken == (20 if smallest is None else 1 + records[opens.index(smallest) - 1].quota.burst)


def test_bytes_of_an_author_are_bounded() -> None:
    log = replica(default_quota=Quota(bytes_max=2_000)).log
    last = JOIN
    log.add(JOIN, swarm_ms=FAR_MS)
    sizes = len(JOIN.header) + 64 + len(JOIN.body or b"")
    while log.add(following := op("A", UNIT, last), swarm_ms=FAR_MS).status == "accepted":
        last = following
        sizes += len(last.header) + 64 + len(last.body or b"")
    assert 1_500 < sizes <= 2_000


# ---- bounds


def test_pending_is_bounded_and_the_oldest_goes() -> None:
    lost = op("A", UNIT, FIRST)
    log = replica(pending_max=2).log
    waiting = [op("A", UNIT, lost, hlc=stamp(100 + n)) for n in range(3)]
    for made in waiting:
        assert log.add(made, swarm_ms=FAR_MS).status == "pending"
    assert log.add(waiting[1], swarm_ms=FAR_MS).reason == "waits already"
    assert log.add(waiting[0], swarm_ms=FAR_MS).reason != "waits already"
    tight = replica(pending_bytes_max=10).log
    assert tight.add(lost, swarm_ms=FAR_MS).status == "rejected"
    assert tight.missing() == []


def test_quarantine_is_bounded_and_the_farthest_goes() -> None:
    far, near = op("A", UNIT, JOIN, hlc=stamp(10**9)), op("A", UNIT, JOIN, hlc=stamp(10**8))
    log = log_of(JOIN, quarantine_max=1)
    assert log.add(far, swarm_ms=0).status == "quarantined"
    assert log.add(near, swarm_ms=0).status == "quarantined"
    assert log.add(far, swarm_ms=0).reason == "too many from the future"
    for n in range(100):  # what left the table leaves its heaps too
        log.add(op("A", UNIT, JOIN, hlc=stamp(10**9 + n)), swarm_ms=0)
    assert len(log._quarantine._soonest) < 20
    assert log.due(FAR_MS).ops == (near,)


def test_remembered_refusals_are_bounded() -> None:
    log = log_of(JOIN, rejected_max=4)
    bad = [op("A", UNIT, JOIN, seq=9, hlc=stamp(100 + n)) for n in range(10)]
    for made in bad:
        assert log.add(made, swarm_ms=FAR_MS).status == "rejected"
    assert len(log._rejected) == 4


# ---- reading


def test_opens_and_stops_are_carried_along_the_past() -> None:
    h = History()
    other = h.put("other", "B", open_record(objective="else"))
    h.put("sees-one", "C", Seen(), deps=["open"])
    h.put("sees-two", "D", Seen(), deps=["other"])
    h.put("both", "E", Seen(), deps=["sees-one", "sees-two"])
    h.put("stop", "A", cancel(), deps=["open"])
    h.put("after", "C", Seen(), deps=["stop"])
    h.put("later", "D", Seen(), deps=["after"])
    log = log_of(*h.all())
    opens = {n: log.opens_in_past(h.id(n)) for n in ("jE", "open", "sees-one", "sees-two", "both")}
    assert opens == {
        "jE": frozenset(),
        "open": frozenset([h.root]),
        "sees-one": frozenset([h.root]),
        "sees-two": frozenset([other.body_hash]),
        "both": frozenset([h.root, other.body_hash]),
    }
    assert [log.stop_before(h.id(n)) for n in ("both", "stop", "after", "later")] == [False, False, True, True]


def test_deps_are_what_is_named_then_the_smallest_heads() -> None:
    h = History()
    for n in range(20):
        h.last.pop(f"x{n}", None)
        h.put(f"jx{n}", f"x{n}", join())
    log = log_of(*h.all())
    deps = log.deps_for(keys("B").public, (h.id("jA"),))
    free = [i for i in log.heads() if i != h.id("jB")]
    assert len(free) > 16
    assert deps == (h.id("jA"), *free[:15])
    assert h.id("jB") not in log.deps_for(keys("B").public, (h.id("jB"),))
    with pytest.raises(UsageError):
        log.deps_for(keys("B").public, tuple(bytes([n]) * 32 for n in range(17)))


def test_ids_and_digests_of_an_author() -> None:
    chain, _twins = burnt()
    log = log_of(*chain)
    assert log.ids_from(JOIN.author, 1, 2) == [chain[1].id, chain[2].id]
    assert log.log(JOIN.author, 2, 2**40) == chain[2:]
    seq, count, digest = log.author_digest(JOIN.author)
    assert (seq, count, len(digest)) == (3, 4, 12)
    assert log.author_digest(OTHER.author)[:2] == (-1, 0)
    assert log.log(OTHER.author, 0, 5) == []
    assert log.authors() == [JOIN.author]
    assert len(log) == 4
    assert log_of(*reversed(chain)).author_digest(JOIN.author) == (seq, count, digest)
    assert log_of(*chain[:3]).digest() != log.digest()
    assert rules().pending_max == 10_000
