"""How an agent works, as a named option.

`generative` is for engines that can be trusted to write, `extractive` for ones that cannot (quality `demo`). Both get
the same work and give the same kind of outcome; `auto` chooses by the engine (kernel/executor.py).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal, Protocol

from kernel.agents.roles import Agent
from kernel.allocator.select import Quoted
from kernel.embedding import Encoder
from kernel.engine import Message
from kernel.metered import MeteredEngine

StyleName = Literal["auto", "extractive", "generative"]
OnProgress = Callable[[int, str], None]
"""Tokens of the turn so far, and the text so far."""


@dataclass(frozen=True, slots=True)
class Work:
    """What an agent has in hand for one turn; `quotes` are what the allocator gave, and nothing else is read."""

    agent: Agent
    objective: str
    query: bytes  # the vector of the objective
    quotes: tuple[Quoted, ...]
    messages: tuple[Message, ...]
    new_tokens: int
    seed: int


@dataclass(frozen=True, slots=True)
class Outcome:
    """What came out.

    Attributes:
        content: what the agent says.
        action: what it did, one word.
        summary: the step summary, where the style knows a better one than a model would write.
        verdict: how sure it is, and why, or None.
        whole: False when the slice or the token limit cut the work short.
    """

    content: str
    action: str
    summary: str | None = None
    verdict: str | None = None
    whole: bool = True


class Style(Protocol):
    """One way to work."""

    async def run(self, work: Work, engine: MeteredEngine, encoder: Encoder, on_progress: OnProgress) -> Outcome:
        """Does the turn.

        Raises:
            EngineError: the engine or the encoder failed, or the slice pays for nothing at all.
        """
        ...
