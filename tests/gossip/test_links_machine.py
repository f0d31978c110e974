"""Who may stay linked, who is hung up, whom a node dials, and how often."""

from __future__ import annotations

import itertools
import random
from typing import Any

import pytest
from hypothesis import given, strategies as st

from gossip.config import GossipConfig
from gossip.events import Leaving, Linked, RecordChanged, Unlinked
from gossip.links import MACHINE, Links
from protocol import versions
from protocol.admission import MEMBER, issue
from protocol.capability import PeerValue, SignedRecord, make_record
from protocol.clock import SwarmClock
from protocol.codec import encode
from protocol.identity import KeyPair
from protocol.machine import (
    Boot,
    Count,
    Dial,
    DialFailed,
    Effect,
    Hangup,
    Local,
    Misbehaved,
    PeerDown,
    PeerUp,
    Received,
    Send,
    SetTimer,
    Stopping,
    TimerFired,
    TimerKey,
)
from protocol.messages import Bye, Frame, Ping, Pong, encode_frame
from protocol.peer import ADDRESSES_PER_PEER_MAX, PeerID, peer_text
from protocol.transport import Lane
from tests.gossip_world import ADMIN, GENESIS, NOW_MS, chain_of, hello, seconds, verify
from tests.strategies import frames, keypair, values

CONFIG = GossipConfig()
ME, PEER, OTHER = (keypair(name) for name in ("me", "peer", "other"))
PEER_ID, OTHER_ID = PeerID(PEER.public), PeerID(OTHER.public)
MAPPED = "/ip4/10.0.0.2/tcp/4001"


def bootstrap(keys: KeyPair, port: int = 4001) -> str:
    return f"/ip4/10.0.0.9/tcp/{port}/p2p/{peer_text(keys.public)}"


class Net:
    """One Links machine with its clock, and what it did."""

    def __init__(self, *addrs: str, config: GossipConfig = CONFIG) -> None:
        self.clock = SwarmClock(NOW_MS * 1000)
        self.links = Links(PeerID(ME.public), GENESIS, self.clock, config, random.Random(7))
        self.links.add_bootstrap(addrs)
        self.now_us = 0
        self.counts: list[str] = []

    def tell(self, event: object, after_us: int = 0) -> list[Effect]:
        self.now_us += after_us
        effects = self.links.handle(event, self.now_us)
        for effect in effects:
            if isinstance(effect, Send):
                encode_frame(effect.frame)
            if isinstance(effect, Count):
                self.counts.append(effect.name)
        return effects

    def up(self, keys: KeyPair = PEER, **changes: Any) -> list[Effect]:
        return self.tell(PeerUp(PeerID(keys.public), hello(keys, **changes)))

    def frame(self, frame: Frame, keys: KeyPair = PEER) -> list[Effect]:
        return self.tell(Received(PeerID(keys.public), frame))


def of_kind(effects: list[Effect], kind: type[Any]) -> list[Any]:
    return [effect for effect in effects if isinstance(effect, kind)]


def byes(effects: list[Effect]) -> list[Bye]:
    return [send.frame for send in of_kind(effects, Send) if isinstance(send.frame, Bye)]


def window(nbf_ms: int, life_ms: int) -> tuple[bytes, ...]:
    return (issue(ADMIN, GENESIS.swarm_id, PEER.public, (MEMBER,), (nbf_ms, nbf_ms + life_ms)),)


# ---- Hello

REFUSED: dict[str, tuple[str, dict[str, Any]]] = {
    "a later version": ("version", {"wire_min": versions.WIRE_MAX + 1, "wire_max": versions.WIRE_MAX + 3}),
    "an earlier version": ("version", {"wire_min": 0, "wire_max": versions.WIRE_MIN - 1}),
    "another swarm": ("other_swarm", {"swarm_id": bytes(32)}),
    "no certificate": ("certificate", {"cert_chain": ()}),
    "another node's certificate": ("certificate", {"cert_chain": chain_of(OTHER)}),
    "an expired certificate": ("certificate", {"cert_chain": window(NOW_MS - 2000, 1000)}),
    "a certificate of tomorrow": ("certificate", {"cert_chain": window(NOW_MS + 86_400_000, 1000)}),
    "garbage for a certificate": ("certificate", {"cert_chain": (b"\xc1",)}),
}


@pytest.mark.parametrize("name", REFUSED)
def test_a_hello_that_does_not_pass_gets_a_typed_bye_and_no_link(name: str) -> None:
    code, changes = REFUSED[name]
    net = Net()
    effects = net.up(**changes)
    (bye,) = byes(effects)
    assert bye.code == code
    assert of_kind(effects, Hangup)
    assert not of_kind(effects, Local)
    assert net.links.linked == []
    assert [refusal.code for refusal in net.links.refusals] == [code]
    assert net.counts == [f"refused_{code}"]


