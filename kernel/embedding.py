"""The encoder port, and the one way a float vector becomes the int8 vector that ops carry.

Vectors travel as `int8[dim]` (protocol.md §3): the author quantises once, every replica compares
the same bytes with exact integers, so equal units give equal semantic edges everywhere
(masos-kernel.md §6). Scaling is by the largest magnitude, not by the norm: a unit vector of 512
dimensions has components near 0.04, and 127 times that would leave six steps. The scale drops out
of the cosine. Error of the cosine: <= 0.0012 on random vectors of 384 and 1024 dimensions
[masos-kernel.md §6].

What is odd (case K5): NaN and infinity are refused, never spread; a zero vector stays zero bytes
and is similar to nothing; a vector of another dimension is an error here, and is skipped and
counted where it comes from a peer.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Final, Protocol

from protocol.errors import EngineError

INT8_LIMIT: Final = 127  # symmetric: -128 is never produced, so negation is exact
DIM_MAX: Final = 1040
"""Above it float32 BLAS no longer adds int8 products exactly (DESIGN.md §9, `kernel`)."""
TEXTS_MAX: Final = 256
"""Texts in one `encode`."""


class Encoder(Protocol):
    """Text to vectors; it is a property of the swarm, named in its genesis (protocol.md §3)."""

    @property
    def encoder_id(self) -> str:
        """The id that units and the genesis carry, such as `use-512`."""
        ...

    @property
    def dim(self) -> int:
        """Components of each vector."""
        ...

    async def encode(self, texts: tuple[str, ...]) -> tuple[bytes, ...]:
        """One `int8[dim]` per text, in order; an empty or blank text gives the zero vector.

        Raises:
            EngineError: too many texts, or the encoder failed.
        """
        ...

    async def aclose(self) -> None:
        """Frees the model."""
        ...


def quantise(vector: Sequence[float], dim: int) -> bytes:
    """The vector as `int8[dim]`, two's complement, scaled so that its peak becomes 127.

    Raises:
        EngineError: another dimension than `dim`, or a component that is NaN or infinite.
    """
    if not 0 < dim <= DIM_MAX:
        raise EngineError(f"dimension {dim} is outside 1..{DIM_MAX}")
    if len(vector) != dim:
        raise EngineError(f"a vector of {len(vector)} components where {dim} belong")
    values = [float(component) for component in vector]
    if not all(map(math.isfinite, values)):
        raise EngineError("a vector component is not a finite number")
    peak = max(map(abs, values))
    if peak == 0.0:
        return zero_vector(dim)
    # Divide first: 127 / peak overflows for subnormal peaks, value / peak never exceeds 1.
    return bytes(round(value / peak * INT8_LIMIT) & 0xFF for value in values)


def zero_vector(dim: int) -> bytes:
    """The vector that is similar to nothing."""
    return bytes(dim)


def components(vector: bytes) -> tuple[int, ...]:
    """The signed integers behind the bytes."""
    return tuple(memoryview(vector).cast("b").tolist())
