"""A node that is alone says so once, and once that it is no more; a short gap or a first node says nothing."""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
import trio
from trio.testing import MockClock, wait_all_tasks_blocked

from node.company import ALONE_AFTER_S, tell_company


class Peers:
    """How many are linked and known, and the news of it."""

    def __init__(self, known: int) -> None:
        self.known, self.linked = known, 0
        self.send, self.news = trio.open_memory_channel[tuple[str, object]](9)

    async def become(self, linked: int) -> None:
        self.linked = linked
        await self.send.send(("peers", None))
        await wait_all_tasks_blocked()

    @asynccontextmanager
    async def told(self) -> AsyncIterator[None]:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(tell_company, lambda: self.linked, lambda: self.known, self.news)
            yield
            nursery.cancel_scope.cancel()


async def test_one_line_when_alone_and_one_when_linked_again(
    autojump_clock: MockClock, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "masos.node")
    peers = Peers(known=3)
    async with peers.told():
        await trio.sleep(ALONE_AFTER_S - 1)
        assert caplog.messages == []
        await trio.sleep(1_000)
        (alone,) = caplog.messages
        assert "alone" in alone
        assert "known: 3" in alone
        assert "masos status" in alone
        await peers.become(2)
        assert caplog.messages[1:] == ["linked again (peers: 2 linked, 3 known)"]
        await peers.become(1)
        await peers.become(0)
        await trio.sleep(1_000)
        assert [record.levelname for record in caplog.records] == ["WARNING", "INFO", "WARNING"]


async def test_a_short_gap_and_a_start_are_no_news(autojump_clock: MockClock, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "masos.node")
    peers = Peers(known=1)
    async with peers.told():
        for linked in (1, 0, 1, 0, 1):
            await trio.sleep(ALONE_AFTER_S / 2)
            await peers.become(linked)
        await trio.sleep(1_000)
    assert caplog.messages == []


async def test_a_first_node_is_not_told_that_it_is_the_first(
    autojump_clock: MockClock, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "masos.node")
    peers = Peers(known=0)
    async with peers.told():
        await trio.sleep(1_000)
        peers.known = 1
        await peers.become(1)
    assert caplog.messages == []
