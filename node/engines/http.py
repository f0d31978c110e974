"""The HTTP side of an engine server: bounded answers, server-sent events, and whose fault it was.

Everything below `httpx` is translated here and nowhere else: the rest of `node/engines/` sees
dicts and `EngineError`. A server is less hostile than a peer but no less wrong, so bodies, lines
and whole replies are bounded while they are read, not afterwards.

Leaving a call closes its connection. That is what stops generation: vLLM aborts the request when
its client is gone; llama.cpp looks once a second, also while it still reads the prompt [measured:
10 ms into a reply, 1.1 s into a prompt].
"""

from __future__ import annotations

import json
import logging
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from typing import Final, cast

import httpx
import trio

from kernel.engine import EngineRefused, EngineUnavailable
from protocol.codec import clean_text
from protocol.errors import EngineError

Json = dict[str, object]

# It logs a line per request at info; counting tokens alone makes several requests a turn.
logging.getLogger("httpx").setLevel(logging.WARNING)

BODY_BYTES_MAX: Final = 8 << 20
"""A JSON answer; the largest are the echoed log-probabilities of a long prompt."""
EVENT_BYTES_MAX: Final = 1 << 20
REPLY_BYTES_MAX: Final = 16 << 20
"""A whole event stream; ~300 bytes an event, so some 50,000 tokens."""
ERROR_CHARS_MAX: Final = 300
CONNECT_S: Final = 5.0
CONNECTIONS_MAX: Final = 16
DRAIN_S: Final = 1.0
"""What a server gets to end a body after its end mark, before its connection is cut."""


def open_client(base_url: str, *, api_key: str | None = None, uds: str | None = None) -> httpx.AsyncClient:
    """A client for one server. Proxies of the environment count for https only: the rest is near.

    Every request has a connection of its own. llama.cpp closes one after a streamed reply without
    saying so, and a request that meets a closed connection fails although it may not be repeated
    blindly [seen twice in the tests]. Connecting costs 0.1 ms on a socket of this machine.
    Read timeouts are off: each call has its own deadline, and a queued request may wait for long.
    """
    headers = {"authorization": f"Bearer {api_key}"} if api_key else {}
    limits = httpx.Limits(max_connections=CONNECTIONS_MAX, max_keepalive_connections=0)
    transport = httpx.AsyncHTTPTransport(uds=uds, limits=limits) if uds else None
    return httpx.AsyncClient(
        base_url=base_url,
        headers=headers,
        timeout=httpx.Timeout(None, connect=CONNECT_S),
        limits=limits,
        transport=transport,
        trust_env=uds is None and base_url.startswith("https:"),
    )


class ServerHttp:
    """Requests to one server."""

    def __init__(self, client: httpx.AsyncClient) -> None:
        self._client = client

    async def get(self, path: str) -> Json:
        """The JSON object behind a path.

        Raises:
            EngineRefused: the server says that the request is wrong (4xx).
            EngineUnavailable: it cannot be reached, is overloaded or broke.
        """
        return await self._call("GET", path, None)

    async def post(self, path: str, body: Json) -> Json:
        """The JSON object that answers `body`; errors as in `get`."""
        return await self._call("POST", path, body)

    async def is_ok(self, path: str) -> bool:
        """Whether the path answers 200 with anything; never raises an `EngineError`."""
        try:
            async with self._response("GET", path, None):
                return True
        except EngineError:
            return False

    async def events(self, path: str, body: Json, on_event: Callable[[Json], None]) -> None:
        """Feeds every event of a stream to `on_event`, up to `[DONE]` or its end.

        Raises:
            EngineRefused, EngineUnavailable: as in `get`; also when the stream breaks off.
        """
        async with self._response("POST", path, body) as response:
            lines = LineBuffer(EVENT_BYTES_MAX)
            seen = 0

            def take(data: bytes) -> bool:
                nonlocal seen
                seen += len(data)
                if seen > REPLY_BYTES_MAX:
                    raise EngineUnavailable(f"the reply is over {REPLY_BYTES_MAX} bytes")
                for line in lines.feed(data):
                    event = parse_event(line)
                    if event is DONE:
                        return True
                    if event is not None:
                        on_event(event)
                return False

            if not await _consume(response, take):
                raise EngineUnavailable("the reply broke off before its end")

    async def _call(self, method: str, path: str, body: Json | None) -> Json:
        async with self._response(method, path, body) as response:
            return _as_object(await _read(response, BODY_BYTES_MAX), path)

    @asynccontextmanager
    async def _response(self, method: str, path: str, body: Json | None) -> AsyncIterator[httpx.Response]:
        """A response with status 200; foreign errors inside the block are translated too."""
        content = None if body is None else json.dumps(body, allow_nan=False).encode()
        headers = {} if body is None else {"content-type": "application/json"}
        try:
            async with self._client.stream(method, path, content=content, headers=headers) as response:
                if response.status_code != httpx.codes.OK:
                    raise refusal(response.status_code, await _read(response, EVENT_BYTES_MAX))
                yield response
        except (httpx.HTTPError, httpx.InvalidURL, httpx.StreamError) as exc:
            what = str(exc) or type(exc).__name__
            raise EngineUnavailable(f"the engine server does not answer: {what}") from exc


