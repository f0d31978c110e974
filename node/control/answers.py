"""What goes over the control API beside plain data: errors, bounded bodies, the HTTP status of each error class.

    {"code", "message", "hint"}   for every answer that is no success, whatever went wrong

The status follows the class, so that both ends agree without a list of codes: a client that does not know a code
still knows whose fault it is.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Mapping
from contextlib import aclosing
from typing import Final, TypeVar

from pydantic import BaseModel, ConfigDict, ValidationError
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response

from protocol.codec import clean_text
from protocol.errors import (
    ConfigError,
    Conflict,
    EngineError,
    LocalError,
    NotFound,
    PeerError,
    Refused,
    RequestTimeout,
    StoreError,
    SwarmError,
    UsageError,
)

log = logging.getLogger("masos.control")

BODY_BYTES_MAX: Final = 1 << 20
"""Of a request: a document of 128 parts is 100 kB, ten times less."""

STATUS_OF: Final[tuple[tuple[type[SwarmError], int], ...]] = (  # the first class that fits
    (NotFound, 404),
    (Conflict, 409),
    (Refused, 403),
    (UsageError, 400),
    (ConfigError, 422),
    (RequestTimeout, 504),
    (PeerError, 502),
    (EngineError, 503),
    (StoreError, 507),
    (LocalError, 500),
    (SwarmError, 500),
)


class Body(BaseModel):
    """A request body: strict, no unknown keys."""

    model_config = ConfigDict(strict=True, extra="forbid", frozen=True)


B = TypeVar("B", bound=Body)


def status_of(error: SwarmError) -> int:
    """The HTTP status of an error."""
    return next(status for kind, status in STATUS_OF if isinstance(error, kind))


def answer(value: object, status: int = 200, headers: Mapping[str, str] | None = None) -> Response:
    """A JSON answer; ASCII only, so that no terminal is at the mercy of what a peer wrote."""
    return Response(json.dumps(value), status, headers, "application/json")


def refusal(error: SwarmError) -> Response:
    """The answer that an error gives."""
    return answer(error.as_dict(), status_of(error))


async def read_body(request: Request, model: type[B]) -> B:
    """The body of a request; an empty one is `{}`.

    Raises:
        UsageError: too large, not JSON, or not of the model.
    """
    raw = bytearray()
    async with aclosing(request.stream()) as chunks:
        async for chunk in chunks:
            raw += chunk
            if len(raw) > BODY_BYTES_MAX:
                raise UsageError(f"the request is over {BODY_BYTES_MAX} bytes", hint="send a smaller document")
    try:
        value = json.loads(bytes(raw) or b"{}", parse_constant=_no_constant)
    except (ValueError, RecursionError) as exc:
        raise UsageError("the body is not JSON") from exc
    try:
        return model.model_validate(_cleaned(value))
    except ValidationError as exc:
        first = exc.errors(include_url=False, include_input=False)[0]
        where = ".".join(str(part) for part in first["loc"]) or "the body"
        raise UsageError(f"{where}: {first['msg']}", hint=f"keys: {', '.join(model.model_fields)}") from exc


def _cleaned(value: object) -> object:
    """The object with clean text in it: half an emoji is made whole here, once, before anything is signed (W4)."""
    if not isinstance(value, dict):
        return value
    return {clean_text(key): clean_text(part) if isinstance(part, str) else part for key, part in value.items()}


def _no_constant(name: str) -> float:
    raise ValueError(f"{name} is not JSON")


async def on_swarm_error(_request: Request, exc: Exception) -> Response:
    """Errors that were raised on purpose."""
    assert isinstance(exc, SwarmError)
    return refusal(exc)


async def on_http_error(_request: Request, exc: Exception) -> Response:
    """No such route, or not with this method."""
    assert isinstance(exc, HTTPException)
    body = {"code": f"http_{exc.status_code}", "message": exc.detail, "hint": "see the list of routes"}
    return answer(body, exc.status_code, exc.headers)


async def on_bug(_request: Request, exc: Exception) -> Response:
    """The guard: a bug of ours costs one answer, not the node."""
    if not isinstance(exc, ClientDisconnect):
        log.error("control API failed", exc_info=exc)
    return answer({"code": "internal", "message": "the node failed to answer", "hint": "see its log"}, 500)
