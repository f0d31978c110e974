"""Where a capability belongs in the directory: centroid shards under a versioned codebook (replication.md §8).

A codebook is K int8 centroids. A record is published under the `m` centroids nearest to its vector, and a search asks
`nprobe` of them; key = SHA256("masos/cap/1" ‖ codebook id ‖ centroid)[:20]. The id is a hash over the codebook's bytes,
so two nodes with one id agree on every key. Recall@10 on 384-d clustered vectors: .999 at 1e3, .997 at 1e4, .976 at
1e5 with m = nprobe = 2 [measured there].

Everything is exact: dot products of int8 vectors are integers below 2^24, which float32 adds without error up to
1,024 dimensions and float64 beyond; square root and division are correctly rounded; ties go to the lowest index. So
training and placement give the same bytes on every machine.
"""

from __future__ import annotations

import hashlib
import math
import random
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from dht.key import ID_BYTES
from protocol.capability import CODEBOOK_NAME_BYTES
from protocol.codec import decode, encode
from protocol.errors import ConfigError, DecodeError
from protocol.identity import digest

VERSION: Final = 1
CENTROIDS_MAX: Final = 4_096
DIM_MAX: Final = 4_096  # of an AgentValue's vector
CODEBOOK_BYTES_MAX: Final = 8 * 1024 * 1024
PPM: Final = 1_000_000
_EXACT_FLOAT32_DIM: Final = 1_024
_CHUNK_ROWS: Final = 4_096

Int8 = NDArray[np.int8]
Floats = NDArray[np.floating[Any]]


def _floats(vectors: Int8) -> Floats:
    return vectors.astype(np.float32 if vectors.shape[-1] <= _EXACT_FLOAT32_DIM else np.float64)


def _norms(vectors: Int8) -> NDArray[np.float64]:
    """Lengths; 1 for zero vectors, whose products are zero anyway."""
    squares = np.einsum("ij,ij->i", vectors.astype(np.int64), vectors.astype(np.int64))
    norms: NDArray[np.float64] = np.sqrt(np.maximum(squares, 1).astype(np.float64))
    return norms


def scores_ppm(probe: bytes, vectors: list[bytes]) -> list[int]:
    """Cosine of a probe with each vector, in millionths; a vector of another dimension scores -PPM."""
    found = [-PPM] * len(vectors)
    fitting = [index for index, vector in enumerate(vectors) if len(vector) == len(probe)]
    if not fitting or not probe:
        return found
    rows = np.frombuffer(b"".join(vectors[index] for index in fitting), np.int8).reshape(len(fitting), len(probe))
    one = np.frombuffer(probe, np.int8).reshape(1, -1)
    cosines = (_floats(rows) @ _floats(one)[0]).astype(np.float64) / _norms(rows) / _norms(one)[0]
    for index, cosine in zip(fitting, np.rint(cosines * PPM), strict=True):
        found[index] = int(cosine)
    return found


@dataclass(frozen=True, slots=True)
class Codebook:
    """K centroids of one encoder."""

    encoder: str
    made_ms: int
    centroids: Int8
    id: bytes
    wire: bytes

    @classmethod
    def of(cls, encoder: str, made_ms: int, centroids: Int8) -> Codebook:
        """A codebook of given centroids, one a row."""
        count, dim = centroids.shape
        wire = encode((VERSION, encoder, made_ms, count, dim, centroids.tobytes()))
        return cls(encoder, made_ms, centroids, digest("codebook", wire), wire)

    @classmethod
    def from_wire(cls, data: bytes) -> Codebook:
        """The codebook behind bytes.

        Raises:
            DecodeError: not a codebook of this version.
        """
        match decode(data, bytes_max=CODEBOOK_BYTES_MAX):
            case (int(version), str(encoder), int(made), int(count), int(dim), bytes(raw)) if version == VERSION:
                if not (0 < count <= CENTROIDS_MAX and 0 < dim <= DIM_MAX and len(raw) == count * dim and made >= 0):
                    raise DecodeError("codebook sizes do not fit")
                centroids = np.frombuffer(raw, np.int8).reshape(count, dim)
                return cls(encoder, made, centroids, digest("codebook", data), data)
            case _:
                raise DecodeError("not a codebook of a known version")

    @property
    def name(self) -> bytes:
        """What a record calls it: the start of its id."""
        return self.id[:CODEBOOK_NAME_BYTES]

    @property
    def dim(self) -> int:
        """Components of each centroid."""
        return int(self.centroids.shape[1])

    def nearest(self, vector: bytes, count: int) -> list[int]:
        """Indices of the nearest centroids, nearest first; none for a vector that is zero or of another dimension."""
        if len(vector) != self.dim or not any(vector):
            return []
        return self.nearest_each([vector], count)[0]

    def nearest_each(self, vectors: list[bytes], count: int) -> list[list[int]]:
        """As `nearest`, for many vectors at once; all of this dimension and none zero."""
        rows = np.frombuffer(b"".join(vectors), np.int8).reshape(len(vectors), self.dim)
        order = np.argsort(-_similarity(rows, self.centroids), axis=1, kind="stable")
        nearest: list[list[int]] = order[:, :count].tolist()
        return nearest

    def key(self, centroid: int) -> bytes:
        """The key of a centroid's shard."""
        tag = b"masos/cap/1" + self.id + centroid.to_bytes(4, "big")
        return hashlib.sha256(tag).digest()[:ID_BYTES]

    def keys_for(self, vector: bytes, count: int) -> list[bytes]:
        """Keys of the shards nearest to a vector, nearest first."""
        return [self.key(index) for index in self.nearest(vector, count)]


