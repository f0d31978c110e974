"""Codebooks: the same bytes for the same inputs, exact placement, and recall on clustered vectors."""

from __future__ import annotations

import hashlib
import random
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
from hypothesis import given, strategies as st

from dht.config import DhtConfig
from dht.directory import CODEBOOKS_MAX, PROBES_MAX, Directory, Search
from dht.placement import PPM, Codebook, _floats, centroid_count, codebook_name, scores_ppm, train
from protocol.capability import AgentValue, make_record
from protocol.codec import encode
from protocol.errors import ConfigError, DecodeError
from tests.dht.dht_world import WALL_MS, read
from tests.strategies import damaged, keypair


def clustered(count: int, *, dim: int = 64, clusters: int = 40, seed: int = 1, spread: float = 0.35) -> list[bytes]:
    """int8 vectors around random directions, as embeddings of related texts are."""
    rng = np.random.default_rng(seed)
    centres = rng.normal(size=(clusters, dim))
    rows = centres[rng.integers(0, clusters, count)] + spread * rng.normal(size=(count, dim)) * np.sqrt(dim) / 8
    peaks = np.abs(rows).max(axis=1, keepdims=True)
    return [row.tobytes() for row in np.rint(rows * 127 / peaks).astype(np.int8)]


def best(probe: bytes, vectors: list[bytes], count: int) -> list[int]:
    scores = scores_ppm(probe, vectors)
    return sorted(range(len(vectors)), key=lambda i: (-scores[i], i))[:count]


VECTORS = clustered(1_000)
BOOK = train(VECTORS, encoder="enc", made_ms=WALL_MS, count=centroid_count(1_000), rng=random.Random(3))


def test_the_number_of_centroids_follows_the_population() -> None:
    assert [centroid_count(n) for n in (0, 1, 200, 1_000, 10_000, 100_000, 10**9)] == [2, 2, 32, 64, 256, 512, 4096]


def test_training_is_a_function_of_vectors_and_seed() -> None:
    again = train(VECTORS, encoder="enc", made_ms=WALL_MS, count=64, rng=random.Random(3))
    assert again.wire == BOOK.wire
    other = train(VECTORS, encoder="enc", made_ms=WALL_MS, count=64, rng=random.Random(4))
    assert other.id != BOOK.id


def test_a_codebook_is_the_same_bytes_on_every_machine() -> None:
    """Pinned: if this changes, two versions of the code put one vector under two keys."""
    vectors = [bytes((17 * i * j + 5 * i + 11 * j) % 251 % 128 for j in range(8)) for i in range(50)]
    book = train(vectors, encoder="pin", made_ms=1, count=4, rng=random.Random(0))
    assert book.id.hex()[:16] == PINNED_ID
    assert book.key(1) == hashlib.sha256(b"masos/cap/1" + book.id + b"\0\0\0\1").digest()[:20]


PINNED_ID = "588d10fe99bbcb10"


def test_a_codebook_comes_back_equal() -> None:
    again = Codebook.from_wire(BOOK.wire)
    assert (again.id, again.encoder, again.made_ms, again.wire) == (BOOK.id, "enc", WALL_MS, BOOK.wire)
    assert again.name == codebook_name(BOOK.wire) == BOOK.id[:8]
    assert np.array_equal(again.centroids, BOOK.centroids)
    assert again.keys_for(VECTORS[0], 4) == BOOK.keys_for(VECTORS[0], 4)


@pytest.mark.parametrize(
    "fields",
    [(1, "e", 1, 0, 4, b""), (1, "e", 1, 1, 0, b""), (1, "e", 1, 2, 4, bytes(7)), (1, "e", -1, 1, 4, bytes(4)),
     (1, "e", 1, 4097, 1, bytes(4097)), (1, "e", 1, 1, 4097, bytes(4097)), (2, "e", 1, 1, 4, bytes(4)), (1, "e"), None],
)  # fmt: skip
def test_what_is_no_codebook_is_refused(fields: Any) -> None:
    with pytest.raises(DecodeError):
        Codebook.from_wire(encode(fields))


@pytest.mark.parametrize("dim", [1_024, 1_025, 4_096])
def test_products_are_exact_integers_in_every_dimension(dim: int) -> None:
    rng = random.Random(dim)
    rows = np.array([[rng.choice((-128, -127, 126, 127)) for _ in range(dim)], [-128] * (dim - 1) + [-127]], np.int8)
    want = rows.astype(np.int64) @ rows.astype(np.int64).T
    floats = _floats(rows)
    assert np.array_equal((floats @ floats.T).astype(np.int64), want)


