"""What the control API needs of a node."""

from __future__ import annotations

from contextlib import AbstractAsyncContextManager
from typing import Protocol

import trio

from node.node import Digests, Readiness
from node.store_verify import VerifyReport


class NodePort(Protocol):
    """A running node, as `node.node.Node` is one."""

    async def ask(self, command: object, timeout_s: float = 30.0) -> object:
        """The core's reply to a command; raises SwarmError."""
        ...

    def subscribe(self, prefix: str) -> AbstractAsyncContextManager[trio.MemoryReceiveChannel[tuple[str, object]]]:
        """Notices whose topic starts with a prefix."""
        ...

    async def status(self) -> dict[str, object]:
        """Plain data for `masos status`."""
        ...

    async def readiness(self) -> Readiness:
        """Whether the node can do its part."""
        ...

    async def verify(self) -> VerifyReport:
        """Audit the database."""
        ...

    async def rebuilt_digests(self) -> Digests:
        """Digests derived anew from the database."""
        ...
