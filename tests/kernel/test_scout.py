"""Asking the DHT for who runs a role: only where the index cannot know, once for all who wait, and bounded."""

from __future__ import annotations

from typing import Any

import pytest

from dht.events import Cost, Find, FindDone
from kernel.agents.roles import CRITIC, REASONING, ROSTER
from kernel.discovery import capability_text
from kernel.jobs import Embed, Embedded
from kernel.scout import OFFER_US, OFFERS_MAX, ROLES_MAX, SPACES_MAX, Scout, Sought
from kernel.searches import FIND_DHT_US, Index, Reach
from protocol.admission import EncoderSpec
from protocol.capability import RECORD_TTL_MS, AgentValue, SignedRecord, make_record
from protocol.clock import SwarmClock
from protocol.errors import EngineError, PeerUnreachable
from protocol.identity import verify_raw
from protocol.machine import CancelTimer, Effect, JobDone, JobFailed, JobIds, Local, SetTimer, StartJob, TimerKey
from tests.strategies import keypair

NOW_MS = 1_700_000_000_000
SPACE, OTHER_SPACE = bytes(32), bytes([1]) * 32
NORTH, EAST = bytes([9, 0]), bytes([0, 9])


def record(name: str = "other", *, seq: int = 1, ttl_ms: int = RECORD_TTL_MS, **value: Any) -> SignedRecord:
    told: dict[str, Any] = {"agent": "default", "roles": (REASONING,), "vector": NORTH, "encoder": "enc", **value}
    wire = make_record(keypair(name), AgentValue(**told), seq=seq, issued_ms=NOW_MS, ttl_ms=ttl_ms)
    return SignedRecord.from_wire(wire, verify_raw)


class Post:
    """A node that may not know all agents, and what it asks."""

    def __init__(self, *, complete: bool = False, codebooks: tuple[bytes, ...] = (b"book",)) -> None:
        clock, jobs = SwarmClock(NOW_MS * 1000), JobIds()
        jobs.start(1)
        self.index = Index()
        spec = EncoderSpec(id="enc", dim=2, tau=(1, 2))
        self.scout = Scout(spec, self.index, Reach(lambda: complete, codebooks), clock, jobs)

    def ask(self, role: str = REASONING, *vectors: bytes) -> list[Find]:
        """Up to the questions to the DHT."""
        (start,) = [effect for effect in self.scout.seek(SPACE, role) if isinstance(effect, StartJob)]
        effects = self.scout.on_job(JobDone(start.job, Embedded(vectors or (NORTH,), "enc", (1,))), 0)
        return [event for event in events(effects) if isinstance(event, Find)]

    def learn(self, *records: SignedRecord, now_us: int = 0) -> list[Effect]:
        (find,) = self.ask()
        done = FindDone(find.request, tuple((1, each) for each in records), Cost(1, 1), None)
        assert self.scout.owns(done)
        return self.scout.on_found(done, now_us)


def events(effects: list[Effect]) -> list[object]:
    return [effect.event for effect in effects if isinstance(effect, Local)]


def notes(effects: list[Effect]) -> list[str]:
    return [event.note for event in events(effects) if isinstance(event, Sought)]


def test_a_complete_index_is_not_second_guessed_and_no_role_is_no_question() -> None:
    assert Post(complete=True).scout.seek(SPACE, REASONING) == []
    assert Post().scout.seek(SPACE, "") == []


def test_without_a_codebook_it_ends_at_once_and_says_why() -> None:
    (note,) = notes(Post(codebooks=()).scout.seek(SPACE, REASONING))
    assert "keeps no index of all agents" in note
    assert "codebook" in note


def test_it_asks_by_what_the_role_does_and_by_what_a_node_with_all_roles_says() -> None:
    post = Post()
    (start,) = [effect for effect in post.scout.seek(SPACE, CRITIC) if isinstance(effect, StartJob)]
    assert start.spec == Embed((capability_text("", (), (CRITIC,)), capability_text("", (), ROSTER.names)))
    effects = post.scout.on_job(JobDone(start.job, Embedded((NORTH, EAST), "enc", (1, 1))), 7)
    finds = [event for event in events(effects) if isinstance(event, Find)]
    assert [find.probe for find in finds] == [NORTH, EAST]
    assert [effect.at_us for effect in effects if isinstance(effect, SetTimer)] == [7 + FIND_DHT_US] * 2
    first = post.scout.on_found(FindDone(finds[0].request, (), Cost(1, 1), None), 8)
    assert not notes(first)
    assert isinstance(first[0], CancelTimer)
    assert len(notes(post.scout.on_timer(TimerKey("kernel", "seek", finds[1].request)))) == 1


