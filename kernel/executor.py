"""The hands of the kernel: runs jobs with a real engine and encoder (kernel/jobs.py).

One call of `run` is one job. It ends with a result, with a `SwarmError`, or by cancellation; leaving an engine call
stops the generation (kernel/engine.py), so cancelling the task that runs a job really stops the work.

A turn:   embed the objective -> allocate under the token budget -> build the prompt -> work in a style
          -> bring the output into the form of a unit (kernel/memory/manager.py) -> embed its summary

Every engine call of the turn is charged to its slice, summaries included. A spent slice ends the turn with what there
is and says so in the verdict; only a slice that pays for nothing at all is an error (`BudgetTooSmall`, `SliceSpent`).
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Final

import trio

from kernel.agents.extractive import Extractive
from kernel.agents.generative import Generative
from kernel.agents.roles import ROSTER, Agent, Roster
from kernel.agents.style import OnProgress, Outcome, Style, StyleName, Work
from kernel.allocator.candidates import Candidate, Candidates, Order, candidates, given
from kernel.allocator.select import (
    Allocation,
    Budget,
    Cost,
    Quoted,
    allocate,
    estimate_tokens,
    without_last,
)
from kernel.decide import decide
from kernel.embedding import Encoder
from kernel.engine import Engine, EngineRefused, EngineTimeout, EngineUnavailable, Message, count_prompt
from kernel.jobs import Decide, Decision, Embed, Embedded, RunTurn, Summarise, Summarised, TurnResult
from kernel.memory.manager import (
    GLOBAL_WORDS_MAX,
    STEP_WORDS_MAX,
    clean_output,
    limited,
    overrun,
    rolled_on,
    step_summary_by_rule,
)
from kernel.metered import MeteredEngine, SliceSpent
from kernel.prompts import global_summary_messages, quote_block, step_summary_messages, turn_messages
from protocol.contract import INT63_MAX, Vector
from protocol.errors import EngineError
from protocol.machine import JobSpec

Result = TurnResult | Decision | Embedded | Summarised

PROGRESS_TAIL_BYTES_MAX: Final = 1024
"""Of partial output that watchers are sent (protocol.md §2)."""
SUMMARY_TOKENS: Final = 96
"""For 50 or 80 words with some room to overrun, which is then cut."""
SUMMARISE_S: Final = 20.0
"""A global summary by the engine takes no longer, or the rule writes it."""
_NO_LIMIT: Final[Vector] = (INT63_MAX, INT63_MAX, INT63_MAX, INT63_MAX)


@dataclass(frozen=True, slots=True)
class Options:
    """How this node works.

    Attributes:
        style: `auto` is extractive for engines of quality demo that have a document at hand, else generative.
        order: how document parts compete for the prompt.
        roster: the agents this node can run.
    """

    style: StyleName = "auto"
    order: Order = "query"
    roster: Roster = ROSTER


class Executor:
    """Runs jobs; any number at once. Both engine and encoder belong to the caller."""

    def __init__(self, engine: Engine | None, encoder: Encoder, options: Options | None = None) -> None:
        """`engine` None: a node that decides, embeds and summarises by rule, and runs no turn."""
        self._engine = engine
        self._encoder = encoder
        self._options = options or Options()

    async def run(self, spec: JobSpec, on_progress: OnProgress | None = None) -> Result:
        """The result of a job; `on_progress` hears (tokens so far, last of the text).

        Raises:
            BudgetTooSmall: the task alone does not fit the window or the slice.
            EngineError: the engine or encoder failed or was out of time.
        """
        match spec:
            case RunTurn():
                return await self._run_turn(spec, on_progress or _silent)
            case Decide():
                return await self._decide(spec)
            case Embed():
                return await self._embed(spec)
            case Summarise():
                return await self._summarise(spec)
            case _:
                raise EngineRefused(f"this node has no hands for a {type(spec).__name__} job")

    # ---- a turn

    async def _run_turn(self, spec: RunTurn, on_progress: OnProgress) -> TurnResult:
        if self._engine is None:
            raise EngineUnavailable("this node has no engine")
        agent = self._options.roster.get(spec.agent) or self._options.roster.get(spec.role)
        if agent is None:
            raise EngineRefused(f"this node has no agent {spec.agent!r}")
        with trio.move_on_after(spec.deadline_s):
            return await self._turn(spec, agent, self._engine, on_progress)
        raise EngineTimeout(f"the turn did not finish within {spec.deadline_s:g} s")

    async def _turn(self, spec: RunTurn, agent: Agent, engine: Engine, on_progress: OnProgress) -> TurnResult:
        meter = MeteredEngine(engine, spec.slice, spec.deadline_s, trio.current_time)
        (query,) = await self._encoder.encode((spec.objective,))
        found = given(spec.chosen) if spec.chosen else candidates(spec.pool, query, self._options.order)
        allocation = await self._allocated(spec, agent, engine, found)
        messages = turn_messages(agent, spec.objective, spec.summary, allocation.quotes)
        work = Work(agent, spec.objective, query, allocation.quotes, messages, allocation.new_tokens, spec.seed)
        style = await self._style(engine, allocation.quotes)
        outcome = await style.run(work, meter, self._encoder, _tail_only(on_progress))
        content = clean_output(outcome.content)
        summary = await self._step_summary(meter, spec, outcome)
        (emb,) = await self._encoder.encode((summary,))
        return TurnResult(
            content=content,
            action=outcome.action,
            summary=summary,
            emb=emb,
            encoder=self._encoder.encoder_id,
            used=meter.used,
            model=(await engine.capabilities()).model,
            receipt=allocation.receipt,
            verdict=outcome.verdict,
            answer=agent.concludes and bool(content) and outcome.action == "answer",
        )

    async def _allocated(self, spec: RunTurn, agent: Agent, engine: Engine, found: Candidates) -> Allocation:
        """What fits, by exact counts; the prompt as a whole is counted again, since parts do not add up to it."""
        able = await engine.capabilities()
        window = min(able.context_tokens, spec.slice[0])
        costs = {one.unit.id: await _cost(engine, one) for one in found.ranked}
        bare = turn_messages(agent, spec.objective, spec.summary, ())
        budget = Budget(window, await count_prompt(engine, bare), agent.max_new_tokens)
        allocation = allocate(found, costs, budget)
        while True:
            messages = turn_messages(agent, spec.objective, spec.summary, allocation.quotes)
            tokens = await count_prompt(engine, messages)
            if tokens + allocation.new_tokens <= window or not allocation.quotes:
                return replace(allocation, receipt=replace(allocation.receipt, prompt_tokens=tokens))
            allocation = without_last(allocation, "over the token budget once the whole prompt was counted")

    async def _style(self, engine: Engine, quotes: tuple[Quoted, ...]) -> Style:
        wanted = self._options.style
        if wanted == "auto":
            wanted = "extractive" if (await engine.capabilities()).quality == "demo" else "generative"
        return Extractive() if wanted == "extractive" and Extractive.fits(quotes) else Generative()

    async def _step_summary(self, meter: MeteredEngine, spec: RunTurn, outcome: Outcome) -> str:
        """Within 50 words whatever the model says: asked twice at most, then cut; by rule when it cannot be asked."""
        if outcome.summary is not None:
            return limited(outcome.summary, STEP_WORDS_MAX)
        try:
            return await _asked_twice(
                meter,
                lambda over: step_summary_messages(spec.agent, spec.objective, outcome.content, over),
                STEP_WORDS_MAX,
            )
        except SliceSpent:
            return step_summary_by_rule(spec.role, outcome.content)

    # ---- the other jobs

    async def _decide(self, spec: Decide) -> Decision:
        """A decision never fails for want of an encoder: parts are then ranked by the newest unit instead."""
        query = None
        with suppress(EngineError):
            (query,) = await self._encoder.encode((spec.objective,))
        return decide(spec, query, self._options.roster)

    async def _embed(self, spec: Embed) -> Embedded:
        vectors = await self._encoder.encode(spec.texts)
        return Embedded(vectors, self._encoder.encoder_id, await self._counts(spec.texts))

    async def _counts(self, texts: tuple[str, ...]) -> tuple[int, ...]:
        """Tokens by the engine; estimates where it is down, because a document can come in without one."""
        if self._engine is not None and await self._engine.health():
            with suppress(EngineError):
                return tuple([await self._engine.count_tokens(text) for text in texts])
        return tuple(estimate_tokens(text) for text in texts)

    async def _summarise(self, spec: Summarise) -> Summarised:
        """The next global summary. The rule is exact about who did what; an engine that fails leaves it to the rule."""
        news = [unit for unit in spec.uncovered if not unit.is_document and unit.summary]
        if spec.mode == "engine" and self._engine is not None and news:
            text = "\n".join(f"{unit.agent}: {unit.summary}" for unit in news)
            try:
                return await self._summarised_by(self._engine, spec, text)
            except EngineError:
                pass  # a summary is never worth a failed step: the rule below always works
        rolled = spec.previous
        for back, unit in zip(range(len(news) - 1, -1, -1), news, strict=True):
            rolled = rolled_on(rolled, max(1, spec.step - back), f"{unit.agent}: {unit.summary}")
        return Summarised(limited(rolled, GLOBAL_WORDS_MAX) if rolled else "", "rule")

    async def _summarised_by(self, engine: Engine, spec: Summarise, news: str) -> Summarised:
        meter = MeteredEngine(engine, _NO_LIMIT, SUMMARISE_S, trio.current_time)
        with trio.move_on_after(SUMMARISE_S):
            text = await _asked_twice(
                meter,
                lambda over: global_summary_messages(spec.objective, spec.previous, news, over),
                GLOBAL_WORDS_MAX,
            )
            return Summarised(text, (await engine.capabilities()).model)
        raise EngineTimeout(f"no summary within {SUMMARISE_S:g} s")


async def _asked_twice(meter: MeteredEngine, ask: Callable[[int], tuple[Message, ...]], words_max: int) -> str:
    """A summary within its limit: asked for, asked for once more with the overrun stated, then cut."""
    said = clean_output((await meter.generate(ask(0), SUMMARY_TOKENS)).text)
    if (over := overrun(said, words_max)) > 0 or not said:
        with suppress(SliceSpent):  # then the first one is cut
            said = clean_output((await meter.generate(ask(max(1, over)), SUMMARY_TOKENS)).text) or said
    if not said:
        raise EngineError("the model gave an empty summary twice")
    return limited(said, words_max)


async def _cost(engine: Engine, candidate: Candidate) -> Cost:
    unit = candidate.unit
    whole = await engine.count_tokens(quote_block(10, Quoted(unit, whole=True, tokens=0, why="")))
    if unit.is_document or not unit.summary:
        return Cost(whole, None)
    return Cost(whole, await engine.count_tokens(quote_block(10, Quoted(unit, whole=False, tokens=0, why=""))))


def _tail_only(on_progress: OnProgress) -> OnProgress:
    def report(tokens: int, text: str) -> None:
        tail = text.encode("utf-8", "replace")[-PROGRESS_TAIL_BYTES_MAX:]
        on_progress(tokens, tail.decode("utf-8", "ignore"))

    return report


def _silent(_tokens: int, _text: str) -> None:
    """Nobody watches."""
