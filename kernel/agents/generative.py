"""The style that lets the model write: one reply to the one prompt of `kernel/prompts.py`.

A reply that ends by its token limit is kept as what it is, marked, and never concludes a task: nobody knows what the
missing part would have said (case K2). An empty reply is an engine failure, not a unit.
"""

from __future__ import annotations

from dataclasses import dataclass

from kernel.agents.style import OnProgress, Outcome, Work
from kernel.embedding import Encoder
from kernel.memory.manager import clean_output
from kernel.metered import MeteredEngine
from protocol.errors import EngineError


@dataclass(frozen=True, slots=True)
class Generative:
    """Free text under the agent's role."""

    async def run(self, work: Work, engine: MeteredEngine, encoder: Encoder, on_progress: OnProgress) -> Outcome:  # noqa: ARG002 - the port's shape
        """As in `Style`."""
        said: list[str] = []

        def on_text(part: str) -> None:
            said.append(part)
            on_progress(engine.tokens + len(said), "".join(said))

        completion = await engine.generate(work.messages, work.new_tokens, seed=work.seed, on_text=on_text)
        text = clean_output(completion.text)
        if not text:
            raise EngineError(f"the model said nothing as {work.agent.name}")
        if completion.finish != "stop":
            return Outcome(text, "partial", verdict="the reply was cut by its token limit", whole=False)
        return Outcome(text, "answer" if work.agent.concludes else "say")
