"""Whether a node has company, in its log: one line when no peer is linked, one when a peer is again.

A node whose peers are all gone dials on without a word, and its operator would wait for it in vain. ALONE_AFTER_S is
longer than a start and a reconnection take, so an ordinary life has neither line. A swarm's first node knows
nobody; it is not told what it knows.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Final

import trio

log = logging.getLogger("masos.node")

ALONE_AFTER_S: Final = 15.0

Count = Callable[[], int]


async def tell_company(linked: Count, known: Count, news: trio.MemoryReceiveChannel[tuple[str, object]]) -> None:
    """Log the two changes until cancelled. `news`: something comes whenever a link came or went."""
    alone = False
    while True:
        if linked():
            if alone:
                log.info("linked again (peers: %d linked, %d known)", linked(), known())
            alone = False
        elif not alone and known():
            with trio.move_on_after(ALONE_AFTER_S) as patience:
                await news.receive()
            if not patience.cancelled_caught or linked():
                continue
            alone = True
            log.warning(
                "this node is alone: no peer answers (known: %d). It dials on, and `masos status` says what goes"
                " wrong; a newer ticket names other peers: `masos swarm join TICKET`",
                known(),
            )
        await news.receive()
