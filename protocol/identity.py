r"""Ed25519 keys and purpose-prefixed signatures.

A signature says for what it was made: the signed bytes start with `masos/<purpose>/1\0`, so a signature made
for one kind of document can never stand under another. An op's signature is over its id, and the id is a
hash under the purpose prefix `masos/op/1\0` already (replication.md §2.1).
Ed25519 signatures are deterministic, so equal keys and bytes give equal signatures in every run.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from typing import Final

from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey

SEED_BYTES: Final = 32
SIGNATURE_BYTES: Final = 64

Verify = Callable[[bytes, bytes, bytes], bool]  # (public key, message, signature); simulations memoise it


class KeyPair:
    """A private key and its public half. Never printed, never pickled."""

    def __init__(self, seed: bytes) -> None:
        self._private = Ed25519PrivateKey.from_private_bytes(seed)
        self.public: bytes = self._private.public_key().public_bytes_raw()

    def sign(self, purpose: str, data: bytes) -> bytes:
        """Signature over the data under a purpose prefix."""
        return self._private.sign(prefixed(purpose, data))

    def sign_raw(self, data: bytes) -> bytes:
        """Signature over bytes that carry their purpose already (an op id)."""
        return self._private.sign(data)

    def seed(self) -> bytes:
        """The private key itself, for the one library that must have it (libp2p's own handshake)."""
        return self._private.private_bytes_raw()

    def __repr__(self) -> str:
        return f"KeyPair({self.public.hex()[:8]}…)"


def prefixed(purpose: str, data: bytes) -> bytes:
    """The exact bytes that a purpose signature covers."""
    return f"masos/{purpose}/1\0".encode() + data


def digest(purpose: str, *parts: bytes) -> bytes:
    """SHA-256 of the concatenated parts under a purpose prefix; the parts must be of fixed or framed length."""
    return hashlib.sha256(prefixed(purpose, b"".join(parts))).digest()


def h64(*parts: bytes) -> int:
    """First 8 bytes of SHA-256 over the concatenation, big-endian (protocol.md §7.3)."""
    return int.from_bytes(hashlib.sha256(b"".join(parts)).digest()[:8], "big")


def verify_raw(public: bytes, message: bytes, signature: bytes) -> bool:
    """True iff the signature is the key's over exactly these bytes."""
    try:
        Ed25519PublicKey.from_public_bytes(public).verify(signature, message)
    except (InvalidSignature, ValueError):
        return False
    return True


def verify(public: bytes, purpose: str, data: bytes, signature: bytes) -> bool:
    """True iff the signature is the key's over the data under this purpose."""
    return verify_raw(public, prefixed(purpose, data), signature)