def test_what_is_found_is_an_offer_if_it_is_live_and_runs_the_role() -> None:
    post = Post()
    value = AgentValue(agent="default", roles=(REASONING,))
    peer = make_record(keypair("gone"), value, seq=2, issued_ms=NOW_MS - 9_000, ttl_ms=1_000)
    expired = SignedRecord.from_wire(peer, verify_raw)
    (ended,) = post.learn(record("fine"), record("critic", roles=(CRITIC,)), expired)[1:]
    assert isinstance(ended, Local)
    assert list(post.scout.offers) == [keypair("fine").public]
    assert post.scout.offers[keypair("fine").public].agents == (REASONING,)


def test_a_newer_version_that_the_index_knows_counts_alone() -> None:
    post = Post()
    post.index.take(record(seq=2, ttl_ms=0), live=False)
    post.learn(record(seq=1))
    assert not post.scout.offers
    post.learn(record(seq=3))
    assert list(post.scout.offers) == [keypair("other").public]
    post.scout.forget(record(seq=4, ttl_ms=0))
    assert not post.scout.offers


@pytest.mark.parametrize(("ttl_ms", "life_us"), [(5_000, 5_000_000), (RECORD_TTL_MS, OFFER_US)])
def test_an_offer_lives_as_long_as_its_record_and_ten_minutes_at_most(ttl_ms: int, life_us: int) -> None:
    post = Post()
    post.learn(record(ttl_ms=ttl_ms))
    post.scout.expire(life_us - 1)
    assert post.scout.offers
    post.scout.expire(life_us)
    assert not post.scout.offers


def test_what_is_remembered_is_bounded_and_the_oldest_goes_first() -> None:
    post = Post()
    post.learn(*(record(agent=f"a{number}") for number in range(OFFERS_MAX)))
    post.learn(record("late"))
    post.learn(record("later"))
    assert keypair("late").public in post.scout.offers
    assert len(post.scout._found) == OFFERS_MAX


def test_all_who_wait_for_a_role_share_one_question_and_both_bounds_hold() -> None:
    post = Post()
    (find,) = post.ask()
    assert post.scout.seek(OTHER_SPACE, REASONING)
    for number in range(2, SPACES_MAX):
        assert post.scout.seek(number.to_bytes(32, "little"), REASONING)
    assert post.scout.seek(b"x" * 32, REASONING) == []
    for number in range(1, ROLES_MAX):
        assert post.scout.seek(SPACE, f"role{number}")
    assert post.scout.seek(SPACE, "one more") == []
    ended = events(post.scout.on_found(FindDone(find.request, (), Cost(1, 1), None), 0))
    assert len(ended) == SPACES_MAX
    assert {event.space for event in ended[:2] if isinstance(event, Sought)} == {SPACE, OTHER_SPACE}
    assert post.scout.seek(SPACE, "one more")


def test_whatever_fails_the_seek_ends_once_and_says_why() -> None:
    post = Post()
    (start,) = [effect for effect in post.scout.seek(SPACE, REASONING) if isinstance(effect, StartJob)]
    (note,) = notes(post.scout.on_job(JobFailed(start.job, EngineError("no encoder")), 0))
    assert "no encoder" in note
    (find,) = post.ask()
    (note,) = notes(post.scout.on_found(FindDone(find.request, (), Cost(1, 1), PeerUnreachable("nobody serves")), 0))
    assert "nobody serves" in note
    (find,) = post.ask()
    key = TimerKey("kernel", "seek", find.request)
    (note,) = notes(post.scout.on_timer(key))
    assert "within 12 s" in note
    assert post.scout.on_timer(key) == []
    assert not post.scout.owns(FindDone(find.request, (), Cost(1, 1), None))
    assert post.ask(REASONING, bytes(2)) == [], "the encoder saw nothing"
    (note,) = notes(post.learn())
    assert f"the DHT named nobody who is known to live and runs {REASONING}" in note
