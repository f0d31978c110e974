"""A node starts whatever its store holds: the number of stored ops is no number of events."""

from __future__ import annotations

import random

import pytest

from node.core import LOCAL_EVENTS_MAX, CoreConfig, Membership, NodeCore
from protocol.admission import CERT_LIFE_MS_MAX, MEMBER, Genesis, issue
from protocol.identity import KeyPair, verify_raw
from protocol.machine import Boot
from protocol.op import OpKind, Position, make_op
from protocol.records import Join, Unit, body_bytes
from protocol.store import OpRow
from simulations.store import SimDisk

NOW_MS = 1_800_000_000_000
USER, NODE = KeyPair(bytes(range(32))), KeyPair(bytes(range(1, 33)))


@pytest.mark.slow
def test_a_store_of_more_ops_than_events_in_a_step_boots() -> None:
    genesis = Genesis(name="t", creator=USER.public, admins=(USER.public,), created_ms=NOW_MS)
    window = (NOW_MS, NOW_MS + CERT_LIFE_MS_MAX)
    chain = (issue(USER, genesis.swarm_id, NODE.public, (MEMBER,), window),)
    space, store = bytes(16), SimDisk()
    body = body_bytes(Unit(agent="a", role="r", content="c"))
    # 25 ops a second stay below the quota of 50.
    op = make_op(NODE, OpKind.JOIN, Position(space, 1, 0, None, (), NOW_MS << 16), body_bytes(Join(cert=chain)))
    rows = [OpRow(op, sync=False)]
    for seq in range(1, LOCAL_EVENTS_MAX + 100):
        op = make_op(NODE, OpKind.UNIT, Position(space, 1, seq, op.id, (), (NOW_MS + 40 * seq) << 16), body)
        rows.append(OpRow(op, sync=False))
    store.apply(tuple(rows))
    member = Membership(NODE, USER, genesis, chain)
    core = NodeCore(member, CoreConfig(), random.Random(1), store=store, verify=verify_raw)
    core.handle(Boot(2, (NOW_MS + 10_000_000) * 1000, clean=True), 0)
    log = core.replication.log(space)
    assert log is not None
    assert len(log) == len(rows)
