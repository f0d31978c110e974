"""One membership machine and what the mesh brings it: what is believed, passed on and refused; what stays bounded."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest
from hypothesis import given, settings, strategies as st

from gossip.membership.config import MemberConfig
from gossip.membership.requests import MACHINE, REQ_FIRST
from gossip.membership.statement import first_inc, make_statement
from protocol.codec import encode
from protocol.machine import (
    DialFailed,
    SendDropped,
    Stopping,
    Suspended,
    TimerFired,
    TimerKey,
)
from protocol.messages import Bye, Ping, ProbeFor
from tests.gossip.membership_node import CONFIG, LIFE, ME, PEERS, A, B, C, D, E, Net, pid
from tests.gossip_world import seconds
from tests.strategies import frames, keypair

# ---- statements


def test_a_member_without_a_link_is_known_by_its_word_and_down_when_that_ends() -> None:
    net = Net(A)
    assert net.says(B, "alive") == "accept"
    assert net.state(B) == "alive"
    net.run(80, hearing=(A,))
    assert net.says(B, "alive") == "accept"
    net.run(80, hearing=(A,))
    assert net.state(B) == "alive"
    net.run(20, hearing=(A,))
    assert (net.state(B), net.why[pid(B)]) == ("dead", "silent")
    assert net.says(B, "alive") == "accept"
    assert net.state(B) == "alive"


def test_repeated_stale_old_and_premature_statements_are_ignored() -> None:
    net = Net(A)
    item = make_statement(B, "alive", B.public, LIFE + 5, net.now_ms)
    assert net.arrive(item) == ["accept"]
    assert net.arrive(item) == ["ignore"]
    assert net.says(B, "alive", inc=LIFE + 4) == "ignore"
    assert net.says(B, "alive", inc=LIFE + 5, at_ms=net.now_ms - 1) == "ignore"
    assert net.says(C, "alive", at_ms=net.now_ms - CONFIG.past_ms - 1) == "ignore"
    assert net.says(C, "alive", at_ms=net.now_ms + CONFIG.future_ms + 1) == "ignore"
    assert net.says(A, "suspect", B, inc=LIFE + 4) == "ignore"
    assert net.says(A, "suspect", B, inc=LIFE + 6) == "ignore"  # nobody but B can know it
    assert net.says(A, "suspect", D) == "ignore"  # of nobody known
    assert net.says(D, "suspect", B, inc=LIFE + 5) == "ignore"  # by nobody known
    assert net.members.alive() == sorted((pid(A), pid(B)))


def test_a_clock_wrong_by_minutes_does_no_harm() -> None:
    net = Net(A)
    assert net.says(B, "alive", at_ms=net.now_ms + 9 * 60_000) == "accept"
    assert net.says(C, "alive", at_ms=net.now_ms - 9 * 60_000) == "accept"


def test_a_forged_statement_is_rejected_and_changes_nothing() -> None:
    net = Net(A)
    net.says(B, "alive")
    before = net.members.status()
    for kind, subject in (("alive", B), ("left", B), ("alive", C)):
        body = encode((kind, subject.public, LIFE + 1, subject.public, net.now_ms + 1))
        assert net.arrive(encode((body, A.sign("member", body)))) == ["reject"]
    assert net.arrive(b"", b"\xc1", encode(("no", "statement"))) == ["reject"] * 3
    assert net.members.status() == before


def test_keys_without_admission_are_neither_believed_nor_known() -> None:
    net = Net(A)
    net.says(C, "alive")
    net.outsiders[B.public] = None
    assert net.says(B, "alive") == "ignore"
    assert net.says(B, "suspect", C) == "ignore"
    assert net.state(B) == "unknown"
    net.outsiders[C.public] = None
    net.run(CONFIG.sweep_every_us / 1e6 + 1, hearing=(A,))
    assert net.why[pid(C)] == "no longer admitted"


def test_a_suspect_without_a_link_dies_after_its_wait_and_sooner_when_many_accuse_it() -> None:
    waits = []
    for accusers in ((A,), (A, C, D, E)):
        net = Net(A, C, D, E)
        net.says(B, "alive")
        for accuser in accusers:
            assert net.says(accuser, "suspect", B) == "accept"
        assert net.state(B) == "suspect"
        began = net.now_us
        while net.state(B) != "dead":
            net.run(0.1, hearing=(A, C, D, E))
            assert net.now_us - began < seconds(60)
        waits.append((net.now_us - began) / 1e6)
    assert waits[0] == pytest.approx(10, abs=0.2)
    assert waits[1] == pytest.approx(4, abs=0.2)


def test_dead_is_one_more_accusation_and_leaves_time_to_refute() -> None:
    net = Net(A)
    net.says(B, "alive")
    assert net.says(A, "dead", B) == "accept"
    assert net.state(B) == "suspect"
    net.run(3.9, hearing=(A,))
    assert net.says(B, "alive", inc=LIFE + 1) == "accept"
    assert net.state(B) == "alive"
    assert net.says(A, "dead", B) == "ignore"  # of an incarnation that was answered


def test_an_accusation_of_a_neighbour_is_checked_passed_on_and_not_believed() -> None:
    net = Net(A, B)
    pings = sum(isinstance(frame, Ping) for _, frame in net.sent)
    assert net.says(A, "suspect", B) == "accept"
    assert net.state(B) == "alive"
    assert sum(isinstance(frame, Ping) for _, frame in net.sent) == pings + 1
    net.hear(B)
    assert net.says(A, "suspect", B) == "ignore"
    assert net.says(A, "dead", B) == "accept"
    net.hear(B)
    net.run(60, hearing=(A, B))
    assert net.flips == [("up", pid(A)), ("up", pid(B))]


def test_an_accused_neighbour_that_is_silent_here_too_is_down_without_waiting_for_its_turn() -> None:
    net = Net(A, B, C)
    net.says(A, "suspect", B)
    net.run(1.0, hearing=(A, C))
    net.run(0.9, hearing=(A, C))
    net.nack()
    assert net.state(B) == "suspect"


def test_the_word_of_a_member_of_a_later_time_answers_an_accusation_and_an_older_one_does_not() -> None:
    net = Net(A)
    net.says(B, "alive")
    net.run(1, hearing=(A,))
    net.says(A, "suspect", B)
    assert net.says(B, "alive", at_ms=net.now_ms - 500) == "accept"  # was under way
    assert net.state(B) == "suspect"
    net.run(6, hearing=(A,))
    assert net.says(B, "alive") == "accept"
    assert net.state(B) == "alive"


def test_words_of_a_dead_member_that_come_together_do_not_revive_it() -> None:
    net = Net(A)
    net.says(B, "alive")
    held_back = [make_statement(B, "alive", B.public, LIFE, net.now_ms + n) for n in (1, 2, 3, 4)]
    net.says(A, "suspect", B)
    net.run(30, hearing=(A,))
    net.arrive(*held_back)
    assert net.state(B) == "dead"


def test_two_words_after_its_death_revive_a_member_whose_clock_is_behind() -> None:
    net = Net(A)
    late = 5 * 60_000
    net.says(B, "alive", at_ms=net.now_ms - late)
    net.says(A, "suspect", B)
    net.run(30, hearing=(A,))
    assert net.state(B) == "dead"
    net.says(B, "alive", at_ms=net.now_ms - late)
    assert net.state(B) == "dead"
    net.run(30, hearing=(A,))
    net.says(B, "alive", at_ms=net.now_ms - late)
    assert net.state(B) == "alive"


def test_who_is_down_has_no_voice_about_others() -> None:
    net = Net(A)
    net.says(B, "alive")
    net.says(C, "alive")
    net.says(A, "suspect", B)
    net.run(30, hearing=(A,))
    assert net.state(B) == "dead"
    assert net.says(B, "suspect", C) == "ignore"
    assert net.state(C) == "alive"


def test_one_signer_cannot_accuse_without_end_and_mutes_only_itself() -> None:
    net = Net(A, C)
    net.says(B, "alive")
    believed = 0
    for n in range(200):
        believed += net.says(A, "suspect", B, inc=LIFE + n) == "accept"
        assert net.says(B, "alive", inc=LIFE + n + 1) in ("accept", "ignore")
        net.run(0.05, hearing=(A, C))
    assert believed <= CONFIG.budget_max // CONFIG.accusation_cost + 1
    assert net.says(C, "suspect", A) == "accept"


def test_a_member_cannot_make_others_forward_without_end() -> None:
    net = Net(A)
    verdicts = Counter(net.says(B, "alive", at_ms=net.now_ms + n) for n in range(1_000))
    assert verdicts["accept"] == CONFIG.budget_max


# ---- bounds


def test_above_its_size_the_machine_stands_down_and_only_links_count_until_it_is_small_again() -> None:
    net = Net(A, config=MemberConfig(members_max=4, members_return=3))
    others = PEERS[1:9]
    for keys in others[:3]:
        assert net.says(keys, "alive") == "accept"
    assert not net.members.status().standing_down
    net.says(others[3], "alive")
    assert net.members.status().standing_down
    assert net.members.alive() == [pid(A)]
    for keys in others:
        net.says(keys, "alive", at_ms=net.now_ms + 1)
    assert net.members.alive() == [pid(A)]
    net.link(B)
    assert net.members.alive() == sorted((pid(A), pid(B)))
    net.unlink(B)
    assert net.members.alive() == [pid(A)]
    net.run(1_000, hearing=(A,))
    assert not net.members.status().standing_down
    net.says(others[1], "alive")
    assert net.state(others[1]) == "alive"


def test_tables_stay_bounded_under_a_flood_of_members() -> None:
    config = MemberConfig(members_max=20, tombstones_max=10)
    net = Net(A, config=config)
    for n in range(200):
        keys = keypair(f"flood {n}")
        net.says(keys, "alive")
        net.says(keys, "left", at_ms=net.now_ms + 1)
    for n in range(200):
        net.says(keypair(f"crowd {n}"), "alive")
    assert len(net.members._roster._members) <= 31 + 1
    assert len(net.members._census._seen) <= 21 + 1
    assert len(net.members._hearsay._budget._buckets) <= 30


def test_tombstones_are_forgotten_after_no_old_statement_is_taken_any_more() -> None:
    net = Net(A)
    net.says(B, "alive")
    net.says(B, "left", at_ms=net.now_ms + 1)
    net.run(CONFIG.past_ms / 1000 + 10, hearing=(A,))
    assert net.state(B) == "left"
    net.run(1_500, hearing=(A,))
    assert net.state(B) == "unknown"


# ---- anything

_whom = st.sampled_from(PEERS[:4])
_incs = st.sampled_from((0, LIFE, LIFE + 1, first_inc(2)))
_events = st.one_of(
    st.tuples(st.just("link"), _whom, st.integers(0, 3)),
    st.tuples(st.just("unlink"), _whom),
    st.tuples(st.just("frame"), _whom, frames),
    st.tuples(st.just("ask"), _whom, st.sampled_from([*PEERS[:4], ME])),
    st.tuples(st.just("say"), _whom, st.sampled_from(("alive", "left")), _incs, st.integers(-700, 700)),
    st.tuples(
        st.just("accuse"), _whom, st.sampled_from(("suspect", "dead")), st.sampled_from([*PEERS[:4], ME]), _incs,
        st.integers(-700, 700),
    ),
    st.tuples(st.just("items"), st.lists(st.binary(max_size=60), max_size=3)),
    st.tuples(st.just("dial"), _whom),
    st.tuples(st.just("drop"), _whom, st.sampled_from(("Ping", "ProbeFor", "ProbedFor")), st.integers(0, 9)),
    st.tuples(st.just("timer"), st.sampled_from(("tick", "probe", "relay", "suspect", "presence", "sweep", "odd"))),
    st.tuples(st.just("sleep"), st.integers(1, 4_000)),
    st.tuples(st.just("run"), st.integers(1, 40)),
    st.tuples(st.just("part"), _whom),
    st.tuples(st.just("nack")),
    st.tuples(st.just("stop")),
)  # fmt: skip


def _play(net: Net, event: tuple[Any, ...]) -> None:
    match event:
        case ("link", keys, inst):
            net.link(keys, inst=inst)
        case ("unlink", keys):
            net.unlink(keys)
        case ("frame", keys, frame):
            net.hear(keys, frame)
        case ("ask", keys, target):
            net.hear(keys, ProbeFor(9, target.public))
        case ("say", keys, kind, inc, shift_s):
            net.says(keys, kind, inc=inc, at_ms=net.now_ms + shift_s * 1000)
        case ("accuse", keys, kind, subject, inc, shift_s):
            net.says(keys, kind, subject, inc=inc, at_ms=net.now_ms + shift_s * 1000)
        case ("items", items):
            net.arrive(*items)
        case ("dial", keys):
            net.tell(DialFailed(pid(keys), "no"))
        case ("drop", keys, kind, n):
            net.tell(SendDropped(pid(keys), kind, REQ_FIRST + n))
        case ("timer", what):
            net.tell(TimerFired(TimerKey(MACHINE, what, None)))
            net.tell(TimerFired(TimerKey(MACHINE, what, A.public)))
        case ("sleep", amount):
            net.now_us += seconds(amount)
            net.tell(Suspended(seconds(amount)))
        case ("run", amount):
            net.run(amount)
        case ("part", keys):
            net.hear(keys, Bye("enough", "too many links"))
        case ("nack",):
            net.nack()
        case ("stop",):
            net.tell(Stopping(net.now_us))


@settings(max_examples=150)
@given(st.lists(_events, max_size=40))
def test_whatever_comes_nothing_raises_flips_alternate_and_a_linked_peer_that_speaks_is_up(
    events: list[tuple[Any, ...]],
) -> None:
    net = Net()
    for event in events:
        _play(net, event)
        up = {peer: None for what, peer in net.flips if what == "up"}
        for peer in up:
            mine = [what for what, who in net.flips if who == peer]
            assert mine == [("up", "down")[n % 2] for n in range(len(mine))]
        last = {peer: what for what, peer in net.flips}
        assert net.members.alive() == sorted(peer for peer, what in last.items() if what == "up")
    for keys in PEERS[:4]:
        net.link(keys, inst=9)
        net.hear(keys)
    assert len(net.members.alive()) == 4
    assert not any(said.subject == ME.public and said.kind in ("suspect", "dead") for said in net.said)
