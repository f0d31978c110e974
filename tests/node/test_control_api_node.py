"""A node put together in one process: its engine comes and goes, a task is answered, nothing of it blocks."""

from __future__ import annotations

import random
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path

import pytest
import trio

from kernel.commands import MemoryDigests, ShowTask, Submit
from kernel.engine import Capabilities, Completion, EngineUnavailable, OnText, Request, Usage
from node import swarm
from node.clock import BootClock
from node.config import Config, load_config
from node.control.memory import verify_running
from node.keystore import Keystore
from node.life import begin_life
from node.node import Node, Parts, load_member, rebuilt_digests
from node.profile import Profile
from node.store import SqliteStore
from protocol.errors import ConfigError, Refused
from protocol.peer import PeerID
from simulations.memory_transport import MemoryNetwork

ABLE = Capabilities(
    model="parrot", context_tokens=4096, quality="standard", json_schema=False, logprobs=False, score=False,
    adapters=False, tokens_per_s=100, backend="test",
)  # fmt: skip


class Parrot:
    """An engine that says one thing, and can be taken away."""

    def __init__(self) -> None:
        self.up = False
        self.able = ABLE
        self.asked = 0

    async def generate(self, request: Request, on_text: OnText | None = None) -> Completion:  # noqa: ARG002 - the port
        await trio.lowlevel.checkpoint()
        if not self.up:
            raise EngineUnavailable("gone")
        if on_text is not None:
            on_text("Noon.")
        return Completion("The office closes at noon.", "stop", Usage(10, 6), "parrot")

    async def score(self, prefix: str, options: tuple[str, ...]) -> tuple[float, ...]:  # noqa: ARG002 - the port
        raise EngineUnavailable("it cannot")

    async def count_tokens(self, text: str) -> int:
        return len(text.split())

    async def health(self) -> bool:
        self.asked += 1
        return self.up

    async def capabilities(self) -> Capabilities:
        return self.able

    async def aclose(self) -> None:
        self.up = False


class FlatEncoder:
    """Every text is like every other."""

    encoder_id = "use-512"
    dim = 512

    async def encode(self, texts: tuple[str, ...]) -> tuple[bytes, ...]:
        await trio.lowlevel.checkpoint()
        return tuple(bytes([1]) * self.dim if text.strip() else bytes(self.dim) for text in texts)

    async def aclose(self) -> None:
        """Nothing to free."""


