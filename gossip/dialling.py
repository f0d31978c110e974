"""Whom to dial, when to try again, and which links to give up.

    up to `links_full_max` known peers    everybody dials everybody: one hop, and every death is felt at once
    above                                 each node opens links to random peers until it has `links_min`, and lets go
                                          of random ones above `links_max`

A random graph in which every node opens 12 links is connected and has a diameter of 3 to 4 at N = 1,000 (Erdos and
Renyi: connected from ln N links on); ops and records travel over it by the mesh (gossip/mesh/), and who lives is told
by membership. Without this bound N nodes hold N² / 2 links.

A peer that is wanted is dialled for ever, with exponential back-off and jitter, so a dead bootstrap is no error and a
peer that comes back is found (case D3, complaint 1). A node without any link tries the configured peers as well as
its random ones. Who was let go in order is dialled again after a pause, and is no worse for it.

A new address of a peer is dialled at once, whatever failed at the old one, but only once in `dial_fresh_us`: else a
member that changes its record all the time would have everybody dial whom it likes, as often as it likes. Whoever left,
whose record ended, or who was denied is forgotten, but for addresses from the configuration; where the table of known
peers is full, so is the one that failed most.
"""

from __future__ import annotations

import random
from dataclasses import dataclass, field

from gossip.config import GossipConfig
from protocol.machine import Dial, Effect, SetTimer, TimerKey
from protocol.peer import ADDRESSES_PER_PEER_MAX, Multiaddr, PeerID, PeerInfo

DIAL_GUARD_US = 60_000_000  # a dial that is never answered is forgotten after so long
LET_GO_PAUSE_US = 60_000_000  # who was let go, or let this node go, is not dialled again before
LINK_AGE_MIN_US = 30_000_000
"""A link younger than this is not let go, also far above `links_max`: who just joined learns from it, and the DHT,
which opened most of them, soon needs it again. With 10 s a join of 64 nodes costs 58 % more hellos, 8 % more CPU
[measured]."""
TOPOLOGY_EVERY_US = 10_000_000


@dataclass(slots=True)
class _Known:
    """A peer that may be dialled."""

    told: tuple[str, ...] = ()  # addresses by its own record
    own: tuple[str, ...] = ()  # and from the configuration
    backoff_us: int = 0
    due_us: int = 0  # not dialled before
    fresh_us: int | None = None  # when an address changed and was dialled at once

    @property
    def addrs(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys((*self.told, *self.own)))[:ADDRESSES_PER_PEER_MAX]

    @property
    def configured(self) -> bool:
        return bool(self.own)


