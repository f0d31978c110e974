"""Who may use the control API: whoever can read the profile's token file.

Every route but `/healthz` asks for `Authorization: Bearer TOKEN`, those that do not exist included, so that nothing
can be learned without it. The comparison takes the same time for every wrong token. Being on loopback is no proof of
anything: every user and every web page of this machine can reach it.
"""

from __future__ import annotations

import hmac
from typing import Final

from starlette.types import ASGIApp, Receive, Scope, Send

from node.control.answers import answer

OPEN_PATHS: Final = frozenset(("/healthz",))


class BearerGuard:
    """ASGI middleware."""

    def __init__(self, app: ASGIApp, token: str) -> None:
        self._app = app
        self._wanted = f"Bearer {token}".encode("ascii")

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass what is allowed on; answer 401 to the rest."""
        if scope["type"] == "lifespan" or scope["path"] in OPEN_PATHS or self._proves(scope):
            await self._app(scope, receive, send)
            return
        if scope["type"] == "websocket":
            await send({"type": "websocket.close", "code": 1008})
            return
        body = {
            "code": "unauthorized",
            "message": "this needs the token of the profile",
            "hint": "send `Authorization: Bearer` with the contents of control.token",
        }
        await answer(body, 401, {"www-authenticate": "Bearer"})(scope, receive, send)

    def _proves(self, scope: Scope) -> bool:
        given = [value for name, value in scope["headers"] if name == b"authorization"]
        return len(given) == 1 and hmac.compare_digest(given[0], self._wanted)