def test_a_good_hello_links_once_and_is_undone_once() -> None:
    net = Net()
    assert [effect.event for effect in of_kind(net.up(), Local)] == [Linked(PEER_ID, hello(PEER))]
    assert net.links.linked == [PEER_ID]
    assert net.links.hello_of(PEER_ID) == hello(PEER)
    down = net.tell(PeerDown(PEER_ID, "gone"))
    assert [effect.event for effect in of_kind(down, Local)] == [Unlinked(PEER_ID)]
    assert not of_kind(net.tell(PeerDown(PEER_ID, "gone")), Local)
    assert net.links.hello_of(PEER_ID) is None


def test_versions_that_overlap_link() -> None:
    assert Net().up(wire_min=0, wire_max=versions.WIRE_MAX + 5)[0] == Local(
        Linked(PEER_ID, hello(PEER, wire_min=0, wire_max=versions.WIRE_MAX + 5))
    )


def test_a_denied_node_is_refused() -> None:
    net = Net()
    net.links.denied = frozenset({PEER.public})
    assert [bye.code for bye in byes(net.up())] == ["denied"]


def test_a_denied_node_is_forgotten_and_not_dialled_also_if_configured() -> None:
    net = Net(bootstrap(OTHER))
    net.tell(record_of(PEER, MAPPED))
    net.tell(DialFailed(PEER_ID, "no"))
    net.links.denied = frozenset({PEER.public, OTHER.public})
    assert list(net.links.known()) == [OTHER_ID]
    dials: list[Effect] = []
    for event in (record_of(PEER, MAPPED), Boot(1, NOW_MS * 1000, clean=True), PeerDown(PEER_ID, "denied")):
        dials += of_kind(net.tell(event), Dial)
    for peer in (PEER_ID, OTHER_ID):
        dials += of_kind(net.tell(TimerFired(TimerKey(MACHINE, "dial", peer)), seconds(400)), Dial)
    assert not dials
    assert list(net.links.known()) == [OTHER_ID]


def test_a_node_that_is_denied_while_linked_is_hung_up() -> None:
    net = Net()
    net.up()
    net.links.denied = frozenset({PEER.public})
    effects = net.tell(TimerFired(TimerKey(MACHINE, "ping")), CONFIG.ping_every_us)
    assert [hangup.peer for hangup in of_kind(effects, Hangup)] == [PEER_ID]


