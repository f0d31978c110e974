"""Whether what is sent to an address stays on this machine; nothing is looked up."""

from __future__ import annotations

import ipaddress
from urllib.parse import urlsplit


def stays_here(url: str) -> bool:
    """True iff the host of a URL is this machine by its very form: `localhost` (RFC 6761) or a loopback address.

    Any other name counts as elsewhere, whatever it resolves to, and so does an address of the own network.
    """
    try:
        host = (urlsplit(url).hostname or "").rstrip(".").lower()
        if host == "localhost" or host.endswith(".localhost"):
            return True
        address = ipaddress.ip_address(host)
    except ValueError:
        return False
    mapped = address.ipv4_mapped if isinstance(address, ipaddress.IPv6Address) else None
    return (mapped or address).is_loopback