@pytest.fixture
def profile(tmp_path: Path) -> Profile:
    made = Profile(tmp_path)
    made.make()
    Keystore(made).create(bytes([1]) * 32, bytes([2]) * 32)
    clock = BootClock()
    swarm.create(made, "lab", bytes(32), (clock.now_us() + clock.wall_offset_us()) // 1000)
    return made


def config_of(profile: Profile) -> Config:
    return load_config(profile, {}, {"engine": {"health_every_s": 0.05}, "timing": {"own_head_wait_s": 0.2}})


@asynccontextmanager
async def running(profile: Profile, engine: Parrot | None) -> AsyncIterator[Node]:
    clock = BootClock()
    member, _ = load_member(profile, (clock.now_us() + clock.wall_offset_us()) // 1000)
    with SqliteStore(profile.database) as store:
        parts = Parts(
            member=member,
            transport=MemoryNetwork().transport(PeerID(member.node.public)),
            store=store,
            encoder=FlatEncoder(),
            clock=clock,
            rng=random.Random(1),
            engine=engine,
        )
        node = Node(parts, config_of(profile))
        with trio.fail_after(20):
            async with node.run(begin_life(store)):
                yield node


async def offer_is(node: Node, *, there: bool) -> dict[str, object]:
    while True:
        status = await node.status()
        if (status["offer"] is not None) is there:
            return status
        await trio.sleep(0.02)


async def test_an_engine_that_comes_goes_and_returns_is_offered_withdrawn_and_offered(profile: Profile) -> None:
    parrot = Parrot()
    async with running(profile, parrot) as node:
        assert (await node.status())["offer"] is None  # the node is up long before its engine
        for up in (True, False, True):
            parrot.up = up
            await offer_is(node, there=up)
        status = await node.status()
        assert status["engine"] == {
            "kind": "embedded",
            "state": "up",
            "reason": "",
            "model": "parrot",
            "backend": "test",
            "quality": "standard",
        }


async def test_an_engine_of_an_earlier_life_is_withdrawn_at_once(profile: Profile) -> None:
    parrot = Parrot()
    parrot.up = True
    async with running(profile, parrot) as node:
        await offer_is(node, there=True)
    async with running(profile, None) as node:
        await offer_is(node, there=False)
        engine = (await node.status())["engine"]
        assert isinstance(engine, dict)
        assert (engine["state"], engine["model"]) == ("none", None)


async def test_a_speed_that_wavers_is_no_news(profile: Profile) -> None:
    parrot = Parrot()
    parrot.up = True
    async with running(profile, parrot) as node:
        await offer_is(node, there=True)
        for speed in (104, 97, 108):
            parrot.able = replace(ABLE, tokens_per_s=speed)
            asked = parrot.asked
            while parrot.asked < asked + 2:  # noqa: ASYNC110 - an engine knows of no event
                await trio.sleep(0.02)
        offer = (await node.status())["offer"]
        assert isinstance(offer, dict)
        assert offer["tokens_per_s"] == 100
        parrot.able = replace(ABLE, tokens_per_s=10)
        while offer["tokens_per_s"] != 10:
            offer = (await offer_is(node, there=True))["offer"]
            assert isinstance(offer, dict)


async def test_without_an_engine_a_task_is_refused_by_name_and_the_node_goes_on(profile: Profile) -> None:
    async with running(profile, None) as node:
        with pytest.raises(Refused, match="no node can begin"):
            await node.ask(Submit("k", "When does the office close?", ack="local"))
        assert (await node.readiness()).checks["engine"] == "none"


async def test_a_task_is_answered_and_its_memory_verifies(profile: Profile) -> None:
    parrot = Parrot()
    parrot.up = True
    async with running(profile, parrot) as node:
        await offer_is(node, there=True)
        line = await node.ask(Submit("k", "When does the office close?", ("It closes at noon.",), ack="local"))
        assert isinstance(line, dict)
        view = await ended(node, str(line["task"]))
        assert view["status"] == "answer"
        assert "noon" in str(view["answer"]).lower()
        report = await verify_running(node)
        assert (report["ok"], report["differing"], report["changing"]) == (True, [], [])
        assert report["digests"] == await node.ask(MemoryDigests())


async def ended(node: Node, task: str) -> dict[str, object]:
    while True:
        view = await node.ask(ShowTask(task))
        assert isinstance(view, dict)
        if view["status"] != "running":
            return view
        await trio.sleep(0.05)


async def test_a_watcher_that_leaves_in_the_middle_costs_the_node_nothing(profile: Profile) -> None:
    parrot = Parrot()
    parrot.up = True
    async with running(profile, parrot) as node:
        await offer_is(node, there=True)
        line = await node.ask(Submit("k", "When does the office close?", ("It closes at noon.",), ack="local"))
        assert isinstance(line, dict)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(_look_in_and_leave, node, nursery.cancel_scope)
            await ended(node, str(line["task"]))
            nursery.cancel_scope.cancel()


async def _look_in_and_leave(node: Node, scope: trio.CancelScope) -> None:
    while not scope.cancel_called:
        async with node.subscribe("task/"):
            await trio.lowlevel.checkpoint()


async def test_a_first_node_is_ready_alone_and_one_that_knows_peers_is_not(profile: Profile) -> None:
    async with running(profile, None) as node:
        readiness = await node.readiness()
        assert readiness.ready
        assert readiness.checks["peers"] == "solo"


def test_a_swarm_with_another_encoder_is_refused(profile: Profile) -> None:
    clock = BootClock()
    member, _ = load_member(profile, (clock.now_us() + clock.wall_offset_us()) // 1000)
    encoder = member.genesis.encoder.model_copy(update={"id": "bge-m3"})
    other = replace(member, genesis=member.genesis.model_copy(update={"encoder": encoder}))
    with SqliteStore(profile.database) as store:
        transport = MemoryNetwork().transport(PeerID(member.node.public))
        parts = Parts(other, transport, store, FlatEncoder(), clock, random.Random(1))
        with pytest.raises(ConfigError, match="bge-m3"):
            Node(parts, Config())


def test_digests_of_an_empty_store_are_none(profile: Profile) -> None:
    clock = BootClock()
    member, _ = load_member(profile, (clock.now_us() + clock.wall_offset_us()) // 1000)
    with SqliteStore(profile.database) as store:
        assert rebuilt_digests(member, Config(), store) == []