@given(st.data())
def test_a_damaged_codebook_is_another_or_refused(data: st.DataObject) -> None:
    small = Codebook.of("e", 1, np.arange(12, dtype=np.int8).reshape(3, 4))
    raw = data.draw(damaged(small.wire))
    try:
        book = Codebook.from_wire(raw)
    except DecodeError:
        return
    assert raw == small.wire or book.id != small.id


@pytest.mark.parametrize(("vectors", "count"), [([], 1), ([b"ab", b"a"], 1), ([b""], 1), ([b"ab"], 2), ([b"ab"], 0)])
def test_what_cannot_be_trained_on_is_refused(vectors: list[bytes], count: int) -> None:
    with pytest.raises(ConfigError):
        train(vectors, encoder="e", made_ms=0, count=count, rng=random.Random(0))


def test_k_means_beats_the_vectors_it_starts_from() -> None:
    start = train(VECTORS, encoder="enc", made_ms=0, count=64, rng=random.Random(3), iterations=0)

    def fit(book: Codebook) -> float:
        rows = [row.tobytes() for row in book.centroids]
        return sum(max(scores_ppm(vector, rows)) for vector in VECTORS[:200]) / 200 / PPM

    assert fit(BOOK) > fit(start) + 0.02


def test_no_centroid_is_empty_for_long() -> None:
    """Ten copies of few vectors: centroids that lose everything move to what is served worst."""
    vectors = VECTORS[:20] * 10
    book = train(vectors, encoder="enc", made_ms=0, count=20, rng=random.Random(1), iterations=30)
    assert len({book.nearest(vector, 1)[0] for vector in vectors}) >= 18


@given(st.integers(0, 999), st.integers(1, 8))
def test_nearest_is_that_of_integer_brute_force(index: int, count: int) -> None:
    vector = VECTORS[index]
    one = np.frombuffer(vector, np.int8).astype(object)

    def rank(row: Any) -> tuple[float, int]:
        centroid = BOOK.centroids[row].astype(object)
        return (-float((one * centroid).sum()) / float((centroid * centroid).sum()) ** 0.5, row)

    assert BOOK.nearest(vector, count) == sorted(range(64), key=rank)[:count]


def test_odd_vectors_have_no_place_and_no_score() -> None:
    assert BOOK.nearest(bytes(64), 2) == []
    assert BOOK.nearest(b"\x01" * 63, 2) == []
    assert scores_ppm(b"\x01\x02", [b"\x01\x02", b"\x01", bytes(2), b"", b"\xff\xfe"]) == [PPM, -PPM, 0, -PPM, -PPM]
    assert scores_ppm(b"", [b"\x01"]) == [-PPM]
    assert scores_ppm(bytes(2), [b"\x01\x02"]) == [0]
    extreme = b"\x80" * 4096
    assert scores_ppm(extreme, [extreme]) == [PPM]


def recall(book: Codebook, vectors: list[bytes], probes: list[bytes], nprobe: int) -> float:
    shards: dict[bytes, list[int]] = {}
    for index, vector in enumerate(vectors):
        for key in book.keys_for(vector, 2):
            shards.setdefault(key, []).append(index)
    found = 0
    for probe in probes:
        near = sorted({i for key in book.keys_for(probe, nprobe) for i in shards.get(key, [])})
        hits = [near[i] for i in best(probe, [vectors[i] for i in near], 10)]
        found += len(set(hits) & set(best(probe, vectors, 10)))
    return found / (10 * len(probes))


def test_two_probes_find_what_an_index_of_everything_finds(record_property: Any) -> None:
    probes = clustered(1_060, seed=1)[1_000:]  # of the same clusters, and not trained on
    two, four = (recall(BOOK, VECTORS, probes, n) for n in (2, 4))
    record_property("recall@10 nprobe 2 and 4", (two, four))
    assert two >= 0.95
    assert four >= max(two, 0.97)


# ---- the directory's own rules


def value(vector: bytes | None, encoder: str = "enc") -> AgentValue:
    return AgentValue(agent="a", roles=(), vector=vector, encoder=encoder)


