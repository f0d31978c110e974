"""The control API on a loopback port, for as long as its context is open (hypercorn on trio).

The address is not a parameter: 127.0.0.1, always. Port 0 takes a free one; the port that was really bound is what
`control.json` tells. Streams that are still open when the context is left are cut after `GRACE_S`; their watchers
come back by themselves.
"""

from __future__ import annotations

import logging
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial
from typing import Final, cast

import trio
from hypercorn.config import Config as ServerConfig
from hypercorn.trio import serve
from hypercorn.typing import Framework
from starlette.applications import Starlette

from protocol.errors import ConfigError

HOST: Final = "127.0.0.1"
GRACE_S: Final = 0.5
READ_HEADERS_S: Final = 10.0
HEADER_BYTES_MAX: Final = 16 * 1024


@asynccontextmanager
async def serving(app: Starlette, port: int) -> AsyncIterator[str]:
    """Serve; gives the URL, `http://127.0.0.1:PORT`.

    Raises:
        ConfigError: the port is taken.
    """
    _check_free(port)
    stop = trio.Event()
    async with trio.open_nursery() as nursery:
        (url, *_rest) = await nursery.start(
            # Both follow ASGI; their type stubs spell its scopes differently.
            partial(serve, cast(Framework, app), _settings(port), shutdown_trigger=stop.wait)
        )
        try:
            yield url
        finally:
            stop.set()


def _settings(port: int) -> ServerConfig:
    settings = ServerConfig()
    settings.bind = [f"{HOST}:{port}"]
    settings.graceful_timeout = GRACE_S
    settings.read_timeout = None
    settings.keep_alive_timeout = READ_HEADERS_S
    settings.h11_max_incomplete_size = HEADER_BYTES_MAX
    settings.include_server_header = False
    settings.accesslog = None
    settings.errorlog = logging.getLogger("masos.control.http")
    settings.errorlog.setLevel(logging.WARNING)  # at info it talks of CTRL + C
    return settings


def _check_free(port: int) -> None:
    """Asked beforehand, because the server's own refusal says neither the address nor what to do."""
    try:
        with socket.socket() as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            probe.bind((HOST, port))
    except OSError as exc:
        raise ConfigError(
            f"the control API cannot listen on {HOST}:{port}: {exc.strerror}", hint="set [control] port = 0"
        ) from exc
