"""An engine and an encoder for tests of the executor: they do what they are told and note what was asked."""

from __future__ import annotations

import hashlib
from collections.abc import Callable

import trio

from kernel.engine import (
    Capabilities,
    Completion,
    EngineTimeout,
    Finish,
    OnText,
    Quality,
    Request,
    Usage,
    check_request,
    check_window,
    count_prompt,
)


class FakeEngine:
    """Counts a token per word; replies from a list; scores by shared words. Delays are virtual seconds."""

    def __init__(self, replies: list[str] | None = None, *, quality: Quality = "standard", context: int = 2048) -> None:
        self.replies = replies or []
        self.finish: Finish = "stop"
        self.delay_s = 0.0
        self.requests: list[Request] = []
        self.scored: list[tuple[str, tuple[str, ...]]] = []
        self.stopped = 0
        self.score_works = True
        self.on_score: Callable[[str, str], float] = shared_words
        self._quality: Quality = quality
        self._context = context

    async def capabilities(self) -> Capabilities:
        return Capabilities(
            *("fake", self._context, self._quality),
            json_schema=False, logprobs=False, score=self.score_works, adapters=False, tokens_per_s=10, backend="test",
        )  # fmt: skip

    async def count_tokens(self, text: str) -> int:
        await trio.lowlevel.checkpoint()
        return len(text.split())

    async def generate(self, request: Request, on_text: OnText | None = None) -> Completion:
        check_request(request)
        prompt = await count_prompt(self, request.messages)
        check_window(prompt, request.max_new_tokens, self._context)
        self.requests.append(request)
        try:
            with trio.move_on_after(request.deadline_s) as scope:
                await trio.sleep(self.delay_s)
        except trio.Cancelled:
            self.stopped += 1
            raise
        if scope.cancelled_caught:
            self.stopped += 1
            raise EngineTimeout("too slow")
        text = self.replies.pop(0) if self.replies else "a plain reply"
        cut = len(text.split()) > request.max_new_tokens
        text = " ".join(text.split()[: request.max_new_tokens]) if cut else text
        for word in text.split(" "):
            if on_text is not None:
                on_text(word + " ")
        finish = "length" if cut else self.finish
        return Completion(text, finish, Usage(prompt, len(text.split())), "fake")

    async def score(self, prefix: str, options: tuple[str, ...]) -> tuple[float, ...]:
        self.scored.append((prefix, options))
        await trio.sleep(self.delay_s)
        return tuple(self.on_score(prefix, option) for option in options)

    async def health(self) -> bool:
        return True

    async def aclose(self) -> None:
        return None


def shared_words(prefix: str, option: str) -> float:
    """Like a language model: a question is likelier after a text that shares its words."""
    text = prefix.lower()
    return sum(4.0 for word in option.lower().strip("?").split() if len(word) > 3 and word in text) - 20.0


class WordEncoder:
    """Bags of hashed words, 64 dimensions: texts that share words are similar."""

    encoder_id = "test-64"
    dim = 64

    async def encode(self, texts: tuple[str, ...]) -> tuple[bytes, ...]:
        await trio.lowlevel.checkpoint()
        return tuple(self.vector(text) for text in texts)

    def vector(self, text: str) -> bytes:
        counts = [0] * self.dim
        for word in text.lower().split():
            counts[hashlib.sha256(word.strip('.,;?"()').encode()).digest()[0] % self.dim] += 1
        return bytes(min(127, 20 * count) for count in counts)

    async def aclose(self) -> None:
        return None
