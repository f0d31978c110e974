"""One membership machine and its links: who is up, who is probed and accused, what it says of itself."""

from __future__ import annotations

import pytest

from gossip.events import Leaving, Unlinked
from gossip.membership.config import MemberConfig
from gossip.membership.requests import MACHINE, REQ_FIRST, REQ_LAST, Requests
from gossip.membership.statement import first_inc
from protocol import versions
from protocol.codec import encode
from protocol.identity import KeyPair
from protocol.machine import (
    DialFailed,
    Received,
    SendDropped,
    Stopping,
    Suspended,
    TimerFired,
    TimerKey,
)
from protocol.messages import Bye, Ping, ProbedFor, ProbeFor
from tests.gossip.membership_node import CONFIG, LIFE, ME, PEERS, A, B, C, D, E, Net, pid
from tests.gossip_world import seconds

# ---- links


def test_a_link_brings_a_member_up_and_a_second_hello_of_the_same_life_says_nothing_new() -> None:
    net = Net(A)
    assert net.flips == [("up", pid(A))]
    assert net.members.alive() == [pid(A)]
    net.unlink(A)
    net.link(A)
    assert net.flips == [("up", pid(A)), ("down", pid(A)), ("up", pid(A))]


def test_a_lost_link_is_down_at_once_but_said_to_nobody_before_others_were_asked() -> None:
    net = Net(A, B, C, D)
    net.unlink(A)
    assert net.state(A) == "suspect"
    assert net.why[pid(A)] == "link lost"
    assert sorted(peer for peer, _ in net.asked()) == sorted(pid(keys) for keys in (B, C, D))
    assert not net.kinds()["suspect"]
    net.run(0.8, hearing=(B, C, D))
    net.nack()
    assert net.kinds()["suspect"] == 1
    net.run(15, hearing=(B, C, D))
    assert net.state(A) == "dead"
    assert net.kinds()["dead"] == 1
    assert net.flips.count(("down", pid(A))) == 1  # a suspect that dies was down before


def test_a_helper_that_hears_the_lost_peer_brings_it_up_again() -> None:
    net = Net(A, B, C)
    net.unlink(A)
    peer, ask = net.asked()[0]
    net.tell(Received(peer, ProbedFor(ask.req, ask.target, alive=True)))
    assert net.state(A) == "alive"
    net.run(20, hearing=(B, C))
    assert net.state(A) == "alive"
    assert not net.kinds()["suspect"]
    net.run(100, hearing=(B, C))  # nobody told anything of it for the time to live
    assert net.state(A) == "dead"
    assert net.why[pid(A)] == "silent"
    assert not net.kinds()["dead"]


@pytest.mark.parametrize("word", [False, True])
def test_a_helper_that_lies_keeps_a_dead_peer_up_for_one_time_to_live_of_its_last_own_sign(word: bool) -> None:  # noqa: FBT001 - a parameter of the test
    net = Net(A, B)
    net.run(30, hearing=(A, B))
    if word:
        net.says(A, "alive", hold_s=120)
    ttl_s = 120 if word else CONFIG.presence_ttl_us / 1e6
    net.run(1, hearing=(A, B))
    net.unlink(A)
    began_us, lied, up_s = net.now_us, 0, 0.0
    while net.now_us - began_us < seconds(900):
        for peer, ask in net.asked()[lied:]:
            net.tell(Received(peer, ProbedFor(ask.req, ask.target, alive=True)))
            lied += 1
        up_s += 2 if net.state(A) == "alive" else 0
        net.run(2, hearing=(B,))
        net.tell(DialFailed(pid(A), "refused"))
    assert lied
    assert ttl_s / 2 < up_s <= ttl_s + CONFIG.sweep_every_us / 1e6


def test_frames_on_a_link_are_own_signs_so_a_helper_may_answer_for_a_neighbour_that_tells_nothing() -> None:
    net = Net(A, B, C)
    net.run(300, hearing=(A, B, C))
    asked = len(net.asked())
    while net.state(A) == "alive" or len(net.asked()) == asked:
        net.run(0.1, hearing=(B, C))
    assert net.state(A) == "suspect"
    net.unlink(A)
    peer, ask = net.asked()[-1]
    net.tell(Received(peer, ProbedFor(ask.req, ask.target, alive=True)))
    assert net.state(A) == "alive"


