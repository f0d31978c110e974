"""One membership machine in virtual time, with what it was told and what it did."""

from __future__ import annotations

import random
from collections import Counter
from typing import Any

from gossip.events import Arrived, Broadcast, Judged, Linked, MemberDown, MemberUp, Unlinked
from gossip.membership.behaviour import Membership
from gossip.membership.config import MemberConfig
from gossip.membership.requests import MACHINE
from gossip.membership.statement import Kind, Statement, first_inc, make_statement, read_statement
from protocol import versions
from protocol.clock import SwarmClock
from protocol.identity import KeyPair
from protocol.machine import (
    Boot,
    CancelTimer,
    Effect,
    Local,
    Received,
    Send,
    SetTimer,
    TimerFired,
    TimerKey,
)
from protocol.messages import Frame, Ping, Pong, ProbedFor, ProbeFor, encode_frame, message_id
from protocol.peer import PeerID
from tests.gossip_world import NOW_MS, hello, seconds, verify
from tests.strategies import keypair

CONFIG = MemberConfig()
ME = keypair("self")
PEERS = [keypair(f"peer {i}") for i in range(12)]
A, B, C, D, E = PEERS[:5]
LIFE = first_inc(1)


def pid(keys: KeyPair) -> PeerID:
    return PeerID(keys.public)


class Net:
    """The machine in virtual time, with its timers and what it did."""

    def __init__(self, *linked: KeyPair, config: MemberConfig = CONFIG, seed: int = 7) -> None:
        self.now_us = 0
        self.outsiders: dict[bytes, None] = {}
        self.timers: dict[TimerKey, int] = {}
        self.flips: list[tuple[str, PeerID]] = []
        self.why: dict[PeerID, str] = {}
        self.sent: list[tuple[PeerID, Frame]] = []
        self.said: list[Statement] = []
        self.judged: dict[bytes, str] = {}
        self.members = Membership(
            ME, SwarmClock(NOW_MS * 1000), config, random.Random(seed), verify=verify,
            admitted=lambda peer: peer not in self.outsiders,
        )  # fmt: skip
        self.tell(Boot(1, NOW_MS * 1000, clean=True))
        for keys in linked:
            self.link(keys)

    @property
    def now_ms(self) -> int:
        return NOW_MS + self.now_us // 1000

    def tell(self, event: object) -> list[Effect]:
        effects = self.members.handle(event, self.now_us)
        for effect in effects:
            self._note(effect)
        return effects

    def _note(self, effect: Effect) -> None:
        match effect:
            case SetTimer(key, at_us):
                assert key.machine == MACHINE
                self.timers[key] = max(at_us, self.now_us)
            case CancelTimer(key):
                self.timers.pop(key, None)
            case Send(peer, _, frame, _):
                encode_frame(frame)
                self.sent.append((peer, frame))
            case Local(MemberUp(peer)):
                self.flips.append(("up", peer))
            case Local(MemberDown(peer, why)):
                self.flips.append(("down", peer))
                self.why[peer] = why
            case Local(Broadcast(topic, items)):
                assert topic == "members"
                self.said += [read_statement(item) for item in items]
            case Local(Judged(_, verdicts)):
                self.judged |= dict(verdicts)
            case _:
                pass

    def run(self, amount: float, *, hearing: tuple[KeyPair, ...] = ()) -> None:
        """Let time pass; who is in `hearing` answers pings at once."""
        until, start = self.now_us + seconds(amount), len(self.sent)
        while True:
            for peer, frame in self.sent[start:]:
                if isinstance(frame, Ping) and any(pid(keys) == peer for keys in hearing):
                    self.tell(Received(peer, Pong(frame.req, self.now_ms)))
            start = len(self.sent)
            due = min(self.timers.items(), key=lambda each: each[1], default=None)
            if due is None or due[1] > until:
                break
            self.now_us = max(self.now_us, due[1])
            del self.timers[due[0]]
            self.tell(TimerFired(due[0]))
        self.now_us = until

    def link(self, keys: KeyPair, **changes: Any) -> list[Effect]:
        return self.tell(Linked(pid(keys), hello(keys, **{"features": versions.FEATURES, **changes})))

    def unlink(self, keys: KeyPair) -> list[Effect]:
        return self.tell(Unlinked(pid(keys)))

    def hear(self, keys: KeyPair, frame: Frame | None = None) -> list[Effect]:
        return self.tell(Received(pid(keys), frame or Pong(1, self.now_ms)))

    def arrive(self, *items: bytes, source: KeyPair = A) -> list[str]:
        self.tell(Arrived(pid(source), "members", items))
        return [self.judged.get(message_id("members", item), "later") for item in items]

    def says(
        self,
        by: KeyPair,
        kind: Kind,
        of: KeyPair | None = None,
        inc: int = LIFE,
        at_ms: int | None = None,
        hold_s: int = 0,
    ) -> str:
        """A genuine statement comes; its verdict."""
        at_ms = self.now_ms if at_ms is None else at_ms
        return self.arrive(make_statement(by, kind, (of or by).public, inc, at_ms, hold_s))[0]

    def state(self, keys: KeyPair) -> str:
        return self.members.state_of(pid(keys))

    def asked(self) -> list[tuple[PeerID, ProbeFor]]:
        return [(peer, frame) for peer, frame in self.sent if isinstance(frame, ProbeFor)]

    def nack(self) -> None:
        """Everybody who was asked says that the target is silent there too."""
        for peer, ask in self.asked():
            self.tell(Received(peer, ProbedFor(ask.req, ask.target, alive=False)))

    def kinds(self) -> Counter[str]:
        return Counter(said.kind for said in self.said)
