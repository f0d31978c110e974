"""Case S3: a space of a single op costs a node little, so that the cap by count is one of memory too.

`spaces_per_author_max` spaces of one author (1,000) must stay below the 32 MiB of the case.
"""

from __future__ import annotations

import gc
import tracemalloc

from gossip.config import GossipConfig
from protocol.machine import Received
from protocol.messages import OpBatch
from protocol.op import OpKind, Position, make_op
from protocol.peer import PeerID
from protocol.records import Join, body_bytes
from tests.gossip_world import NOW_MS, chain_of
from tests.node.test_case_any_events import Alone
from tests.strategies import keypair

GROWTH_BYTES_MAX = 32 << 20
SPACES = 200
AUTHOR = keypair("the author of many spaces")


def begun(number: int) -> bytes:
    """The first op of a space of its own."""
    at = Position(number.to_bytes(16, "big"), 1, 0, None, (), NOW_MS << 16)
    return make_op(AUTHOR, OpKind.JOIN, at, body_bytes(Join(cert=chain_of(AUTHOR)))).wire()


def test_all_spaces_that_one_author_may_begin_cost_less_than_the_bound_of_the_case() -> None:
    node = Alone()
    node.link(AUTHOR)
    peer = PeerID(AUTHOR.public)
    node.give(Received(peer, OpBatch((begun(0),))))
    ops = [begun(number) for number in range(1, SPACES + 1)]
    gc.collect()
    tracemalloc.start()
    try:
        for op in ops:
            node.give(Received(peer, OpBatch((op,))))
            node.sent.clear()
        gc.collect()
        grown, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert len(node.core.replication.spaces()) >= SPACES
    per_space = grown // SPACES
    assert per_space * GossipConfig().spaces_per_author_max < GROWTH_BYTES_MAX, f"{per_space} bytes per space"
