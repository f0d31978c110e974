"""Case N4 and complaint 10 in the core: no order of frames, losses and link events ends a node or mutes it.

Guests with valid certificates send every kind of frame with any content, solicited or not, come and go at any moment,
and frames of the node find no room; time passes and timers fire. Whatever happened, the core raises nothing, asks
only for effects of the vocabulary, forgets who left, and answers the next honest peer.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

from hypothesis import given, settings, strategies as st

from node.core import CoreConfig, ListenAddrs, Membership, NodeCore, Status
from protocol.capability import PeerValue, make_record
from protocol.errors import EngineError
from protocol.identity import KeyPair
from protocol.machine import (
    AbortJob,
    Boot,
    CancelTimer,
    Command,
    Dial,
    DialFailed,
    Effect,
    Hangup,
    JobDone,
    JobFailed,
    Misbehaved,
    Notify,
    PeerDown,
    PeerUp,
    Persist,
    Received,
    Reply,
    Send,
    SendDropped,
    SetTimer,
    StartJob,
    TimerFired,
    TimerKey,
    Writable,
)
from protocol.messages import LANE_OF, Bye, Frame, OpBatch, Ping, Pong, Records, encode_frame
from protocol.op import OpKind, Position, make_op
from protocol.peer import PeerID
from protocol.records import Join, Seen, Unit, body_bytes
from protocol.spaces import task_space
from protocol.transport import FRAME_BYTES_MAX
from protocol.versions import FEATURES
from tests.gossip_world import ADMIN, GENESIS, NOW_MS, MemoryStore, chain_of, hello, verify
from tests.strategies import FRAMES, frames, keypair

ME = keypair("the node")
GUESTS = [keypair(f"guest {n}") for n in range(4)]
HONEST = keypair("honest")
STEP_EVENTS_MAX = 5_000  # of one wait: timers that fire without end are a livelock
"""More than an hour of every timer of an idle node."""


class Alone:
    """A core and nothing else: its disk answers at once, its engine never, its frames are kept."""

    def __init__(self) -> None:
        member = Membership(ME, ADMIN, GENESIS, chain_of(ME))
        self.store = MemoryStore()
        self.core = NodeCore(member, CoreConfig(), random.Random(1), store=self.store, verify=verify)
        self.now_us = 0
        self.timers: dict[TimerKey, int] = {}
        self.sent: list[tuple[PeerID, Frame]] = []
        self.replies: list[object] = []
        self.give(Boot(1, NOW_MS * 1000, clean=False))
        self.give(ListenAddrs(("/ip4/127.0.0.1/tcp/4001",)))

    def give(self, event: object) -> None:
        later = [event]
        while later:
            for effect in self.core.handle(later.pop(0), self.now_us):
                later += self._carry_out(effect)

    def _carry_out(self, effect: Effect) -> list[object]:
        match effect:
            case Send(peer, lane, frame):
                assert LANE_OF[type(frame)] is lane
                assert len(encode_frame(frame)) <= FRAME_BYTES_MAX[lane]
                self.sent.append((peer, frame))
            case SetTimer(key, at_us):
                self.timers[key] = at_us
            case CancelTimer(key):
                self.timers.pop(key, None)
            case Persist(job, rows):
                self.store.apply(rows)
                return [JobDone(job, None)]
            case StartJob(job):
                return [JobFailed(job, EngineError("there is none"))]
            case Reply(_, result):
                self.replies.append(result)
            case Dial(info):
                return [DialFailed(info.peer, "nobody answers")]
            case Hangup() | Notify() | AbortJob():
                pass
            case other:
                raise AssertionError(f"{other!r} left the core")
        return []

    def wait(self, us: int) -> None:
        """Let time pass and fire what is due, in order."""
        end_us = self.now_us + us
        for _ in range(STEP_EVENTS_MAX):
            due = min(self.timers, key=lambda key: (self.timers[key], repr(key)), default=None)
            if due is None or self.timers[due] > end_us:
                self.now_us = end_us
                return
            self.now_us = max(self.now_us, self.timers.pop(due))
            self.give(TimerFired(due))
        raise AssertionError("timers fire without end")

    def link(self, keys: KeyPair) -> None:
        self.give(PeerUp(PeerID(keys.public), hello(keys, features=FEATURES, wall_ms=NOW_MS + self.now_us // 1000)))

    def linked(self) -> list[PeerID]:
        return list(self.core.links.linked)


def op_batch(keys: KeyPair, kind: int, seq: int) -> OpBatch:
    """Well-signed ops of a guest in a space of its own: a join, and something on it that may or may not fit."""
    space = task_space(GENESIS.swarm_id, keys.public, "any")
    hlc = NOW_MS << 16
    join = make_op(keys, OpKind.JOIN, Position(space, 1, 0, None, (), hlc), body_bytes(Join(cert=chain_of(keys))))
    body = body_bytes(Unit(agent="a", role="r", content="c") if kind % 2 else Seen())
    op_kind = OpKind.UNIT if kind % 2 else OpKind.SEEN
    more = make_op(keys, op_kind, Position(space, 1, seq, join.id, (), hlc + seq), body)
    return OpBatch((join.wire(), more.wire()))


def records(keys: KeyPair, seq: int) -> Records:
    value = PeerValue(addrs=("/ip4/127.0.0.1/tcp/1",), cert=chain_of(keys))
    return Records((make_record(keys, value, seq=seq, issued_ms=NOW_MS),))


guests = st.integers(0, len(GUESTS) - 1)
well_signed = st.builds(
    lambda n, kind, seq: op_batch(GUESTS[n], kind, seq) if kind else records(GUESTS[n], seq),
    guests, st.integers(0, 2), st.integers(1, 3),
)  # fmt: skip
kinds = st.sampled_from(sorted(each.__name__ for each in FRAMES))
Step = tuple[Any, ...]
steps: st.SearchStrategy[list[Step]] = st.lists(
    st.one_of(
        st.tuples(st.just("frame"), guests, frames | well_signed),
        st.tuples(st.just("frame"), guests, frames),
        st.tuples(st.sampled_from(("up", "down", "writable", "misbehaved", "dial failed")), guests),
        st.tuples(st.just("dropped"), guests, kinds, st.none() | st.integers(0, 9) | st.binary(max_size=32)),
        st.tuples(st.just("wait"), st.integers(1, 40_000_000)),
    ),
    max_size=40,
)


def act(node: Alone, step: Step) -> None:
    """Do one step; a transport tells of links in order, so up and down alternate."""
    what, *rest = step
    if what == "wait":
        node.wait(rest[0])
        return
    keys = GUESTS[rest[0]]
    peer, is_up = PeerID(keys.public), PeerID(keys.public) in node.linked()
    events: dict[str, Callable[[], object]] = {
        "frame": lambda: Received(peer, rest[1]),
        "down": lambda: PeerDown(peer, "gone"),
        "writable": lambda: Writable(peer),
        "misbehaved": lambda: Misbehaved(peer, "nonsense"),
        "dial failed": lambda: DialFailed(peer, "no answer"),
        "dropped": lambda: SendDropped(peer, rest[1], rest[2]),
    }
    if what == "up" and not is_up:
        node.link(keys)
    elif what != "up":
        node.give(events[what]())


@given(steps)
@settings(deadline=None)
def test_no_order_of_frames_and_link_events_ends_or_mutes_a_node(found: list[Step]) -> None:
    node = Alone()
    for keys in GUESTS[:2]:
        node.link(keys)
    for step in found:
        act(node, step)
    for keys in GUESTS:
        node.give(PeerDown(PeerID(keys.public), "gone"))
    assert node.linked() == []
    node.link(HONEST)
    node.sent.clear()
    node.give(Received(PeerID(HONEST.public), Ping(77, NOW_MS)))
    assert [frame.req for peer, frame in node.sent if peer == HONEST.public and isinstance(frame, Pong)] == [77]
    node.give(Command(1, Status()))
    assert isinstance(node.replies[-1], dict)
    assert len(node.replies[-1]["linked"]) == 1
    node.wait(60_000_000)


@given(st.lists(frames, min_size=1, max_size=12), st.integers(0, 2**32))
def test_who_is_not_linked_gets_a_goodbye_at_most(found: list[Frame], seed: int) -> None:
    node = Alone()
    node.sent.clear()
    stranger = PeerID(random.Random(seed).randbytes(32))
    for frame in found:
        node.give(Received(stranger, frame))
    assert all(isinstance(frame, Bye) for peer, frame in node.sent if peer == stranger)
