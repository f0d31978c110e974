"""How much a search through shards finds of what a search over everything finds: the figures of a codebook.

    recall@t     |t best of the shards asked ∩ t best of all| / t, over all queries
    score ratio  what the t best of the shards score together / what the t best of all do: how much worse is what is
                 found instead

The shards are those of dht/directory.py: an agent stands under its `m` nearest centroids, a query asks its `probes`
nearest, and a shard answers with its `per_shard` best (`FoundValue` takes 16 records, or fewer long ones).
"""

from __future__ import annotations

import random
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dht.config import DhtConfig
from dht.placement import Codebook
from protocol.messages import DHT_RECORDS_MAX

_Floats = NDArray[np.floating[Any]]
_Numbers = NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Recall:
    """Both figures, over the same queries."""

    recall: float
    score_ratio: float


def recall(
    codebook: Codebook, offers: list[bytes], queries: list[bytes], *, probes: int, top: int = 10,
    per_shard: int = DHT_RECORDS_MAX,
) -> Recall:  # fmt: skip
    """The figures of asking `probes` shards; no vector is zero."""
    shards: dict[int, list[int]] = {}
    for number, near in enumerate(codebook.nearest_each(offers, DhtConfig().centroids_per_record)):
        for centroid in near:
            shards.setdefault(centroid, []).append(number)
    right, ratio = 0, 0.0
    every = _units(queries) @ _units(offers).T
    for near, scores in zip(codebook.nearest_each(queries, probes), every, strict=True):
        asked = [_best(scores, shards.get(centroid, []), per_shard) for centroid in near]
        found = _best(scores, sorted({number for answer in asked for number in answer}), top)
        exact = _best(scores, list(range(len(offers))), top)
        right += len(set(found) & set(exact))
        ratio += float(scores[found].sum() / scores[exact].sum())
    return Recall(right / (min(top, len(offers)) * len(queries)), ratio / len(queries))


def _units(vectors: list[bytes]) -> _Floats:
    rows = np.frombuffer(b"".join(vectors), np.int8).reshape(len(vectors), -1).astype(np.float32)
    units: _Floats = rows / np.linalg.norm(rows, axis=1, keepdims=True)
    return units


def _best(scores: _Floats, numbers: list[int], count: int) -> list[int]:
    among: _Numbers = np.array(numbers, np.int64)
    best: list[int] = among[np.argsort(-scores[among], kind="stable")[:count]].tolist()
    return best


def random_codebook(dim: int, count: int, rng: random.Random) -> Codebook:
    """Centroids that know nothing of any text: directions drawn evenly."""
    rows = np.array([[rng.gauss(0, 1) for _ in range(dim)] for _ in range(count)])
    peaks = np.abs(rows).max(axis=1, keepdims=True)
    return Codebook.of("none", 0, np.rint(rows / peaks * 127).astype(np.int8))
