"""Links between peers, over any connection that carries one byte stream per lane.

A connection becomes a link when both sides have sent their Hello as the first CONTROL frame: the dialler
first, the listener in answer. At most one link per peer is up.

Both sides may dial at once. Then the connection dialled by the smaller PeerID stays (protocol.md §2). Two nodes
that decide apart could each drop the other's connection (case N3), so one of them decides: **the smaller PeerID
of a pair is its arbiter, and its Hello is the decision.** The arbiter sends its Hello on one connection at a
time; the other side holds a link up when, and only when, it has the arbiter's Hello. So both agree without a
further message:

- The arbiter answers a connection dialled by the peer only after HOLD_S without an own dial or link that would
  make it redundant. When the peer gives it up meanwhile, as it does once the other is up, nothing happened.
- A connection that is still wanted after HOLD_S although a link is up says that the peer has lost that link
  (it restarted, say): the old link ends, the new one is up.
- The other side takes every Hello of the arbiter as the newest decision and drops its own dial.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import Final

import trio

from node.lanes import ByteStream, FrameReader, frame_reader
from node.link import Connection, EventSink, Greeted, Link, close_quietly, until_one
from protocol.codec import frame
from protocol.errors import PeerError, PeerMisbehaved, PeerUnreachable, UsageError
from protocol.peer import PeerID
from protocol.transport import FRAME_BYTES_MAX, HELLO_TIMEOUT_S, HelloSource, Lane

HOLD_S: Final = 1.0  # how long the arbiter waits for a better connection; well below HELLO_TIMEOUT_S
HELD_MAX: Final = 2  # connections of one peer that may wait for the arbiter


class Dial:
    """An own dial, from `connect` to its link or failure."""

    def __init__(self) -> None:
        self.scope = trio.CancelScope()
        self.superseded = False  # another connection became the link, which is the outcome


@dataclass(slots=True)
class Slot:
    """What is going on with one peer."""

    link: Link | None = None
    commits: int = 0  # connections on which the deciding Hello has been sent, to the end of their links
    dial: Dial | None = None
    held: int = 0
    users: int = 0
    changed: trio.Event = field(default_factory=trio.Event)

    @property
    def taken(self) -> bool:
        """True when a link is up or about to be."""
        return self.link is not None or self.commits > 0

    def notify(self) -> None:
        """Wake who waits for a change."""
        self.changed.set()
        self.changed = trio.Event()

    @contextmanager
    def commit(self) -> Iterator[None]:
        """Held from the deciding Hello to the end of the link, or to the failure to get one."""
        self.commits += 1
        try:
            yield
        finally:
            self.commits -= 1
            self.notify()


class LinkTable:
    """All links of one node.

    Args:
        local_peer: decides who is the arbiter of a pair.
        hello: gives the local first frame for a peer.
        sink: takes events and counts.
    """

    def __init__(self, local_peer: PeerID, hello: HelloSource, sink: EventSink) -> None:
        self.local_peer = local_peer
        self.sink = sink
        self._hello = hello
        self._slots: dict[PeerID, Slot] = {}
        self._stopping = False

    @contextmanager
    def slot(self, peer: PeerID) -> Iterator[Slot]:
        """The peer's slot, kept while in use."""
        slot = self._slots.setdefault(peer, Slot())
        slot.users += 1
        try:
            yield slot
        finally:
            slot.users -= 1
            if not slot.users:
                del self._slots[peer]

    def busy(self, peer: PeerID) -> bool:
        """True while a link or a dial to the peer exists."""
        slot = self._slots.get(peer)
        return slot is not None and (slot.link is not None or slot.dial is not None)

    def connection(self, peer: PeerID) -> Connection | None:
        """What carries the link to a peer, while it is up."""
        slot = self._slots.get(peer)
        return slot.link.conn if slot is not None and slot.link is not None else None

    def accepted(self, peer: PeerID) -> bool:
        """Whether the peer dialled the link that is up, at an address of this node and not through a relay."""
        slot = self._slots.get(peer)
        link = slot.link if slot is not None else None
        return link is not None and link.accepted and link.conn.remote_address is not None

    def send(self, peer: PeerID, lane: Lane, body: bytes) -> bool:
        """See Transport.send."""
        slot = self._slots.get(peer)
        if slot is None or slot.link is None or slot.link.ending:
            self.sink.count("send_no_link")
            return False
        if not 0 < len(body) <= FRAME_BYTES_MAX[lane]:
            self.sink.count("send_oversize")
            return False
        if not slot.link.outboxes[lane].offer(body):
            self.sink.count("send_full")
            return False
        return True

    def disconnect(self, peer: PeerID, reason: str) -> None:
        """End the link after what is queued is sent, and give up a dial."""
        slot = self._slots.get(peer)
        if slot is None:
            return
        if slot.dial is not None:
            slot.dial.scope.cancel()
        if slot.link is not None:
            slot.link.finish(reason)

    async def stop(self, reason: str) -> None:
        """End every link; returns when all are down."""
        self._stopping = True
        links = [slot.link for slot in self._slots.values() if slot.link is not None]
        for peer in tuple(self._slots):
            self.disconnect(peer, reason)
        for link in links:
            await link.done.wait()

    # -- from a connection to a link ----------------------------------------------------------------

    async def run_dialled(self, slot: Slot, conn: Connection) -> bool:
        """Turn a connection we dialled into a link and serve it to its end; the connection is closed after.

        False at once when another connection of the peer is preferred.

        Raises:
            PeerError: the peer did not answer with its Hello; no link was up.
        """
        try:
            if self.local_peer > conn.peer:
                await self._up_dialled(slot, conn)
            elif slot.taken:
                self.sink.count("redundant")
                return False
            else:
                with slot.commit():
                    await self._up_dialled(slot, conn)
        finally:
            await close_quietly(conn)
        return True

    async def run_accepted(self, conn: Connection) -> None:
        """Turn a connection that the peer dialled into a link and serve it to its end.

        Raises:
            PeerError: the peer broke the opening rules; no link was up.
        """
        try:
            with self.slot(conn.peer) as slot:
                greeted = await self._greet_accepted(conn)
                arbiter = self.local_peer < conn.peer
                if self._stopping or (arbiter and not await self._prefer(slot, conn)):
                    self.sink.count("redundant")
                    return
                with slot.commit():
                    await conn.stream(Lane.CONTROL).write(self._hello_frame(conn.peer))
                    await self._live(slot, greeted)
        finally:
            await close_quietly(conn)

    async def _up_dialled(self, slot: Slot, conn: Connection) -> None:
        greeted = await self._greet_dialled(conn)
        slot.dial = None
        await self._live(slot, greeted)

    def _hello_frame(self, peer: PeerID) -> bytes:
        body = self._hello(peer)
        if not 0 < len(body) <= FRAME_BYTES_MAX[Lane.CONTROL]:
            raise UsageError(f"a Hello of {len(body)} bytes does not fit the control lane")
        return frame(body)

    async def _greet_dialled(self, conn: Connection) -> Greeted:
        control = frame_reader(Lane.CONTROL, conn.stream(Lane.CONTROL))
        with trio.move_on_after(HELLO_TIMEOUT_S):
            await conn.stream(Lane.CONTROL).write(self._hello_frame(conn.peer))
            return Greeted(conn, control, await _first(control), accepted=False)
        raise PeerMisbehaved(f"no Hello within {HELLO_TIMEOUT_S:g} s")

    async def _greet_accepted(self, conn: Connection) -> Greeted:
        control = frame_reader(Lane.CONTROL, conn.stream(Lane.CONTROL))
        hello: bytes | None = None
        bulk: bytes | None = None

        async def read_hello() -> None:
            nonlocal hello
            hello = await control.next()

        async def watch_bulk() -> None:
            nonlocal bulk
            bulk = await _read_or_end(conn.stream(Lane.BULK))

        with trio.move_on_after(HELLO_TIMEOUT_S) as deadline:
            # The dialler has no Hello of ours yet, so it has no business on the bulk lane.
            await until_one(read_hello, watch_bulk)
        if hello is not None:
            return Greeted(conn, control, hello, accepted=True)
        if deadline.cancelled_caught:
            raise PeerMisbehaved(f"no Hello within {HELLO_TIMEOUT_S:g} s")
        if bulk:
            raise PeerMisbehaved("a bulk frame came before the Hello")
        raise PeerUnreachable("the peer closed instead of sending its Hello")

    async def _prefer(self, slot: Slot, conn: Connection) -> bool:
        """The arbiter's choice for a connection dialled by the peer: True to make it the link."""
        if slot.held >= HELD_MAX:
            return False
        slot.held += 1
        given_up = False

        async def watch_peer() -> None:
            nonlocal given_up
            await _read_or_end(conn.stream(Lane.CONTROL))
            given_up = True

        try:
            while (slot.taken or slot.dial is not None) and not given_up:
                with trio.move_on_after(HOLD_S) as hold:
                    await until_one(slot.changed.wait, watch_peer)
                if hold.cancelled_caught:
                    break
        finally:
            slot.held -= 1
        return not given_up

    async def _live(self, slot: Slot, greeted: Greeted) -> None:
        while slot.link is not None:
            slot.link.end("replaced by a newer connection")
            await slot.link.done.wait()
        link = slot.link = Link(self.sink, greeted, partial(_free, slot))
        if slot.dial is not None:
            # Forget it at once: giving up a half-open connection takes the library a while.
            slot.dial.superseded = True
            slot.dial.scope.cancel()
            slot.dial = None
        slot.notify()
        try:
            await link.run()
        finally:
            slot.link = None
            slot.notify()


async def _first(control: FrameReader) -> bytes:
    hello = await control.next()
    if hello is None:
        raise PeerUnreachable("the peer closed instead of sending its Hello")
    return hello


async def _read_or_end(stream: ByteStream) -> bytes:
    """What comes, or nothing when the stream ends in any way."""
    try:
        return await stream.read(1)
    except PeerError:
        return b""


def _free(slot: Slot) -> None:
    slot.link = None
