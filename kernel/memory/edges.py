"""Semantic edges and similarity ranking in exact integers (replication.md §3.2, masos-kernel.md §6).

    u -> v   iff   v is in the causal past of u,  dot > 0,  q²·dot² >= p²·|u|²·|v|²   (cosine >= tau = p/q)

and v is among the k best of these by cosine, ties by the smaller id. Vectors are `int8[dim]` of one encoder. Every
verdict is made by integers of unlimited size, so a CPU, a GPU and another BLAS give the same graph.

How it stays fast: products of int8 vectors are integers, and float32 adds them exactly while every partial sum is
at most 2^24, that is up to dimension 1024 (128·128·1024 = 2^24). So one BLAS call gives all dot products exactly.
float64 cosines only narrow the field, with a margin a million times their error; what is left is judged exactly.
One look at n vectors costs one n x dim product (1.3 ms at n = 10,000, dim = 512 [DESIGN.md §9]).

What is odd (case K5): a zero vector has cosine 0 to everything; another dimension is skipped and counted, never
scored 0 in silence; NaN cannot occur in int8 and is refused where floats are quantised (kernel/embedding.py).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Final

import numpy as np
from numpy.typing import NDArray

DIM_MAX: Final = 1024
"""Above it float32 no longer adds int8 products exactly when a peer sends -128."""
_MARGIN: Final = 1e-9  # float64 division is off by 2^-53 relative; the margin only has to be larger
_ROWS_MIN = 16

Ints = NDArray[np.int64]
Mask = NDArray[np.bool_]


@dataclass(frozen=True, slots=True)
class Tau:
    """The threshold of the swarm's encoder as the rational p/q, with 0 < p <= q."""

    p: int
    q: int

    def __post_init__(self) -> None:
        assert 0 < self.p <= self.q, "tau is a rational in (0, 1]"

    def admits(self, dot: int, norm_a: int, norm_b: int) -> bool:
        """Whether cosine >= p/q, from the dot product and the two squared norms."""
        return dot > 0 and self.q * self.q * dot * dot >= self.p * self.p * norm_a * norm_b


class VectorTable:
    """Vectors of one dimension in rows, each with a number of its owner's; a row is never changed or removed."""

    def __init__(self, dim: int) -> None:
        assert 0 < dim <= DIM_MAX, f"dimension {dim} is outside 1..{DIM_MAX}"
        self.dim = dim
        # Nothing is reserved before the first vector: a space costs little until something is remembered in it.
        self._rows = np.zeros((0, dim), dtype=np.float32)
        self._norms = np.zeros(0, dtype=np.int64)
        self._tags = np.zeros(0, dtype=np.int64)
        self._count = 0

    def __len__(self) -> int:
        return self._count

    @property
    def norms(self) -> Ints:
        """Squared norm of each row."""
        return self._norms[: self._count]

    @property
    def tags(self) -> Ints:
        """The owner's number of each row."""
        return self._tags[: self._count]

    def append(self, vector: bytes, tag: int = 0) -> None:
        """Adds a vector of `dim` bytes as the last row."""
        if self._count == len(self._norms):
            more = max(_ROWS_MIN, self._count)
            self._rows = np.concatenate([self._rows, np.zeros((more, self.dim), dtype=np.float32)])
            self._norms = np.concatenate([self._norms, np.zeros(more, dtype=np.int64)])
            self._tags = np.concatenate([self._tags, np.zeros(more, dtype=np.int64)])
        row = self._count
        self._rows[row] = as_row(vector)
        self._norms[row] = squared_norm(vector)
        self._tags[row] = tag
        self._count += 1

    def dots(self, vector: bytes) -> Ints:
        """The exact dot product of the vector with every row."""
        products = self._rows[: self._count] @ as_row(vector)
        return np.asarray(np.rint(products), dtype=np.int64)


@dataclass(frozen=True, slots=True)
class Ranking:
    """Positions by falling similarity; `skipped` counts the ones that cannot be compared."""

    order: tuple[int, ...]
    skipped: int


def as_row(vector: bytes) -> NDArray[np.float32]:
    """The int8 components as float32."""
    return np.frombuffer(vector, dtype=np.int8).astype(np.float32)


def squared_norm(vector: bytes) -> int:
    """The exact squared norm of an int8 vector."""
    wide = np.frombuffer(vector, dtype=np.int8).astype(np.int64)
    return int(wide @ wide)


def signed_square(dot: int, norm: int) -> Fraction:
    """What orders like the cosine against one fixed vector: sign(dot)·dot²/|v|²; 0 for a zero vector."""
    if dot == 0 or norm == 0:
        return Fraction(0)
    return Fraction(dot * abs(dot), norm)


def nearest(
    table: VectorTable, vector: bytes, allowed: Mask, tau: Tau, k: int | None, ids: Sequence[bytes]
) -> list[int]:
    """Rows that get an edge from `vector`: allowed, at or above tau, the k best, by falling cosine, ties by id."""
    norm = squared_norm(vector)
    if norm == 0 or not len(table):
        return []
    dots = table.dots(vector)
    squares = _float_squares(dots, table.norms)
    floor = (tau.p / tau.q) ** 2 * norm * (1 - _MARGIN)
    rows = np.flatnonzero(allowed & (squares >= floor))
    norms = table.norms
    exact = [row for row in rows.tolist() if tau.admits(int(dots[row]), norm, int(norms[row]))]
    return _best(exact, squares, dots, norms, k, ids)


def rank(query: bytes, vectors: Sequence[bytes | None], ids: Sequence[bytes], limit: int | None = None) -> Ranking:
    """Positions of `vectors` by falling cosine to `query`, ties by id; other dimensions are skipped and counted."""
    usable = [at for at, vector in enumerate(vectors) if vector is not None and len(vector) == len(query)]
    skipped = len(vectors) - len(usable)
    if not usable:
        return Ranking((), skipped)
    table = VectorTable(len(query))
    for at in usable:
        vector = vectors[at]
        assert vector is not None
        table.append(vector)
    dots = table.dots(query)
    squares = _float_squares(dots, table.norms)
    rows = _best(list(range(len(usable))), squares, dots, table.norms, limit, [ids[at] for at in usable])
    return Ranking(tuple(usable[row] for row in rows), skipped)


def _float_squares(dots: Ints, norms: Ints) -> NDArray[np.float64]:
    wide = dots.astype(np.float64)
    return np.asarray(wide * np.abs(wide) / np.maximum(norms, 1), dtype=np.float64)


def _best(
    rows: list[int], squares: NDArray[np.float64], dots: Ints, norms: Ints, k: int | None, ids: Sequence[bytes]
) -> list[int]:
    """The k best rows, exactly; floats only drop rows that are worse than the k-th by more than their error."""
    if k is not None and len(rows) > k:
        field = squares[rows]
        kth = float(np.partition(field, len(rows) - k)[len(rows) - k])
        cut = kth - abs(kth) * _MARGIN
        rows = [row for row, square in zip(rows, field.tolist(), strict=True) if square >= cut]
    ordered = sorted(rows, key=lambda row: (-signed_square(int(dots[row]), int(norms[row])), ids[row]))
    return ordered if k is None else ordered[:k]
