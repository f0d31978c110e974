"""A quota in a certificate bounds its author in every space, on every replica alike, whatever a task's open allows."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, strategies as st

from gossip.space_log import LogRules, SpaceLog
from protocol.admission import CERT_LIFE_MS_MAX, MEMBER, check_chain, issue
from protocol.errors import DecodeError, Refused
from protocol.identity import KeyPair
from protocol.op import Op
from protocol.records import Join, Open, Quota
from protocol.spaces import swarm_space
from tests.fold_world import SPACE as TASK, open_record
from tests.gossip_world import ADMIN, GENESIS, LATENCY_US, NOW_MS, SPACE, World, op_by, seconds, unit, verify
from tests.strategies import keypair

FAR_MS = NOW_MS + 10**9
A, B = keypair("a"), keypair("b")
QUOTA = Quota(ops_per_s=2, burst=6)


def chain(keys: KeyPair, quota: Quota | None) -> tuple[bytes, ...]:
    begin_ms = NOW_MS - 86_400_000
    window = (begin_ms, begin_ms + CERT_LIFE_MS_MAX)
    return (issue(ADMIN, GENESIS.swarm_id, keys.public, (MEMBER,), window, quota=quota),)


def check_join(author: bytes, certs: tuple[bytes, ...]) -> tuple[int, int] | None:
    try:
        admission = check_chain(GENESIS, certs, author)
    except DecodeError:
        return None
    return admission.nbf_ms, admission.exp_ms


def new_log(space: bytes = SPACE, **changes: Any) -> SpaceLog:
    def check_open(_space: bytes, _open: Open) -> bool:
        return True

    return SpaceLog(space, rules=LogRules(check_join=check_join, check_open=check_open, verify=verify, **changes))


def joined(keys: KeyPair, quota: Quota | None, *, prev: Op | None = None, at_ms: int = NOW_MS, **more: Any) -> Op:
    seq = 0 if prev is None else prev.seq + 1
    return op_by(keys, seq, prev, record=Join(cert=chain(keys, quota)), at_ms=at_ms, **more)


def fill(log: SpaceLog, last: Op, keys: KeyPair, *, at_ms: int = NOW_MS, limit: int = 40) -> tuple[Op, int]:
    """Write units at one moment until one is refused: the last op that was taken, and how many were."""
    for taken in range(limit):
        made = op_by(keys, last.seq + 1, last, record=unit("x"), at_ms=at_ms, space=log.space)
        added = log.add(made, swarm_ms=FAR_MS)
        if added.status != "accepted":
            assert added.reason == "over the quota of its author"
            return last, taken
        last = made
    return last, limit


@pytest.mark.parametrize("space", [SPACE, swarm_space(GENESIS.swarm_id)])
def test_an_author_is_bound_where_nobody_opened_a_task(space: bytes) -> None:
    log = new_log(space)
    first = joined(A, QUOTA, space=space)
    log.add(first, swarm_ms=FAR_MS)
    last, taken = fill(log, first, A)
    assert taken == QUOTA.burst - 1  # the join took the first
    assert log.allowance(A.public, last.hlc) == 0
    _, taken = fill(log, last, A, at_ms=NOW_MS + 1_500)
    assert taken == 3
    other = joined(B, None, space=space)  # whose certificate states none, in the same space
    log.add(other, swarm_ms=FAR_MS)
    assert fill(log, other, B)[1] == 40


@pytest.mark.parametrize(
    ("of_open", "taken"), [(Quota(ops_per_s=10_000, burst=100_000), 6), (Quota(ops_per_s=1, burst=2), 4)]
)
def test_a_task_may_ask_for_less_than_the_certificate_grants_and_gets_never_more(of_open: Quota, taken: int) -> None:
    log = new_log(TASK)
    join = joined(A, QUOTA, space=TASK)
    opened = op_by(A, 1, join, record=open_record(quota=of_open), space=TASK)
    for op in (join, opened):
        assert log.add(op, swarm_ms=FAR_MS).status == "accepted"
    assert 2 + fill(log, opened, A)[1] == taken


def test_bytes_are_bound_by_the_certificate_as_well() -> None:
    log = new_log()
    join = joined(A, Quota(bytes_max=1_500))
    log.add(join, swarm_ms=FAR_MS)
    taken = fill(log, join, A)[1]
    assert 0 < taken < 10


def test_a_renewed_certificate_counts_from_its_own_join_on() -> None:
    log = new_log()
    join = joined(A, QUOTA)
    log.add(join, swarm_ms=FAR_MS)
    last, _ = fill(log, join, A)
    wider = joined(A, Quota(ops_per_s=40, burst=20), prev=last, at_ms=NOW_MS + 501)
    assert log.add(wider, swarm_ms=FAR_MS).status == "accepted"  # by what it brings: half a second fills it
    assert fill(log, wider, A, at_ms=NOW_MS + 501)[1] == 19
    narrow = joined(A, Quota(ops_per_s=1, burst=1), prev=wider, at_ms=NOW_MS + 9_000)
    assert log.add(narrow, swarm_ms=FAR_MS).status == "accepted"
    assert fill(log, narrow, A, at_ms=NOW_MS + 9_000)[1] == 0


@given(
    gaps=st.lists(st.integers(0, 1_500), min_size=1, max_size=25),
    rate=st.integers(1, 4),
    burst=st.integers(1, 8),
    order=st.randoms(use_true_random=False),
)
def test_no_accepted_set_is_over_the_bucket_and_all_replicas_take_the_same_one(
    gaps: list[int], rate: int, burst: int, order: Any
) -> None:
    """Invariant 17 of replication.md: whatever is sent, in whatever order it comes."""
    ops = [joined(A, Quota(ops_per_s=rate, burst=burst))]
    at_ms = NOW_MS
    for gap in gaps:
        at_ms += gap
        ops.append(op_by(A, len(ops), ops[-1], record=unit("x"), at_ms=at_ms))
    logs = [new_log(), new_log()]
    shuffled = list(ops)
    order.shuffle(shuffled)
    for log, sent in zip(logs, (ops, shuffled), strict=True):
        for op in sent:
            log.add(op, swarm_ms=FAR_MS)
    assert logs[0].digest() == logs[1].digest()
    taken = logs[0].log(A.public, 0, len(ops))
    stamps = [op.hlc for op in taken]
    for begin in range(len(stamps)):
        for end in range(begin, len(stamps)):
            seconds_16 = (stamps[end] - stamps[begin]) * rate  # in 1/65,536,000 of an op
            assert end - begin + 1 <= burst + seconds_16 / 65_536_000
    if len(taken) < len(ops):  # it was refused for a reason: the next op would have been too much
        first_refused = ops[len(taken)]
        assert logs[0].allowance(A.public, first_refused.hlc) == 0


def test_a_node_over_its_quota_is_refused_at_home_and_what_it_forges_nowhere_arrives() -> None:
    """The own node says so to its user; a flooder that skips that is cut at the same op by everybody else."""
    world = World()
    for name in ("a", "b", "c"):
        world.add(name, chain=chain(keypair(name), QUOTA))
    for one, other in (("a", "b"), ("a", "c"), ("b", "c")):
        world.link(one, other)
    for number in range(QUOTA.burst - 1):
        world.write("a", unit(f"{number}"))
    with pytest.raises(Refused, match="quota"):
        world.write("a", unit("one too many"))
    world.write("b", unit("of another author"))
    world.run(LATENCY_US * 10)
    kept = world.nodes["a"].replication.log(SPACE)
    assert kept is not None
    last = kept.log(keypair("a").public, 0, 99)
    flood = list(last)[-1:]
    for _ in range(50):
        flood.append(op_by(keypair("a"), flood[-1].seq + 1, flood[-1], record=unit("flood")))
    for name in ("b", "c"):
        for op in flood:
            world.nodes[name].replication.ingest(world.nodes["a"].me, (op.wire(),), world.now_us)
    world.run(seconds(60))
    for name in ("b", "c"):
        held = world.nodes[name].replication.log(SPACE)
        assert held is not None
        assert len(list(held.log(keypair("a").public, 0, 99))) == QUOTA.burst
        assert len(list(held.log(keypair("b").public, 0, 99))) == 2
