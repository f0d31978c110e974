"""The choice of links: everybody in a small swarm, a bounded random graph in a large one."""

from __future__ import annotations

import random

from gossip.config import GossipConfig
from gossip.dialling import DIAL_GUARD_US, LET_GO_PAUSE_US, LINK_AGE_MIN_US, Dialling
from protocol.machine import Dial, Effect, SetTimer, TimerKey
from protocol.peer import PeerID, peer_text

CONFIG = GossipConfig()
SECOND = 1_000_000


def peer(number: int) -> PeerID:
    return PeerID(number.to_bytes(32, "big"))


def addr(number: int) -> str:
    return f"/ip4/10.0.{number // 250}.{number % 250 + 1}/tcp/27420"


def dialling(known: int, config: GossipConfig = CONFIG, me: int = 9_999, seed: int = 1) -> Dialling:
    made = Dialling(peer(me), config, random.Random(seed), "links")
    for number in range(known):
        made.on_addresses(peer(number), (addr(number),), 0)
    made._under_way.clear()  # what was dialled while the swarm still looked small
    return made


def dialled(effects: list[Effect]) -> list[PeerID]:
    return [effect.info.peer for effect in effects if isinstance(effect, Dial)]


def test_in_a_small_swarm_everybody_is_dialled() -> None:
    made = Dialling(peer(99), CONFIG, random.Random(1), "links")
    found = [dialled(made.on_addresses(peer(n), (addr(n),), 0) or []) for n in range(CONFIG.links_full_max)]
    assert found == [[peer(n)] for n in range(CONFIG.links_full_max)]


def test_in_a_large_swarm_a_node_opens_so_many_links_and_no_more() -> None:
    made = dialling(500)
    for _ in range(50):
        for each in dialled(made.fill(SECOND)):
            made.on_up(each, SECOND)
    assert len(made._linked) == CONFIG.links_min
    assert dialled(made.fill(2 * SECOND)) == []


def test_who_fails_is_tried_ever_less_often_and_another_one_at_once() -> None:
    made = dialling(100)
    first = dialled(made.on_failed(peer(0), SECOND))
    assert len(first) == CONFIG.links_min, "others take the place"
    assert peer(0) not in first
    waits = []
    for _ in range(12):
        made.on_failed(peer(0), 0)
        waits.append(made._known[peer(0)].due_us)
    assert waits[0] <= CONFIG.dial_backoff_min_us * 4
    assert max(waits) <= CONFIG.dial_backoff_max_us
    assert waits[-1] >= CONFIG.dial_backoff_max_us // 2


def test_a_node_without_links_tries_its_configured_peers_beside_the_random_ones() -> None:
    made = Dialling(peer(99), CONFIG, random.Random(3), "links")
    home = peer(7_000)
    made.add_bootstrap((f"{addr(1)}/p2p/{peer_text(home)}",))
    for number in range(200):
        made.on_addresses(peer(number), (addr(number),), 0)
    made._under_way.clear()
    assert home in dialled(made.fill(SECOND))


def test_a_dial_that_is_never_answered_is_forgotten_after_its_guard() -> None:
    made = dialling(1)
    assert dialled(made.fill(SECOND)) == [peer(0)]
    assert dialled(made.fill(SECOND)) == [], "under way"
    assert dialled(made.on_timer(peer(0), DIAL_GUARD_US + SECOND)) == [peer(0)]


def test_a_new_address_is_dialled_at_once_whatever_failed_at_the_old_one() -> None:
    made = dialling(1)
    made.on_failed(peer(0), 0)
    assert dialled(made.fill(0)) == []
    assert dialled(made.on_addresses(peer(0), (addr(5),), 0) or []) == [peer(0)]


