"""The engine as one turn may use it: every call is charged, and none is made that the slice cannot pay.

    used = [tokens, calls, ms, micro-money]     tokens = prompt + completion of every call, summed, never overwritten

A call is refused before it is sent when its prompt and the longest reply would go over the tokens of the slice, or when
no calls or no time are left; so a slice is not exceeded, and what was done before is kept (complaint 18 of
conventions.md: stop within one call, return what there is, with the reason). Counting tokens is not charged.
Scoring charges the prefix once and each option.

Failed calls are charged what is known of them: a cut structured reply its tokens, any other its prompt.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from kernel.engine import (
    Capabilities,
    Completion,
    Engine,
    EngineTimeout,
    EngineTruncated,
    Message,
    OnText,
    Request,
    count_prompt,
)
from protocol.contract import Vector
from protocol.errors import EngineError

NEW_TOKENS_LEAST: Final = 8
"""A reply is shortened to what the slice has left, down to this."""


class SliceSpent(EngineError):
    """The slice of the turn does not pay for the next call; the turn ends with what it has."""

    code = "slice_spent"
    default_hint = "give the task a larger budget"


class MeteredEngine:
    """One turn's use of an engine."""

    def __init__(self, engine: Engine, part: Vector, deadline_s: float, now_s: Callable[[], float]) -> None:
        """`deadline_s`: of the whole turn, from now by `now_s`, a clock in seconds."""
        self._engine = engine
        self._slice = part
        self._now_s = now_s
        self._start_s = now_s()
        self._deadline_s = deadline_s
        self._tokens = 0
        self._calls = 0
        self.spent: str | None = None  # the component that refused a call

    @property
    def used(self) -> Vector:
        """What the turn has cost so far; money is not charged by local engines."""
        return (self._tokens, self._calls, self._elapsed_ms(), 0)

    @property
    def tokens(self) -> int:
        """Tokens so far."""
        return self._tokens

    async def capabilities(self) -> Capabilities:
        """As in the port; free."""
        return await self._engine.capabilities()

    async def generate(
        self, messages: tuple[Message, ...], max_new_tokens: int, *, seed: int = 0, on_text: OnText | None = None
    ) -> Completion:
        """A greedy reply of at most `max_new_tokens`, fewer if the slice or the window has fewer left.

        Raises:
            SliceSpent: the slice does not pay for it.
            EngineError: as in the port.
        """
        able = await self._engine.capabilities()
        prompt = await count_prompt(self._engine, messages)
        new = min(max_new_tokens, self._slice[0] - self._tokens - prompt, able.context_tokens - prompt)
        if new < min(NEW_TOKENS_LEAST, max_new_tokens):
            raise self._refusal("tokens")
        self._begin()
        request = Request(messages, new, seed=seed, deadline_s=self._left_s())
        try:
            completion = await self._engine.generate(request, on_text)
        except EngineTruncated as exc:
            self._tokens += exc.completion.usage.total
            raise
        except EngineTimeout as exc:
            self._tokens += prompt
            raise self._late(exc) from exc
        except EngineError:
            self._tokens += prompt
            raise
        self._tokens += completion.usage.total
        return completion

    async def score(self, prefix: str, options: tuple[str, ...]) -> tuple[float, ...]:
        """As in the port, charged.

        Raises:
            SliceSpent: the slice does not pay for it.
            EngineError: as in the port.
        """
        cost = await self._engine.count_tokens(prefix)
        for option in options:
            cost += await self._engine.count_tokens(option)
        if self._tokens + cost > self._slice[0]:
            raise self._refusal("tokens")
        self._begin()
        self._tokens += cost
        try:
            return await self._engine.score(prefix, options)
        except EngineTimeout as exc:
            raise self._late(exc) from exc

    def _begin(self) -> None:
        if self._calls >= self._slice[1]:
            raise self._refusal("calls")
        if self._elapsed_ms() >= self._slice[2]:
            raise self._refusal("ms")
        self._calls += 1

    def _refusal(self, component: str) -> SliceSpent:
        self.spent = component
        return SliceSpent(f"the slice of this turn has too few {component} left for the next call")

    def _late(self, error: EngineTimeout) -> EngineError:
        """Out of time by the slice ends the turn with what it has; out of time by the lease is a failure."""
        return self._refusal("ms") if self._elapsed_ms() >= self._slice[2] else error

    def _elapsed_ms(self) -> int:
        return max(0, round((self._now_s() - self._start_s) * 1000))

    def _left_s(self) -> float:
        elapsed = self._now_s() - self._start_s
        return max(0.001, min(self._deadline_s - elapsed, self._slice[2] / 1000 - elapsed))
