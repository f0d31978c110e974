"""Following a task from outside: to its end, across a restart of the daemon, and never for ever."""

from __future__ import annotations

import io
import json
import os
from collections.abc import AsyncIterator
from contextlib import aclosing
from pathlib import Path

import pytest
import trio

from node.cli.output import Form, Screen
from node.cli.watching import follow
from node.control import client as client_module
from node.control.app import build_app
from node.control.client import ControlClient, watch
from node.control.credentials import TOKEN_BYTES, Address, make_token, read_token, write_address
from node.control.server import serving
from node.node import Digests, Readiness
from node.profile import Profile
from node.store_verify import VerifyReport
from protocol.errors import ConfigError, DaemonUnreachable, NotFound, RequestTimeout

TASK = "cd" * 16


class OneTask:
    """A node with one task, which never changes by itself."""

    def __init__(self, status: str = "running") -> None:
        self.now = status

    async def ask(self, command: object, timeout_s: float = 30.0) -> object:
        del timeout_s
        await trio.lowlevel.checkpoint()
        if getattr(command, "task", TASK) != TASK:
            raise NotFound("no such task")
        return {"task": TASK, "status": self.now, "objective": "o", "answer": "noon" if self.now == "answer" else None}

    def subscribe(self, prefix: str) -> Subscription:
        del prefix
        return Subscription()

    async def status(self) -> dict[str, object]:
        return {}

    async def readiness(self) -> Readiness:
        return Readiness(ready=True, reasons=(), checks={})

    async def verify(self) -> VerifyReport:
        return VerifyReport(0, 0, 0, (), 0)

    async def rebuilt_digests(self) -> Digests:
        return []


class Subscription:
    """Notices that never come."""

    async def __aenter__(self) -> trio.MemoryReceiveChannel[tuple[str, object]]:
        self._send, receive = trio.open_memory_channel[tuple[str, object]](1)
        return receive

    async def __aexit__(self, *_exc: object) -> None:
        self._send.close()


@pytest.fixture
def profile(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Profile:
    monkeypatch.setattr(client_module, "RECONNECT_S", 0.05)
    made = Profile(tmp_path)
    made.make()
    make_token(made, bytes(range(TOKEN_BYTES)))
    return made


async def serve(profile: Profile, node: OneTask, stop: trio.Event) -> None:
    async with serving(build_app(node, read_token(profile)), 0) as url:
        write_address(profile, Address(url, os.getpid()))
        await stop.wait()


async def address_is_there(profile: Profile) -> None:
    while not profile.control_address.exists():  # noqa: ASYNC110 - a file knows of no event
        await trio.sleep(0.01)


async def collect(views: AsyncIterator[dict[str, object]], into: list[str], first: trio.Event) -> None:
    async for view in views:
        into.append(str(view["status"]))
        first.set()


async def test_a_watch_goes_on_across_a_restart_at_another_address(profile: Profile) -> None:
    seen: list[str] = []
    gaps: list[str] = []
    first, stop = trio.Event(), trio.Event()
    with trio.fail_after(20):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(serve, profile, OneTask(), stop)
            await address_is_there(profile)
            nursery.start_soon(collect, watch(profile, TASK, gaps.append), seen, first)
            await first.wait()
            profile.control_address.unlink()
            stop.set()
            await trio.sleep(0.3)
            nursery.start_soon(serve, profile, OneTask("answer"), again := trio.Event())
            while seen[-1] != "answer":  # noqa: ASYNC110 - a list knows of no event
                await trio.sleep(0.05)
            again.set()
    assert seen == ["running", "answer"]
    assert len(gaps) == 1
    assert "trying again" in gaps[0]


async def test_a_daemon_that_stays_away_is_an_error_after_a_bound(
    profile: Profile, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(client_module, "RECONNECTS_MAX", 3)
    stop = trio.Event()
    with trio.fail_after(20):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(serve, profile, OneTask(), stop)
            await address_is_there(profile)
            async with aclosing(watch(profile, TASK, lambda _: None)) as views:
                assert (await anext(views))["status"] == "running"
                stop.set()
                with pytest.raises(DaemonUnreachable, match="did not come back"):
                    await anext(views)


async def test_no_daemon_at_the_first_look_is_told_at_once(profile: Profile) -> None:
    with pytest.raises(DaemonUnreachable, match="no daemon runs"):
        await anext(watch(profile, TASK, lambda _: None))


async def test_what_the_node_refuses_is_raised_as_it_was(profile: Profile) -> None:
    stop = trio.Event()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(serve, profile, OneTask(), stop)
        await address_is_there(profile)
        with pytest.raises(NotFound):
            await anext(watch(profile, "ff", lambda _: None))
        with ControlClient.for_profile(profile) as client, pytest.raises(NotFound):
            await trio.to_thread.run_sync(client.show, "../../v1/status")
        stop.set()


@pytest.mark.parametrize(
    ("status", "form", "code"),
    [("answer", Form.HUMAN, 0), ("answer", Form.JSON, 0), ("failed", Form.JSONL, 1), ("cancelled", Form.JSON, 1)],
)
async def test_the_end_of_a_task_is_the_end_of_the_watch(profile: Profile, status: str, form: Form, code: int) -> None:
    out = io.StringIO()
    screen = Screen(form, out, io.StringIO())
    stop = trio.Event()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(serve, profile, OneTask(status), stop)
        await address_is_there(profile)
        assert await trio.to_thread.run_sync(follow, profile, TASK, screen, 10.0) == code
        stop.set()
    if form is Form.HUMAN:
        assert out.getvalue() == "ended: answer\nanswer:\n    noon\n"
    else:
        assert [json.loads(line)["status"] for line in out.getvalue().splitlines()] == [status]


async def test_a_watch_ends_at_its_timeout_and_the_task_goes_on(profile: Profile) -> None:
    screen = Screen(Form.JSON, io.StringIO(), io.StringIO())
    stop = trio.Event()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(serve, profile, OneTask(), stop)
        await address_is_there(profile)
        with pytest.raises(RequestTimeout, match="did not end within"):
            await trio.to_thread.run_sync(follow, profile, TASK, screen, 0.3)
        stop.set()


def test_a_token_is_made_once_and_only_its_owner_reads_it(profile: Profile) -> None:
    before = read_token(profile)
    assert make_token(profile, bytes(TOKEN_BYTES)) is False
    assert read_token(profile) == before
    profile.control_token.chmod(0o640)
    with pytest.raises(ConfigError, match="read by others"):
        read_token(profile)
    profile.control_token.chmod(0o600)
    profile.control_token.write_text("short")
    with pytest.raises(ConfigError, match="damaged"):
        read_token(profile)


@pytest.mark.parametrize("content", ["", "{}", "[]", "{", '{"address": "x", "pid": "many"}'])
def test_an_address_file_that_is_no_address_is_no_daemon(profile: Profile, content: str) -> None:
    profile.control_address.write_text(content)
    with pytest.raises(DaemonUnreachable):
        ControlClient.for_profile(profile)
