"""Randomness of a run: one stream per consumer, each derived from the seed and a label.

A new consumer takes a new label and so shifts no other stream: a run stays comparable when the simulator grows
(simulation.md §6). Labels are text; they are framed by their length, so that no two lists of labels meet.
"""

from __future__ import annotations

import hashlib
import random


def derive(seed: int, *label: object) -> bytes:
    """32 bytes that belong to a seed and a label: key seeds, and the states of streams."""
    state = hashlib.blake2b(b"masos/sim/1\0", digest_size=32)
    for part in (seed, *label):
        text = str(part).encode()
        state.update(len(text).to_bytes(4, "big"))
        state.update(text)
    return state.digest()


def stream(seed: int, *label: object) -> random.Random:
    """The stream of a seed and a label."""
    return random.Random(int.from_bytes(derive(seed, *label), "big"))
