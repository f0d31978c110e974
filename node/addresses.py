"""The own addresses of a node: what it binds, what it tells others, what it must never dial.

A listener bound to a wildcard is reachable at every interface, yet 0.0.0.0 is an address for nobody; and port 0
says nothing until it is bound (P19, cases N1, N2). So the announced list is made after binding: the configured
one if there is one, else the bound address itself, else loopback and the interface addresses with the bound port.
Interface addresses are found without any traffic: connecting a UDP socket only asks the routing table.
"""

from __future__ import annotations

import ipaddress
import socket
from typing import Final

from protocol.errors import ConfigError, DecodeError
from protocol.peer import ADDRESSES_PER_PEER_MAX, Multiaddr

# Addresses in the usual ranges; the route to each tells one interface. Documentation ranges stand for "outside".
_PROBES: Final = {
    4: ("192.0.2.1", "10.255.255.254", "172.31.255.254", "192.168.255.254", "100.64.0.1"),
    6: ("2001:db8::1", "fd00::1"),
}
_LOOPBACK: Final = {4: "127.0.0.1", 6: "::1"}


def interface_hosts(version: int) -> tuple[str, ...]:
    """Own addresses of IP `version` as the routing table tells them, without loopback and link-local."""
    family = socket.AF_INET if version == 4 else socket.AF_INET6
    hosts: dict[str, None] = {}
    for probe in _PROBES[version]:
        try:
            with socket.socket(family, socket.SOCK_DGRAM) as sock:
                sock.connect((probe, 9))
                host = str(sock.getsockname()[0])
        except OSError:
            continue  # no route there
        ip = ipaddress.ip_address(host)
        if not (ip.is_loopback or ip.is_link_local or ip.is_unspecified):
            hosts[host] = None
    return tuple(hosts)


class ListenAddresses:
    """Listen and announce addresses of one node.

    Args:
        listen: multiaddrs to bind.
        announce: multiaddrs to tell others instead; port 0 stands for the first bound port.

    Raises:
        ConfigError: an address is malformed, or could not be dialled by anybody.
    """

    def __init__(self, listen: tuple[str, ...], announce: tuple[str, ...]) -> None:
        self._listen = tuple(_parse(text, "listen") for text in listen)
        self._announce = tuple(_parse(text, "announce") for text in announce)
        for addr in self._announce:
            if not Multiaddr(addr.host, addr.port or 1).dialable:
                raise ConfigError(f"nobody can dial {addr}", hint="announce an address of this machine")
        self._bound: tuple[Multiaddr, ...] = ()
        self._own: frozenset[tuple[str, int]] = frozenset()
        self.announced: tuple[Multiaddr, ...] = ()

    @property
    def listen(self) -> tuple[str, ...]:
        """The addresses to bind."""
        return tuple(map(str, self._listen))

    def check_free(self) -> None:
        """Refuse a port that another process listens on.

        The library binds with SO_REUSEPORT, so that a second daemon on the same port would bind as well and
        silently take half of the connections. A plain bind tells.

        Raises:
            ConfigError: the address cannot be bound.
        """
        for addr in self._listen:
            family = socket.AF_INET6 if ":" in addr.host else socket.AF_INET
            try:
                with socket.socket(family, socket.SOCK_STREAM) as sock:
                    sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                    sock.bind((addr.host, addr.port))
            except OSError as exc:
                raise ConfigError(
                    f"cannot listen on {addr}: {exc.strerror or exc}",
                    hint="another node may be running there; choose another port or stop it",
                ) from exc

    def bound(self, actual: tuple[str, ...]) -> None:
        """Take the addresses that the listener is really bound to.

        Raises:
            ConfigError: fewer than asked for.
        """
        self._bound = tuple(_parse(text, "bound") for text in actual)
        if len(self._bound) < len(self._listen):
            raise ConfigError(f"bound only {', '.join(actual) or 'nothing'} of {', '.join(self.listen)}")
        expanded = tuple(each for addr in self._bound for each in _expand(addr))
        if self._announce:
            port = self._bound[0].port if self._bound else 0
            chosen = tuple(Multiaddr(addr.host, addr.port or port) for addr in self._announce)
        else:
            chosen = expanded
        dialable = dict.fromkeys(addr for addr in chosen if addr.dialable)
        self.announced = tuple(dialable)[:ADDRESSES_PER_PEER_MAX]
        self._own = frozenset((addr.host, addr.port) for addr in (*expanded, *chosen))

    def is_own(self, addr: Multiaddr) -> bool:
        """True for an address that leads back to this node."""
        if (addr.host, addr.port) in self._own:
            return True
        ip = ipaddress.ip_address(addr.host)
        return ip.is_loopback and any(
            wild.port == addr.port and ipaddress.ip_address(wild.host).is_unspecified for wild in self._bound
        )


def _parse(text: str, use: str) -> Multiaddr:
    try:
        addr = Multiaddr.parse(text)
    except DecodeError as exc:
        raise ConfigError(f"{use} address: {exc.message}", hint="write it as /ip4/192.0.2.7/tcp/4001") from exc
    if addr.relay is not None:
        raise ConfigError(f"{use} address goes through a relay: {text}", hint='set node.relay = "client" instead')
    return addr.base


def _expand(addr: Multiaddr) -> tuple[Multiaddr, ...]:
    ip = ipaddress.ip_address(addr.host)
    if not ip.is_unspecified:
        return (addr,)
    hosts = (*interface_hosts(ip.version), _LOOPBACK[ip.version])
    return tuple(Multiaddr(host, addr.port) for host in hosts)
