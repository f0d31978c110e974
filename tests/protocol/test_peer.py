"""Peer ids and addresses as text: one form each, and nothing but DecodeError for the rest (cases N1, N2)."""

from __future__ import annotations

import ipaddress

import base58
import pytest
from hypothesis import given, strategies as st

from protocol.errors import DecodeError
from protocol.peer import ADDRESS_CHARS_MAX, Multiaddr, PeerID, parse_peer, peer_id, peer_text, short
from tests.strategies import ids, keypair

PEER = PeerID(keypair("peer").public)
hosts, ports = st.ip_addresses().map(str), st.integers(0, 65535)
pairs = st.lists(ids.map(PeerID), min_size=2, max_size=2, unique=True)
circuits = st.builds(lambda host, port, pair: Multiaddr(host, port, *pair), hosts, ports, pairs)
addresses = st.builds(Multiaddr, hosts, ports, st.none() | ids.map(PeerID)) | circuits


@given(ids)
def test_a_peer_id_has_one_text_form(raw: bytes) -> None:
    text = peer_text(raw)
    assert parse_peer(text) == raw
    assert text.startswith("12D3KooW")
    assert len(short(raw)) == 8


@given(st.text(max_size=60) | st.binary(max_size=45).map(lambda raw: base58.b58encode(raw).decode()))
def test_other_text_is_no_peer_id(text: str) -> None:
    try:
        raw = parse_peer(text)
    except DecodeError:
        return
    assert peer_text(raw) == text


@pytest.mark.parametrize("around", ["{} ", "{}\n", " {}", "1{}", "{}1"])
def test_a_peer_id_with_something_around_it_is_refused(around: str) -> None:
    with pytest.raises(DecodeError):
        parse_peer(around.format(peer_text(PEER)))


@pytest.mark.parametrize("size", [0, 31, 33])
def test_a_peer_id_has_32_bytes(size: int) -> None:
    with pytest.raises(DecodeError):
        peer_id(bytes(size))


@given(addresses)
def test_an_address_comes_back_equal(addr: Multiaddr) -> None:
    assert Multiaddr.parse(str(addr)) == addr


@given(circuits)
def test_a_circuit_names_the_relay_first_and_goes_to_its_address(addr: Multiaddr) -> None:
    assert addr.relay is not None
    assert addr.peer is not None
    parts = str(addr).split("/")
    assert parts[6:] == [peer_text(addr.relay), "p2p-circuit", "p2p", peer_text(addr.peer)]
    assert addr.base == Multiaddr(addr.host, addr.port)
    assert addr.dialable is addr.base.dialable


@given(addresses, st.data())
def test_damaged_address_text_is_another_address_or_refused(addr: Multiaddr, data: st.DataObject) -> None:
    text = str(addr)
    at = data.draw(st.integers(0, len(text) - 1))
    changed = text[:at] + data.draw(st.text(max_size=2)) + text[at + 1 :]
    try:
        other = Multiaddr.parse(changed)
    except DecodeError:
        return
    assert Multiaddr.parse(str(other)) == other


@given(st.text(max_size=80) | st.text("/ip46tcp2.:0%", max_size=40).map("/ip4/".__add__))
def test_any_other_text_is_refused_with_one_error(text: str) -> None:
    try:
        addr = Multiaddr.parse(text)
    except DecodeError:
        return
    assert Multiaddr.parse(str(addr)) == addr


@pytest.mark.parametrize(
    "text",
    [
        "", "/", "/ip4", "ip4/1.2.3.4/tcp/1", "/ip4/1.2.3.4/tcp/1/", "/ip4/1.2.3.4/udp/1", "/dns4/example.org/tcp/1",
        "/ip4/1.2.3.4/tcp/65536", "/ip4/1.2.3.4/tcp/-1", "/ip4/1.2.3.4/tcp/01", "/ip4/1.2.3.4/tcp/+1",
        "/ip4/1.2.3.4/tcp/1_0", "/ip4/1.2.3.4/tcp/\u0661", "/ip4/1.2.3.4/tcp/ 1", "/ip4/1.2.3/tcp/1",
        "/ip4/01.2.3.4/tcp/1", "/ip4/::1/tcp/1", "/ip6/1.2.3.4/tcp/1", "/ip4/1.2.3.4/tcp/1/p2p",
        f"/ip4/1.2.3.4/tcp/1/ipfs/{peer_text(PEER)}",
        "/ip4/1.2.3.4/tcp/1/p2p/QmYwAPJzv5CZsnA625s3Xf2nemtYgPpHdWEz79ojWnPbdG",
        f"/ip4/1.2.3.4/tcp/1/p2p/{peer_text(PEER)}/p2p-circuit",
        f"/ip4/1.2.3.4/tcp/1/p2p-circuit/p2p/{peer_text(PEER)}",
        f"/ip4/1.2.3.4/tcp/1/p2p/{peer_text(PEER)}/p2p-circuit/p2p/{peer_text(PEER)}",
        f"/ip4/1.2.3.4/tcp/1/p2p/{peer_text(PEER)}/p2p-circuit/p2p/x",
        f"/ip4/1.2.3.4/tcp/1/p2p/{peer_text(PEER)}/p2p-circuit/ipfs/{peer_text(bytes(32))}",
        f"/ip4/1.2.3.4/tcp/1/p2p/{peer_text(PEER)}/p2p-circuit/p2p/{peer_text(bytes(32))}/p2p-circuit",
        "/ip4/1.2.3.4/tcp/1/p2p/" + "1" * ADDRESS_CHARS_MAX,
        "/ip6/fe80::1%eth0/tcp/1", "/ip6/2001:db8::1%\x1b[2J/tcp/1",
    ],
)  # fmt: skip
def test_addresses_that_nobody_writes_are_refused(text: str) -> None:
    with pytest.raises(DecodeError):
        Multiaddr.parse(text)


@pytest.mark.parametrize(
    ("host", "port", "dialable"),
    [
        ("127.0.0.1", 4001, True), ("10.1.2.3", 1, True), ("203.0.113.9", 65535, True), ("::1", 4001, True),
        ("0.0.0.0", 4001, False), ("::", 4001, False), ("127.0.0.1", 0, False), ("::1", 0, False),
        ("224.0.0.1", 4001, False), ("ff02::1", 4001, False), ("169.254.1.1", 4001, False), ("fe80::1", 4001, False),
        ("::ffff:0.0.0.0", 4001, False), ("::ffff:224.0.0.1", 4001, False), ("::ffff:10.1.2.3", 4001, True),
    ],
)  # fmt: skip
def test_wildcards_port_zero_multicast_and_link_local_are_not_dialled(host: str, port: int, *, dialable: bool) -> None:
    addr = Multiaddr(str(ipaddress.ip_address(host)), port)
    assert addr.dialable is dialable
    assert Multiaddr.parse(str(addr)).dialable is dialable
