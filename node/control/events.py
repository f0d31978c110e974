"""Following a task: server-sent events, each the whole `task_view`.

    event: view      data: the view, at once and again whenever something about the task changed
    event: error     data: {code, message, hint}; the stream ends
    : beat           a comment every HEARTBEAT_S, so that both ends notice a dead one

The stream ends by itself after the view of an ended task; a stream that ends without one was cut, and the client
comes back. Views are whole, so a watcher that missed some lost nothing (complaint 7 of conventions.md).

While anybody follows a task here, other nodes are asked for its partial output; the last one to leave says stop.
"""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from functools import partial
from typing import Final, cast

import trio
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from kernel.commands import FollowTask, ShowTask
from node.control.port import NodePort
from protocol.errors import SwarmError

HEARTBEAT_S: Final = 10.0
VIEWS_EVERY_S: Final = 0.1
"""At most ten views a second, whatever the swarm does."""
FAREWELL_S: Final = 2.0
RUNNING: Final = frozenset(("unknown", "running"))

View = dict[str, object]
SendPart = Callable[[bytes], Awaitable[None]]


class Followers:
    """Who follows which task on this node."""

    def __init__(self, node: NodePort) -> None:
        self._node = node
        self._count: dict[str, int] = {}

    @asynccontextmanager
    async def following(self, task: str) -> AsyncIterator[None]:
        """Partial output of other nodes comes while the context is open."""
        self._count[task] = self._count.get(task, 0) + 1
        try:
            if self._count[task] == 1:
                await self._node.ask(FollowTask(task, on=True))
            yield
        finally:
            self._count[task] -= 1
            if not self._count[task]:
                del self._count[task]
                with trio.move_on_after(FAREWELL_S) as farewell:
                    farewell.shield = True
                    await self._stop_following(task)

    async def _stop_following(self, task: str) -> None:
        try:
            await self._node.ask(FollowTask(task, on=False), FAREWELL_S)
        except SwarmError:
            return  # the node stops, or is too busy: what is not followed any more is at worst sent in vain


class TaskEvents(Response):
    """The stream of one watcher. `first` was read already, so that an unknown task is an ordinary 404."""

    def __init__(self, node: NodePort, followers: Followers, first: View) -> None:
        super().__init__(headers={"cache-control": "no-store"}, media_type="text/event-stream")
        del self.headers["content-length"]
        self._node = node
        self._followers = followers
        self._first = first
        self._task = str(first["task"])

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:  # noqa: ARG002 - the ASGI shape
        """Serve until the task ended or the watcher left."""
        await send({"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers})
        async with trio.open_nursery() as nursery:
            nursery.start_soon(_until_gone, receive, nursery.cancel_scope)
            await self._stream(partial(_send_part, send))
            await send({"type": "http.response.body", "body": b"", "more_body": False})
            nursery.cancel_scope.cancel()

    async def _stream(self, send: SendPart) -> None:
        if self._first["status"] not in RUNNING:
            await send(_event("view", self._first))
            return
        try:
            async with self._node.subscribe(f"task/{self._task}") as notices, self._followers.following(self._task):
                await self._follow(notices, send)
        except SwarmError as exc:
            await send(_event("error", exc.as_dict()))

    async def _follow(self, notices: trio.MemoryReceiveChannel[tuple[str, object]], send: SendPart) -> None:
        shown: View = {}
        while True:
            view = cast(View, await self._node.ask(ShowTask(self._task)))
            if view != shown:
                await send(_event("view", view))
                shown = view
            if view["status"] not in RUNNING:
                return
            await trio.sleep(VIEWS_EVERY_S)
            while not await _noticed(notices):
                await send(b": beat\n\n")


async def _until_gone(receive: Receive, scope: trio.CancelScope) -> None:
    """A watcher that left stops the stream at once, not at the next send."""
    while (await receive())["type"] != "http.disconnect":
        pass
    scope.cancel()


async def _send_part(send: Send, data: bytes) -> None:
    await send({"type": "http.response.body", "body": data, "more_body": True})


async def _noticed(notices: trio.MemoryReceiveChannel[tuple[str, object]]) -> bool:
    """Wait for a notice and take all that are there; False when it is time for a heartbeat."""
    with trio.move_on_after(HEARTBEAT_S) as wait:
        await notices.receive()
    try:
        while not wait.cancelled_caught:
            notices.receive_nowait()
    except trio.WouldBlock:
        return True
    return False


def _event(name: str, value: object) -> bytes:
    return f"event: {name}\ndata: {json.dumps(value)}\n\n".encode("ascii")
