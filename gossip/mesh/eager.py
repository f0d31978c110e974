"""Eager push: own messages go to everybody at once, accepted ones of others to the mesh.

A message of a peer waits for its verdict (gossip/mesh/unjudged.py); who brings it meanwhile becomes one more source.
`accept` counts for the first source and forwards it to mesh peers that are not known to have it. The first accepted
messages go on at once; further ones within `flush_us` share a frame, and by then more is known of who has them.
`later` ends the wait with the next heartbeat and leaves no mark, so the consumer is asked anew about a later copy. What
a peer brings beyond its allowance (gossip/mesh/allowance.py) is dropped unseen and counted.
Copies that all came as `wide` are not forwarded: their origin says that it reached every living member itself.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable

from gossip.events import Arrived, Verdict
from gossip.mesh.batches import batches
from gossip.mesh.cache import Entry
from gossip.mesh.lazy import Lazy
from gossip.mesh.overlay import Overlay
from gossip.mesh.state import State
from gossip.mesh.unjudged import Waiting
from protocol.machine import Effect, Local, Send, SetTimer, TimerKey
from protocol.messages import BATCH_BYTES_MAX, BATCH_OPS_MAX, MESSAGE_IDS_MAX, IDontWant, Spread, message_id
from protocol.op import OP_BYTES_MAX
from protocol.peer import PeerID
from protocol.transport import Lane

MACHINE = "mesh"
_FLUSH = TimerKey(MACHINE, "flush")


class Eager:
    """Messages that come, are judged and go on."""

    def __init__(self, state: State, overlay: Overlay, lazy: Lazy) -> None:
        self._state = state
        self._config = state.config
        self._overlay = overlay
        self._lazy = lazy
        self.members: dict[PeerID, None] = {}  # alive, without this node
        self._outbox: dict[bytes, Entry] = {}  # accepted, not forwarded yet
        self._outbox_bytes = 0
        self._rest_until_us = 0  # flush_us after the last flush
        self._flush_set = False

    def on_spread(self, peer: PeerID, frame: Spread, now_us: int) -> list[Effect]:
        """Messages from a peer: what is new is told once, as one `Arrived`."""
        new: dict[bytes, bytes] = {}
        effects: list[Effect] = []
        for item in frame.items:
            mid = message_id(frame.topic, item)
            self._lazy.arrived(peer, mid)
            if not frame.wide:
                brought = self._state.peers[peer].brought
                brought.setdefault(frame.topic, deque(maxlen=self._config.echo_ids)).append(mid)
            if self._state.knows(mid):
                effects += self._on_copy(peer, frame, mid)
                continue
            if not self._state.allowance(peer, frame.topic, now_us).take(now_us):
                effects += self._state.count("mesh_surplus")
                continue
            until_us = now_us + self._config.unjudged_us
            if self._state.unjudged.add(mid, Waiting(frame.topic, item, frame.wide, {peer: None}, until_us)):
                new[mid] = item
            else:
                effects += self._state.count("mesh_unjudged_full")
        if new:
            effects += self._announce(peer, frame, new)
            effects.append(Local(Arrived(peer, frame.topic, tuple(new.values()))))
        return effects

    def _on_copy(self, peer: PeerID, frame: Spread, mid: bytes) -> list[Effect]:
        waiting = self._state.unjudged.get(mid)
        if waiting is not None:
            waiting.sources[peer] = None
            waiting.wide = waiting.wide and frame.wide
        elif self._state.seen.get(mid) == "rejected":
            self._state.scores.invalid(peer)
            return self._state.count("mesh_rejected")
        else:
            self._lazy.sign(peer, frame.topic, mid)
        return self._state.count("mesh_duplicates")

    def _announce(self, peer: PeerID, frame: Spread, new: dict[bytes, bytes]) -> list[Effect]:
        """IDontWant: the others of the mesh need not send what is large and is here, judged or not."""
        large = tuple(mid for mid, item in new.items() if len(item) >= self._config.dont_want_bytes_min)
        if frame.wide or not large:
            return []
        assert len(large) <= MESSAGE_IDS_MAX
        others = [other for other in self._overlay.mesh(frame.topic) if other != peer]
        return [Send(other, Lane.CONTROL, IDontWant(frame.topic, large)) for other in others]

    def on_broadcast(self, topic: str, items: tuple[bytes, ...], now_us: int) -> list[Effect]:
        """Messages of this node: at once to every linked subscriber, and kept for those who lose them."""
        state = self._state
        if topic not in state.topics:
            return state.count("mesh_foreign_topics")
        takers = state.subscribers(topic, self._config.publish_milli)
        wide = 0 < len(self.members) < self._config.members_max and all(peer in takers for peer in self.members)
        effects: list[Effect] = []
        entries: dict[bytes, Entry] = {}
        for item in items:
            mid = message_id(topic, item)
            if state.seen.get(mid) is not None or mid in entries:
                effects += state.count("mesh_broadcast_again")
            elif len(item) > OP_BYTES_MAX:
                effects += state.count("mesh_broadcast_unfit")
            else:
                entries[mid] = self._own(topic, mid, item, wide=wide, now_us=now_us)
        for peer in takers if entries else ():
            effects += self._give(peer, topic, entries, wide=wide)
        return effects

    def _own(self, topic: str, mid: bytes, item: bytes, *, wide: bool, now_us: int) -> Entry:
        waiting = self._state.unjudged.take(mid)  # it came back before it was sent, or another node made it too
        entry = Entry(topic, item, wide, now_us, dict(waiting.sources) if waiting else {})
        self._keep(mid, entry, now_us)
        return entry

    def _keep(self, mid: bytes, entry: Entry, now_us: int) -> None:
        self._state.seen.add(mid, "accepted", now_us)
        if self._state.cache.get(mid) is None:
            self._state.cache.put(mid, entry)

    def _give(self, peer: PeerID, topic: str, entries: dict[bytes, Entry], *, wide: bool) -> list[Effect]:
        """Send what a peer is not known to have."""
        record = self._state.peers[peer]
        missing = [
            (mid, entry.item)
            for mid, entry in entries.items()
            if entry.topic == topic and peer not in entry.holders and mid not in record.has
        ]
        if not missing:
            return []
        if not wide:
            record.given[topic] = None
        return [*self._state.count("mesh_sent", len(missing)), *batches(peer, topic, missing, wide=wide)]

    def on_judged(self, topic: str, verdicts: tuple[tuple[bytes, Verdict], ...], now_us: int) -> list[Effect]:
        """Verdicts on waiting messages; those on others are nothing."""
        state = self._state
        effects: list[Effect] = []
        for mid, verdict in verdicts:
            waiting = state.unjudged.get(mid)
            if waiting is None or waiting.topic != topic:
                continue
            if verdict == "later":
                waiting.until_us = min(waiting.until_us, now_us)
                effects += state.count("mesh_put_off")
                continue
            state.unjudged.take(mid)
            match verdict:
                case "accept":
                    self._accept(mid, waiting, now_us)
                case "ignore":
                    state.seen.add(mid, "ignored", now_us)
                    self._heard(waiting, waiting.sources)
                case "reject":
                    state.seen.add(mid, "rejected", now_us)
                    for peer in waiting.sources:
                        state.scores.invalid(peer)
                    effects += state.count("mesh_rejected", len(waiting.sources))
        return [*effects, *self._flush_or_wait(now_us)]

    def _accept(self, mid: bytes, waiting: Waiting, now_us: int) -> None:
        state = self._state
        state.scores.first(next(iter(waiting.sources)))
        holders = dict(waiting.sources)
        for peer in sorted(state.peers):
            if mid in state.peers[peer].has:
                holders[peer] = None
        entry = Entry(waiting.topic, waiting.item, waiting.wide, now_us, holders)
        self._keep(mid, entry, now_us)
        self._heard(waiting, holders)
        if not waiting.wide:
            self._outbox[mid] = entry
            self._outbox_bytes += len(entry.item)

    def _heard(self, waiting: Waiting, peers: Iterable[PeerID]) -> None:
        for peer in peers if not waiting.wide else ():
            self._overlay.heard(waiting.topic, peer)

    def _flush_or_wait(self, now_us: int) -> list[Effect]:
        if not self._outbox:
            return []
        full = len(self._outbox) >= BATCH_OPS_MAX or self._outbox_bytes >= BATCH_BYTES_MAX
        if full or now_us >= self._rest_until_us:
            return self.flush(now_us)
        if self._flush_set:
            return []
        self._flush_set = True
        return [SetTimer(_FLUSH, self._rest_until_us)]

    def flush(self, now_us: int) -> list[Effect]:
        """Forward to the meshes what was accepted, each peer what it is not known to have by now."""
        self._flush_set = False
        entries, self._outbox, self._outbox_bytes = self._outbox, {}, 0
        if not entries:
            return []
        self._rest_until_us = now_us + self._config.flush_us
        effects: list[Effect] = []
        for topic in dict.fromkeys(entry.topic for entry in entries.values()):
            for peer in self._overlay.mesh(topic):
                effects += self._give(peer, topic, entries, wide=False)
        return effects
