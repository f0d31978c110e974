"""The control API: who may use it, what it answers to nonsense, how a task is followed."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import httpx
import pytest
import trio

from gossip.pings import PingPeer
from kernel.commands import (
    CancelTask,
    FindAgents,
    FollowTask,
    ListAgents,
    ListTasks,
    MemoryDigests,
    ShowTask,
    Submit,
)
from kernel.discovery import Filters
from kernel.engine import EngineUnavailable
from node.control import events
from node.control.answers import BODY_BYTES_MAX
from node.control.app import Api, build_app
from node.control.client import error_of
from node.control.memory import verify_running
from node.control.server import serving
from node.core import ListPeers
from node.node import Digests, Readiness
from node.store_verify import VerifyReport
from protocol.errors import (
    ConfigError,
    Conflict,
    LeaseLost,
    NotFound,
    PeerUnreachable,
    Refused,
    RequestTimeout,
    StoreError,
    SwarmError,
    UsageError,
)

TOKEN = "5a" * 32
TASK = "ab" * 16


def digest_line(state: str) -> dict[str, object]:
    return {"space": TASK, "ops": 3, "set": "aa", "state": state}


@dataclass
class FakeNode:
    """A node with one task, whose state the test sets."""

    status_now: str = "running"
    error: SwarmError | None = None
    ready: bool = True
    shown: list[str] = field(default_factory=lambda: ["s1"])
    rebuilt: str = "s1"
    asked: list[object] = field(default_factory=list)
    watchers: list[trio.MemorySendChannel[tuple[str, object]]] = field(default_factory=list)

    async def ask(self, command: object, timeout_s: float = 30.0) -> object:
        del timeout_s
        await trio.lowlevel.checkpoint()
        self.asked.append(command)
        if self.error is not None:
            raise self.error
        match command:
            case ShowTask(task) | CancelTask(task):
                if not TASK.startswith(task):
                    raise NotFound(f"no task {task!r} on this node", hint="see `masos task ls`")
                return {"task": TASK, "status": self.status_now, "answer": None}
            case Submit():
                return {"task": TASK, "status": "running", "existing": False, "ack": command.ack}
            case ListTasks():
                return [{"task": TASK}]
            case MemoryDigests():
                return [digest_line(self.shown.pop(0) if len(self.shown) > 1 else self.shown[0])]
            case _:
                return {"task": TASK}

    @asynccontextmanager
    async def subscribe(self, prefix: str) -> AsyncIterator[trio.MemoryReceiveChannel[tuple[str, object]]]:
        assert prefix == f"task/{TASK}"
        send, receive = trio.open_memory_channel[tuple[str, object]](8)
        self.watchers.append(send)
        try:
            yield receive
        finally:
            self.watchers.remove(send)

    def notify(self) -> None:
        for watcher in self.watchers:
            watcher.send_nowait((f"task/{TASK}", "changed"))

    async def status(self) -> dict[str, object]:
        return {"peer": "x"}

    async def readiness(self) -> Readiness:
        return Readiness(self.ready, () if self.ready else ("no peer is linked",), {"peers": "none"})

    async def verify(self) -> VerifyReport:
        return VerifyReport(1, 3, 0, (), 0)

    async def rebuilt_digests(self) -> Digests:
        return [digest_line(self.rebuilt)]

    @property
    def followed(self) -> list[bool]:
        return [command.on for command in self.asked if isinstance(command, FollowTask)]


@asynccontextmanager
async def client_of(node: FakeNode, token: str | None = TOKEN) -> AsyncIterator[httpx.AsyncClient]:
    headers = {"authorization": f"Bearer {token}"} if token is not None else {}
    transport = httpx.ASGITransport(build_app(node, TOKEN), raise_app_exceptions=False)
    async with httpx.AsyncClient(transport=transport, base_url="http://node", headers=headers) as client:
        yield client


ROUTES = [
    (method, route.path.replace("{task}", TASK[:8]))
    for route in Api(FakeNode()).routes()
    for method in sorted((route.methods or set()) - {"HEAD"})
]
BODIES = {
    "/v1/tasks": {"client_key": "k", "objective": "o"},
    "/v1/find": {"text": "who reads leases"},
    "/v1/ping": {"peer": "AbCdEfGh"},
}


def test_the_table_has_every_route() -> None:
    assert len(ROUTES) == 14
    assert ("GET", "/healthz") in ROUTES


@pytest.mark.parametrize(("method", "path"), ROUTES)
@pytest.mark.parametrize("token", [None, "", "x" * 64, TOKEN[:-1], TOKEN + "0", TOKEN.upper()])
async def test_no_route_but_the_pulse_answers_without_the_token(method: str, path: str, token: str | None) -> None:
    node = FakeNode()
    async with client_of(node, token) as client:
        response = await client.request(method, path, json=BODIES.get(path))
    assert response.status_code == (200 if path == "/healthz" else 401)
    assert not node.asked
    if path != "/healthz":
        assert set(response.json()) == {"code", "message", "hint"}


@pytest.mark.parametrize(("method", "path"), ROUTES)
async def test_every_route_answers_with_the_token(method: str, path: str) -> None:
    node = FakeNode(status_now="answer")
    async with client_of(node) as client:
        response = await client.request(method, path, json=BODIES.get(path) if method == "POST" else None)
    assert response.status_code in (200, 201)


@pytest.mark.parametrize("path", ["/nothing", "/v1/tasks/x/y/z", "//healthz", "/healthz/"])
async def test_what_does_not_exist_tells_nothing_without_the_token(path: str) -> None:
    async with client_of(FakeNode(), None) as client:
        assert (await client.get(path)).status_code == 401
    async with client_of(FakeNode()) as client:
        response = await client.get(path)
        assert response.status_code in (307, 404)
        if response.status_code == 404:
            assert response.json()["code"] == "http_404"


ERRORS: list[tuple[SwarmError, int]] = [
    (UsageError("m"), 400),
    (NotFound("m"), 404),
    (Conflict("m"), 409),
    (Refused("m"), 403),
    (ConfigError("m"), 422),
    (RequestTimeout("m"), 504),
    (PeerUnreachable("m"), 502),
    (EngineUnavailable("m"), 503),
    (StoreError("m"), 507),
    (LeaseLost("m"), 500),
]


@pytest.mark.parametrize(("error", "status"), ERRORS)
async def test_an_error_arrives_as_what_it_was(error: SwarmError, status: int) -> None:
    async with client_of(FakeNode(error=error)) as client:
        response = await client.get("/v1/tasks")
    assert response.status_code == status
    assert response.json() == error.as_dict()
    again = error_of(response.status_code, response.content)
    assert type(again) is type(error)
    assert again.as_dict() == error.as_dict()


def test_an_error_of_an_unknown_class_keeps_its_code_and_its_exit_status() -> None:
    error = error_of(403, b'{"code": "from_the_future", "message": "m", "hint": "h"}')
    assert error.as_dict() == {"code": "from_the_future", "message": "m", "hint": "h"}
    assert error.exit_code == Refused.exit_code


@pytest.mark.parametrize("content", [b"", b"<html>", b"[]", b'{"a": 1}', b"\xff"])
def test_a_stranger_at_the_address_is_told_as_one(content: bytes) -> None:
    assert error_of(502, content).code == "daemon_unreachable"


async def test_a_bug_costs_one_answer() -> None:
    class Broken(FakeNode):
        async def status(self) -> dict[str, object]:
            raise ZeroDivisionError

    async with client_of(Broken()) as client:
        response = await client.get("/v1/status")
        assert (response.status_code, response.json()["code"]) == (500, "internal")
        assert (await client.get("/v1/tasks")).status_code == 200


@pytest.mark.parametrize(
    "body",
    [
        b"{",
        b"[]",
        b"\xff\xfe",
        b'{"objective": "o"}',
        b'{"client_key": "k", "objective": ""}',
        b'{"client_key": "k", "objective": "o", "extra": 1}',
        b'{"client_key": "k", "objective": "o", "tokens": "5"}',
        b'{"client_key": "k", "objective": "o", "tokens": 0}',
        b'{"client_key": "k", "objective": "o", "ack": "w9"}',
        b'{"client_key": "k", "objective": "o", "deadline_s": NaN}',
        b'{"client_key": "' + b"k" * 200 + b'", "objective": "o"}',
        b'{"client_key": "k", "objective": "' + b"o" * 60_000 + b'"}',
    ],
)
async def test_a_body_that_is_no_task_is_refused_before_the_node_sees_it(body: bytes) -> None:
    node = FakeNode()
    async with client_of(node) as client:
        response = await client.post("/v1/tasks", content=body)
    assert (response.status_code, response.json()["code"]) == (400, "usage_error")
    assert not node.asked


async def test_a_document_that_is_too_long_is_refused_with_its_class() -> None:
    text = "\n\n".join("word " * 20 + "." for _ in range(200))
    async with client_of(FakeNode()) as client:
        response = await client.post("/v1/tasks", json={"client_key": "k", "objective": "o", "document": text})
    assert (response.status_code, response.json()["code"]) == (403, "document_too_long")


async def test_a_submit_becomes_the_command_that_was_meant() -> None:
    node = FakeNode()
    body = {
        "client_key": "k", "objective": "half \ud83d emoji", "document": "One part of a document.",
        "tokens": 5, "seconds": 1.5, "deadline_s": 60.0, "ack": "local",
    }  # fmt: skip
    async with client_of(node) as client:
        response = await client.post("/v1/tasks", content=json.dumps(body))
    assert response.status_code == 201
    assert response.headers["location"] == f"/v1/tasks/{TASK}"
    assert node.asked == [
        Submit(
            client_key="k",
            objective="half \ufffd emoji",
            document=("One part of a document.",),
            contract=(5, None, 1500, None),
            deadline_ms=60_000,
            ack="local",
        )
    ]


async def test_a_search_becomes_the_command_that_was_meant() -> None:
    node = FakeNode()
    body = {
        "text": "who reads leases", "tools": ["python"], "model": "qwen", "context_tokens_min": 8000,
        "price_micro_money_max": 0, "data_policy": "local", "skill": "law", "limit": 3, "explain": True,
    }  # fmt: skip
    async with client_of(node) as client:
        assert (await client.post("/v1/find", json=body)).status_code == 200
        assert (await client.post("/v1/find", json={"text": "x"})).status_code == 200
        assert (await client.post("/v1/ping", json={"peer": "AbCdEfGh"})).status_code == 200
        for path in ("/v1/agents", "/v1/peers"):
            assert (await client.get(path)).status_code == 200
    wanted = Filters(("python",), "qwen", 8000, 0, "local", "law")
    assert node.asked == [
        FindAgents("who reads leases", wanted, 3, explain=True),
        FindAgents("x"),
        PingPeer("AbCdEfGh"),
        ListAgents(),
        ListPeers(),
    ]


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/v1/find", {}),
        ("/v1/find", {"text": ""}),
        ("/v1/find", {"text": "x", "limit": 0}),
        ("/v1/find", {"text": "x", "limit": 101}),
        ("/v1/find", {"text": "x", "limit": True}),
        ("/v1/find", {"text": "x", "tools": "python"}),
        ("/v1/find", {"text": "x", "tools": [1]}),
        ("/v1/find", {"text": "x", "tools": ["t"] * 17}),
        ("/v1/find", {"text": "x", "price_micro_money_max": -1}),
        ("/v1/find", {"text": "x", "price_micro_money_max": 1.5}),
        ("/v1/find", {"text": "x", "data_policy": "mars"}),
        ("/v1/find", {"text": "x", "model": "m" * 129}),
        ("/v1/find", {"text": "x", "more": 1}),
        ("/v1/ping", {}),
        ("/v1/ping", {"peer": ""}),
        ("/v1/ping", {"peer": "p" * 129}),
        ("/v1/ping", {"peer": "abcd", "count": 2}),
    ],
)
async def test_a_search_or_ping_that_is_none_is_refused_before_the_node_sees_it(path: str, body: Any) -> None:
    node = FakeNode()
    async with client_of(node) as client:
        response = await client.post(path, json=body)
    assert (response.status_code, response.json()["code"]) == (400, "usage_error")
    assert not node.asked


async def test_not_ready_says_why() -> None:
    async with client_of(FakeNode(ready=False)) as client:
        response = await client.get("/readyz")
    assert response.status_code == 503
    assert response.json() == {"ready": False, "reasons": ["no peer is linked"], "checks": {"peers": "none"}}


# ---- following


class Watcher:
    """The ASGI side of a browser: collects the stream, and can leave."""

    def __init__(self, node: FakeNode, path: str = f"/v1/tasks/{TASK}/events") -> None:
        self.app = build_app(node, TOKEN)
        self.scope = {
            "type": "http", "asgi": {"version": "3.0", "spec_version": "2.1"}, "method": "GET", "path": path,
            "raw_path": path.encode(), "query_string": b"", "root_path": "", "scheme": "http",
            "http_version": "1.1", "headers": [(b"authorization", f"Bearer {TOKEN}".encode())],
        }  # fmt: skip
        self.data = b""
        self.status = 0
        self.ended = False
        self.left = trio.Event()

    async def run(self) -> None:
        await self.app(self.scope, self._receive, self._send)

    async def _receive(self) -> Any:
        await self.left.wait()
        return {"type": "http.disconnect"}

    async def _send(self, message: Any) -> None:
        await trio.lowlevel.checkpoint()
        if message["type"] == "http.response.start":
            self.status = message["status"]
        else:
            self.data += message["body"]
            self.ended = not message.get("more_body")

    @property
    def views(self) -> list[str]:
        blocks = self.data.decode().split("\n\n")
        return [json.loads(block.split("data: ")[1])["status"] for block in blocks if "event: view" in block]


async def until(check: Callable[[], bool]) -> None:
    while not check():  # noqa: ASYNC110 - what is waited for knows of no event
        await trio.sleep(0.01)


async def test_a_follower_sees_the_view_at_once_each_change_and_the_end(autojump_clock: trio.abc.Clock) -> None:
    node, watcher = FakeNode(), None
    async with trio.open_nursery() as nursery:
        watcher = Watcher(node)
        nursery.start_soon(watcher.run)
        await until(lambda: watcher.views == ["running"])
        assert node.followed == [True]
        await trio.sleep(1)
        node.notify()
        await trio.sleep(1)
        assert watcher.views == ["running"]  # nothing changed, so nothing was sent
        node.status_now = "answer"
        node.notify()
        await until(lambda: watcher.ended)
    assert watcher.views == ["running", "answer"]
    assert node.followed == [True, False]
    assert not node.watchers


async def test_an_idle_stream_beats(autojump_clock: trio.abc.Clock) -> None:
    node = FakeNode()
    watcher = Watcher(node)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(watcher.run)
        await trio.sleep(3.5 * events.HEARTBEAT_S)
        assert watcher.data.count(b": beat\n\n") == 3
        watcher.left.set()


async def test_two_followers_ask_the_swarm_once_and_stop_once(autojump_clock: trio.abc.Clock) -> None:
    node = FakeNode()
    first = Watcher(node)
    second = Watcher(node)
    second.app = first.app
    async with trio.open_nursery() as nursery:
        nursery.start_soon(first.run)
        nursery.start_soon(second.run)
        await until(lambda: bool(first.views and second.views))
        first.left.set()
        await trio.sleep(1)
        assert node.followed == [True]
        second.left.set()
    assert node.followed == [True, False]


async def test_a_follower_that_leaves_frees_what_it_held(autojump_clock: trio.abc.Clock) -> None:
    node = FakeNode()
    watcher = Watcher(node)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(watcher.run)
        await until(lambda: len(node.watchers) == 1)
        watcher.left.set()
    assert not node.watchers
    assert node.followed[-1] is False


async def test_an_error_in_the_middle_ends_the_stream_with_it(autojump_clock: trio.abc.Clock) -> None:
    node = FakeNode()
    watcher = Watcher(node)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(watcher.run)
        await until(lambda: watcher.views == ["running"])
        node.error = StoreError("disk full")
        node.notify()
        await until(lambda: watcher.ended)
    assert b"event: error" in watcher.data
    assert b"store_error" in watcher.data


async def test_following_an_unknown_task_is_an_ordinary_refusal() -> None:
    watcher = Watcher(FakeNode(), "/v1/tasks/ffff/events")
    await watcher.run()
    assert watcher.status == 404
    assert json.loads(watcher.data)["code"] == "not_found"


# ---- verify


async def test_equal_digests_verify(autojump_clock: trio.abc.Clock) -> None:
    value = await verify_running(FakeNode())
    assert value["ok"] is True
    assert value["differing"] == []


async def test_a_state_that_the_store_does_not_give_is_a_difference(autojump_clock: trio.abc.Clock) -> None:
    value = await verify_running(FakeNode(rebuilt="other"))
    assert value["ok"] is False
    assert value["differing"] == [TASK]


async def test_a_space_that_moves_is_no_difference(autojump_clock: trio.abc.Clock) -> None:
    value = await verify_running(FakeNode(shown=["s1", "s2", "s3", "s4", "s5", "s6"], rebuilt="s0"))
    assert value["ok"] is True
    assert value["changing"] == [TASK]


async def test_a_write_on_its_way_to_disk_is_waited_for(autojump_clock: trio.abc.Clock) -> None:
    class Slow(FakeNode):
        async def rebuilt_digests(self) -> Digests:
            return [digest_line("s1" if trio.current_time() >= started + 1 else "s0")]

    started = trio.current_time()
    assert (await verify_running(Slow()))["ok"] is True


# ---- the real server


async def test_it_serves_on_loopback_and_says_where() -> None:
    node = FakeNode(status_now="answer")
    async with serving(build_app(node, TOKEN), 0) as url:
        assert url.startswith("http://127.0.0.1:")
        async with httpx.AsyncClient(base_url=url, headers={"authorization": f"Bearer {TOKEN}"}) as client:
            assert (await client.get("/healthz")).json() == {"status": "ok"}
            async with client.stream("GET", f"/v1/tasks/{TASK}/events") as response:
                assert response.headers["content-type"].startswith("text/event-stream")
                assert b"answer" in await response.aread()
            with pytest.raises(ConfigError, match="cannot listen"):
                async with serving(build_app(node, TOKEN), int(url.rpartition(":")[2])):
                    pass


async def test_a_body_over_its_bound_is_refused_before_it_is_all_there() -> None:
    node = FakeNode()
    headers = {"authorization": f"Bearer {TOKEN}"}
    async with serving(build_app(node, TOKEN), 0) as url, httpx.AsyncClient(base_url=url, headers=headers) as client:
        response = await client.post("/v1/tasks", content=b" " * (BODY_BYTES_MAX + 1))
    assert (response.status_code, response.json()["code"]) == (400, "usage_error")
    assert "over" in response.json()["message"]
    assert not node.asked


async def test_a_follower_does_not_hold_up_the_stop() -> None:
    node = FakeNode()
    with trio.fail_after(10):
        async with serving(build_app(node, TOKEN), 0) as url:
            client = httpx.AsyncClient(base_url=url, headers={"authorization": f"Bearer {TOKEN}"})
            response = await client.send(client.build_request("GET", f"/v1/tasks/{TASK}/events"), stream=True)
            assert response.status_code == 200
            await until(lambda: bool(node.watchers))
        await response.aclose()
        await client.aclose()
    assert not node.watchers
