"""Finding beyond the own index: the DHT adds what is missing, never outweighs what is known, cannot fail a search."""

from __future__ import annotations

import random
from typing import Any, cast

import pytest
from hypothesis import given, strategies as st

from dht.config import DhtConfig
from dht.events import Cost, Find, FindDone, OwnRecord, UseCodebook
from dht.placement import Codebook, codebook_name, train
from gossip.events import Publish
from kernel.behaviour import Kernel, Self
from kernel.commands import EngineReport, FindAgents, Offer
from kernel.config import KernelConfig
from kernel.discovery import LIMIT_MAX, Filters
from kernel.engine import Capabilities
from kernel.jobs import Embed, Embedded
from kernel.offers import Offers
from kernel.searches import CANDIDATES_MAX, FIND_DHT_US, FINDS_MAX, Reach, View
from protocol.admission import EncoderSpec, Genesis
from protocol.capability import RECORD_TTL_MS, AgentValue, PeerValue, SignedRecord, make_record
from protocol.clock import SwarmClock
from protocol.errors import EngineError, PeerUnreachable, Refused
from protocol.identity import verify_raw
from protocol.machine import (
    CancelTimer,
    Command,
    Count,
    Effect,
    JobDone,
    JobFailed,
    JobId,
    JobIds,
    Local,
    Reply,
    SetTimer,
    StartJob,
    TimerFired,
    TimerKey,
)
from protocol.peer import PeerID, peer_text
from tests.dht.dht_world import WALL_MS, swarm
from tests.strategies import keypair

ME = keypair("searcher")
NOW_MS = WALL_MS
DIM = 2
SPEC = EncoderSpec(id="enc", dim=DIM, tau=(1, 2))
NORTH, EAST = bytes([9, 0]), bytes([0, 9])
BOOK = train(
    [bytes([x, y]) for x in range(1, 9) for y in range(9)], encoder="enc", made_ms=NOW_MS, count=4, rng=random.Random(1)
)
ABLE = Capabilities(
    model="m", context_tokens=4096, quality="demo", json_schema=False, logprobs=False, score=False, adapters=False,
    tokens_per_s=7, backend="b",
)  # fmt: skip
COST = Cost(18, 3)


def record(name: str = "other", *, seq: int = 1, ttl_ms: int = RECORD_TTL_MS, **value: Any) -> SignedRecord:
    told: dict[str, Any] = {"agent": "default", "roles": ("r",), "vector": NORTH, "encoder": "enc", **value}
    wire = make_record(keypair(name), AgentValue(**told), seq=seq, issued_ms=NOW_MS, ttl_ms=ttl_ms)
    return SignedRecord.from_wire(wire, verify_raw)


class Desk:
    """A node whose index may be incomplete, and what it asks of its encoder and its DHT."""

    def __init__(self, *, complete: bool = False, codebooks: tuple[bytes, ...] = (BOOK.wire,)) -> None:
        clock, jobs = SwarmClock(NOW_MS * 1000), JobIds()
        jobs.start(1)
        reach = Reach(lambda: complete, codebooks)
        self.offers = Offers(PeerID(ME.public), SPEC, clock, jobs, lambda _: View(frozenset(), {}), reach)
        self.now_us = 0

    def hold(self, *records: SignedRecord) -> None:
        for each in records:
            self.offers.on_record(each, live=each.live(NOW_MS))

    def ask(self, command: FindAgents | None = None, *, request: int = 7) -> list[Effect]:
        """Up to the point where the vector is there."""
        return self.embedded(started(self.offers.on_find(request, command or FindAgents("x"))))

    def embedded(self, job: JobId, vector: bytes = NORTH) -> list[Effect]:
        return self.offers.on_job(JobDone(job, Embedded((vector,), "enc", (1,))), self.now_us)

    def found(self, find: Find, *records: SignedRecord) -> Any:
        done = FindDone(find.request, tuple((1_000_000, each) for each in records), COST, None)
        return answer(self.offers.on_found(done, self.now_us))

    def search(self, *records: SignedRecord, command: FindAgents | None = None) -> Any:
        """The answer of a search whose DHT gives these."""
        return self.found(find_of(self.ask(command)), *records)


def started(effects: list[Effect]) -> JobId:
    (job,) = [effect.job for effect in effects if isinstance(effect, StartJob)]
    return job


