"""Two nodes make their tables of signed records equal: an exchange of fingerprints, and pushes of what differs.

An **exchange** opens with `RecordDigests`. Who receives it pushes the records of the buckets that differ, and then
sends its own digests, unless it sent some within `record_sync_min_us`; so the opener pushes what the other lacks, and
nothing that it was just told. Taking an older version changes nothing, so both end with the same. Equal tables end it
at the first frame. Exchanges open on a new link and, every `sync_every_us` ±50 %, with one random linked peer; per peer
one in `record_sync_min_us` at most, which ends every loop. A peer that opens more often is not answered.

Measured with records of 695 B, both directions together [tests/gossip/test_record_digests.py]: when nothing differs
1.0 kB at 1,000 records, 4.1 kB at 10,000 and 8.2 kB at 20,000; when one differs at most 8.4, 22 and 29 kB (the digests
twice, its bucket once, itself). A newcomer gets 10,000 records from one peer in 19 s, with 1.5 % on top of their bytes.

**Pacing.** At most `records_push_max` frames are pushed per exchange, an eighth of a queue. What is left goes on with a
new exchange `record_sync_min_us` later; the leaves are visited from a random one on, so several peers give a newcomer
different parts. After a refused frame the next exchange waits for `Writable`, or for its round.

**In vain.** A peer may refuse what it is pushed: its clock, its shares or its encoder are others. So a leaf that was
pushed whole to a peer, and still differs, is pushed whole again after `sync_every_us`, then after twice that, and so
on up to `record_refresh_us`; in between only what changed. It starts anew when it is found equal after its pause, and
when a frame was refused. So a peer gets little by asking for the same again and again, in whatever way.

**Who does not take part.** A light node tells zero buckets: nobody pushes more than peer records to it, each once per
link, when it asks; it pushes its own records itself. A node whose table overflowed tells nothing, so nobody pushes to
it, until there is room: it hears of changes by the mesh alone. A version that is pushed and older than the held one is
answered with that one, so these two learn what replaced a record of theirs as soon as they push it.

**Older peers**, without digests, are told everything in the order in which it came, and without the mesh every change.
"""

from __future__ import annotations

import random
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Final

from gossip.config import GossipConfig
from gossip.record_digests import LEAVES
from gossip.record_table import RecordTable
from protocol import versions
from protocol.capability import PeerValue, SignedRecord
from protocol.clock import SwarmClock
from protocol.errors import DecodeError
from protocol.machine import Count, Effect, Send, SetTimer, TimerKey
from protocol.messages import RECORDS_MAX, Hello, RecordDigests, Records
from protocol.peer import PeerID
from protocol.transport import Lane

MACHINE: Final = "records"
_OWN: Final = LEAVES  # stands for the own records where a light node keeps track of its pushes


@dataclass(slots=True)
class _Pushed:
    """What became of the pushes of one leaf to one peer."""

    times: int = 0  # pushed whole
    upto: int = 0  # everything that entered by then was pushed
    again_us: int = 0  # not whole again before


@dataclass(slots=True)
class _Peer:
    mesh: bool
    digests: bool
    fed: int  # everything that entered by then was told, or is found by digests; with both, what a light one was told
    light: bool | None = None  # None: it said nothing yet
    paused: bool = False  # more is to be told when the timer fires
    owed: bool = False  # its queue refused a frame
    sent_us: int | None = None  # digests of this node
    heard_us: tuple[int | None, int | None] = (None, None)  # the last two digests of the peer that were taken
    told: set[bytes] = field(default_factory=set)  # hashes of records that it gave since its last digests
    leaves: dict[int, _Pushed] = field(default_factory=dict)


