"""What is said about reachability: the verdict, the jobs that find it out, and which addresses a node may test.

A node is `direct` when others reach an address of its own, `relay` when it holds a place at a relay, `outbound-only`
when it was tested and nobody got through, and `unknown` before that. Words only; gossip/reachability.py decides.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Literal, NamedTuple

from protocol.errors import DecodeError
from protocol.machine import JobSpec
from protocol.peer import ADDRESSES_PER_PEER_MAX, Multiaddr, PeerID, plain_ip

REACH_S: Final = 5.0  # for all addresses of one test, which are dialled at once
RELAY_ROLE: Final = "relay"  # in Hello.roles of a node that serves circuits
NOT_TRIED: Final = "not tried"  # how the reason of a DialedBack begins that says nothing about the addresses
NOT_REACHED: Final = "not reached"
REASON_CHARS_MAX: Final = 120
_SUBNET_BITS: Final = 64  # of an IPv6 address, below its network

ReachVerdict = Literal["direct", "relay", "outbound-only", "unknown"]
RelayUse = Literal["off", "client", "serve"]


@dataclass(frozen=True, slots=True)
class ReachConfig:
    """Times in boot microseconds.

    Attributes:
        relay: `client` takes a place at a relay when nobody reaches this node; `serve` is the transport's business.
        asked_max: peers whose word makes a verdict; that many are asked, and kept in mind.
        settle_us: after a new link or address, so that one round asks everybody.
        retry_us: between rounds while the verdict is open or no peer could test.
        check_every_us: between rounds otherwise.
        answer_us: for a DialedBack; the asked peer may have others to test before.
        evidence_us: an answer, or a link that a peer dialled, counts so long; a link that is up counts as well.
        serve_every_us: one peer is tested at most this often.
        waiting_max: peers that wait for their test; one is run at a time.
        served_per_min_max: tests in all.
        relay_retry_us: a relay that refused is asked again after this time.
    """

    relay: RelayUse = "off"
    asked_max: int = 3
    settle_us: int = 1_000_000
    retry_us: int = 30_000_000
    check_every_us: int = 900_000_000
    answer_us: int = 30_000_000
    evidence_us: int = 3_600_000_000
    serve_every_us: int = 10_000_000
    waiting_max: int = 4
    served_per_min_max: int = 30
    relay_retry_us: int = 60_000_000


# ---- jobs and their results


@dataclass(frozen=True, slots=True)
class ReachTest(JobSpec):
    """Dial a linked peer anew at addresses that it names; the connections carry nothing and are no links."""

    peer: PeerID
    addrs: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Reached:
    """Where the peer answered under its own identity; `reason` says what was wrong with the other addresses."""

    addrs: tuple[str, ...]
    reason: str
    tried: bool = True


@dataclass(frozen=True, slots=True)
class Reserve(JobSpec):
    """Ask a linked relay for a place, or to renew it."""

    relay: PeerID


@dataclass(frozen=True, slots=True)
class Reserved:
    """A place at a relay: others reach this node at `addrs`, for `ttl_us` from now and while the link stays."""

    addrs: tuple[str, ...]
    ttl_us: int


# ---- events


@dataclass(frozen=True, slots=True)
class InboundLink:
    """A peer dialled this node at an address of its own, and the link is up. Comes from the transport."""

    peer: PeerID


@dataclass(frozen=True, slots=True)
class ReachabilityChanged:
    """The verdict changed, or the circuit addresses that go with it.

    Attributes:
        seen_from: peers that got through.
        relay_addrs: to announce behind the own addresses.
    """

    verdict: ReachVerdict
    seen_from: int
    relay_addrs: tuple[str, ...] = ()

    @property
    def serving(self) -> bool:
        """Whether others can count on this node to hold what they store. `unknown` does not serve yet.

        To serve too early loses keys (a record on a node that nobody reaches is gone), to serve too late only
        delays. Nor can it lock up: of the two ends of any direct link one was dialled, and that one is `direct`.
        """
        return self.verdict == "direct"


# ---- which addresses may be tested


class Testable(NamedTuple):
    """The addresses worth a dial, as the asker wrote them and parsed; and why the others are not."""

    addrs: list[tuple[str, Multiaddr]]
    refused: list[str]


def testable(asker: PeerID, addrs: tuple[str, ...], link_host: str | None) -> Testable:
    """The addresses that a node may dial for a peer without becoming its weapon.

    Whoever asks chooses where packets go and is told what became of them, so only where it is itself: the host that
    its link comes from, loopback being one host under many addresses. Other private hosts are not: a member from
    outside, over a VPN say, would see by this node's eyes what runs in its network. Of private IPv6 addresses a host
    has several in one /64 and dials from one that changes (RFC 8981), so those may stand for each other; what lies
    behind them is not told (`same_host`).

    `link_host` is the IP address at the other end of the link, None if a relay carries it.
    """
    if link_host is None:
        return Testable([], ["the link goes through a relay"])
    usable: list[tuple[str, Multiaddr]] = []
    refused: list[str] = []
    for text in dict.fromkeys(addrs[:ADDRESSES_PER_PEER_MAX]):
        try:
            addr = Multiaddr.parse(text)
        except DecodeError:
            refused.append("an address is malformed")
            continue
        if addr.relay is not None or not addr.dialable or addr.peer not in (None, asker):
            refused.append(f"{addr.base}: cannot be dialled")
        elif not _same_place(addr.host, link_host):
            refused.append(f"{addr.base}: the link comes from another host")
        else:
            usable.append((text, addr.base))
    return Testable(usable, refused)


def same_host(host: str, link_host: str) -> bool:
    """Whether an address is for sure of the host that the link comes from, which may know all about itself."""
    one, other = plain_ip(host), plain_ip(link_host)
    return one == other or (one.is_loopback and other.is_loopback)


def _same_place(host: str, link_host: str) -> bool:
    if same_host(host, link_host):
        return True
    one, other = plain_ip(host), plain_ip(link_host)
    private = one.version == other.version == 6 and one.is_private and other.is_private
    return private and int(one) >> _SUBNET_BITS == int(other) >> _SUBNET_BITS
