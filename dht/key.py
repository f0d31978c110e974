"""Places in the id space of the DHT (libp2p.md §8, rule 2).

Nodes and keys live in one space of 160 bits: the first 20 bytes of SHA-256 over a domain tag and the peer id or the
key. So nobody chooses a place, and a key can never be a node. Distance is XOR, read as a number.
"""

from __future__ import annotations

import random
from typing import Final

from protocol.identity import digest
from protocol.messages import DHT_KEY_BYTES

ID_BYTES: Final = DHT_KEY_BYTES
ID_BITS: Final = 8 * ID_BYTES


def node_id(peer: bytes) -> bytes:
    """Where a node stands."""
    return digest("dht-node", peer)[:ID_BYTES]


def key_id(key: bytes) -> bytes:
    """Where the records under a key belong."""
    return digest("dht-key", key)[:ID_BYTES]


def distance(one: bytes, other: bytes) -> int:
    """XOR distance of two places; symmetric, and zero for equal places only."""
    return int.from_bytes(one, "big") ^ int.from_bytes(other, "big")


def random_id(low: int, high: int, rng: random.Random) -> bytes:
    """A place in low..high, both included, as far as the id space reaches."""
    return rng.randint(low, min(high, 2**ID_BITS - 1)).to_bytes(ID_BYTES, "big")
