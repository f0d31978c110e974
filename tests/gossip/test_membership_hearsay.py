"""One membership machine and what the mesh brings it: what is believed, passed on and refused; what stays bounded."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest
from hypothesis import given, settings, strategies as st

from gossip.events import RecordChanged
from gossip.membership.config import MemberConfig
from gossip.membership.requests import MACHINE, REQ_FIRST
from gossip.membership.statement import HOLD_S_MAX, TABLE, first_inc, make_statement
from protocol.capability import PeerValue, SignedRecord
from protocol.codec import encode
from protocol.identity import KeyPair
from protocol.machine import (
    DialFailed,
    Send,
    SendDropped,
    Stopping,
    Suspended,
    TimerFired,
    TimerKey,
)
from protocol.messages import Bye, IWant, Ping, ProbeFor, Spread, message_id
from tests.gossip.membership_node import CONFIG, LIFE, ME, PEERS, A, B, C, D, E, Net, pid
from tests.gossip_world import NOW_MS, seconds
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
    asking_us = 3 * CONFIG.table_again_us + CONFIG.table_wait_us
    net.run(asking_us / 1e6 + 1, hearing=(A,))  # what A sends till then may be an answer
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


def admission(keys: KeyPair) -> RecordChanged:
    value = PeerValue(addrs=(), cert=())
    return RecordChanged(SignedRecord(b"", "peer", value, keys.public, 1, 0, 0, b"", b""), live=True)


def test_a_word_that_is_faster_than_its_signers_record_waits_for_it_and_then_goes_on() -> None:
    net = Net(A)
    net.outsiders[B.public] = None
    item = make_statement(B, "alive", B.public, LIFE, net.now_ms, 90)
    assert net.arrive(item) == ["later"]
    net.tell(admission(B))
    assert net.state(B) == "unknown", "the record admits nobody"
    assert net.arrive(item) == ["later"]
    del net.outsiders[B.public]
    net.tell(admission(B))
    assert (net.judged[message_id("members", item)], net.state(B)) == ("accept", "alive")
    assert not net.tell(admission(B)), "it was forgotten"


def test_of_a_stranger_the_newest_genuine_word_waits_whatever_comes_after_it() -> None:
    net = Net(A)
    net.outsiders[B.public] = None
    old = make_statement(B, "alive", B.public, LIFE, net.now_ms + 5)
    new = make_statement(B, "alive", B.public, first_inc(2), net.now_ms)
    left = make_statement(B, "left", B.public, LIFE, net.now_ms + 9)
    body = encode(("alive", B.public, first_inc(3), B.public, net.now_ms, 90))
    assert net.arrive(old, new) == ["ignore", "later"]
    assert net.arrive(left, encode((body, A.sign("member", body)))) == ["ignore", "reject"]
    del net.outsiders[B.public]
    net.tell(admission(B))
    assert (net.judged[message_id("members", new)], net.state(B)) == ("accept", "alive")


def test_a_newcomer_keeps_the_words_of_the_largest_swarm_until_the_records_come() -> None:
    assert CONFIG.early_max >= CONFIG.members_max


def test_a_word_waits_no_longer_than_a_sweep_where_the_index_had_no_room_for_the_record_of_its_signer() -> None:
    net = Net(A)
    net.outsiders[B.public] = None
    item = make_statement(B, "alive", B.public, LIFE, net.now_ms, 90)
    assert net.arrive(item) == ["later"]
    net.run(CONFIG.sweep_every_us / 1e6 + 1, hearing=(A,))
    assert net.state(B) == "unknown"
    del net.outsiders[B.public]  # a full index admits its key and tells of no record
    net.run(CONFIG.sweep_every_us / 1e6 + 1, hearing=(A,))
    assert (net.judged[message_id("members", item)], net.state(B)) == ("accept", "alive")
    assert net.members._hearsay._early == {}


def test_who_is_denied_while_linked_is_down_when_its_link_ends_and_nobody_is_asked_about_it() -> None:
    net = Net(A, B, C)
    net.outsiders[B.public] = None
    net.unlink(B)
    assert (net.state(B), net.why[pid(B)]) == ("dead", "link lost")
    net.run(30, hearing=(A, C))
    assert net.says(B, "alive") == "later"
    assert net.says(A, "suspect", B) == "ignore"
    assert net.state(B) == "dead"
    assert not net.asked()
    assert set(net.kinds()) <= {"alive"}


def test_who_is_denied_while_suspect_is_dead_at_once_and_flips_once() -> None:
    net = Net(A)
    net.says(B, "alive")
    net.says(A, "suspect", B)
    net.outsiders[B.public] = None
    net.run(CONFIG.sweep_every_us / 1e6 + 0.1, hearing=(A,))
    assert net.state(B) == "dead"
    net.run(60, hearing=(A,))
    assert net.flips == [("up", pid(A)), ("up", pid(B)), ("down", pid(B))]


def test_words_of_strangers_that_wait_are_bounded_and_the_oldest_gives_way() -> None:
    net = Net(A)
    crowd = [keypair(f"crowd {n}") for n in range(CONFIG.early_max + 1)]
    net.outsiders |= {keys.public: None for keys in crowd}
    for keys in crowd:
        assert net.says(keys, "alive") == "later"
    oldest = make_statement(crowd[0], "alive", crowd[0].public, LIFE, net.now_ms)
    assert net.judged == {message_id("members", oldest): "later"}, (
        "the mesh asks anew about a copy of it, and of no other"
    )
    net.outsiders.clear()
    assert not net.tell(admission(crowd[0]))
    assert net.tell(admission(crowd[1]))
    assert len(net.members._hearsay._early) == CONFIG.early_max - 1


def test_keys_without_admission_are_neither_believed_nor_known() -> None:
    net = Net(A)
    net.says(C, "alive")
    net.outsiders[B.public] = None
    assert net.says(B, "alive") == "later"
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


# ---- how long a word holds, and the words of all for a newcomer


def test_a_word_holds_as_long_as_its_speaker_said_whatever_the_listener_counts() -> None:
    net = Net(A)
    assert net.says(B, "alive", hold_s=300) == "accept"
    net.run(290, hearing=(A,))
    assert net.state(B) == "alive"
    net.run(20, hearing=(A,))
    assert (net.state(B), net.why[pid(B)]) == ("dead", "silent")


def test_no_word_holds_for_less_than_the_least_or_more_than_the_longest_period_asks_for() -> None:
    net = Net(A)
    net.says(B, "alive", hold_s=1)
    net.says(C, "alive", hold_s=HOLD_S_MAX)
    net.run(CONFIG.presence_ttl_us / 1e6 - 5, hearing=(A,))
    assert (net.state(B), net.state(C)) == ("alive", "alive")
    net.run(15, hearing=(A,))
    assert (net.state(B), net.state(C)) == ("dead", "alive")
    net.run(CONFIG.hold_us(CONFIG.standing_period_us) / 1e6, hearing=(A,))
    assert net.state(C) == "dead"


def test_the_larger_the_swarm_the_rarer_a_node_speaks_and_the_longer_its_word_holds() -> None:
    crowd = [keypair(f"crowd {n}") for n in range(99)]
    net = Net(A)
    for keys in crowd:
        net.says(keys, "alive", hold_s=10_000)
    net.run(60, hearing=(A,))
    began_ms = net.now_ms
    net.run(1_000, hearing=(A,))
    said = [each for each in net.said if each.at_ms > began_ms]
    assert 9 <= len(said) <= 11, "one word a second of 101 members in all"
    assert {each.hold_s for each in said} == {3 * 101}


def test_a_node_without_links_asks_its_first_ones_for_the_words_of_all_and_some_again() -> None:
    net = Net(*PEERS[:6])
    assert [peer for peer, frame in net.sent if isinstance(frame, IWant)] == [pid(A), pid(B)]
    net.run(60, hearing=tuple(PEERS[:6]))
    assert len([peer for peer, frame in net.sent if isinstance(frame, IWant)]) == 3 * CONFIG.tables
    assert net.said[0].at_ms - NOW_MS <= 3 * CONFIG.announce_gap_us / 1_000, "and speaks soon"
    for keys in PEERS[:6]:
        net.unlink(keys)
    net.sent.clear()
    net.link(C)
    assert [peer for peer, frame in net.sent if isinstance(frame, IWant)] == [pid(C)], "it was alone again"


def test_who_asks_is_given_the_newest_word_of_each_that_is_up_and_not_again_at_once() -> None:
    net = Net(A, B)
    words = {keys.public: make_statement(keys, "alive", keys.public, LIFE, net.now_ms, 90) for keys in (A, C, D, E)}
    net.arrive(*words.values())
    net.says(E, "left", at_ms=net.now_ms + 1)
    ask = IWant("members", (TABLE,))
    given = [effect.frame for effect in net.hear(A, ask) if isinstance(effect, Send)]
    assert [frame.items for frame in given if isinstance(frame, Spread)] == [
        tuple(words[keys.public] for keys in sorted((C, D), key=lambda keys: keys.public))
    ]
    assert not [effect for effect in net.hear(A, ask) if isinstance(effect, Send)]
    net.run(CONFIG.table_gap_us / 1e6 + 1, hearing=(A, B))
    assert [effect for effect in net.hear(A, ask) if isinstance(effect, Send)]
    assert not [effect for effect in net.hear(B, IWant("ops", (TABLE,))) if isinstance(effect, Send)]


def test_what_an_asked_neighbour_tells_is_believed_and_old_words_of_it_go_no_further() -> None:
    net = Net(A, B, C)  # A and B were asked
    old_ms = net.now_ms - 60_000
    old = [make_statement(keys, "alive", keys.public, LIFE, old_ms, 90) for keys in (D, E)]
    fresh = make_statement(PEERS[5], "alive", PEERS[5].public, LIFE, net.now_ms, 90)
    assert net.arrive(old[0], fresh, source=A) == ["ignore", "accept"]
    assert net.arrive(old[1], source=C) == ["accept"], "this one was not asked: others may lack it too"
    assert [net.state(keys) for keys in (D, E, PEERS[5])] == ["alive"] * 3
    assert net.arrive(make_statement(D, "alive", E.public, LIFE, old_ms, 90), source=A) == ["reject"]


def test_only_the_return_of_who_was_down_makes_a_node_speak_not_a_newcomer_nor_a_new_life() -> None:
    net = Net(A, B)
    net.run(60, hearing=(A, B))
    said = len(net.said)
    net.link(C)
    net.says(D, "alive")
    net.run(3, hearing=(A, B, C))
    net.unlink(C)
    net.run(0.5, hearing=(A, B))
    net.link(C, inst=2)
    net.run(3, hearing=(A, B, C))
    assert len(net.said) - said <= 1, "its regular word at most"
    said = len(net.said)
    net.unlink(C)
    assert net.state(C) == "suspect"
    net.link(C, inst=2)
    net.run(CONFIG.announce_gap_us * 1.5 / 1e6, hearing=(A, B, C))
    assert len(net.said) - said >= 1


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
    net.link(B, inst=2)
    assert net.members.alive() == sorted((pid(A), pid(B)))
    assert net.says(B, "left", at_ms=net.now_ms + 2) == "accept", "others may not know better"
    assert net.members.alive() == sorted((pid(A), pid(B))), "of an earlier life"
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
        case _:
            raise AssertionError(event)


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
