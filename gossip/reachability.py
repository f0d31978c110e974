"""Can others reach this node? The verdict, from what linked peers find when they dial it back.

    direct          a peer reached one of its addresses, or dialled it on its own
    relay           nobody does, but a relay keeps a place for it (config `relay = "client"`)
    outbound-only   it was tested from two peers (or all there are) and nobody got through; or it has no address
    unknown         before that

The verdict is as good as the places that it was seen from: peers of one LAN prove that the LAN reaches a node, not
that the internet does, so `status` says from how many peers. Up to `asked_max` distinct peers are asked after a new
link, after a change of addresses and ever again; an answer counts for `evidence_us`, and only for the addresses that
it was given for. One peer that lies makes a node serve that cannot, or two that lie make one withhold that could;
neither breaks more than the replicas of others make good.

Petals, Hivemind and parallax lost keys to nodes behind NAT that took part in the DHT (conventions.md §8, case 15).
`ReachabilityChanged.serving` is what keeps such nodes out of it.
"""

from __future__ import annotations

import random
from dataclasses import dataclass, replace
from typing import Final

from gossip.dial_back import DialBackServer
from gossip.events import Linked, Publish, Unlinked
from gossip.reach import (
    NOT_REACHED,
    NOT_TRIED,
    RELAY_ROLE,
    InboundLink,
    ReachabilityChanged,
    ReachConfig,
    ReachVerdict,
)
from gossip.relay_client import RelayClient
from protocol.capability import PeerValue
from protocol.machine import (
    Count,
    Effect,
    JobDone,
    JobFailed,
    JobId,
    JobIds,
    Local,
    Notify,
    Received,
    Send,
    SendDropped,
    SetTimer,
    Stopping,
    Suspended,
    TimerFired,
    TimerKey,
)
from protocol.messages import DialBack, DialedBack
from protocol.peer import Multiaddr, PeerID, short
from protocol.transport import Lane
from protocol.versions import DIAL_BACK

MACHINE = "reachability"
FAILURES: Final = 2  # peers that got nowhere, for `outbound-only`
INBOUND_MAX: Final = 16  # of links that peers dialled, as evidence
_ASK: Final = TimerKey(MACHINE, "ask")
_RELAY: Final = TimerKey(MACHINE, "relay")


@dataclass(slots=True)
class _Peer:
    """A linked peer. `asked_us`: when it was asked about the present addresses."""

    tests: bool
    relays: bool
    asked_us: int | None = None


@dataclass(frozen=True, slots=True)
class _Asking:
    peer: PeerID
    sent_us: int


@dataclass(frozen=True, slots=True)
class _Said:
    reached: tuple[str, ...]
    reason: str
    at_us: int


