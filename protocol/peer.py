"""Who a peer is and where it may be dialled.

A PeerID is the node's Ed25519 public key (32 bytes). libp2p's text form for such a key is the identity
multihash of its protobuf, so both directions are pure functions and no table maps one to the other.
The same 32 bytes are the `author` of its ops: an authenticated connection and a signature name one thing.
"""

from __future__ import annotations

import ipaddress
from dataclasses import dataclass
from typing import Final, NewType

import base58

from protocol.errors import DecodeError

PeerID = NewType("PeerID", bytes)

PEER_ID_BYTES: Final = 32
_ED25519_MULTIHASH_PREFIX: Final = bytes.fromhex("002408011220")  # identity hash, 36 bytes, key type 1
ADDRESS_CHARS_MAX: Final = 256
ADDRESSES_PER_PEER_MAX: Final = 8  # libp2p.md §5


def peer_id(raw: bytes) -> PeerID:
    """The PeerID of a raw Ed25519 public key.

    Raises:
        DecodeError: it is not 32 bytes.
    """
    if len(raw) != PEER_ID_BYTES:
        raise DecodeError(f"a peer id is {PEER_ID_BYTES} bytes, got {len(raw)}")
    return PeerID(raw)


def peer_text(peer: bytes) -> str:
    """The libp2p text form, `12D3KooW…`."""
    return base58.b58encode(_ED25519_MULTIHASH_PREFIX + peer).decode("ascii")


def parse_peer(text: str) -> PeerID:
    """The PeerID behind a libp2p text form.

    Raises:
        DecodeError: not base58, or not the id of an Ed25519 key.
    """
    try:
        raw = base58.b58decode(text)
    except ValueError as exc:
        raise DecodeError(f"not a peer id: {text[:64]!r}") from exc
    if not raw.startswith(_ED25519_MULTIHASH_PREFIX):
        raise DecodeError(f"not the peer id of an Ed25519 key: {text[:64]!r}")
    peer = peer_id(raw[len(_ED25519_MULTIHASH_PREFIX) :])
    if peer_text(peer) != text:  # the library strips white space; one peer has one text
        raise DecodeError(f"not the text form of a peer id: {text[:64]!r}")
    return peer


def short(peer: bytes) -> str:
    """The last eight characters of the text form, enough for logs and tables."""
    return peer_text(peer)[-8:]


@dataclass(frozen=True, slots=True, order=True)
class Multiaddr:
    """A TCP address `/ip4|ip6/HOST/tcp/PORT`, optionally with `/p2p/PEER`; the only kind that nodes dial.

    With `relay` it is a circuit `/ip4|ip6/HOST/tcp/PORT/p2p/RELAY/p2p-circuit/p2p/PEER`: host and port are the
    relay's, and `peer` is reached through it. A circuit always names both, and they differ.
    """

    host: str
    port: int
    peer: PeerID | None = None
    relay: PeerID | None = None

    @classmethod
    def parse(cls, text: str) -> Multiaddr:
        """Read the text form.

        Raises:
            DecodeError: not an IP-over-TCP multiaddr, nor a circuit over one.
        """
        parts = text.split("/")
        if len(text) > ADDRESS_CHARS_MAX or len(parts) not in (5, 7, 10) or parts[0] or parts[3] != "tcp":
            raise DecodeError(f"not a /ip4|ip6/…/tcp/… multiaddr: {text[:80]!r}")
        try:
            ip = ipaddress.ip_address(parts[2])
            port = int(parts[4])
        except ValueError as exc:
            raise DecodeError(f"bad host or port in {text[:80]!r}") from exc
        if "%" in parts[2] or parts[1] != f"ip{ip.version}" or not 0 <= port <= 65535 or str(port) != parts[4]:
            raise DecodeError(f"bad host or port in {text[:80]!r}")
        return cls(str(ip), port, *_peers_of(parts[5:], text))

    def __str__(self) -> str:
        family = ipaddress.ip_address(self.host).version
        through = f"/p2p/{peer_text(self.relay)}/p2p-circuit" if self.relay is not None else ""
        tail = f"/p2p/{peer_text(self.peer)}" if self.peer is not None else ""
        return f"/ip{family}/{self.host}/tcp/{self.port}{through}{tail}"

    @property
    def dialable(self) -> bool:
        """False for wildcard, port 0, multicast and link-local addresses (libp2p.md §5, rule 3)."""
        ip = plain_ip(self.host)
        return bool(self.port) and not (ip.is_unspecified or ip.is_multicast or ip.is_link_local)

    @property
    def base(self) -> Multiaddr:
        """Host and port alone: whom the packets go to first."""
        return Multiaddr(self.host, self.port)


def plain_ip(host: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address:
    """The IP behind a host text; an IPv4 address in IPv6 clothes comes back as what it is.

    Raises:
        ValueError: no IP address.
    """
    ip = ipaddress.ip_address(host)
    return ip.ipv4_mapped if isinstance(ip, ipaddress.IPv6Address) and ip.ipv4_mapped is not None else ip


def _peers_of(parts: list[str], text: str) -> tuple[PeerID | None, PeerID | None]:
    """The peer and the relay that the parts after the port name."""
    match parts:
        case []:
            return None, None
        case ["p2p", peer]:
            return parse_peer(peer), None
        case ["p2p", relay, "p2p-circuit", "p2p", peer] if relay != peer:
            return parse_peer(peer), parse_peer(relay)
        case _:
            raise DecodeError(f"unexpected parts {'/'.join(parts)[:64]!r} in {text[:80]!r}")


@dataclass(frozen=True, slots=True)
class PeerInfo:
    """A peer and the addresses to try, best first; at most ADDRESSES_PER_PEER_MAX are used."""

    peer: PeerID
    addrs: tuple[str, ...]
