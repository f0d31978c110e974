"""What a node tells others about where it is, and what it knows to be itself (cases N1, N2)."""

from __future__ import annotations

import ipaddress
import socket

import pytest

from node.addresses import ListenAddresses, interface_hosts
from node.dialer import usable_addresses
from protocol.errors import ConfigError
from protocol.peer import Multiaddr, PeerID, PeerInfo, peer_text

ME, OTHER = PeerID(bytes(32)), PeerID(b"\x01" * 32)


def bound(*actual: str, announce: tuple[str, ...] = ()) -> ListenAddresses:
    addresses = ListenAddresses(actual, announce)
    addresses.bound(actual)
    return addresses


@pytest.mark.parametrize(("wildcard", "version"), [("/ip4/0.0.0.0", 4), ("/ip6/::", 6)])
def test_a_wildcard_becomes_the_interfaces_and_loopback(wildcard: str, version: int) -> None:
    addresses = bound(f"{wildcard}/tcp/4001")
    assert all(addr.dialable and addr.port == 4001 for addr in addresses.announced)
    hosts = [addr.host for addr in addresses.announced]
    assert hosts == [*interface_hosts(version), "127.0.0.1" if version == 4 else "::1"]


def test_a_concrete_address_is_announced_as_bound() -> None:
    addresses = ListenAddresses(("/ip4/127.0.0.1/tcp/0",), ())
    assert not addresses.announced
    addresses.bound(("/ip4/127.0.0.1/tcp/50123",))
    assert addresses.announced == (Multiaddr("127.0.0.1", 50123),)


def test_interface_hosts_are_our_own_and_public_to_the_link() -> None:
    for host in interface_hosts(4):
        ip = ipaddress.ip_address(host)
        assert not any((ip.is_loopback, ip.is_unspecified, ip.is_link_local))
        with socket.socket() as sock:
            sock.bind((host, 0))


@pytest.mark.parametrize("announce", ["/ip4/0.0.0.0/tcp/4001", "/ip4/224.0.0.1/tcp/1", "/dns4/x.org/tcp/1", "here"])
def test_an_announced_address_that_nobody_can_dial_is_refused(announce: str) -> None:
    with pytest.raises(ConfigError):
        ListenAddresses(("/ip4/127.0.0.1/tcp/0",), (announce,))


def test_fewer_bound_than_asked_for_is_refused() -> None:
    addresses = ListenAddresses(("/ip4/127.0.0.1/tcp/0", "/ip4/127.0.0.1/tcp/1"), ())
    with pytest.raises(ConfigError, match="bound only"):
        addresses.bound(("/ip4/127.0.0.1/tcp/50123",))


def test_own_addresses_are_known_under_every_name() -> None:
    wild = bound("/ip4/0.0.0.0/tcp/4001", announce=("/ip4/192.0.2.7/tcp/0",))
    own = ["/ip4/127.0.0.1/tcp/4001", "/ip4/127.3.2.1/tcp/4001", "/ip4/192.0.2.7/tcp/4001"]
    own += [f"/ip4/{host}/tcp/4001" for host in interface_hosts(4)]
    assert all(wild.is_own(Multiaddr.parse(text)) for text in own)
    assert not wild.is_own(Multiaddr.parse("/ip4/127.0.0.1/tcp/4002"))
    assert not wild.is_own(Multiaddr.parse("/ip4/192.0.2.8/tcp/4001"))


def test_only_addresses_worth_a_dial_are_left_in_their_order() -> None:
    addrs = (
        "/ip4/192.0.2.1/tcp/1",
        "/ip4/0.0.0.0/tcp/1",
        "/ip4/192.0.2.2/tcp/0",
        "/dns4/example.org/tcp/1",
        f"/ip4/192.0.2.3/tcp/1/p2p/{peer_text(ME)}",
        f"/ip4/192.0.2.4/tcp/1/p2p/{peer_text(OTHER)}",
        "/ip4/192.0.2.5/tcp/1",
    )
    usable, refused = usable_addresses(PeerInfo(OTHER, addrs), lambda addr: addr.host == "192.0.2.5")
    assert [str(addr) for addr in usable] == ["/ip4/192.0.2.1/tcp/1", "/ip4/192.0.2.4/tcp/1"]
    assert len(refused) == 5


def test_at_most_eight_addresses_of_a_peer_are_used() -> None:
    addrs = tuple(f"/ip4/192.0.2.{n}/tcp/1" for n in range(1, 100))
    usable, refused = usable_addresses(PeerInfo(OTHER, addrs), lambda _addr: False)
    assert len(usable) + len(refused) == 8


def test_circuits_come_after_every_direct_address_and_lead_to_this_peer() -> None:
    relay = PeerID(bytes(32))
    circuit, foreign = str(Multiaddr("192.0.2.1", 1, OTHER, relay)), str(Multiaddr("192.0.2.1", 1, ME, relay))
    own = str(Multiaddr("192.0.2.5", 1, OTHER, relay))
    addrs = (circuit, foreign, own, "/ip4/192.0.2.2/tcp/1")
    usable, refused = usable_addresses(PeerInfo(OTHER, addrs), lambda addr: addr.host == "192.0.2.5")
    assert [str(addr) for addr in usable] == ["/ip4/192.0.2.2/tcp/1", circuit]
    assert len(refused) == 2


@pytest.mark.parametrize("use", ["listen", "announce"])
def test_a_circuit_is_nothing_to_bind_or_announce_by_hand(use: str) -> None:
    circuit = (str(Multiaddr("192.0.2.1", 1, OTHER, PeerID(bytes(32)))),)
    with pytest.raises(ConfigError, match="relay"):
        ListenAddresses(circuit if use == "listen" else (), circuit if use == "announce" else ())