def test_an_answer_counts_only_from_who_was_asked_and_only_once() -> None:
    net = Net(A, B, C)
    net.unlink(A)
    _, ask = net.asked()[0]
    net.link(D)
    for keys, req in ((D, ask.req), (B, ask.req + 1)):
        net.tell(Received(pid(keys), ProbedFor(req, ask.target, alive=True)))
    assert net.state(A) == "suspect"


def test_helpers_without_a_link_are_replaced_and_then_a_redial_decides() -> None:
    net = Net(A, *PEERS[1:8])
    net.unlink(A)
    told = 0
    while told < len(net.asked()):
        peer, ask = net.asked()[told]
        told += 1
        net.tell(Received(peer, ProbedFor(ask.req, ask.target, alive=False)))  # at once: it has no link
    assert told == 7
    assert len({peer for peer, _ in net.asked()}) == 7
    assert not net.kinds()["suspect"]
    net.tell(DialFailed(pid(A), "refused"))
    assert net.kinds()["suspect"] == 1


def test_a_failed_dial_alone_is_no_sign_of_death() -> None:
    net = Net(B, C)
    assert net.says(A, "alive") == "accept"
    net.tell(DialFailed(pid(A), "behind a NAT"))
    for peer, ask in net.asked():
        net.tell(Received(peer, ProbedFor(ask.req, ask.target, alive=False)))
    net.run(20, hearing=(B, C))
    assert net.state(A) == "alive"


@pytest.mark.parametrize("how", ["a Bye of the peer", "this node let it go"])
def test_a_link_that_ends_on_purpose_is_no_sign_of_death(how: str) -> None:
    net = Net(A, B)
    if how == "a Bye of the peer":
        net.hear(A, Bye("enough", "too many links"))
        net.unlink(A)
    else:
        net.tell(Unlinked(pid(A), in_order=True))
    net.run(30, hearing=(B,))
    assert net.state(A) == "alive"
    assert not net.asked()


def test_an_end_of_a_link_is_a_sign_again_once_the_peer_linked_anew() -> None:
    net = Net(A, B)
    net.hear(A, Bye("enough", "too many links"))
    net.unlink(A)
    net.link(A)
    net.unlink(A)
    assert net.state(A) == "suspect"


# ---- probes


def test_a_silent_neighbour_is_found_by_turns_and_any_frame_of_it_clears_it() -> None:
    net = Net(A, B, C)
    for _ in range(20):
        net.run(1, hearing=(B, C))
        net.nack()
        if net.state(A) != "alive":
            break
    assert net.state(A) == "suspect"
    assert net.why[pid(A)] == "no answer"
    assert net.kinds()["suspect"] == 1
    net.hear(A)
    assert net.state(A) == "alive"
    assert net.state(B) == net.state(C) == "alive"


def test_who_hears_nobody_accuses_nobody_and_not_later_either() -> None:
    net = Net(A, B, C)
    net.run(40)  # silence of all
    assert net.members.alive() == []
    assert net.members.status().health > 1
    for keys in (A, B, C):
        net.unlink(keys)
    net.run(100)
    for keys in (A, B, C):
        net.link(keys)
    net.run(60, hearing=(A, B, C))
    assert len(net.members.alive()) == 3
    assert set(net.kinds()) <= {"alive"}


def test_a_node_without_links_says_nothing() -> None:
    net = Net()
    net.run(200)
    assert not net.said


def test_only_peers_that_speak_membership_are_asked_and_all_are_pinged() -> None:
    net = Net(A)
    net.link(B, features=())
    net.link(C, features=(versions.MESH,))
    net.unlink(A)
    assert not net.asked()
    net.run(20)
    assert {peer for peer, frame in net.sent if isinstance(frame, Ping)} >= {pid(B), pid(C)}


def test_request_ids_stay_in_their_range_and_go_round() -> None:
    requests = Requests()
    requests._last = REQ_LAST - 2
    assert [requests.next() for _ in range(4)] == [REQ_LAST - 1, REQ_LAST, REQ_FIRST, REQ_FIRST + 1]


def test_a_full_queue_is_no_silence_and_the_next_helper_is_asked() -> None:
    net = Net(A, B, C, D, E)
    net.unlink(A)
    peer, ask = net.asked()[0]
    before = len(net.asked())
    net.tell(SendDropped(peer, "ProbeFor", ask.req))
    assert len(net.asked()) == before + 1


