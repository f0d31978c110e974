"""A client of the control API: what the CLI and the demo speak through. No type of the HTTP library leaves it.

It gives back plain data, or raises the very error that the node raised: the class is found by `code`, or, for a code
that this process has not loaded, by the HTTP status, so that exit codes agree on both sides.

A stream of views that is cut is taken up again, because a daemon that restarts is no end of a task: `watch` comes
back up to `RECONNECTS_MAX` times in a row, reading address and token anew, and says so through `on_gap`.
"""

from __future__ import annotations

import json
from collections.abc import AsyncGenerator, Callable, Iterator
from contextlib import aclosing, contextmanager
from typing import Final, Self, cast
from urllib.parse import quote

import httpx
import trio

from node.control.credentials import read_address, read_token
from node.profile import Profile
from protocol.errors import (
    ConfigError,
    Conflict,
    DaemonUnreachable,
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

Json = dict[str, object]
OnGap = Callable[[str], None]

CONNECT_S: Final = 5.0
ANSWER_S: Final = 30.0
SUBMIT_S: Final = 190.0  # longer than the node takes to give up
VERIFY_S: Final = 600.0
SILENCE_S: Final = 35.0
"""Three heartbeats of a stream of events."""
EVENT_BYTES_MAX: Final = 8 << 20
RECONNECTS_MAX: Final = 60
RECONNECT_S: Final = 1.0
ENDLESS: Final = frozenset(("unknown", "running"))  # of a task's states, those that are no end

_BY_STATUS: Final[dict[int, type[SwarmError]]] = {
    400: UsageError,
    401: ConfigError,
    403: Refused,
    404: NotFound,
    409: Conflict,
    422: ConfigError,
    502: PeerError,
    503: EngineError,
    504: RequestTimeout,
    507: StoreError,
}


class ControlClient:
    """A connection to the daemon of one profile; use it as a context. It blocks; `watch` below does not."""

    def __init__(self, url: str, token: str) -> None:
        self._http = httpx.Client(base_url=url, headers=_bearer(token), trust_env=False)

    @classmethod
    def for_profile(cls, profile: Profile) -> Self:
        """The client for a profile's daemon.

        Raises:
            ConfigError: the profile has no usable token.
            DaemonUnreachable: no daemon has told its address.
        """
        token = read_token(profile)
        return cls(read_address(profile).url, token)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_exc: object) -> None:
        self._http.close()

    def ready(self) -> Json:
        """`{ready, reasons, checks}`; errors of all methods as in `status`."""
        return self._call("GET", "/readyz", also=frozenset((503,)))

    def status(self) -> Json:
        """Who the node is, whom it is linked to, what it holds.

        Raises:
            SwarmError: what the node says.
            DaemonUnreachable: it says nothing.
        """
        return self._call("GET", "/v1/status")

    def submit(self, body: Json) -> Json:
        """Open a task, or find the one that the client key names; `body` as in node/control/app.py."""
        return self._call("POST", "/v1/tasks", body, SUBMIT_S)

    def tasks(self) -> list[Json]:
        """One line per task that the node holds."""
        return cast(list[Json], self._call("GET", "/v1/tasks")["tasks"])

    def show(self, task: str) -> Json:
        """The whole view of a task."""
        return self._call("GET", f"/v1/tasks/{quote(task, safe='')}")

    def cancel(self, task: str, reason: str = "") -> Json:
        """Stop a task."""
        return self._call("POST", f"/v1/tasks/{quote(task, safe='')}/cancel", {"reason": reason})

    def agents(self) -> list[Json]:
        """Every live capability record that the node holds."""
        return cast(list[Json], self._call("GET", "/v1/agents")["agents"])

    def find(self, body: Json, timeout_s: float = ANSWER_S) -> Json:
        """The agents nearest to a text; `body` as in node/control/app.py."""
        return self._call("POST", "/v1/find", body, timeout_s)

    def peers(self) -> list[Json]:
        """Every other node that this one is linked to, knows as a member, or may dial."""
        return cast(list[Json], self._call("GET", "/v1/peers")["peers"])

    def ping(self, peer: str, timeout_s: float = ANSWER_S) -> Json:
        """One round trip over the node's open link to a peer: `{peer, rtt_us}`."""
        return self._call("POST", "/v1/ping", {"peer": peer}, timeout_s)

    def memory(self) -> list[Json]:
        """Digests of every task that the node holds, in order of id."""
        return cast(list[Json], self._call("GET", "/v1/memory")["spaces"])

    def verify(self) -> Json:
        """Audit and comparison of the node's memory."""
        return self._call("POST", "/v1/memory/verify", {}, VERIFY_S)

    def _call(
        self,
        method: str,
        path: str,
        body: Json | None = None,
        timeout_s: float = ANSWER_S,
        also: frozenset[int] = frozenset(),
    ) -> Json:
        with _translated():
            timeout = httpx.Timeout(timeout_s, connect=CONNECT_S)
            response = self._http.request(method, path, json=body, timeout=timeout)
        if response.status_code >= 400 and response.status_code not in also:
            raise error_of(response.status_code, response.content)
        return _object(response.content)