class RecordSync:
    """The part of the record machine that talks to peers about the whole table."""

    def __init__(self, table: RecordTable, clock: SwarmClock, config: GossipConfig, rng: random.Random) -> None:
        self._table = table
        self._clock = clock
        self._config = config
        self._rng = rng
        self._peers: dict[PeerID, _Peer] = {}
        self._budget = config.records_push_max * RECORDS_MAX

    def __contains__(self, name: PeerID) -> bool:
        return name in self._peers

    # ---- links

    def on_linked(self, name: PeerID, hello: Hello, now_us: int) -> list[Effect]:
        """A new link: open an exchange, or tell an older peer everything."""
        mesh, digests = versions.MESH in hello.features, versions.RECORD_SYNC in hello.features
        fed = self._table.entered if digests and not mesh else 0
        peer = self._peers[name] = _Peer(mesh, digests, fed)
        return self._open(peer, name, now_us) if digests else self._feed(peer, name, now_us)

    def on_unlinked(self, name: PeerID) -> None:
        """The link is gone, and what was known of the peer with it."""
        self._peers.pop(name, None)

    def on_dropped(self, name: PeerID) -> None:
        """A frame of records or digests was refused: which, and what before it, is not known here."""
        peer = self._peers[name]
        peer.owed = True
        peer.leaves.clear()
        if peer.light or not peer.digests:
            peer.fed = 0

    def on_writable(self, name: PeerID, now_us: int) -> list[Effect]:
        """A queue has room again: go on where a frame was refused."""
        peer = self._peers[name]
        if not peer.owed:
            return []
        peer.owed = False
        return self._go_on(peer, name, now_us)

    # ---- time

    def on_round(self, now_us: int) -> list[Effect]:
        """Open an exchange with a random peer; light ones open theirs themselves."""
        ready = [
            name for name, peer in sorted(self._peers.items())
            if peer.digests and (self._config.light_index or not peer.light)
        ]  # fmt: skip
        if not ready:
            return []
        name = self._rng.choice(ready)
        self._peers[name].owed = False
        return self._open(self._peers[name], name, now_us)

    def on_again(self, name: PeerID, now_us: int) -> list[Effect]:
        """The pause after a push that was cut is over."""
        peer = self._peers.get(name)
        if peer is None:
            return []
        peer.paused = False
        return [] if peer.owed else self._go_on(peer, name, now_us)

    def _go_on(self, peer: _Peer, name: PeerID, now_us: int) -> list[Effect]:
        fed = [] if peer.digests and (peer.mesh or peer.light) else self._feed(peer, name, now_us)
        return [*fed, *(self._open(peer, name, now_us) if peer.digests else [])]

    def on_changed(self, now_us: int) -> list[Effect]:
        """The table changed: tell those peers that have no mesh to hear it from."""
        effects: list[Effect] = []
        for name, peer in sorted(self._peers.items()):
            if not peer.mesh:
                effects += self._feed(peer, name, now_us)
        return effects

    # ---- digests

    def on_digests(self, name: PeerID, frame: bytes, now_us: int) -> list[Effect]:
        """A peer told what it holds: push what it may lack, and answer if the tables differ."""
        peer = self._peers[name]
        if not peer.digests:
            return [Count("record_digests_refused")]  # its Hello does not name them
        first, second = peer.heard_us
        if first is not None and now_us - first < self._config.record_sync_min_us:
            return [Count("record_digests_early")]  # one that it opened and one answer fit
        peer.heard_us = (second, now_us)
        if not frame:
            return self._on_light(peer, name, now_us)
        try:
            differing = self._table.differing(frame)
        except DecodeError:
            return [Count("record_digests_refused")]
        peer.light = False
        still = {*differing, _OWN}  # what is equal now has nothing to wait for, once its pause is over
        peer.leaves = {leaf: seen for leaf, seen in peer.leaves.items() if leaf in still or seen.again_us > now_us}
        pushed = self._push(peer, name, differing, now_us)
        peer.told.clear()
        return [*pushed, *(self._open(peer, name, now_us) if differing else [])]

    def on_record(self, name: PeerID, record_hash: bytes, newer: SignedRecord | None) -> list[bytes]:
        """A peer gave a record: it has that version. Give it the newer one, if one is held and it was not told."""
        peer = self._peers[name]
        if len(peer.told) < 2 * self._budget:
            peer.told.add(record_hash)
        if newer is None or newer.hash in peer.told or not peer.digests:
            return []
        peer.told.add(newer.hash)
        return [newer.wire]

    def _on_light(self, peer: _Peer, name: PeerID, now_us: int) -> list[Effect]:
        if peer.light is None:
            peer.fed = 0
        peer.light = True
        return self._feed(peer, name, now_us)

    def _open(self, peer: _Peer, name: PeerID, now_us: int) -> list[Effect]:
        if peer.sent_us is not None and now_us - peer.sent_us < self._config.record_sync_min_us:
            return []
        if not self._config.light_index:
            if not self._table.complete:
                return []
            peer.sent_us = now_us
            return [Send(name, Lane.BULK, RecordDigests(self._table.frame()))]
        peer.sent_us = now_us
        own = self._push(peer, name, [], now_us) if peer.light is False else []
        return [*own, Send(name, Lane.BULK, RecordDigests(b""))]

    # ---- pushes

    def _push(self, peer: _Peer, name: PeerID, differing: list[int], now_us: int) -> list[Effect]:
        """What of these leaves is due, up to the bound; a light node pushes its own records whatever differs."""
        if self._config.light_index:
            due, cut = self._due(peer, _OWN, self._budget, now_us)
        else:
            due, cut = [], False
            filled = [leaf for leaf in differing if self._table.of_leaf(leaf)]
            start = self._rng.randrange(len(filled)) if filled else 0
            for leaf in (*filled[start:], *filled[:start]):
                more, cut = self._due(peer, leaf, self._budget - len(due), now_us)
                due += more
                if cut:
                    break
        effects = _frames(name, due)
        return [*effects, *self._pause(peer, name, now_us)] if cut else effects

    def _due(self, peer: _Peer, leaf: int, room: int, now_us: int) -> tuple[list[bytes], bool]:
        """What of a leaf should be pushed now, and whether there is more than room for it."""
        seen = peer.leaves.setdefault(leaf, _Pushed())
        whole = now_us >= seen.again_us
        after = 0 if whole else seen.upto
        held = self._table.own() if leaf == _OWN else self._table.of_leaf(leaf)
        now_ms = self._clock.now_ms(now_us)
        due = [
            each for each in held
            if each.entered > after and each.record.hash not in peer.told and each.record.acceptable(now_ms)
        ]  # fmt: skip
        cut = len(due) > room
        if cut and not room:
            return [], True
        due = due[:room]
        seen.upto = due[-1].entered if cut else self._table.entered
        if whole:
            wait_us = self._config.sync_every_us << min(seen.times, 20)
            seen.times += 1
            seen.again_us = now_us + min(wait_us, self._config.record_refresh_us)
        return [each.record.wire for each in due], cut

    def _feed(self, peer: _Peer, name: PeerID, now_us: int) -> list[Effect]:
        """What a peer was not told yet, in the order in which it came."""
        if peer.paused or peer.owed:
            return []
        now_ms = self._clock.now_ms(now_us)
        due = [
            held for held in self._table.entered_after(peer.fed)
            if held.source != name and held.record.acceptable(now_ms)
            and (not peer.light or isinstance(held.record.value, PeerValue))
        ]  # fmt: skip
        cut = len(due) > self._budget
        due = due[: self._budget]
        peer.fed = due[-1].entered if cut else self._table.entered
        effects = _frames(name, [held.record.wire for held in due])
        return [*effects, *self._pause(peer, name, now_us)] if cut else effects

    def _pause(self, peer: _Peer, name: PeerID, now_us: int) -> list[Effect]:
        peer.paused = True
        at_us = now_us + self._config.record_sync_min_us
        return [SetTimer(TimerKey(MACHINE, "again", name), at_us), Count("record_pushes_cut")]


def _frames(name: PeerID, wires: Iterable[bytes]) -> list[Effect]:
    rest = list(wires)
    return [
        Send(name, Lane.BULK, Records(tuple(rest[start : start + RECORDS_MAX])))
        for start in range(0, len(rest), RECORDS_MAX)
    ]
