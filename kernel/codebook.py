"""The codebooks that this release brings: into which shards of the capability directory agents of an encoder fall.

The versioning (replication.md §8): a codebook is never changed. A release that brings a better one appends its file to
`SHIPPED` and keeps the file before it. Of what is listed the last two are in force (dht/directory.py): nodes publish
and ask under both, so each release finds the agents of the one before and of the one after it. A file is dropped when
the release after next is out.

`use-512.1.bin`: 256 centroids, for 20,000 agents, made of 16,384 synthetic texts by node/engines/codebook_seed.py.
Over 8,192 agents that were not trained on, m = 2, recall@10 / score ratio of kernel/codebook_recall.py:

    256 held-out                      2 shards      4 shards      random centroids: 2 / 4 shards
    questions, asked of agents        .725 / .954   .811 / .972   .221 / .721   .320 / .811
    agents, beside other agents       .876 / .983   .928 / .991   .361 / .848   .493 / .910

Questions are what `find` asks, and the harder case: they are worded unlike offers. The 65 questions of
discovery_calibration.toml, written by hand, over those agents and its own: .69 / .95 and .78 / .97. Shards hold 64
agents on average, 216 at most; that an answer gives 16 of them costs nothing. A search begins with two shards and asks
sixteen at most, by the rules of dht/directory.py.

An encoder that has none here is searched through the replicated index alone.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from importlib.resources import files
from typing import Final

from dht.placement import Codebook
from protocol.errors import ConfigError, DecodeError

FOLDER: Final = "codebooks"
SHIPPED: Final[Mapping[str, tuple[tuple[str, str], ...]]] = {
    "use-512": (("use-512.1.bin", "7c09a5fe91d8e9ab378fc720a5e6ee4b4a8db06c85b68548a2d0cd80e0b30f22"),),
}
"""Per encoder (file, id), oldest first."""


@cache
def shipped_codebooks(encoder: str) -> tuple[bytes, ...]:
    """The codebooks of an encoder in wire form, oldest first; none for an encoder that has none.

    Raises:
        ConfigError: a file is missing or damaged.
    """
    return tuple(_read(encoder, name, pinned) for name, pinned in SHIPPED.get(encoder, ()))


def _read(encoder: str, name: str, pinned: str) -> bytes:
    hint = "the installation is damaged: install masos again"
    try:
        wire = files("kernel").joinpath(FOLDER, name).read_bytes()
        codebook = Codebook.from_wire(wire)
    except (OSError, DecodeError) as exc:
        raise ConfigError(f"the codebook {name} cannot be read: {exc}", hint=hint) from exc
    if codebook.id.hex() != pinned or codebook.encoder != encoder:
        raise ConfigError(f"the codebook {name} is not the one that this release brings", hint=hint)
    return wire