@dataclass(slots=True)
class Dialling:
    """The known peers and the choice among them. `machine` names the timers."""

    me: PeerID
    config: GossipConfig
    rng: random.Random
    machine: str
    stopping: bool = False
    denied: frozenset[bytes] = frozenset()
    _known: dict[PeerID, _Known] = field(default_factory=dict)
    _linked: dict[PeerID, int] = field(default_factory=dict)  # since when
    _let_go: dict[PeerID, None] = field(default_factory=dict)
    _under_way: dict[PeerID, None] = field(default_factory=dict)  # dials without an answer yet

    def known(self) -> dict[PeerID, tuple[str, ...]]:
        """Every peer that may be dialled, with its addresses, in PeerID order."""
        return {peer: self._known[peer].addrs for peer in sorted(self._known)}

    def add_bootstrap(self, addrs: tuple[str, ...]) -> None:
        """Addresses from local configuration; each ends in /p2p/<peer id>. Before Boot."""
        for text in addrs:
            addr = Multiaddr.parse(text)
            if addr.peer is not None and addr.peer != self.me:
                known = self._known.setdefault(addr.peer, _Known())
                known.own = tuple(dict.fromkeys((*known.own, text)))[:ADDRESSES_PER_PEER_MAX]

    # ---- what is wanted

    @property
    def _everybody(self) -> bool:
        return len(self._known) <= self.config.links_full_max

    def _missing(self) -> int:
        """How many links are still to be opened where not everybody is wanted."""
        return max(0, self.config.links_min - len(self._linked) - len(self._under_way))

    def _may(self, peer: PeerID, now_us: int) -> bool:
        known = self._known.get(peer)
        if known is None or peer in self._linked or peer in self._under_way or self.stopping or peer in self.denied:
            return False
        return known.due_us <= now_us

    def _wants(self, peer: PeerID, now_us: int) -> bool:
        alone = not self._linked and peer in self._known and self._known[peer].configured
        return self._may(peer, now_us) and (self._everybody or alone or self._missing() > 0)

    def fill(self, now_us: int) -> list[Effect]:
        """Dial whom this node wants and may dial now."""
        due = [peer for peer in sorted(self._known) if self._may(peer, now_us)]
        if not self._everybody:
            chosen = self.rng.sample(due, min(len(due), self._missing()))
            alone = [peer for peer in due if self._known[peer].configured] if not self._linked else []
            due = sorted({*chosen, *alone})
        return [effect for peer in due for effect in self._dial(peer, now_us)]

    def on_topology_timer(self, now_us: int) -> tuple[list[Effect], list[PeerID]]:
        """Dials that are due, and the peers to let go."""
        timer = SetTimer(TimerKey(self.machine, "topology"), now_us + TOPOLOGY_EVERY_US)
        over = len(self._linked) - self.config.links_max
        old = [peer for peer, since_us in sorted(self._linked.items()) if now_us - since_us >= LINK_AGE_MIN_US]
        surplus = sorted(self.rng.sample(old, min(over, len(old)))) if over > 0 else []
        return [timer, *self.fill(now_us)], surplus

    # ---- dialling

    def start(self, now_us: int) -> list[Effect]:
        """At Boot: dial whom the configuration names."""
        return [SetTimer(TimerKey(self.machine, "topology"), now_us + TOPOLOGY_EVERY_US), *self.fill(now_us)]

    def _dial(self, peer: PeerID, now_us: int) -> list[Effect]:
        self._under_way[peer] = None
        guard = SetTimer(TimerKey(self.machine, "dial", peer), now_us + DIAL_GUARD_US)
        return [Dial(PeerInfo(peer, self._known[peer].addrs)), guard]

    def on_timer(self, peer: PeerID, now_us: int) -> list[Effect]:
        """The time to try a peer again has come, or a dial was never answered."""
        self._under_way.pop(peer, None)
        return self._dial(peer, now_us) if self._wants(peer, now_us) else []

    def on_failed(self, peer: PeerID, now_us: int) -> list[Effect]:
        """No address of a peer gave a link: later again, and somebody else meanwhile."""
        return [*self._later(peer, now_us), *([] if self._everybody else self.fill(now_us))]

    def _later(self, peer: PeerID, now_us: int) -> list[Effect]:
        self._under_way.pop(peer, None)
        known = self._known.get(peer)
        if known is None or self.stopping:
            return []
        low, high = self.config.dial_backoff_min_us, self.config.dial_backoff_max_us
        known.backoff_us = min(high, max(low, known.backoff_us * 2))
        known.due_us = now_us + known.backoff_us // 2 + self.rng.randrange(known.backoff_us // 2 + 1)
        return [SetTimer(TimerKey(self.machine, "dial", peer), known.due_us)] if self._everybody else []

    # ---- links

    def on_up(self, peer: PeerID, now_us: int) -> None:
        """A link to a peer is open."""
        self._linked[peer] = now_us
        self._under_way.pop(peer, None)

    def let_go(self, peer: PeerID) -> None:
        """A link is being closed in order, by either side: nobody is needed at both its ends."""
        if peer in self._linked:
            self._let_go[peer] = None

    def on_down(self, peer: PeerID, now_us: int) -> tuple[list[Effect], bool]:
        """A link is gone, or a dialled peer was refused; the second value tells whether it was let go in order."""
        since_us = self._linked.pop(peer, None)
        in_order = peer in self._let_go
        self._let_go.pop(peer, None)
        self._forget(peer)
        known = self._known.get(peer)
        if known is not None and since_us is not None and now_us - since_us > self.config.silent_after_us:
            known.backoff_us = 0  # it lasted; a peer that links and refuses at once is dialled ever less often
        if in_order and known is not None:
            self._under_way.pop(peer, None)
            known.due_us = now_us + LET_GO_PAUSE_US
            return self.fill(now_us), True
        return [*self._later(peer, now_us), *([] if self._everybody else self.fill(now_us))], in_order

    # ---- addresses

    def on_addresses(self, peer: PeerID, addrs: tuple[str, ...], now_us: int) -> list[Effect] | None:
        """A member said where it is. None if the table of known peers is full."""
        known = self._known.get(peer)
        if peer == self.me or peer in self.denied or addrs == (known.told if known is not None else ()):
            return []
        if not addrs:
            self.on_gone(peer)
            return []
        if known is None:
            if len(self._known) >= self.config.known_peers_max and not self._evict():
                return None
            known = self._known[peer] = _Known(addrs)
        elif not self._renew(known, addrs, now_us):
            return []
        self._under_way.pop(peer, None)  # what is under way goes to where it no longer is
        return self._dial(peer, now_us) if self._wants(peer, now_us) else []

    def _renew(self, known: _Known, addrs: tuple[str, ...], now_us: int) -> bool:
        """Take new addresses; True if what failed at the old ones is to be forgotten."""
        more = not {*addrs} <= {*known.addrs}
        known.told = addrs
        if not more or (known.fresh_us is not None and now_us - known.fresh_us < self.config.dial_fresh_us):
            return False
        known.backoff_us, known.due_us, known.fresh_us = 0, 0, now_us
        return True

    def _evict(self) -> bool:
        """Make room for a peer: forget the one that failed most, if one failed."""
        failed = [
            (known.backoff_us, peer) for peer, known in self._known.items()
            if known.backoff_us and not known.configured and peer not in self._linked and peer not in self._under_way
        ]  # fmt: skip
        if not failed:
            return False
        del self._known[max(failed)[1]]
        return True

    def on_gone(self, peer: PeerID) -> None:
        """Its record ended: who is not configured is dialled no more; while linked it may still say otherwise."""
        known = self._known.get(peer)
        if known is not None:
            known.told = ()
            if peer not in self._linked:
                self._forget(peer)

    def deny(self, denied: frozenset[bytes]) -> None:
        """These may not be linked: they are not dialled, and what they said of their addresses is forgotten."""
        for key in sorted(denied - self.denied):
            self.on_gone(PeerID(key))
        self.denied = denied

    def _forget(self, peer: PeerID) -> None:
        known = self._known.get(peer)
        if known is not None and not known.addrs:
            del self._known[peer]
            self._under_way.pop(peer, None)