def test_a_probe_whose_timer_fires_late_is_asked_again_and_the_own_health_is_worse() -> None:
    net = Net(A, B, C)
    net.run(2.1)
    key = next(key for key in net.timers if key.what == "probe")
    net.now_us = net.timers.pop(key) + seconds(5)
    net.tell(TimerFired(key))
    assert key in net.timers
    assert not net.asked()
    assert net.members.status().health == 2


def test_own_lag_stretches_the_wait_up_to_its_bound() -> None:
    net = Net(A)
    net.members.lag_us = lambda: seconds(3600)
    tick = next(at for key, at in net.timers.items() if key.what == "tick")
    net.now_us = tick
    net.tell(TimerFired(TimerKey(MACHINE, "tick")))
    probe = next(at for key, at in net.timers.items() if key.what == "probe")
    assert probe - net.now_us == CONFIG.probe_timeout_us + CONFIG.lag_max_us


# ---- pings for others


def test_a_helper_pings_and_says_what_it_heard() -> None:
    for answers in (True, False):
        net = Net(A, B)
        net.hear(A, ProbeFor(5, B.public))
        (ping,) = [frame for peer, frame in net.sent if peer == pid(B) and isinstance(frame, Ping)]
        assert REQ_FIRST <= ping.req <= REQ_LAST
        if answers:
            net.hear(B)
        else:
            net.run(CONFIG.probe_timeout_us * CONFIG.nack_part / 100 / 1e6)
        assert (pid(A), ProbedFor(5, B.public, answers)) in net.sent


def test_a_helper_without_a_link_says_so_at_once() -> None:
    net = Net(A)
    net.hear(A, ProbeFor(5, B.public))
    assert net.sent[-1] == (pid(A), ProbedFor(5, B.public, alive=False))


def test_pings_for_others_are_bounded_per_asker_and_in_all() -> None:
    net = Net(A, B, config=MemberConfig(relays_max=20, relays_per_peer_max=16))
    for req in range(100):
        net.hear(A, ProbeFor(req, B.public))
    answered = [frame for _, frame in net.sent if isinstance(frame, ProbedFor)]
    assert len(answered) == 84
    assert not any(frame.alive for frame in answered)
    net.link(C)
    for req in range(100):
        net.hear(C, ProbeFor(req, B.public))
    assert sum(isinstance(frame, ProbedFor) for _, frame in net.sent) == 180
    assert len(net.members._relays._relays) == 20


def pings_to(net: Net, keys: KeyPair) -> list[Ping]:
    return [frame for peer, frame in net.sent if peer == pid(keys) and isinstance(frame, Ping)]


def test_one_ping_is_under_way_to_a_target_and_answers_all_who_ask_meanwhile() -> None:
    net = Net(A, B, C, D)
    for req, keys in enumerate((A, C, D)):
        net.hear(keys, ProbeFor(req, B.public))
    assert len(pings_to(net, B)) == 1
    net.hear(B)
    assert net.sent[-3:] == [(pid(keys), ProbedFor(req, B.public, alive=True)) for req, keys in enumerate((A, C, D))]
    assert not [key for key in net.timers if key.what == "relay"]
    net.hear(A, ProbeFor(9, B.public))
    assert len(pings_to(net, B)) == 2, "the answer to an earlier question says nothing about now"


def test_who_asks_while_a_ping_is_under_way_waits_as_long_as_the_first_and_a_silent_target_is_pinged_again() -> None:
    net = Net(A, B, C)
    net.hear(A, ProbeFor(1, B.public))
    net.run(0.5)
    net.hear(C, ProbeFor(2, B.public))
    net.run(0.3)
    assert net.sent[-1] == (pid(A), ProbedFor(1, B.public, alive=False))
    net.hear(A, ProbeFor(3, B.public))
    assert len(pings_to(net, B)) == 2
    net.run(0.5)
    assert net.sent[-1] == (pid(C), ProbedFor(2, B.public, alive=False))
    net.hear(B)
    assert net.sent[-1] == (pid(A), ProbedFor(3, B.public, alive=True))


def test_a_ping_for_others_that_finds_no_room_is_a_nack_to_all_who_wait_for_it() -> None:
    net = Net(A, B, C)
    net.hear(A, ProbeFor(1, B.public))
    net.hear(C, ProbeFor(2, B.public))
    (ping,) = pings_to(net, B)
    net.tell(SendDropped(pid(B), "Ping", ping.req))
    assert net.sent[-2:] == [(pid(keys), ProbedFor(n, B.public, alive=False)) for n, keys in ((1, A), (2, C))]
    net.hear(A, ProbeFor(3, B.public))
    assert len(pings_to(net, B)) == 2