def _bearer(token: str) -> dict[str, str]:
    return {"authorization": f"Bearer {token}"}


async def _events(profile: Profile, task: str) -> AsyncGenerator[Json, None]:
    """Views of a task until its end; stops early when the stream is cut."""
    token, address = read_token(profile), read_address(profile)
    timeout = httpx.Timeout(SILENCE_S, connect=CONNECT_S)
    path = f"/v1/tasks/{quote(task, safe='')}/events"
    with _translated():
        async with (
            httpx.AsyncClient(base_url=address.url, headers=_bearer(token), timeout=timeout, trust_env=False) as http,
            http.stream("GET", path) as response,
        ):
            if response.status_code >= 400:
                raise error_of(response.status_code, await response.aread())
            # Read to its own end, which comes right after an error or an ended task: a stream that is left in the
            # middle leaves the generators of the HTTP library half done.
            events, refused = _Events(), b""
            async for chunk in response.aiter_bytes():
                for name, data in events.feed(chunk):
                    if name == "error":
                        refused = data
                    else:
                        yield _object(data)
            if refused:
                raise error_of(500, refused)


async def watch(profile: Profile, task: str, on_gap: OnGap) -> AsyncGenerator[Json, None]:
    """Views of a task until its end, across restarts of the daemon.

    Raises:
        DaemonUnreachable: none at the first try, or none came back.
        SwarmError: what the node says.
    """
    lost = 0
    seen = ended = False
    while True:
        try:
            async with aclosing(_events(profile, task)) as views:
                async for view in views:
                    yield view
                    lost, seen, ended = 0, True, view["status"] not in ENDLESS
            if ended:
                return
            problem = "the node stopped the stream"
        except DaemonUnreachable as exc:
            if ended:
                return
            if not seen:
                raise
            problem = exc.message
        lost += 1
        if lost > RECONNECTS_MAX:
            raise DaemonUnreachable(f"{problem}; it did not come back", hint="start it with `masos up`, watch again")
        if lost == 1:
            on_gap(f"{problem}; trying again for {RECONNECTS_MAX * RECONNECT_S:.0f} s")
        await trio.sleep(RECONNECT_S)


def error_of(status: int, content: bytes) -> SwarmError:
    """The error behind an answer that is no success."""
    try:
        body = _object(content)
        code, message, hint = (str(body[part]) for part in ("code", "message", "hint"))
    except (DaemonUnreachable, KeyError):
        return DaemonUnreachable(f"something else answers at the control address (HTTP {status})")
    for known in _subclasses(SwarmError):
        if known.code == code:
            return _raised(known, message, hint)
    base = _BY_STATUS.get(status, LocalError)
    # A class of the node that this process has not loaded: its code is kept, its exit status is the base's.
    return _raised(type(base.__name__, (base,), {"code": code}), message, hint)


def _raised(kind: type[SwarmError], message: str, hint: str) -> SwarmError:
    """An error of a class, whatever arguments the class itself takes."""
    error = kind.__new__(kind)
    SwarmError.__init__(error, message, hint=hint)
    return error


def _subclasses(kind: type[SwarmError]) -> Iterator[type[SwarmError]]:
    yield kind
    for child in kind.__subclasses__():
        yield from _subclasses(child)


def _object(content: bytes) -> Json:
    try:
        value = json.loads(content)
    except ValueError as exc:
        raise DaemonUnreachable("something else answers at the control address") from exc
    if not isinstance(value, dict):
        raise DaemonUnreachable("something else answers at the control address")
    return cast(Json, value)


@contextmanager
def _translated() -> Iterator[None]:
    """Foreign errors as ours."""
    try:
        yield
    except httpx.ConnectError as exc:
        raise DaemonUnreachable("the daemon of this profile does not answer") from exc
    except httpx.TimeoutException as exc:
        raise RequestTimeout("the node did not answer in time", hint="see its log; try again") from exc
    except httpx.HTTPError as exc:
        raise DaemonUnreachable(f"the daemon broke the connection off: {str(exc) or type(exc).__name__}") from exc


class _Events:
    """Cuts bytes into server-sent events of one data line each; comments are passed over."""

    def __init__(self) -> None:
        self._held = b""

    def feed(self, chunk: bytes) -> Iterator[tuple[str, bytes]]:
        """(event, data) of each event that is complete now.

        Raises:
            DaemonUnreachable: one is larger than any of ours.
        """
        *blocks, self._held = (self._held + chunk).split(b"\n\n")
        if len(self._held) > EVENT_BYTES_MAX:
            raise DaemonUnreachable(f"an event is over {EVENT_BYTES_MAX} bytes")
        for block in blocks:
            fields = dict(line.split(b": ", 1) for line in block.split(b"\n") if b": " in line)
            if b"data" in fields:
                yield fields.get(b"event", b"").decode("ascii", "replace"), fields[b"data"]
