"""Messages in frames: at most BATCH_OPS_MAX of them and BATCH_BYTES_MAX bytes; a larger one goes alone."""

from __future__ import annotations

from collections.abc import Iterable

from protocol.machine import Effect, Send
from protocol.messages import BATCH_BYTES_MAX, BATCH_OPS_MAX, Spread
from protocol.peer import PeerID
from protocol.transport import Lane


def batches(peer: PeerID, topic: str, messages: Iterable[tuple[bytes, bytes]], *, wide: bool) -> list[Effect]:
    """Spread frames of (id, item) pairs in order; the `ref` of each is its ids, for when a full queue refuses it."""
    effects: list[Effect] = []
    ids: list[bytes] = []
    items: list[bytes] = []
    size = 0
    for mid, item in messages:
        if items and (len(items) == BATCH_OPS_MAX or size + len(item) > BATCH_BYTES_MAX):
            effects.append(Send(peer, Lane.BULK, Spread(topic, wide, tuple(items)), tuple(ids)))
            ids, items, size = [], [], 0
        ids.append(mid)
        items.append(item)
        size += len(item)
    if items:
        effects.append(Send(peer, Lane.BULK, Spread(topic, wide, tuple(items)), tuple(ids)))
    return effects