def test_a_flood_of_questions_makes_few_pings_though_each_is_answered_at_once_and_mutes_nobody_else() -> None:
    net = Net(A, B, C)
    for req in range(2_000):
        if len(pings_to(net, B)) <= CONFIG.relays_per_peer_max:
            net.hear(A, ProbeFor(req, B.public))
            net.hear(B)
    assert len(pings_to(net, B)) == CONFIG.relays_per_peer_max
    net.unlink(A)
    net.link(A)
    net.hear(A, ProbeFor(1, B.public))
    assert net.sent[-1] == (pid(A), ProbedFor(1, B.public, alive=False)), "a new link is no new bucket"
    net.hear(C, ProbeFor(1, B.public))
    assert len(pings_to(net, B)) == CONFIG.relays_per_peer_max + 1
    net.hear(B)
    net.now_us += CONFIG.relays_refill_us
    net.hear(A, ProbeFor(2, B.public))
    net.hear(B)
    assert net.sent[-1] == (pid(A), ProbedFor(2, B.public, alive=True))


# ---- leaving and coming back


def test_left_is_down_at_once_for_good_in_that_life_and_passed_on() -> None:
    net = Net(A, B)
    net.hear(B, Bye("leaving", "node stops"))
    assert (net.state(B), net.why[pid(B)]) == ("left", "left")
    assert net.says(B, "left") == "accept"  # the Bye reached only its neighbours
    assert net.says(B, "left", at_ms=net.now_ms + 5) == "ignore"
    net.hear(B)  # what was under way
    net.unlink(B)
    assert net.says(B, "alive", at_ms=net.now_ms + 1) == "ignore"
    assert net.says(A, "suspect", B) == "ignore"
    assert net.state(B) == "left"
    assert not net.asked()
    assert net.says(B, "alive", inc=first_inc(2)) == "accept"
    assert net.state(B) == "alive"


def test_a_leave_of_a_stranger_brings_nobody_up() -> None:
    net = Net(A)
    assert net.says(B, "left") == "accept"
    assert net.says(B, "alive", at_ms=net.now_ms - 10) == "ignore"  # overtaken by the leave
    assert net.flips == [("up", pid(A))]


def test_a_new_life_comes_up_by_its_link_or_by_its_word() -> None:
    net = Net(A, B)
    net.unlink(B)
    net.run(30, hearing=(A,))
    assert net.state(B) == "dead"
    net.link(B, inst=2)
    assert net.state(B) == "alive"
    view = net.members.view_of(pid(B))
    assert view is not None
    assert view.incarnation == first_inc(2)
    assert net.says(A, "suspect", B, inc=LIFE) == "ignore"


def test_a_database_that_was_set_back_is_believed_by_its_link_and_by_its_later_words() -> None:
    net = Net(A)
    net.says(B, "alive", inc=first_inc(7))
    assert net.says(B, "alive", inc=first_inc(5), at_ms=net.now_ms + CONFIG.setback_ms) == "ignore"
    net.run(61, hearing=(A,))
    assert net.says(B, "alive", inc=first_inc(5)) == "accept"
    net.says(C, "left", inc=first_inc(7))
    net.link(C, inst=5)
    assert net.state(C) == "alive"


@pytest.mark.parametrize("minutes", [2, -8])  # the clock of a node may be ahead
def test_a_leave_of_an_earlier_life_takes_nobody_down_who_is_linked_in_a_later_one(minutes: int) -> None:
    net = Net(A)
    net.run(300, hearing=(A,))
    net.link(B, inst=2, wall_ms=net.now_ms)
    left_ms = net.now_ms - minutes * 60_000
    assert net.says(B, "left", at_ms=left_ms) == "ignore"
    assert net.says(B, "alive", at_ms=left_ms + 1) == "ignore"
    assert net.state(B) == "alive"
    assert net.says(B, "alive", inc=first_inc(2), at_ms=net.now_ms - 60_000) == "accept", "its clock may be behind"
    assert net.says(B, "alive", inc=first_inc(3)) == "accept", "it restarted, and this link does not know yet"
    assert net.says(B, "left", inc=first_inc(3), at_ms=net.now_ms + 1) == "accept"


