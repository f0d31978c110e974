"""Prints the digest of some runs: what test_sim_determinism.py starts in processes of its own."""

from __future__ import annotations

import sys

from simulations.codec import Crypto, Wire
from simulations.nemesis import random_run
from simulations.swarm import SimSwarm, SwarmConfig


def quiet_run(seed: int, wire: Wire = "bytes", crypto: Crypto = "memo") -> SimSwarm:
    """A swarm of five, one task with a document, no fault."""
    swarm = SimSwarm(SwarmConfig(wire=wire, crypto=crypto), seed)
    swarm.begin()
    swarm.submit(seed % 5, "one", document=("Notice is given in writing.", "The term is three years."))
    swarm.settle()
    return swarm


def digests(seeds: list[int]) -> list[str]:
    """Per seed, of a quiet run and of one with faults."""
    return [swarm.history.digest() for seed in seeds for swarm in (quiet_run(seed), random_run(seed))]


if __name__ == "__main__":
    print(*digests([int(text) for text in sys.argv[1:]]))