def _similarity(vectors: Int8, centroids: Int8) -> NDArray[np.float64]:
    """Cosine times the vector's own length: enough to compare centroids, and free of its rounding."""
    dots = (_floats(vectors) @ _floats(centroids).T).astype(np.float64)
    similarity: NDArray[np.float64] = dots / _norms(centroids)
    return similarity


def codebook_name(wire: bytes) -> bytes:
    """What records call the codebook behind bytes; they are not read."""
    return digest("codebook", wire)[:CODEBOOK_NAME_BYTES]


def centroid_count(population: int) -> int:
    """K = 2^round(log2(2 sqrt N)), for N records."""
    wanted: int = 2 ** round(math.log2(2 * math.sqrt(max(1, population))))
    return min(CENTROIDS_MAX, wanted)


def train(
    vectors: list[bytes], *, encoder: str, made_ms: int, count: int, rng: random.Random, iterations: int = 10
) -> Codebook:
    """Spherical k-means over int8 vectors: equal vectors and an equal seed give the same codebook, bit for bit.

    Starts from `count` of the vectors, drawn by `rng`. A centroid that loses all its vectors moves to the vector that
    is served worst.

    Raises:
        ConfigError: no vectors, vectors of several dimensions, or `count` out of bounds.
    """
    if not vectors or len({len(vector) for vector in vectors}) != 1 or not 0 < len(vectors[0]) <= DIM_MAX:
        raise ConfigError("a codebook is trained on vectors of one dimension")
    if not 0 < count <= min(CENTROIDS_MAX, len(vectors)):
        raise ConfigError(f"{count} centroids of {len(vectors)} vectors")
    rows = np.frombuffer(b"".join(vectors), np.int8).reshape(len(vectors), len(vectors[0]))
    centroids = rows[sorted(rng.sample(range(len(vectors)), count))]
    for _ in range(iterations):
        moved = _step(rows, centroids)
        if np.array_equal(moved, centroids):
            break
        centroids = moved
    return Codebook.of(encoder, made_ms, np.ascontiguousarray(centroids))


def _step(rows: Int8, centroids: Int8) -> Int8:
    assigned, score = _assign(rows, centroids)
    sums = np.zeros(centroids.shape, np.int64)
    np.add.at(sums, assigned, rows.astype(np.int64))
    sizes = np.bincount(assigned, minlength=len(centroids))
    worst = np.argsort(score / _norms(rows), kind="stable")
    moved = _peak_scaled(sums)
    for index, row in zip(np.flatnonzero(sizes == 0), worst, strict=False):
        moved[index] = rows[row]
    return moved


def _assign(rows: Int8, centroids: Int8) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
    """The nearest centroid of each row, the lowest index among equals, and how near it is."""
    best = np.empty(len(rows), np.int64)
    score = np.empty(len(rows), np.float64)
    for start in range(0, len(rows), _CHUNK_ROWS):
        chunk = slice(start, start + _CHUNK_ROWS)
        similarity = _similarity(rows[chunk], centroids)
        best[chunk] = similarity.argmax(axis=1)
        score[chunk] = similarity.max(axis=1)
    return best, score


def _peak_scaled(sums: NDArray[np.int64]) -> Int8:
    """Integer sums as int8 rows whose peak is 127, rounded half away from zero in integers."""
    peaks = np.maximum(np.abs(sums).max(axis=1, keepdims=True), 1)
    scaled = (2 * 127 * np.abs(sums) + peaks) // (2 * peaks)
    rows: Int8 = (np.sign(sums) * scaled).astype(np.int8)
    return rows