def test_nor_when_its_link_was_let_go_since_for_the_hello_says_how_late_that_life_is() -> None:
    net = Net(A)
    net.run(300, hearing=(A,))
    net.link(B, inst=2, wall_ms=net.now_ms)
    net.tell(Unlinked(pid(B), in_order=True))
    net.run(10, hearing=(A,))
    assert net.says(B, "left", at_ms=net.now_ms - 120_000) == "ignore"
    assert net.says(B, "left") == "ignore"
    assert net.state(B) == "alive"


def test_a_leave_of_a_later_life_that_a_restored_database_forgot_is_old_too() -> None:
    net = Net(A)
    net.run(300, hearing=(A,))
    net.link(B, inst=5, wall_ms=net.now_ms)
    assert net.says(B, "left", inc=first_inc(7), at_ms=net.now_ms - 120_000) == "ignore"
    assert net.state(B) == "alive"


def test_the_wall_clock_of_a_hello_binds_no_word_of_that_life() -> None:
    net = Net(A)
    net.run(60, hearing=(A,))
    net.says(B, "alive", at_ms=net.now_ms + 300_000)
    net.link(B, inst=2, wall_ms=net.now_ms + 10**9)
    assert net.says(B, "alive", inc=first_inc(2), at_ms=net.now_ms - 60_000) == "accept"
    view = net.members.view_of(pid(B))
    assert view is not None
    assert view.incarnation == first_inc(2)
    net.tell(Unlinked(pid(B), in_order=True))
    net.run(750, hearing=(A,))
    assert net.says(B, "alive", at_ms=net.now_ms) == "accept", "a Hello from the far future is not believed for ever"


def test_stopping_says_left_once_and_nothing_after() -> None:
    net = Net(A, B, C)
    net.run(3, hearing=(A, B, C))
    net.tell(Stopping(net.now_us + seconds(5)))
    assert net.said[-1].kind == "left"
    said = len(net.said)
    net.tell(Leaving())
    net.says(A, "suspect", ME)
    for keys in (A, B, C):
        net.unlink(keys)
    net.run(100)
    assert len(net.said) == said
    assert net.members.alive() == []


# ---- this node


def test_an_accusation_is_answered_with_the_next_incarnation_and_a_flood_of_them_with_few_words() -> None:
    net = Net(A, B)
    net.run(5, hearing=(A, B))
    assert net.says(A, "suspect", ME) == "ignore"  # the answer takes it back
    net.run(0.1, hearing=(A, B))
    assert (net.said[-1].kind, net.said[-1].inc) == ("alive", LIFE + 1)
    before = len(net.said)
    for n in range(100):
        net.says(A, "dead", ME, inc=LIFE + 1 + n)
        net.run(0.02, hearing=(A, B))
    assert len(net.said) - before <= 4
    assert net.members.status().incarnation <= LIFE + 1 + CONFIG.budget_max // CONFIG.accusation_cost
    assert net.members.status().health <= 2


def test_an_accusation_of_an_earlier_incarnation_is_answered_and_of_a_later_one_is_not() -> None:
    net = Net(A, B)
    net.run(5, hearing=(A, B))
    net.says(A, "suspect", ME)
    net.run(5, hearing=(A, B))
    said = len(net.said)
    net.says(A, "suspect", ME)
    net.run(1, hearing=(A, B))
    assert [each.inc for each in net.said[said:]] == [LIFE + 1]
    net.says(A, "suspect", ME, inc=LIFE + 1000)
    net.run(1, hearing=(A, B))
    assert net.members.status().incarnation == LIFE + 1


def test_a_forged_accusation_does_not_raise_the_own_incarnation() -> None:
    net = Net(A)
    body = encode(("suspect", ME.public, LIFE, A.public, net.now_ms, 0))
    assert net.arrive(encode((body, B.sign("member", body)))) == ["reject"]
    assert net.members.status().incarnation == LIFE


def test_presence_is_said_again_and_again_and_each_time_later() -> None:
    net = Net(A)
    net.run(300, hearing=(A,))
    times = [said.at_ms for said in net.said]
    assert 8 <= len(times) <= 14
    assert times == sorted(set(times))


def test_after_a_sleep_suspicions_wait_anew() -> None:
    net = Net(A, C)
    net.says(B, "alive")
    net.says(A, "suspect", B)
    net.now_us += seconds(3600)
    net.tell(Suspended(seconds(3600)))
    net.run(3, hearing=(A, C))
    assert net.state(B) == "suspect"
    assert net.says(B, "alive", inc=LIFE + 1) == "accept"
    assert net.state(B) == "alive"
