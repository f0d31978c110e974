"""Messages in frames."""

from __future__ import annotations

from collections.abc import Iterable

from gossip.packing import packed
from protocol.machine import Effect, Send
from protocol.messages import Spread
from protocol.peer import PeerID
from protocol.transport import Lane


def batches(peer: PeerID, topic: str, messages: Iterable[tuple[bytes, bytes]], *, wide: bool) -> list[Effect]:
    """Spread frames of (id, item) pairs in order; the `ref` of each is its ids, for when a full queue refuses it."""
    effects: list[Effect] = []
    for pack in packed(messages, lambda message: len(message[1])):
        ids, items = zip(*pack, strict=True)
        effects.append(Send(peer, Lane.BULK, Spread(topic, wide, items), ids))
    return effects
