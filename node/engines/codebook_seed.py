"""Makes the seed codebook of the default encoder: synthetic capability texts, embedded, k-means, a file to ship.

    python -m node.engines.codebook_seed kernel/codebooks/use-512.2.bin --made 2027-01-31

For maintainers. The result is a function of the vocabulary, the seeds below, the encoder's weights and the date: texts
and training are exact (kernel/codebook_texts.py, dht/placement.py), the encoder is so up to one step of an int8
component between machines, so a rerun elsewhere may give a codebook that is as good and not the same bytes. What is
shipped is therefore the file, and its id is pinned in kernel/codebook.py; a file that was shipped is never made anew.

Half a minute of one core for 16,384 texts, five seconds of training [measured: 2 cores]. At the end it prints the
figures that kernel/codebook.py quotes, over agents and questions that were not trained on.

Trained are offers alone. Questions lie elsewhere in the space of the encoder (cosine of the two means: .46), so a
codebook that is trained on both spends half of its centroids on places where no agent stands, and questions end there:
recall@10 falls from .73 to .38 at two shards. Taking the directions in which both differ out of the vectors before
training changes nothing beyond .01 [measured].
"""

from __future__ import annotations

import argparse
import random
import sys
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

import trio

from dht.placement import Codebook, centroid_count, train
from kernel.codebook_recall import random_codebook, recall
from kernel.codebook_texts import offer_texts, query_texts
from kernel.embedding import TEXTS_MAX
from node.engines.encoder import USE_DIM, USE_ID, UseEncoder

POPULATION: Final = 20_000  # agents up to which every node holds all records; from there on shards are asked
TEXTS: Final = 16_384
HELD_OUT: Final = 8_192
QUERIES: Final = 256
TEXT_SEED: Final = 1
TRAIN_SEED: Final = 2
HELD_OUT_SEED: Final = 3
QUERY_SEED: Final = 4
RANDOM_SEED: Final = 5
ITERATIONS: Final = 20


async def embedded(texts: list[str]) -> list[bytes]:
    """The vector of each text, in order."""
    encoder = UseEncoder()
    vectors: list[bytes] = []
    for start in range(0, len(texts), TEXTS_MAX):
        vectors += await encoder.encode(tuple(texts[start : start + TEXTS_MAX]))
    await encoder.aclose()
    return vectors


def made_codebook(vectors: list[bytes], made_ms: int) -> Codebook:
    """The codebook of these vectors."""
    rng, count = random.Random(TRAIN_SEED), centroid_count(POPULATION)
    return train(vectors, encoder=USE_ID, made_ms=made_ms, count=count, rng=rng, iterations=ITERATIONS)


def report(codebook: Codebook, offers: list[bytes], queries: list[bytes]) -> list[str]:
    """Lines of recall, beside centroids that know nothing of the texts."""
    books = {
        "shipped": codebook,
        "random": random_codebook(USE_DIM, len(codebook.centroids), random.Random(RANDOM_SEED)),
    }
    asked = {"questions": (offers, queries), "agents": (offers[QUERIES:], offers[:QUERIES])}
    lines = []
    for what, (among, probes) in asked.items():
        for name, book in books.items():
            for count in (2, 4):
                got = recall(book, among, probes, probes=count)
                lines.append(f"{what}, {name}, nprobe {count}: {got.recall:.3f}, score ratio {got.score_ratio:.3f}")
    return lines


async def seed(out: Path, made_ms: int) -> None:
    """Make the file and say how good it is."""
    codebook = made_codebook(await embedded(offer_texts(TEXTS, random.Random(TEXT_SEED))), made_ms)
    await trio.Path(out).write_bytes(codebook.wire)
    sys.stdout.write(f"{out}: {len(codebook.wire)} bytes, id {codebook.id.hex()}\n")
    offers = await embedded(offer_texts(HELD_OUT, random.Random(HELD_OUT_SEED)))
    queries = await embedded(query_texts(QUERIES, random.Random(QUERY_SEED)))
    for line in report(codebook, offers, queries):
        sys.stdout.write(line + "\n")


def main() -> None:
    """Read the command line."""
    parser = argparse.ArgumentParser(description="Make a seed codebook of the default encoder.")
    parser.add_argument("out", type=Path, help="the file to write")
    parser.add_argument("--made", required=True, metavar="YYYY-MM-DD", help="the day from which it is in force, UTC")
    asked = parser.parse_args()
    made = datetime.strptime(asked.made, "%Y-%m-%d").replace(tzinfo=UTC)
    trio.run(seed, asked.out, int(made.timestamp()) * 1000)


if __name__ == "__main__":
    main()
