"""Receipts: a peer's signed word that ops of ours are on its disk, and ours for ops of its own (ack level `w1`).

A receipt goes to the author alone, when it brought the op itself; so `w1` means a peer that is linked. Stored are at
most `receipts_per_op_max` of an op, one of each holder.
"""

from __future__ import annotations

from collections.abc import Iterable

from gossip.context import Context
from gossip.events import Acked
from gossip.packing import packed
from gossip.space_log import SpaceLog
from protocol.identity import prefixed
from protocol.machine import Count, Effect, Local, Persist, Send
from protocol.messages import IDS_MAX, OpBatch, Receipt, receipt_bytes
from protocol.op import Op
from protocol.peer import PeerID
from protocol.store import ReceiptRow
from protocol.transport import Lane

LEVEL_DISK = 1  # the level a receipt states: on the holder's disk


def by_space(ops: Iterable[Op]) -> dict[bytes, list[Op]]:
    """Ops by the space that they are in, each in their order."""
    found: dict[bytes, list[Op]] = {}
    for op in ops:
        found.setdefault(op.space, []).append(op)
    return found


def push(peer: PeerID, ops: list[Op]) -> list[Effect]:
    """Ops sent to one peer, in their order."""
    wires = [op.wire() for op in ops]
    return [Send(peer, Lane.BULK, OpBatch(pack)) for pack in packed(wires, len)]


class Receipts:
    """Gives and takes them."""

    def __init__(self, ctx: Context) -> None:
        self._keys = ctx.keys
        self._me = ctx.me
        self._store = ctx.store
        self._verify = ctx.verify
        self._jobs = ctx.jobs
        self._per_op_max = ctx.config.receipts_per_op_max

    def give(self, peer: PeerID, ops: list[Op]) -> list[Effect]:
        """Tell a peer that these ops are on this node's disk."""
        effects: list[Effect] = []
        for space, held in by_space(ops).items():
            ids = tuple(dict.fromkeys(op.id for op in held))
            pages = (ids[start : start + IDS_MAX] for start in range(0, len(ids), IDS_MAX))
            effects += [self._receipt(peer, space, page) for page in pages]
        return effects

    def _receipt(self, peer: PeerID, space: bytes, ids: tuple[bytes, ...]) -> Send:
        sig = self._keys.sign("receipt", receipt_bytes(space, LEVEL_DISK, ids))
        return Send(peer, Lane.CONTROL, Receipt(space, LEVEL_DISK, ids, sig))

    def take(self, peer: PeerID, receipt: Receipt, log: SpaceLog | None) -> list[Effect]:
        """A peer says that it holds own ops; `log` is that of the space."""
        signed = prefixed("receipt", receipt_bytes(receipt.space, receipt.level, receipt.ids))
        if log is None or not self._verify(peer, signed, receipt.sig):
            return [Count("receipts_refused")]
        own = tuple(i for i in receipt.ids if (op := log.get(i)) is not None and op.author == self._me)
        rows = tuple(ReceiptRow(i, peer, receipt.level, receipt.sig) for i in own if self._wants(i, peer))
        keeps: list[Effect] = [Persist(self._jobs.next(), rows)] if rows else []
        return [*keeps, Local(Acked(receipt.space, peer, own))] if own else []

    def _wants(self, op_id: bytes, holder: bytes) -> bool:
        known = [each for each, _ in self._store.receipts(op_id)]
        return holder not in known and len(known) < self._per_op_max
