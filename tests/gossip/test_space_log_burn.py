"""What a fork and a deny take from a log, what stays, and what comes back."""

from __future__ import annotations

from protocol.records import Seen
from tests.fold_world import (
    FAR_MS,
    deny,
    stamp,
)
from tests.gossip.log_ops import JOIN, OTHER, UNIT, burnt, log_of, op


def test_a_fork_drops_what_lies_above_and_keeps_its_proof() -> None:
    chain, twins = burnt()
    log = log_of(*chain)
    added = log.add(twins[0], swarm_ms=FAR_MS)
    assert added.refold
    assert added.ops == (twins[0],)
    assert set(added.dropped) == {chain[2].id, chain[3].id}
    pair = log.fork_of(JOIN.author)
    assert pair is not None
    assert {o.id for o in pair} == {chain[1].id, twins[0].id}
    assert [o.id for o in log.log(JOIN.author, 0, 9)] == [JOIN.id, *sorted((chain[1].id, twins[0].id))]
    assert chain[3].id in log
    assert log.get(chain[3].id) is None
    assert log.dropped_author(chain[3].id) == JOIN.author
    assert log.add(chain[3], swarm_ms=FAR_MS).status == "duplicate"
    assert log.silenced(JOIN.author)
    assert log.head(JOIN.author) == (3, chain[3].id)


def test_two_smallest_at_the_fork_prove_it_in_any_order() -> None:
    chain, twins = burnt(1)
    ends = set()
    for order in ([0, 1, 2], [2, 1, 0], [1, 2, 0]):
        log = log_of(*chain, *(twins[n] for n in order))
        ends.add((log.digest(), tuple(sorted(o.id for o in log.kept()))))
    assert len(ends) == 1
    assert set(next(iter(ends))[1]) == {JOIN.id, *sorted(o.id for o in (chain[1], *twins))[:2]}


def test_the_smallest_forked_seq_is_the_burn() -> None:
    chain, twins = burnt(4)
    high = op("A", Seen(), chain[2], hlc=stamp(900))
    for order in ((high, twins[0]), (twins[0], high)):
        log = log_of(*chain, *order)
        assert {o.id for o in log.kept()} == {JOIN.id, chain[1].id, twins[0].id}
        pair = log.fork_of(JOIN.author)
        assert pair is not None
        assert {o.seq for o in pair} == {1}


def test_what_a_kept_op_refers_to_comes_back_without_a_refold() -> None:
    chain, twins = burnt()
    log = log_of(*chain, twins[0], OTHER)
    witness = op("B", UNIT, OTHER, deps=(chain[3],), hlc=stamp(950))
    added = log.add(witness, swarm_ms=FAR_MS)
    assert [o.id for o in added.ops] == [chain[2].id, chain[3].id, witness.id]
    assert not added.refold
    assert log.heads() == sorted([witness.id, twins[0].id])


def test_an_op_above_a_known_burn_is_set_aside() -> None:
    chain, twins = burnt()
    log = log_of(*chain[:2], twins[0])
    added = log.add(chain[2], swarm_ms=FAR_MS)
    assert added.status == "accepted"
    assert added.ops == ()
    assert not added.refold
    assert chain[2].id in log
    assert log.get(chain[2].id) is None


def test_what_is_aside_is_bounded_but_never_what_an_honest_op_waits_for() -> None:
    chain, twins = burnt(6)
    log = log_of(*chain[:2], twins[0], OTHER, aside_max=2)
    assert [log.add(o, swarm_ms=FAR_MS).status for o in chain[2:]] == [
        "accepted",
        "accepted",
        "rejected",
        "pending",
        "pending",
    ]
    witness = op("B", UNIT, OTHER, deps=(chain[6],), hlc=stamp(950))
    log.add(witness, swarm_ms=FAR_MS)
    added = log.add(chain[4], swarm_ms=FAR_MS)
    assert added.status == "accepted"
    assert witness.id in {o.id for o in added.ops}
    assert log.get(chain[6].id) is not None


def test_a_burn_forgets_what_is_over_the_bound() -> None:
    chain, twins = burnt(6)
    log = log_of(*chain, aside_max=2)
    log.add(twins[0], swarm_ms=FAR_MS)
    assert [o.id in log for o in chain] == [True, True, True, True, False, False, False]
    assert log.head(JOIN.author) == (3, chain[3].id)
    full = log_of(*chain, twins[0])
    assert log.digest() == full.digest()
    witness = op("B", UNIT, OTHER, deps=(chain[6],), hlc=stamp(950))
    for made in (OTHER, witness, chain[6], chain[5], chain[4]):
        log.add(made, swarm_ms=FAR_MS)
        full.add(made, swarm_ms=FAR_MS)
    assert log.digest() == full.digest()
    assert log.get(witness.id) is not None


def test_a_deny_takes_effects_above_its_seq_and_the_smallest_holds() -> None:
    chain, _ = burnt(4)
    log = log_of(*chain, OTHER)
    first = op("B", deny("A", 3), OTHER, hlc=stamp(950))
    second = op("B", deny("A", 1), first)
    third = op("B", deny("A", 2), second)
    assert log.add(first, swarm_ms=FAR_MS).dropped == (chain[4].id,)
    assert [log.void(o) for o in chain] == [False, False, False, False, True]
    assert set(log.add(second, swarm_ms=FAR_MS).dropped) == {chain[2].id, chain[3].id}
    assert log.add(third, swarm_ms=FAR_MS).refold is False
    assert log.author_digest(JOIN.author)[:2] == (1, 2)
    assert not log.burnt(JOIN.author)
    assert log.silenced(JOIN.author)


def test_chains_of_a_forked_author_are_told_apart() -> None:
    trunk, twins = burnt(4)
    left = [op("A", UNIT, trunk[2], hlc=stamp(901)), op("A", UNIT, twins[0])]
    left.append(op("A", UNIT, left[0]))
    log = log_of(*trunk, *twins, *left, OTHER)
    ids = {"j": JOIN, "t1": trunk[1], "t2": trunk[2], "t3": trunk[3], "t4": trunk[4], "w": twins[0], "x": left[1]}
    ids |= {"l3": left[0], "l4": left[2], "o": OTHER}
    before = {name: {a for a, o in ids.items() if log.in_chain(o.id, ids[name].id)} for name in ids}
    assert before == {
        "j": set(),
        "t1": {"j"},
        "t2": {"j", "t1"},
        "t3": {"j", "t1", "t2"},
        "t4": {"j", "t1", "t2", "t3"},
        "w": {"j"},
        "x": {"j", "w"},
        "l3": {"j", "t1", "t2"},
        "l4": {"j", "t1", "t2", "l3"},
        "o": set(),
    }