def finds(effects: list[Effect]) -> list[Find]:
    return [effect.event for effect in effects if isinstance(effect, Local) and isinstance(effect.event, Find)]


def find_of(effects: list[Effect]) -> Find:
    (find,) = finds(effects)
    assert not any(isinstance(effect, Reply) for effect in effects)
    return find


def answer(effects: list[Effect]) -> Any:
    (reply,) = [effect for effect in effects if isinstance(effect, Reply)]
    return reply.result


def peers(found: Any) -> list[str]:
    return [line["peer"] for line in found["agents"]]


def names(*people: str) -> list[str]:
    return [peer_text(keypair(name).public) for name in people]


# ---- when the DHT is asked, and for what


def test_a_complete_index_answers_alone() -> None:
    desk = Desk(complete=True)
    desk.hold(record())
    effects = desk.ask()
    assert not finds(effects)
    found = answer(effects)
    assert (found["source"], found["index_complete"], found["note"], found["rpcs"]) == ("index", True, "", 0)
    assert peers(found) == names("other")


def test_a_light_node_finds_all_that_the_dht_names() -> None:
    desk = Desk()
    people = [f"agent {n}" for n in range(4)]
    found = desk.search(*(record(name) for name in people))
    assert sorted(peers(found)) == sorted(names(*people))
    assert (found["source"], found["live"], found["candidates"]) == ("index+dht", 0, 4)
    assert (found["rpcs"], found["rounds"], found["note"]) == (COST.rpcs, COST.rounds, "")
    assert not found["index_complete"]


@pytest.mark.parametrize(
    ("command", "limit"),
    [
        (FindAgents("x"), 10),
        (FindAgents("x", limit=20), 40),
        (FindAgents("x", limit=LIMIT_MAX), 2 * LIMIT_MAX),
        (FindAgents("x", Filters(skill="law")), CANDIDATES_MAX),
        (FindAgents("x", Filters(price_max=0)), CANDIDATES_MAX),
        (FindAgents("x", explain=True), CANDIDATES_MAX),
    ],
)
def test_the_dht_is_asked_for_twice_the_hits_or_for_all_that_its_shards_can_give(
    command: FindAgents, limit: int
) -> None:
    find = find_of(Desk().ask(command))
    assert (find.encoder, find.probe, find.limit) == ("enc", NORTH, limit)
    assert limit <= CANDIDATES_MAX


def test_filters_and_the_threshold_judge_what_the_dht_names_too() -> None:
    desk = Desk()
    desk.hold(record("dear here", price_micro_money=9))
    found = desk.search(
        record("cheap"), record("dear", price_micro_money=9), record("far", vector=EAST),
        command=FindAgents("x", Filters(price_max=5), explain=True),
    )  # fmt: skip
    assert peers(found) == names("cheap")
    assert {(line["peer"], line["reason"]) for line in found["rejected"]} == {
        *((name, "price") for name in names("dear here", "dear")),
        *((name, "below_threshold") for name in names("far")),
    }
    assert found["source"] == "index+dht"


def test_without_a_codebook_the_index_alone_serves_and_says_so() -> None:
    desk = Desk(codebooks=())
    desk.hold(record())
    found = answer(desk.ask())
    assert peers(found) == names("other")
    assert (found["source"], found["index_complete"]) == ("index", False)
    assert "no codebook" in found["note"]
    assert "enc" in found["note"]


# ---- merging

vectors = st.lists(st.integers(1, 127), min_size=DIM, max_size=DIM).map(bytes)
versions = st.lists(st.tuples(st.integers(0, 5), vectors, st.sampled_from((0, RECORD_TTL_MS))), min_size=1, max_size=3)


@given(st.lists(versions, max_size=8), st.data())
def test_the_answer_is_that_of_an_index_with_the_greatest_version_of_each_slot(
    told: list[list[tuple[int, bytes, int]]], data: st.DataObject
) -> None:
    whole, partial, named = Desk(complete=True), Desk(), []
    for number, versions_of_one in enumerate(told):
        of_one = [record(f"p{number}", seq=seq, vector=vector, ttl_ms=ttl) for seq, vector, ttl in versions_of_one]
        newest = max(of_one, key=lambda each: each.version)
        whole.hold(newest)
        here = data.draw(st.sampled_from(("index", "dht", "both")))
        older = data.draw(st.sampled_from(of_one))
        partial.hold(*([older] if here == "dht" else [newest]))
        named += [newest] if here == "dht" else [older] if here == "both" else []
    command = FindAgents("x", limit=5)
    alone, merged = answer(whole.ask(command)), partial.search(*data.draw(st.permutations(named)), command=command)
    assert merged["agents"] == alone["agents"]