def test_a_link_ends_when_its_certificate_has_run_out() -> None:
    net = Net()
    net.up(cert_chain=window(NOW_MS - 1000, 61_000))
    hung_up: list[int] = []
    for _ in range(20):
        net.frame(Pong(0, NOW_MS + net.now_us // 1000))
        if of_kind(net.tell(TimerFired(TimerKey(MACHINE, "ping")), CONFIG.ping_every_us), Hangup):
            hung_up.append(net.now_us)
    assert hung_up
    assert min(hung_up) <= seconds(70)
    assert min(hung_up) >= seconds(60)


@given(st.binary(max_size=200) | values.map(encode))
def test_no_certificate_bytes_can_stop_the_node(garbage: bytes) -> None:
    net = Net()
    for chain in ((garbage,), (garbage, garbage), (chain_of(PEER)[0], garbage)):
        assert [bye.code for bye in byes(net.up(cert_chain=chain))] == ["certificate"]


def test_a_refusal_whose_reason_quotes_the_peer_fits_a_bye() -> None:
    """A map key of 32 characters that show as ten each, given twice, is quoted in the decoder's reason."""
    key = ("\U000e0001" * 32).encode()
    evil = b"\x82" + (b"\xd9" + bytes([len(key)]) + key + b"\xc0") * 2
    assert [bye.code for bye in byes(Net().up(cert_chain=(evil,)))] == ["certificate"]


def test_a_wrong_own_clock_does_not_refuse_good_certificates() -> None:
    """Two peers were heard; the own clock is ten minutes ahead, the certificates are not."""
    net = Net()
    net.clock.set_wall_offset((NOW_MS + 600_000) * 1000)
    net.clock.sample(b"b" * 32, NOW_MS, 0)
    net.clock.sample(b"c" * 32, NOW_MS, 0)
    assert of_kind(net.up(cert_chain=window(NOW_MS - 1000, 61_000)), Local)


def test_members_who_lie_about_the_time_end_no_link() -> None:
    net = Net()
    net.up()
    for liar in "bcdef":
        net.clock.sample(liar.encode() * 32, NOW_MS + 200 * 86_400_000, 0)
    for _ in range(20):
        net.frame(Pong(0, NOW_MS + net.now_us // 1000))
        assert not byes(net.tell(TimerFired(TimerKey(MACHINE, "ping")), CONFIG.ping_every_us))
    assert net.clock.skewed


# ---- on a link


def test_a_second_hello_is_misbehaviour() -> None:
    net = Net()
    net.up()
    effects = net.frame(hello(PEER))
    assert of_kind(effects, Hangup)
    assert net.counts == ["refused_peer_misbehaved"]


def test_bytes_that_are_no_frame_end_the_link() -> None:
    net = Net()
    net.up()
    assert of_kind(net.tell(Misbehaved(PEER_ID, "unknown frame kind 99")), Hangup)


def test_a_ping_is_answered_and_both_tell_the_time() -> None:
    net = Net()
    net.up()
    net.up(OTHER)
    assert net.frame(Ping(5, NOW_MS + 8000)) == [Send(PEER_ID, Lane.CONTROL, Pong(5, NOW_MS))]
    net.frame(Pong(5, NOW_MS + 9000), OTHER)
    assert net.clock.offset_ms == 8000
    net.tell(PeerDown(PEER_ID, "gone"))
    net.tell(PeerDown(OTHER_ID, "gone"))
    assert net.clock.offset_ms == 0


@given(frames)
def test_frames_of_a_peer_that_is_not_linked_do_nothing_but_end(frame: Frame) -> None:
    net = Net()
    effects = net.frame(frame)
    assert all(isinstance(effect, Hangup) for effect in effects)
    assert not effects or isinstance(frame, Bye)
    assert net.clock.offset_ms == 0


def test_a_bye_is_remembered_with_its_reason_and_ends_the_link() -> None:
    net = Net()
    net.up()
    assert of_kind(net.frame(Bye("denied", "an admin denied this node")), Hangup)
    assert net.links.refusals[-1].code == "refused_by_peer_denied"
    net.frame(Bye("leaving", "node stops"))
    assert len(net.links.refusals) == 1


def test_refusals_are_bounded() -> None:
    net = Net()
    for _ in range(10 * CONFIG.refusals_max):
        net.up(swarm_id=bytes(32))
    assert len(net.links.refusals) == CONFIG.refusals_max


def test_a_silent_peer_is_hung_up_and_a_talking_one_is_not() -> None:
    net = Net()
    net.up()
    net.up(OTHER)
    hung_up: list[tuple[int, PeerID]] = []
    while net.now_us < 4 * CONFIG.silent_after_us:
        effects = net.tell(TimerFired(TimerKey(MACHINE, "ping")), CONFIG.ping_every_us)
        assert [timer.at_us for timer in of_kind(effects, SetTimer)] == [net.now_us + CONFIG.ping_every_us]
        hung_up += [(net.now_us, hangup.peer) for hangup in of_kind(effects, Hangup)]
        assert OTHER_ID in [send.peer for send in of_kind(effects, Send)]
        net.frame(Pong(0, NOW_MS + net.now_us // 1000), OTHER)
    assert {peer for _, peer in hung_up} == {PEER_ID}
    assert CONFIG.silent_after_us < hung_up[0][0] <= CONFIG.silent_after_us + CONFIG.ping_every_us


def test_leaving_says_goodbye_to_everybody() -> None:
    net = Net()
    net.up()
    net.up(OTHER)
    effects = net.tell(Leaving())
    assert [send.peer for send in of_kind(effects, Send)] == sorted((PEER_ID, OTHER_ID))
    assert {bye.code for bye in byes(effects)} == {"leaving"}


# ---- dialling


def fail_until(net: Net, until_us: int) -> list[int]:
    """Dials of a peer that never answers; the times at which it was dialled."""
    dials: list[int] = []
    due: dict[TimerKey, int] = {}
    pending = net.tell(Boot(1, NOW_MS * 1000, clean=True))
    while True:
        for effect in pending:
            if isinstance(effect, SetTimer) and effect.key.what == "dial":
                due[effect.key] = effect.at_us
        if of_kind(pending, Dial):
            dials.append(net.now_us)
            pending = net.tell(DialFailed(PEER_ID, "refused"), 1000)
            continue
        if not due or min(due.values()) > until_us:
            return dials
        key = min(due, key=lambda each: due[each])
        net.now_us = max(net.now_us, due.pop(key))
        pending = net.tell(TimerFired(key))


def test_a_peer_that_never_answers_is_dialled_for_ever_less_and_less_often() -> None:
    """Case D3: a bootstrap that is down at the start is no error."""
    net = Net(bootstrap(PEER))
    day = seconds(86_400)
    dials = fail_until(net, day)
    gaps = [b - a for a, b in itertools.pairwise(dials)]
    assert dials[0] == 0
    assert gaps[0] <= 2 * CONFIG.dial_backoff_min_us
    assert all(CONFIG.dial_backoff_min_us // 2 <= gap <= CONFIG.dial_backoff_max_us + 1000 for gap in gaps)
    tail = gaps[len(gaps) // 2 :]
    assert all(gap >= CONFIG.dial_backoff_max_us // 2 for gap in tail)
    assert len(set(tail)) > len(tail) // 2  # jitter
    assert day - dials[-1] <= CONFIG.dial_backoff_max_us + 1000


def test_a_peer_that_comes_back_is_dialled_soon_after_it_was_linked() -> None:
    net = Net(bootstrap(PEER))
    fail_until(net, seconds(3600))
    net.up()
    net.frame(Pong(0, NOW_MS))
    effects = net.tell(PeerDown(PEER_ID, "gone"), seconds(60))
    (timer,) = of_kind(effects, SetTimer)
    assert timer.at_us - net.now_us <= CONFIG.dial_backoff_min_us


def test_a_peer_that_links_and_refuses_at_once_is_not_dialled_every_second() -> None:
    """The other side says Bye to us: its back-off must grow all the same."""
    net = Net(bootstrap(PEER))
    net.tell(Boot(1, NOW_MS * 1000, clean=True))
    waits = []
    for _ in range(8):
        net.up()
        net.frame(Bye("denied", "an admin denied this node"))
        (timer,) = of_kind(net.tell(PeerDown(PEER_ID, "bye")), SetTimer)
        waits.append(timer.at_us - net.now_us)
        net.now_us = timer.at_us
        net.tell(TimerFired(timer.key))
    assert waits[-1] > 8 * CONFIG.dial_backoff_min_us


def test_a_linked_peer_is_not_dialled_and_nobody_is_while_stopping() -> None:
    net = Net(bootstrap(PEER))
    dial = TimerFired(TimerKey(MACHINE, "dial", PEER_ID))
    assert of_kind(net.tell(dial), Dial)
    net.up()
    assert not net.tell(dial)
    assert not of_kind(net.tell(DialFailed(PEER_ID, "late")), SetTimer)
    net.tell(Stopping(0))
    assert not of_kind(net.tell(PeerDown(PEER_ID, "gone")), SetTimer)
    assert not net.tell(dial)


def test_oneself_is_never_dialled() -> None:
    net = Net(bootstrap(ME), bootstrap(PEER), bootstrap(PEER, 4002), "/ip4/10.0.0.1/tcp/1")
    net.tell(record_of(ME, "/ip4/10.0.0.3/tcp/4001"))
    dials = of_kind(net.tell(Boot(1, NOW_MS * 1000, clean=True)), Dial)
    assert [(dial.info.peer, dial.info.addrs) for dial in dials] == [
        (PEER_ID, (bootstrap(PEER), bootstrap(PEER, 4002)))
    ]
    assert PeerID(ME.public) not in net.links.known()


def record_of(keys: KeyPair, *addrs: str, live: bool = True) -> RecordChanged:
    wire = make_record(keys, PeerValue(addrs=addrs, cert=chain_of(keys)), seq=1, issued_ms=NOW_MS)
    return RecordChanged(SignedRecord.from_wire(wire, verify), live)


def test_a_peer_record_changes_the_addresses_of_its_publisher_only() -> None:
    net = Net(bootstrap(OTHER))
    before = net.links.known()[OTHER_ID]
    effects = net.tell(record_of(PEER, MAPPED, f"/ip4/10.0.0.9/tcp/4001/p2p/{peer_text(OTHER.public)}"))
    assert [dial.info.peer for dial in of_kind(effects, Dial)] == [PEER_ID]
    assert net.links.known()[OTHER_ID] == before
    assert MAPPED in net.links.known()[PEER_ID]


def test_addresses_of_a_record_go_before_configured_ones_and_the_latter_stay() -> None:
    net = Net(bootstrap(PEER))
    net.tell(record_of(PEER, MAPPED))
    assert net.links.known()[PEER_ID] == (MAPPED, bootstrap(PEER))
    many = [f"/ip4/10.0.0.2/tcp/{port}" for port in range(1, ADDRESSES_PER_PEER_MAX + 1)]
    net.tell(record_of(PEER, *many))
    assert len(net.links.known()[PEER_ID]) == ADDRESSES_PER_PEER_MAX


@pytest.mark.parametrize(
    "addr", ["/ip4/0.0.0.0/tcp/4001", "/ip4/10.0.0.2/tcp/0", "/ip6/::/tcp/1", "/ip4/224.0.0.1/tcp/1"]
)
def test_useless_addresses_of_a_record_are_left_out(addr: str) -> None:
    net = Net()
    assert not net.tell(record_of(PEER, addr))
    net.tell(record_of(PEER, addr, MAPPED))
    assert net.links.known() == {PEER_ID: (MAPPED,)}


def test_an_ended_or_unchanged_record_dials_nobody() -> None:
    net = Net()
    assert not net.tell(record_of(PEER, MAPPED, live=False))
    assert of_kind(net.tell(record_of(PEER, MAPPED)), Dial)
    assert not of_kind(net.tell(record_of(PEER, MAPPED)), Dial)


def test_known_peers_are_bounded() -> None:
    net = Net(config=GossipConfig(known_peers_max=5))
    for n in range(20):
        net.tell(record_of(keypair(f"many {n}"), MAPPED))
    assert len(net.links.known()) == 5
    assert net.counts == ["known_peers_full"] * 15


def test_addresses_of_a_key_that_nobody_admitted_are_not_dialled() -> None:
    """Keys are free: whoever makes them must not be able to choose whom a node dials."""
    net = Net()
    stranger = make_record(PEER, PeerValue(addrs=(MAPPED,)), seq=1, issued_ms=NOW_MS)
    borrowed = make_record(PEER, PeerValue(addrs=(MAPPED,), cert=chain_of(OTHER)), seq=2, issued_ms=NOW_MS)
    for wire in (stranger, borrowed):
        assert not of_kind(net.tell(RecordChanged(SignedRecord.from_wire(wire, verify), live=True)), Dial)
    assert net.links.known() == {}


def test_a_peer_whose_record_ended_is_dialled_no_more_unless_configured() -> None:
    net = Net(bootstrap(OTHER))
    net.tell(record_of(PEER, MAPPED))
    net.tell(record_of(PEER, MAPPED, live=False))
    net.tell(record_of(OTHER, MAPPED, live=False))
    assert list(net.links.known()) == [OTHER_ID]


def test_a_linked_peer_whose_record_ended_is_forgotten_with_its_link() -> None:
    net = Net()
    net.tell(record_of(PEER, MAPPED))
    net.up()
    net.tell(record_of(PEER, MAPPED, live=False))
    assert not of_kind(net.tell(PeerDown(PEER_ID, "bye"), seconds(60)), Dial)
    assert not net.links.known()


def test_a_full_table_of_known_peers_gives_the_place_of_one_that_was_never_reached() -> None:
    net = Net(config=GossipConfig(known_peers_max=3))
    peers = [keypair(f"many {n}") for n in range(3)]
    for each in peers:
        net.tell(record_of(each, MAPPED))
    net.tell(DialFailed(PeerID(peers[1].public), "no"))
    assert of_kind(net.tell(record_of(PEER, MAPPED)), Dial)
    assert PeerID(peers[1].public) not in net.links.known()
    assert len(net.links.known()) == 3
    assert not net.tell(record_of(OTHER, MAPPED)) or net.counts == ["known_peers_full"]


# ---- letting go


def test_a_link_that_a_peer_lets_go_is_no_refusal_and_no_loss() -> None:
    net = Net(bootstrap(PEER))
    net.tell(Boot(1, 0, clean=True))
    net.up()
    assert of_kind(net.frame(Bye("enough", "this link is not needed any more")), Hangup)
    effects = net.tell(PeerDown(PEER_ID, "bye"), seconds(1))
    assert Local(Unlinked(PEER_ID, in_order=True)) in effects
    assert not of_kind(effects, Dial)
    assert not net.links.refusals


def test_a_surplus_link_is_ended_with_a_word_and_reported_as_let_go() -> None:
    net = Net(config=GossipConfig(links_full_max=0, links_min=0, links_max=0))
    net.tell(Boot(1, 0, clean=True))
    net.up()
    effects = net.tell(TimerFired(TimerKey(MACHINE, "topology")), seconds(60))
    assert [bye.code for bye in byes(effects)] == ["enough"]
    assert of_kind(effects, Hangup)
    assert Local(Unlinked(PEER_ID, in_order=True)) in net.tell(PeerDown(PEER_ID, "enough"))
