"""The codebooks of this release: there, in force, in the wheel, and worth asking."""

from __future__ import annotations

import random
import tomllib
from fnmatch import fnmatch
from importlib.resources import files
from pathlib import Path
from typing import Any

import pytest

import kernel
import kernel.codebook
from dht.config import DhtConfig
from dht.directory import CODEBOOKS_MAX, PROBES_MAX, Directory
from dht.placement import Codebook, centroid_count, codebook_name
from kernel.codebook import FOLDER, SHIPPED, shipped_codebooks
from kernel.codebook_recall import random_codebook, recall
from kernel.codebook_texts import Vocabulary, offer_texts, query_texts, vocabulary
from node.engines.codebook_seed import POPULATION, TEXT_SEED, embedded
from node.engines.encoder import USE_DIM, USE_ID
from protocol.admission import EncoderSpec
from protocol.capability import CODEBOOKS_NAMED_MAX
from protocol.errors import ConfigError
from tests.strategies import keypair

AGENTS, QUERIES = 1_000, 60


def test_the_default_encoder_has_a_codebook_of_the_right_size_and_others_have_none() -> None:
    wires = shipped_codebooks(EncoderSpec().id)
    books = [Codebook.from_wire(wire) for wire in wires]
    assert books
    assert [(book.encoder, book.dim, len(book.centroids)) for book in books] == [
        (USE_ID, USE_DIM, centroid_count(POPULATION)) for _ in books
    ]
    assert [book.made_ms for book in books] == sorted(book.made_ms for book in books), "oldest first"
    assert shipped_codebooks("bge-m3") == ()


def test_the_newest_two_are_in_force_when_they_are_fed_in_order() -> None:
    directory = Directory(DhtConfig())
    for wire in shipped_codebooks(USE_ID):
        assert directory.use(Codebook.from_wire(wire))
    names = [codebook_name(wire) for wire in reversed(shipped_codebooks(USE_ID))]
    assert [book[:8] for book in directory.codebooks] == names[:CODEBOOKS_MAX]
    assert CODEBOOKS_MAX <= CODEBOOKS_NAMED_MAX


@pytest.mark.parametrize("damage", [b"", b"\x00", None])
def test_a_damaged_or_missing_file_is_an_error_of_the_installation(
    damage: bytes | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ((name, pinned),) = SHIPPED[USE_ID][-1:]
    (tmp_path / FOLDER).mkdir()
    if damage is not None:
        (tmp_path / FOLDER / name).write_bytes(shipped_codebooks(USE_ID)[-1][:-1] + damage)
    monkeypatch.setattr(kernel.codebook, "files", lambda _package: tmp_path)
    with pytest.raises(ConfigError) as caught:
        kernel.codebook._read(USE_ID, name, pinned)
    assert "install" in (caught.value.hint or "")


def test_every_file_in_the_folder_is_listed_and_goes_into_the_wheel() -> None:
    present = {entry.name for entry in files("kernel").joinpath(FOLDER).iterdir()}
    assert present == {name for listed in SHIPPED.values() for name, _ in listed}
    project = Path(kernel.__file__).parents[1] / "pyproject.toml"
    patterns = tomllib.loads(project.read_text(encoding="utf-8"))["tool"]["setuptools"]["package-data"]["kernel"]
    for name in (*(f"{FOLDER}/{name}" for name in present), "codebook_vocabulary.toml"):
        assert any(fnmatch(name, pattern) for pattern in patterns), name


# ---- texts


def test_texts_are_a_function_of_the_seed_and_hold_something() -> None:
    offers = offer_texts(500, random.Random(7))
    assert offers == offer_texts(500, random.Random(7))
    assert offers != offer_texts(500, random.Random(8))
    queries = query_texts(500, random.Random(7))
    assert all(text.strip() and len(text) < 400 for text in (*offers, *queries))
    assert len(set(offers)) > 450


def test_texts_are_in_words_that_were_given() -> None:
    words = Vocabulary(("audit", "deny", "switch"), ("all",), ("fast",), (("law", ("a", "b")),))
    said = " ".join(offer_texts(200, random.Random(1), words)).lower()
    assert {"audits", "denies", "switches", "law"} <= set(said.replace(".", " ").replace(",", " ").split())
    assert len(vocabulary().domains) >= 60


# ---- recall


@pytest.mark.slow
async def test_the_shards_of_the_shipped_codebook_give_far_more_than_random_ones(record_property: Any) -> None:
    """A small sample, where the ten best lie further apart than among 8,192 (the table in kernel/codebook.py)."""
    rng = random.Random(TEXT_SEED + 1_000)  # none of the seeds that the codebook was made with
    offers, queries = await embedded(offer_texts(AGENTS, rng)), await embedded(query_texts(QUERIES, rng))
    shipped = Codebook.from_wire(shipped_codebooks(USE_ID)[-1])
    blind = random_codebook(USE_DIM, len(shipped.centroids), random.Random(5))
    ours = [recall(shipped, offers, queries, probes=probes) for probes in (2, 4, PROBES_MAX)]
    theirs = [recall(blind, offers, queries, probes=probes) for probes in (2, 4, PROBES_MAX)]
    record_property(f"recall@10, nprobe 2, 4 and {PROBES_MAX}, shipped and random", (ours, theirs))
    for got, least in zip(ours, (0.42, 0.56, 0.8), strict=True):
        assert got.recall >= least
    assert ours[1].score_ratio >= 0.88
    for one, other in zip(ours, theirs, strict=True):
        assert one.recall > other.recall + 0.25


def test_asking_every_shard_finds_everything_and_asking_more_never_less() -> None:
    rng = random.Random(3)
    some = [keypair(str(n)).public for n in range(200)]  # any bytes are vectors of 32 components
    book = random_codebook(32, 16, rng)
    found = [recall(book, some, some[:20], probes=n, per_shard=200).recall for n in (1, 2, 4, 8, 16)]
    assert found == sorted(found)
    assert found[-1] == 1.0
    assert found[0] < 1.0
    assert recall(book, some, some[:20], probes=16, per_shard=1).recall < 1.0, "an answer that is cut finds less"
