"""Similarity written out in plain integers: what the product's own, which is one matrix product, is compared with."""

from __future__ import annotations

from kernel.embedding import components


def similarity_parts(left: bytes, right: bytes) -> tuple[int, int, int]:
    """Exact (dot, |left|^2, |right|^2) of two vectors of one dimension.

    The cosine is dot / sqrt(|left|^2 * |right|^2): compare it with a rational, in integers.
    """
    a, b = components(left), components(right)
    dot = sum(x * y for x, y in zip(a, b, strict=True))
    return dot, sum(x * x for x in a), sum(y * y for y in b)
