"""The own record follows the engine and carries its vector; a search is answered from what is held, and bounded."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from gossip.events import Publish, Withdraw
from kernel.commands import EngineReport, FindAgents, Offer
from kernel.discovery import Filters
from kernel.engine import Capabilities
from kernel.jobs import Embed, Embedded
from kernel.offers import AGENT, RETRY, Offers
from kernel.searches import ENDED_MAX, FINDS_MAX, REJECTED_MAX, TEXT_CHARS_MAX, Reach, View
from kernel.trust import Trust
from protocol.admission import EncoderSpec
from protocol.capability import RECORD_TTL_MS, AgentValue, SignedRecord, make_record
from protocol.clock import SwarmClock
from protocol.errors import EngineError, Refused, UsageError
from protocol.identity import verify_raw
from protocol.machine import (
    AbortJob,
    Effect,
    JobDone,
    JobFailed,
    JobId,
    JobIds,
    Local,
    Reply,
    SetTimer,
    StartJob,
)
from protocol.messages import RECORD_BYTES_MAX
from protocol.peer import PeerID, peer_text
from tests.strategies import keypair

ME, OTHER = keypair("me"), keypair("other")
NOW_MS = 1_700_000_000_000
ABLE = Capabilities(
    model="m", context_tokens=4096, quality="demo", json_schema=False, logprobs=False, score=False, adapters=False,
    tokens_per_s=7, backend="b",
)  # fmt: skip
OFFER = Offer(description="Reads leases.", skills=("law",), price_micro_money=3, data_policy="external")
REPORT = EngineReport(ABLE, ("reasoning",), OFFER)
NORTH, EAST = bytes([9, 0]), bytes([0, 9])


class Desk:
    """The machine, and the jobs that it asked for."""

    def __init__(self, reach: Reach | None = None) -> None:
        clock, jobs = SwarmClock(NOW_MS * 1000), JobIds()
        jobs.start(1)
        self.linked: frozenset[bytes] = frozenset()
        self.trust: dict[bytes, Trust] = {}
        spec = EncoderSpec(id="enc", dim=2, tau=(1, 2))
        self.offers = Offers(PeerID(ME.public), spec, clock, jobs, self.view, reach or Reach())
        self.now_us = 0

    def view(self, _now_us: int) -> View:
        return View(self.linked, self.trust)

    def report(self, report: EngineReport = REPORT) -> list[Effect]:
        return self.offers.on_engine(report)

    def embedded(self, job: JobId, vector: bytes = NORTH) -> list[Effect]:
        return self.offers.on_job(JobDone(job, Embedded((vector,), "enc", (1,))), self.now_us)

    def failed(self, job: JobId) -> list[Effect]:
        return self.offers.on_job(JobFailed(job, EngineError("no encoder")), self.now_us)

    def take(
        self, name: str = "other", *, live: bool = True, seq: int = 1, ttl_ms: int = RECORD_TTL_MS, **value: Any
    ) -> None:
        given: dict[str, Any] = {"agent": AGENT, "roles": ("reasoning",), "vector": NORTH, "encoder": "enc", **value}
        wire = make_record(keypair(name), AgentValue(**given), seq=seq, issued_ms=NOW_MS, ttl_ms=ttl_ms)
        self.offers.on_record(SignedRecord.from_wire(wire, verify_raw), live=live)

    def find(self, command: FindAgents, vector: bytes = NORTH) -> Any:
        (job,) = jobs_of(self.offers.on_find(7, command))
        (reply,) = self.embedded(job, vector)
        assert isinstance(reply, Reply)
        assert reply.request_id == 7
        return reply.result


def jobs_of(effects: list[Effect]) -> list[JobId]:
    return [effect.job for effect in effects if isinstance(effect, StartJob)]


def published(effects: list[Effect]) -> list[AgentValue]:
    events = [effect.event for effect in effects if isinstance(effect, Local)]
    return [event.value for event in events if isinstance(event, Publish) and isinstance(event.value, AgentValue)]


# ---- the own record


def test_the_record_waits_for_its_vector_and_says_all_that_is_known() -> None:
    desk = Desk()
    effects = desk.report()
    assert not published(effects)
    assert [effect.spec for effect in effects if isinstance(effect, StartJob)] == [Embed(("Reads leases. law.",))]
    (value,) = published(desk.embedded(*jobs_of(effects)))
    assert value == AgentValue(
        agent=AGENT, roles=("reasoning",), description="Reads leases.", vector=NORTH, encoder="enc", model="m",
        backend="b", quality="demo", context_tokens=4096, skills=("law",), price_micro_money=3, tokens_per_s=7,
        data_policy="external",
    )  # fmt: skip


def test_a_text_is_embedded_once_and_again_only_when_it_changes() -> None:
    desk = Desk()
    desk.embedded(*jobs_of(desk.report()))
    faster = desk.report(replace(REPORT, capabilities=replace(ABLE, tokens_per_s=20)))
    assert [value.tokens_per_s for value in published(faster)] == [20]
    assert not jobs_of(faster)
    other = desk.report(replace(REPORT, offer=replace(OFFER, description="Cooks.")))
    assert not published(other)
    assert [value.vector for value in published(desk.embedded(*jobs_of(other), EAST))] == [EAST]


def test_a_change_while_embedding_ends_in_the_newest_record_only() -> None:
    desk = Desk()
    (first,) = jobs_of(desk.report())
    assert not jobs_of(desk.report(replace(REPORT, capabilities=replace(ABLE, tokens_per_s=20))))
    changed = desk.report(replace(REPORT, offer=replace(OFFER, description="Cooks.")))
    assert AbortJob(first) in changed
    assert not desk.embedded(first)  # an answer that was on its way
    assert [value.description for value in published(desk.embedded(*jobs_of(changed)))] == ["Cooks."]


def test_an_engine_that_goes_or_a_node_that_stops_publishes_nothing_any_more() -> None:
    for leaving in (False, True):
        desk = Desk()
        (job,) = jobs_of(desk.report())
        effects = desk.offers.stop() if leaving else desk.report(EngineReport(None))
        assert AbortJob(job) in effects
        assert not desk.embedded(job)
        assert not desk.offers.on_timer(RETRY, 0)
    assert Local(Withdraw(AGENT)) in Desk().report(EngineReport(None))


def test_without_an_encoder_the_record_goes_out_bare_and_its_vector_later() -> None:
    desk = Desk()
    effects = desk.failed(*jobs_of(desk.report()))
    assert [value.vector for value in published(effects)] == [None]
    assert [effect.key for effect in effects if isinstance(effect, SetTimer)] == [RETRY]
    assert [value.vector for value in published(desk.embedded(*jobs_of(desk.offers.on_timer(RETRY, 0))))] == [NORTH]


def test_whatever_a_server_says_of_itself_makes_a_record() -> None:
    desk = Desk()
    loud = replace(ABLE, model="é" * 4000, backend="x" * 4000, tokens_per_s=2**60, context_tokens=2**60)
    full = Offer(description="é" * 1000, skills=tuple("s" * 30 + str(n) for n in range(30)))
    (value,) = published(desk.embedded(*jobs_of(desk.report(EngineReport(loud, ("reasoning",), full))), bytes(1024)))
    wire = make_record(ME, value, seq=1, issued_ms=NOW_MS)
    assert len(wire) <= RECORD_BYTES_MAX
    assert SignedRecord.from_wire(wire, verify_raw).value == value


# ---- find


def test_a_search_shows_what_is_held_as_this_node_sees_it() -> None:
    desk = Desk()
    desk.take(price_micro_money=3)
    desk.take("far", vector=EAST)
    desk.linked, desk.trust = frozenset({OTHER.public}), {OTHER.public: Trust(3, 0)}
    desk.now_us = 60_000_000
    found = desk.find(FindAgents("who reads leases"))
    assert (found["encoder"], found["threshold"], found["live"]) == ("enc", 0.5, 2)
    (line,) = found["agents"]
    assert (line["peer"], line["score"], line["age_ms"]) == (peer_text(OTHER.public), 1.0, 60_000)
    assert line["expires_ms"] == RECORD_TTL_MS - 60_000
    assert (line["trust"], line["turns_seen"], line["linked"], line["mine"]) == (0.8, 3, True, False)
    assert "rejected" not in found


def test_an_explanation_names_everybody_else_up_to_its_bound() -> None:
    desk = Desk()
    desk.take("far", vector=EAST)
    desk.take("gone", live=False, seq=2, ttl_ms=0)
    desk.take("dear", price_micro_money=9)
    found = desk.find(FindAgents("x", Filters(price_max=5), explain=True))
    assert {(line["peer"], line["reason"]) for line in found["rejected"]} == {
        (peer_text(keypair("far").public), "below_threshold"),
        (peer_text(keypair("gone").public), "withdrawn"),
        (peer_text(keypair("dear").public), "price"),
    }
    for n in range(REJECTED_MAX):
        desk.take(f"many {n}", vector=EAST)
    found = desk.find(FindAgents("x", explain=True))
    assert (len(found["rejected"]), found["rejected_more"]) == (REJECTED_MAX, 2)


def test_what_ended_is_kept_for_a_while_and_listed_nowhere() -> None:
    desk = Desk()
    desk.take()
    assert len(desk.offers.agents(0)) == 1
    desk.take(live=False, seq=2, ttl_ms=0)
    for n in range(3 * ENDED_MAX):
        desk.take(f"gone {n}", live=False, ttl_ms=0)
    assert desk.offers.agents(0) == []
    assert len(desk.find(FindAgents("x", explain=True))["rejected"]) == ENDED_MAX
    desk.take(seq=3)
    assert len(desk.offers.agents(0)) == 1


def test_a_record_that_expired_is_not_found_though_nobody_said_so_yet() -> None:
    desk = Desk()
    desk.take()
    desk.now_us = RECORD_TTL_MS * 1000
    assert desk.find(FindAgents("x"))["agents"] == []


@pytest.mark.parametrize(
    "command",
    [FindAgents(" \n"), FindAgents("x" * (TEXT_CHARS_MAX + 1)), FindAgents("x", limit=0), FindAgents("x", limit=101)],
)
def test_a_search_that_cannot_be_is_refused(command: FindAgents) -> None:
    with pytest.raises(UsageError):
        Desk().offers.on_find(1, command)


def test_searches_under_way_are_bounded_and_each_is_answered() -> None:
    desk = Desk()
    jobs = [job for n in range(FINDS_MAX) for job in jobs_of(desk.offers.on_find(n, FindAgents("x")))]
    with pytest.raises(Refused):
        desk.offers.on_find(99, FindAgents("x"))
    for n, job in enumerate(jobs):
        (reply,) = desk.failed(job)
        assert isinstance(reply, Reply)
        assert reply.request_id == n
        assert isinstance(reply.result, EngineError)
    assert isinstance(desk.find(FindAgents("qzx"), bytes(2)), UsageError)
