"""Tables of ops that wait are bounded in count and in bytes (case S3)."""

from __future__ import annotations

from gossip.waiting import Quarantine
from protocol.records import Unit
from tests.gossip_world import op_by
from tests.strategies import keypair


def test_what_waits_for_its_time_is_bounded_in_bytes_and_the_farthest_goes() -> None:
    """Anybody can stamp the future, with bodies of 64 KiB."""
    heavy = Unit(agent="a", role="r", content="x" * 1_000)
    ops = [op_by(keypair(f"author {n}"), 0, None, record=heavy) for n in range(20)]
    table = Quarantine(1_000, 10_000)
    for n, op in enumerate(ops):
        table.add(op, 1_000 + n)
    held = [op for op in ops if op.id in table]
    assert 0 < len(held) < 10
    assert held == ops[: len(held)]
    assert table.due(2_000) == held
    assert table.add(ops[-1], 5_000)  # the room is free again