class Reachability:
    """The machine. `jobs` is shared with the other machines of the node.

    Feed it every event of the node, `InboundLink` after the `PeerUp` of the link; it answers jobs `ReachTest` and
    `Reserve` (gossip/reach.py), which the transport carries out.
    """

    def __init__(self, me: PeerID, config: ReachConfig, rng: random.Random, jobs: JobIds) -> None:
        self._me = me
        self._config = config
        self._rng = rng
        self._server = DialBackServer(config, jobs)
        self._relay = RelayClient(config, rng, jobs, _RELAY)
        self._addrs: tuple[str, ...] | None = None  # None before the first are known
        self._peers: dict[PeerID, _Peer] = {}
        self._asking: dict[int, _Asking] = {}
        self._said: dict[PeerID, _Said] = {}
        self._inbound_us: dict[PeerID, int] = {}  # linked ones count as of now
        self._req = 0
        self._due_us: int | None = None
        self._stopping = False
        self._changed_us = 0
        self._now = ReachabilityChanged("unknown", 0)

    @property
    def verdict(self) -> ReachVerdict:
        """What holds at present."""
        return self._now.verdict

    @property
    def serving(self) -> bool:
        """See ReachabilityChanged."""
        return self._now.serving

    def status(self, now_us: int) -> dict[str, object]:
        """Plain data for `masos status`."""
        said = [f"{short(peer)}: {', '.join(each.reached) or each.reason}" for peer, each in self._said.items()]
        inbound = [f"{short(peer)}: dialled this node" for peer in self._inbound_us]
        relay = self._relay.relay
        return {
            "verdict": self._now.verdict,
            "seen_from": self._now.seen_from,
            "serving": self._now.serving,
            "relay": short(relay) if relay is not None else None,
            "relay_addrs": list(self._now.relay_addrs),
            "reasons": [*inbound, *said] if self._addrs != () else [*inbound, "no address to be reached at"],
            "since_s": (now_us - self._changed_us) // 1_000_000,
        }

    def handle(self, event: object, now_us: int) -> list[Effect]:
        """Take one event; what is nothing to this machine gives nothing."""
        match event:
            case Stopping():
                self._stopping = True
                return []
            case _ if self._stopping:
                return []
            case Received(peer, DialBack() as frame):
                return self._server.on_ask(peer, frame, now_us) if peer in self._peers else []
            case Received(peer, DialedBack() as frame):
                return self._on_answer(peer, frame, now_us)
            case SendDropped(_, "DialBack", int() as req):
                self._asking.pop(req, None)
                return []
            case Publish(PeerValue(addrs=addrs)):
                return self._on_addresses(addrs, now_us)
            case Linked() | Unlinked() | InboundLink():
                return self._on_link(event, now_us)
            case JobDone(job, result) | JobFailed(job, result):
                return self._on_job(job, result, now_us)
            case TimerFired(TimerKey(machine, what)) if machine == MACHINE:
                return self._on_timer(what, now_us)
            case Suspended():
                return self._due(now_us + self._config.settle_us)
            case _:
                return []

    # ---- what changes

    def _on_addresses(self, addrs: tuple[str, ...], now_us: int) -> list[Effect]:
        """New addresses make everything that was said about the old ones void."""
        own = tuple(text for text in addrs if Multiaddr.parse(text).relay is None)
        if own == self._addrs:
            return []
        self._addrs = own
        self._asking, self._said, self._inbound_us = {}, {}, {}
        for peer in self._peers.values():
            peer.asked_us = None
        return [*self._due(now_us + self._config.settle_us), *self._judge(now_us)]

    def _on_link(self, event: Linked | Unlinked | InboundLink, now_us: int) -> list[Effect]:
        told: list[Effect] = []
        match event:
            case Linked(peer, hello):
                self._peers[peer] = _Peer(DIAL_BACK in hello.features, RELAY_ROLE in hello.roles)
                told = self._due(now_us + self._config.settle_us)
            case InboundLink(peer):
                if peer in self._peers:
                    self._inbound_us.pop(peer, None)
                    self._inbound_us[peer] = now_us
                    for oldest in list(self._inbound_us)[:-INBOUND_MAX]:
                        del self._inbound_us[oldest]
            case Unlinked(peer):
                self._peers.pop(peer, None)
                if peer in self._inbound_us:
                    self._inbound_us[peer] = now_us
                self._asking = {req: each for req, each in self._asking.items() if each.peer != peer}
                told = [*self._server.on_down(peer), *self._relay.on_down(peer)]
        return [*told, *self._judge(now_us)]

    def _on_answer(self, peer: PeerID, frame: DialedBack, now_us: int) -> list[Effect]:
        asking = self._asking.get(frame.req)
        if asking is None or asking.peer != peer:
            return [Count("dial_back_answers_unasked")]
        del self._asking[frame.req]
        if frame.reason.startswith(NOT_TRIED) and not frame.reached:
            return self._due(now_us + self._config.retry_us)
        reached = tuple(addr for addr in frame.reached if addr in (self._addrs or ()))
        self._said.pop(peer, None)
        self._said[peer] = _Said(reached, frame.reason or NOT_REACHED, now_us)
        for oldest in list(self._said)[: -self._config.asked_max]:
            del self._said[oldest]
        return self._judge(now_us)

    def _on_job(self, job: JobId, result: object, now_us: int) -> list[Effect]:
        placed = self._relay.on_result(job, result, now_us)
        return [*self._server.on_result(job, result), *placed, *(self._judge(now_us) if placed else [])]

    def _on_timer(self, what: str, now_us: int) -> list[Effect]:
        if what == "ask":
            self._due_us = None
            return [*self._ask(now_us), *self._judge(now_us)]
        return self._judge(now_us)

    # ---- asking

    def _due(self, at_us: int) -> list[Effect]:
        """A round at this time, or earlier if one is due earlier."""
        if self._due_us is not None and self._due_us <= at_us:
            return []
        self._due_us = at_us
        return [SetTimer(_ASK, at_us)]

    def _ask(self, now_us: int) -> list[Effect]:
        """One round: as many peers as are missing for a fresh picture."""
        config = self._config
        late_us = now_us - config.answer_us
        self._asking = {req: each for req, each in self._asking.items() if each.sent_us > late_us}
        fresh = {peer for peer, said in self._said.items() if now_us - said.at_us < config.check_every_us}
        busy = {asking.peer for asking in self._asking.values()}
        able = [
            peer
            for peer in sorted(self._peers)
            if self._peers[peer].tests and peer not in fresh | busy and self._may_ask(peer, now_us)
        ]
        missing = config.asked_max - len(fresh) - len(busy)
        chosen = self._rng.sample(able, max(0, min(missing, len(able)))) if self._addrs else []
        asked = [effect for peer in chosen for effect in self._ask_one(peer, now_us)]
        settled = len(fresh) >= min(config.asked_max, sum(peer.tests for peer in self._peers.values()))
        every_us = config.check_every_us if settled and not asked and self.verdict != "unknown" else config.retry_us
        return [*asked, *self._due(now_us + every_us + self._rng.randrange(every_us // 10 + 1))]

    def _may_ask(self, peer: PeerID, now_us: int) -> bool:
        asked_us = self._peers[peer].asked_us
        return asked_us is None or now_us - asked_us >= self._config.retry_us

    def _ask_one(self, peer: PeerID, now_us: int) -> list[Effect]:
        self._req = (self._req + 1) % 2**32
        self._asking[self._req] = _Asking(peer, now_us)
        self._peers[peer].asked_us = now_us
        return [Send(peer, Lane.CONTROL, DialBack(self._req, (self._addrs or ())[:8]), self._req)]

    # ---- judging

    def _judge(self, now_us: int) -> list[Effect]:
        """The verdict of what is known, the place at a relay that it calls for, and the news if it is another."""
        old_us = now_us - self._config.evidence_us
        self._said = {peer: said for peer, said in self._said.items() if said.at_us > old_us}
        self._inbound_us = {
            peer: now_us if peer in self._peers else at_us
            for peer, at_us in self._inbound_us.items()
            if peer in self._peers or at_us > old_us
        }
        seen = {peer for peer, said in self._said.items() if said.reached} | self._inbound_us.keys()
        base = self._base(len(seen))
        wanted = self._config.relay == "client" and base == "outbound-only"
        relays = [peer for peer in sorted(self._peers) if self._peers[peer].relays]
        effects = self._relay.tick(relays, now_us, wanted=wanted)
        addrs = self._relay.addrs
        news = ReachabilityChanged("relay" if addrs else base, len(seen), addrs)
        if replace(news, seen_from=self._now.seen_from) != self._now:
            self._changed_us = now_us
            effects += [Local(news), Notify(MACHINE, news.verdict)]
        self._now = news
        return effects

    def _base(self, seen: int) -> ReachVerdict:
        """The verdict without a relay."""
        if seen:
            return "direct"
        if self._addrs == ():
            return "outbound-only"
        testers = sum(peer.tests for peer in self._peers.values())
        failed = sum(not said.reached for said in self._said.values())
        return "outbound-only" if failed >= max(1, min(FAILURES, testers)) else "unknown"