def test_a_peer_that_changes_its_address_all_the_time_is_not_dialled_all_the_time() -> None:
    made = dialling(1)
    made.on_failed(peer(0), 0)
    dials = []
    for number in range(500):
        dials += dialled(made.on_addresses(peer(0), (addr(number + 1),), number * SECOND // 50) or [])
    assert len(dials) == 1
    assert made.known()[peer(0)] == (addr(500),), "the newest is known"
    made.on_failed(peer(0), 20 * SECOND)
    assert dialled(made.on_addresses(peer(0), (addr(600),), 61 * SECOND) or []) == [peer(0)]


def test_addresses_that_a_record_no_longer_names_are_forgotten() -> None:
    made = Dialling(peer(99), CONFIG, random.Random(1), "links")
    home = f"{addr(9)}/p2p/{peer_text(peer(0))}"
    made.add_bootstrap((home,))
    made.on_addresses(peer(0), (addr(1), addr(2)), 0)
    assert made.on_addresses(peer(0), (addr(1),), SECOND) == []
    assert made.known() == {peer(0): (addr(1), home)}
    made.on_addresses(peer(0), (), 2 * SECOND)
    assert made.known() == {peer(0): (home,)}


def test_links_above_the_bound_are_let_go_but_not_young_ones() -> None:
    made = dialling(100)
    for number in range(60):
        made.on_up(peer(number), 0 if number < 40 else LINK_AGE_MIN_US)
    _, surplus = made.on_topology_timer(LINK_AGE_MIN_US)
    assert len(surplus) == 60 - CONFIG.links_max
    assert all(each < peer(40) for each in surplus)


def test_who_was_let_go_in_order_is_left_alone_for_a_while_and_not_blamed() -> None:
    made = dialling(2)
    made.on_up(peer(0), 0)
    made.let_go(peer(0))
    effects, in_order = made.on_down(peer(0), SECOND)
    assert in_order
    assert peer(0) not in dialled([*effects, *made.fill(2 * SECOND)])
    assert peer(0) in dialled(made.fill(SECOND + LET_GO_PAUSE_US))
    made.on_up(peer(0), 3 * SECOND)
    assert made.on_down(peer(0), 4 * SECOND)[1] is False


def test_the_graph_of_many_nodes_is_connected_and_bounded() -> None:
    """Everybody dials by the rule, links are let go by the rule, for a few virtual minutes."""
    count = 300
    nodes = {peer(n): dialling(0, me=n, seed=n) for n in range(count)}
    links: dict[PeerID, dict[PeerID, None]] = {each: {} for each in nodes}

    def link(one: PeerID, other: PeerID, now_us: int) -> None:
        if one != other and other not in links[one]:
            links[one][other] = links[other][one] = None
            nodes[one].on_up(other, now_us)
            nodes[other].on_up(one, now_us)

    for each, node in nodes.items():
        for other in range(count):
            for target in dialled(node.on_addresses(peer(other), (addr(other),), 0) or []):
                link(each, target, 0)
    for minute in range(1, 6):
        now_us = minute * 60 * SECOND
        for each, node in nodes.items():
            effects, surplus = node.on_topology_timer(now_us)
            assert SetTimer(TimerKey("links", "topology"), now_us + 10 * SECOND) in effects
            for target in dialled(effects):
                link(each, target, now_us)
            for other in surplus:
                del links[each][other], links[other][each]
                for one, two in ((each, other), (other, each)):
                    nodes[one].let_go(two)
                    for target in dialled(nodes[one].on_down(two, now_us)[0]):
                        link(one, target, now_us)
    degrees = sorted(len(found) for found in links.values())
    # What linked after a node's last look at its topology may come on top until the next one.
    assert CONFIG.links_min <= degrees[0], degrees[:5]
    assert degrees[-1] <= CONFIG.links_max + 8, degrees[-5:]
    reached, frontier = {peer(0): None}, [peer(0)]
    while frontier:
        frontier = [other for each in frontier for other in links[each] if other not in reached]
        reached |= dict.fromkeys(frontier)
    assert len(reached) == count
