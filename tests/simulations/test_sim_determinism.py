"""One seed is one run: in any process, under any hash seed, whatever is saved on bytes and signatures."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from protocol.identity import KeyPair, verify_raw
from simulations.codec import Crypto, MemoVerify, Wire
from simulations.nemesis import random_run
from simulations.rng import derive, stream
from simulations.swarm import SimSwarm, SwarmConfig

SEEDS = [3]


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


def in_a_process(hash_seed: str) -> list[str]:
    env = {**os.environ, "PYTHONHASHSEED": hash_seed, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    command = [sys.executable, __file__, *map(str, SEEDS)]
    done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=120, check=True)
    return done.stdout.split()


@pytest.mark.slow
def test_two_processes_with_other_hash_seeds_do_the_same() -> None:
    here = digests(SEEDS)
    assert in_a_process("0") == here
    assert in_a_process("4242") == here


def test_another_seed_is_another_run() -> None:
    assert quiet_run(1).history.digest() != quiet_run(2).history.digest()


def test_saving_bytes_and_signatures_changes_nothing() -> None:
    plain = quiet_run(4, "bytes", "real").history.digest()
    assert quiet_run(4, "bytes", "memo").history.digest() == plain
    assert quiet_run(4, "frozen", "memo").history.digest() == plain


def test_a_memoised_verdict_is_the_real_one() -> None:
    memo, keys = MemoVerify(), KeyPair(derive(1, "key"))
    good = keys.sign_raw(b"yes")
    cases = [
        (keys.public, b"yes", good),
        (keys.public, b"no", good),
        (keys.public, b"yes", good[:-1] + b"\0"),
        (bytes(32), b"yes", good),
        (b"short", b"yes", good),
        (keys.public + b"y", b"es", good),
    ]
    for case in cases * 2:
        assert memo(*case) == verify_raw(*case)
    assert memo.asked == len(cases)


def test_streams_do_not_shift_each_other() -> None:
    first = stream(7, "a").random()
    stream(7, "b").random()
    assert stream(7, "a").random() == first
    assert stream(7, "a", "b").random() != stream(7, "ab").random()


if __name__ == "__main__":  # started by the first test, in processes of their own
    sys.stdout.write(" ".join(digests([int(text) for text in sys.argv[1:]])))