def test_the_same_records_on_both_sides_give_the_answer_of_the_index_alone() -> None:
    records = [record(f"p{n}", vector=bytes([9, n]), quality=("demo", "standard")[n % 2]) for n in range(12)]
    alone, both = Desk(complete=True), Desk()
    alone.hold(*records)
    both.hold(*records)
    command = FindAgents("x", limit=9)
    assert both.search(*reversed(records), command=command)["agents"] == answer(alone.ask(command))["agents"]


def test_what_was_withdrawn_is_not_brought_back_by_a_holder_that_does_not_know() -> None:
    desk = Desk()
    desk.hold(record("gone", seq=2, ttl_ms=0))
    assert peers(desk.search(record("gone", seq=1))) == []
    assert peers(desk.search(record("gone", seq=3))) == names("gone")


def test_what_has_no_business_in_an_answer_is_left_out() -> None:
    desk = Desk()
    peer = SignedRecord.from_wire(make_record(keypair("p"), PeerValue(addrs=()), seq=1, issued_ms=NOW_MS), verify_raw)
    odd = [record("e", encoder="other"), record("d", vector=bytes([9])), record("v", vector=None), peer]
    found = desk.search(*odd, record("fine"), command=FindAgents("x", explain=True))
    assert (peers(found), found["candidates"], found["rejected"]) == (names("fine"), 1, [])
    desk.now_us = RECORD_TTL_MS * 1000
    assert desk.search(record("expired"))["candidates"] == 0


# ---- the DHT fails


@pytest.mark.parametrize("error", [PeerUnreachable("no node that serves the DHT answered"), Refused("no codebook")])
def test_an_error_of_the_dht_is_a_note_beside_what_the_index_holds(error: PeerUnreachable | Refused) -> None:
    desk = Desk()
    desk.hold(record())
    find = find_of(desk.ask())
    found = answer(desk.offers.on_found(FindDone(find.request, (), Cost(2, 1), error), 0))
    assert peers(found) == names("other")
    assert (found["source"], found["rpcs"]) == ("index", 2)
    assert error.message in found["note"]


def test_a_dht_that_takes_too_long_is_not_waited_for_and_its_late_answer_says_nothing() -> None:
    desk = Desk()
    desk.hold(record())
    effects = desk.ask()
    (timer,) = [effect for effect in effects if isinstance(effect, SetTimer)]
    assert timer.at_us == FIND_DHT_US
    found = answer(desk.offers.on_timer(timer.key, timer.at_us))
    assert peers(found) == names("other")
    assert (found["source"], "within 12 s" in found["note"]) == ("index", True)
    late = FindDone(find_of(effects).request, ((1, record("late")),), COST, None)
    assert desk.offers.on_found(late, timer.at_us) == [Count("finds_answered_late")]
    assert desk.offers.on_timer(timer.key, timer.at_us) == []


def test_an_answer_in_time_ends_the_wait() -> None:
    desk = Desk()
    effects = desk.ask()
    (timer,) = [effect for effect in effects if isinstance(effect, SetTimer)]
    done = desk.offers.on_found(FindDone(find_of(effects).request, (), COST, None), 5)
    assert CancelTimer(timer.key) in done
    assert desk.offers.on_timer(timer.key, timer.at_us) == []