def test_two_codebooks_are_live_and_searches_ask_under_both() -> None:
    directory = Directory(DhtConfig())
    assert directory.shards_for("enc", VECTORS[0], WALL_MS) == ([], [])
    books = [train(VECTORS, encoder="enc", made_ms=WALL_MS + i, count=8, rng=random.Random(i)) for i in range(3)]
    for book in books:
        assert directory.use(book)
        assert not directory.use(book)
    assert directory.codebooks == (books[2].id, books[1].id)
    assert len(directory.codebooks) == CODEBOOKS_MAX
    keys = directory.keys_for(value(VECTORS[0]))
    assert keys == [*books[2].keys_for(VECTORS[0], 2), *books[1].keys_for(VECTORS[0], 2)]
    now, later = directory.shards_for("enc", VECTORS[0], WALL_MS)
    newest, older = books[2].keys_for(VECTORS[0], 8), books[1].keys_for(VECTORS[0], 2)
    assert (now, later) == ([*newest[:2], *older], newest[2:])
    month = DhtConfig().codebook_old_ms
    assert directory.shards_for("enc", VECTORS[0], WALL_MS + month + 3) == ([*newest[:4], *older], newest[4:])
    directory.use(BOOK)
    now, later = directory.shards_for("enc", VECTORS[0], WALL_MS)
    assert [*now[:2], *later] == BOOK.keys_for(VECTORS[0], PROBES_MAX)
    assert directory.keys_for(value(VECTORS[0], "other")) == []
    assert directory.keys_for(value(None)) == []
    assert directory.shards_for("enc", b"\x01", WALL_MS) == ([], [])


def test_releases_side_by_side_find_each_others_agents() -> None:
    """Three releases; each knows its codebook and the one before, as kernel/codebook.py ships them."""
    books = [train(VECTORS, encoder="enc", made_ms=WALL_MS, count=8, rng=random.Random(i)) for i in range(4)]
    releases = []
    for before, newest in pairwise(books):
        releases.append(Directory(DhtConfig()))
        for book in (before, newest):
            releases[-1].use(book)
    for one, other in pairwise(releases):
        for asker, publisher in ((one, other), (other, one)):
            for vector in VECTORS[:50]:
                asked, _ = asker.shards_for("enc", vector, WALL_MS)
                assert set(asked) & set(publisher.keys_for(value(vector)))


def test_a_shard_takes_only_what_belongs_there() -> None:
    directory = Directory(DhtConfig())
    directory.use(BOOK)
    keys = BOOK.keys_for(VECTORS[0], 64)
    assert [directory.may_hold(key, value(VECTORS[0])) for key in keys] == [True] * 2 + [False] * 62
    assert not directory.may_hold(keys[0], value(VECTORS[0], "other"))
    assert not directory.may_hold(keys[0], value(None))
    unknown = b"u" * 20

    def named(*names: bytes) -> AgentValue:
        return value(VECTORS[0]).model_copy(update={"codebooks": names})

    assert not directory.may_hold(unknown, named()), "of a publisher that names none"
    assert directory.may_hold(unknown, named(BOOK.name, b"newer   ")), "of a codebook that is not known here"
    assert not directory.may_hold(unknown, named(BOOK.name)), "of none that it is published under"


def test_a_search_keeps_the_newest_version_and_drops_what_ended() -> None:
    def record(name: str, seq: int, vector: bytes, ttl: int = 1000) -> Any:
        return read(make_record(keypair(name), value(vector), seq=seq, issued_ms=WALL_MS, ttl_ms=ttl))

    search = Search(1, "enc", VECTORS[0], 2, [b"more"])
    old, new = record("a", 1, VECTORS[0]), record("a", 2, VECTORS[1])
    gone = record("b", 2, VECTORS[0], 0)
    search.take([new, record("b", 1, VECTORS[0])])
    search.take([old, gone])
    assert [found for _, found in search.result(WALL_MS)] == [new]
    assert search.wants_more(0, WALL_MS), "too few"
    search.take([record("c", 1, VECTORS[0]), record("d", 1, VECTORS[0])])
    assert [score for score, _ in search.result(WALL_MS)] == [PPM, PPM]
    assert not search.wants_more(500_000, WALL_MS)
    assert search.wants_more(PPM + 1, WALL_MS), "too low"
    search.later = []
    assert not search.wants_more(PPM + 1, WALL_MS)
    assert search.result(WALL_MS + 1000) == ()