class LineBuffer:
    """Cuts bytes into lines without keeping more than `bytes_max` of an unfinished one."""

    def __init__(self, bytes_max: int) -> None:
        self._bytes_max = bytes_max
        self._rest = b""

    def feed(self, data: bytes) -> Iterator[bytes]:
        """Every line that `data` completes, without its end.

        Raises:
            EngineUnavailable: a line is longer than the bound.
        """
        *lines, self._rest = (self._rest + data).split(b"\n")
        if max(map(len, (*lines, self._rest))) > self._bytes_max:
            raise EngineUnavailable(f"an event is over {self._bytes_max} bytes")
        return (line.rstrip(b"\r") for line in lines)


DONE: Final[Json] = {"done": True}
"""The end mark of a stream; compared by identity."""


def parse_event(line: bytes) -> Json | None:
    """The event of one line, `DONE`, or None for blank lines, comments and other fields.

    Raises:
        EngineRefused, EngineUnavailable: the line reports an error, or is not JSON.
    """
    field, _, value = line.partition(b":")
    if field not in {b"data", b"error"}:
        return None
    if value.strip() == b"[DONE]":
        return DONE
    event = _as_object(value, "the stream")
    if field == b"error" or event.get("error"):
        raise refusal(_code_of(event), value)
    return event


def refusal(status: int, body: bytes) -> EngineError:
    """What a status other than 200 means for the caller."""
    message = _error_message(body)
    match status:
        case 401 | 403:
            hint = "check the variable or the file that holds the API key"
            return EngineRefused(f"the engine server wants a key ({status}): {message}", hint=hint)
        case 404:
            return EngineRefused(f"the engine server does not know that (404): {message}")
        case 408 | 425 | 429:
            return EngineUnavailable(f"the engine server is busy ({status}): {message}")
        case _ if 400 <= status < 500:
            return EngineRefused(f"the engine server refuses ({status}): {message}")
        case _:
            return EngineUnavailable(f"the engine server failed ({status}): {message}")


async def _read(response: httpx.Response, bytes_max: int) -> bytes:
    body = bytearray()

    def take(data: bytes) -> bool:
        body.extend(data)
        if len(body) > bytes_max:
            raise EngineUnavailable(f"the answer is over {bytes_max} bytes")
        return False

    await _consume(response, take)
    return bytes(body)


async def _consume(response: httpx.Response, take: Callable[[bytes], bool]) -> bool:
    """Feeds the body to `take` until that returns True; whether it did.

    The loop is never left from inside: httpx reads through four nested generators, and one that is
    left half-way is finished by the garbage collector. An error or a body that does not end after
    its end mark is therefore stopped by cancelling the read.
    """
    failure: EngineError | None = None
    done = False
    with trio.CancelScope() as scope:
        async for data in response.aiter_bytes():
            if done or failure is not None:
                continue
            try:
                done = take(data)
            except EngineError as exc:
                failure = exc
                scope.cancel()
            if done:
                scope.deadline = trio.current_time() + DRAIN_S
    if failure is not None:
        raise failure
    return done


def _as_object(data: bytes, place: str) -> Json:
    try:
        value = json.loads(data)
    except (ValueError, RecursionError) as exc:
        raise EngineUnavailable(f"{place}: the engine server's answer is not JSON") from exc
    if not isinstance(value, dict):
        raise EngineUnavailable(f"{place}: the engine server's answer is not a JSON object")
    return cast(Json, value)


def _code_of(event: Json) -> int:
    error = event.get("error", event)
    code = error.get("code") if isinstance(error, dict) else None
    return code if isinstance(code, int) and 400 <= code < 600 else 500


def _error_message(body: bytes) -> str:
    """The nested `error.message` of the common core, or the start of whatever came."""
    try:
        value: object = json.loads(body)
    except (ValueError, RecursionError):
        value = body.decode("utf-8", "replace")
    for key in ("error", "message", "detail"):
        if isinstance(value, dict) and key in value:
            value = value[key]
    return clean_text(str(value))[:ERROR_CHARS_MAX].replace("\n", " ").strip()