def test_searches_that_wait_for_encoder_or_dht_are_bounded_together_and_each_is_answered_once() -> None:
    desk = Desk()
    asked = {find_of(desk.ask(request=n)).request: n for n in range(FINDS_MAX // 2)}
    jobs = [started(desk.offers.on_find(n, FindAgents("x"))) for n in range(FINDS_MAX // 2, FINDS_MAX)]
    with pytest.raises(Refused):
        desk.offers.on_find(99, FindAgents("x"))
    replies = []
    for request in reversed(asked):
        replies += desk.offers.on_found(FindDone(request, (), COST, None), 0)
    for job in jobs:
        replies += desk.offers.on_job(JobFailed(job, EngineError("no encoder")), 0)
    told = [effect.request_id for effect in replies if isinstance(effect, Reply)]
    assert sorted(told) == list(range(FINDS_MAX))
    find_of(desk.ask())


# ---- versions of the codebook


def published(desk: Desk) -> list[AgentValue]:
    job = started(desk.offers.on_engine(EngineReport(ABLE, ("r",), Offer("Reads leases."))))
    events = [effect.event for effect in desk.embedded(job) if isinstance(effect, Local)]
    return [event.value for event in events if isinstance(event, Publish) and isinstance(event.value, AgentValue)]


def test_a_record_names_the_two_codebooks_under_which_it_is_published() -> None:
    books = [Codebook.of("enc", NOW_MS + n, BOOK.centroids) for n in range(3)]
    (value,) = published(Desk(codebooks=tuple(book.wire for book in books)))
    assert value.codebooks == (books[1].name, books[2].name)
    assert [value.codebooks for value in published(Desk(codebooks=()))] == [()]
    wire = make_record(ME, value, seq=1, issued_ms=NOW_MS)
    assert SignedRecord.from_wire(wire, verify_raw).value == value


def test_a_record_without_a_vector_names_none() -> None:
    desk = Desk()
    job = started(desk.offers.on_engine(EngineReport(ABLE, ("r",), Offer("Reads leases."))))
    failed = desk.offers.on_job(JobFailed(job, EngineError("no encoder")), 0)
    (event,) = [effect.event for effect in failed if isinstance(effect, Local)]
    assert isinstance(event, Publish)
    assert isinstance(event.value, AgentValue)
    assert (event.value.vector, event.value.codebooks) == (None, ())


# ---- the whole kernel, and the real DHT


def test_the_kernel_carries_a_search_from_the_command_to_the_answer() -> None:
    jobs = JobIds()
    jobs.start(1)
    genesis = Genesis(name="s", creator=ME.public, admins=(ME.public,), encoder=SPEC, created_ms=NOW_MS)
    reach = Reach(lambda: False, (BOOK.wire,))
    kernel = Kernel(Self(ME, ME, genesis), cast(Any, None), SwarmClock(NOW_MS * 1000), KernelConfig(), jobs, reach)
    for late in (False, True):
        (start,) = kernel.handle(Command(3, FindAgents("who reads leases")), 0)
        assert isinstance(start, StartJob)
        assert start.spec == Embed(("who reads leases",))
        find = find_of(kernel.handle(JobDone(start.job, Embedded((NORTH,), "enc", (1,))), 0))
        done = FindDone(find.request, ((1_000_000, record()),), COST, None)
        event = TimerFired(TimerKey("kernel", "find", find.request)) if late else done
        found = answer(kernel.handle(event, 1))
        assert peers(found) == ([] if late else names("other"))


def test_through_a_real_dht_a_light_node_finds_what_an_index_of_everything_finds() -> None:
    """Sixteen serving nodes hold forty agents under four shards; a client that holds nothing asks two of them."""
    world = swarm(16, seed=4)
    rng = random.Random(9)
    nodes = list(world.nodes.values())
    client = world.add("light", DhtConfig(server=False), addrs=())
    world.link(client, nodes[0])
    world.run(30)
    for node in (*nodes, client):
        world.give(node, UseCodebook(BOOK.wire))
    records = []
    for number in range(40):
        value = AgentValue(
            agent=f"a{number}", roles=("r",), vector=bytes([rng.randint(1, 127), rng.randint(0, 127)]), encoder="enc",
            codebooks=(codebook_name(BOOK.wire),), quality=rng.choice(("demo", "standard")),
        )  # fmt: skip
        records.append(world.sign(nodes[number % 16], value))
        world.give(nodes[number % 16], OwnRecord(records[-1]))
    world.run(60)
    light, whole = Desk(), Desk(complete=True)
    light.now_us = whole.now_us = world.now_us
    whole.hold(*records)
    assert client.dht.joined
    assert peers(light.search()) == [], "nothing is held here"
    for limit in (1, 5, 8):
        command = FindAgents("x", limit=limit)
        find = find_of(light.ask(command))
        done = world.answer(client, lambda request, find=find: Find(request, find.encoder, find.probe, find.limit))
        found = light.found(find, *(each for _, each in done.found))
        assert found["agents"] == answer(whole.ask(command))["agents"]
        assert len(found["agents"]) == limit
        assert done.cost.rpcs <= 60
