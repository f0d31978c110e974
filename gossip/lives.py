"""Two nodes with one key: how others notice it, and how the second of the two learns of it (complaint 3, exo #181).

There is one link per key, so two such nodes take every link from each other without end, and neither hears why.

**Others** know a life of a node by what its Hello says and what does not change in a life: incarnation and addresses.
A life that comes back after another one was seen under its key was not over, so two nodes use the key by turns (or a
database was set back, which is told as well). `Lives` remembers a few lives of each peer.

**The two** never link to each other, but each is given the other's signed peer record by anybody: a record under the
own key whose addresses this life has not published. Only the key can sign it, so no liar can talk a node into
stopping. Of such a record `OwnKey` says what follows:

- issued before this life began: an earlier life of this node, or another node that was there before. Remembered.
- issued since, and its addresses are remembered: that other node lives. This node is the second, and has to stop.
- issued since, and they are new: the other one is the second. This node says again where it is, which tells the other.

Clocks may have been set, and an earlier life may have had another one. So what is no newer than the own record proves
nothing: that one is signed above everything of earlier lives that the database holds.

Two that began while they were apart, each with a record from after the other's start, both count as first: both say so
in their status, neither stops. Two with equal addresses (in separate networks) are seen by others only.
"""

from __future__ import annotations

from typing import Final, Literal

from protocol.capability import PeerValue, SignedRecord
from protocol.messages import Hello
from protocol.peer import PeerID

LIVES_PER_PEER_MAX: Final = 4
ADDRESSES_MAX: Final = 8  # address lists under the own key that are remembered from before this life
TELL_EVERY_US: Final = 60_000_000

Life = tuple[int, tuple[str, ...]]  # incarnation, addresses
Verdict = Literal["nothing", "first", "second"]


class Lives:
    """Lives of other nodes; the peer heard longest ago is forgotten first."""

    def __init__(self, peers_max: int) -> None:
        self._peers_max = peers_max
        self._lives: dict[PeerID, list[Life]] = {}  # newest last
        self._told_us: dict[PeerID, int] = {}

    def heard(self, peer: PeerID, hello: Hello, now_us: int) -> Life | None:
        """Take note of a Hello; the other life if this one was thought to be over, at most once a minute."""
        life = (hello.inst, hello.listen_addrs)
        lives = self._lives.pop(peer, [])
        other = lives[-1] if life in lives and lives[-1] != life else None
        self._lives[peer] = [*(each for each in lives if each != life), life][-LIVES_PER_PEER_MAX:]
        if len(self._lives) > self._peers_max:
            gone = next(iter(self._lives))
            del self._lives[gone]
            self._told_us.pop(gone, None)
        if other is None or now_us - self._told_us.get(peer, -TELL_EVERY_US) < TELL_EVERY_US:
            return None
        self._told_us[peer] = now_us
        return other


class OwnKey:
    """Watches what is published under the own key."""

    def __init__(self) -> None:
        self.published: PeerValue | None = None
        self._began_ms = 0
        self._before: dict[tuple[str, ...], None] = {}
        self._told_us = -TELL_EVERY_US

    def begin(self, now_ms: int) -> None:
        """A life of this node begins."""
        self._began_ms = now_ms

    def judge(self, record: SignedRecord, newer: bool, now_us: int) -> Verdict:  # noqa: FBT001 - as in OwnRecord
        """What a peer record under the own key, given by a peer, says; "first" at most once a minute."""
        value = record.value
        if self.published is None or not isinstance(value, PeerValue) or record.withdrawal:
            return "nothing"
        if value.addrs == self.published.addrs:
            return "nothing"
        if record.issued_ms <= self._began_ms:
            self._before.pop(value.addrs, None)
            self._before[value.addrs] = None
            if len(self._before) > ADDRESSES_MAX:
                del self._before[next(iter(self._before))]
            return "nothing"
        if not newer:
            return "nothing"
        if value.addrs in self._before:
            return "second"
        if now_us - self._told_us < TELL_EVERY_US:
            return "nothing"
        self._told_us = now_us
        return "first"
