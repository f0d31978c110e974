"""The style for models that cannot be trusted to write: they judge statements of the document instead.

The default model has 135 million parameters. Asked to write, it says something else in the words of the text ("You must
change the files to carry a notice ..."). Asked whether a statement answers a question, or which of three does best, it
is at chance: 3 and 4 of 10 right, calibrated, with letters in all rotations. But it knows which question a text
answers: the log-probability of the question after the statement, minus the same after no text, says how much the
statement speaks for the question, in nats. This is query likelihood (Ponte & Croft 1998; with language models Sachan et
al. 2022), and it picked the right one of the same statements in 9 of 10 [all measured on an Apache licence with
SmolLM2-135M Q4]. So the agents judge by it, and differ in what they judge:

- **Reasoning** takes the statements of its document quotes, narrows them to ten by encoder similarity and rare shared
  words, scores these, and cites the best three verbatim with the unit that each comes from.
- **Critic** reads what was cited, drops every citation that is not in its document quotes word for word, scores the
  rest under another wording, and proposes the best.
- **Concluder** takes the mean evidence of both wordings and answers with the best statement, word for word. Too little
  evidence is said, not hidden. No sentence of the model's own is added.

Each agent scores anew: figures that a peer wrote are shown to people and never believed. When the slice is spent, what
was scored so far decides; with nothing scored, the narrowing does.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from typing import Final

from kernel.agents.roles import CONCLUDER, CRITIC
from kernel.agents.style import OnProgress, Outcome, Work
from kernel.allocator.select import Quoted
from kernel.embedding import Encoder
from kernel.memory.edges import rank
from kernel.memory.manager import STEP_WORDS_MAX, limited, sentences
from kernel.metered import MeteredEngine, SliceSpent
from kernel.prompts import SHORT_ID_CHARS, question_prefix, short_id
from protocol.errors import EngineError

STATEMENTS_MAX: Final = 200
"""Statements looked at by the encoder (0.3 ms each [measured])."""
SCORED_MAX: Final = 10
"""Statements scored by the engine: 0.2 s each on 2 cores [measured]."""
CITED_MAX: Final = 3
SUPPORT_NATS_MIN: Final = 3.0
"""Evidence below it is called weak; e^3 = 20 times as likely as without the statement. Measured: -2 to 1 where the
document has nothing on the question, 6 to 26 where it has."""
HEADING_WORDS_MAX: Final = 5
NO_TEXT: Final = "N/A"
_FUSION: Final = 5  # of reciprocal rank fusion; small, because the lists are short
_STEM_CHARS: Final = 6
_CITATION: Final = re.compile(rf'^\d{{1,2}}\. "(.+)" \[unit ([0-9a-f]{{{SHORT_ID_CHARS}}})\]', re.MULTILINE)
_WORD: Final = re.compile(r"[^\W\d_]+|\d+")
_COMMON_WORDS: Final = (
    "a about all an and any are as at be by can did do does document for from had has have how i if "
    "in is it its licence license may me must my of on or our say says shall should so such text "
    "that the their them then there they this to under was we what when where which who why will "
    "with would you your"
)
_COMMON: Final = frozenset(_COMMON_WORDS.split(" "))


@dataclass(frozen=True, slots=True)
class Statement:
    """A sentence of the document, the unit that holds it, and what speaks for it, in nats (None: not scored)."""

    text: str
    unit_id: bytes
    nats: float | None = None


@dataclass(frozen=True, slots=True)
class Extractive:
    """Judging statements; needs document quotes (`fits`)."""

    @staticmethod
    def fits(quotes: Sequence[Quoted]) -> bool:
        """Whether there is a document to extract from."""
        return any(quote.unit.is_document for quote in quotes)

    async def run(self, work: Work, engine: MeteredEngine, encoder: Encoder, on_progress: OnProgress) -> Outcome:
        """As in `Style`."""
        desk = _Desk(work, engine, on_progress)
        found = await _narrowed(work, encoder)
        if work.agent.name == CRITIC:
            return await desk.check(_cited(work.quotes) or found[:CITED_MAX])
        if work.agent.name == CONCLUDER or work.agent.concludes:
            return await desk.conclude(_cited(work.quotes) or found[:CITED_MAX])
        return await desk.reason(found)


class _Desk:
    """The work of one turn."""

    def __init__(self, work: Work, engine: MeteredEngine, on_progress: OnProgress) -> None:
        self._work = work
        self._engine = engine
        self._on_progress = on_progress

    async def reason(self, found: Sequence[Statement]) -> Outcome:
        """Cites what bears on the task."""
        cited = (await self._weighed(found[:SCORED_MAX], (0,)))[:CITED_MAX]
        head = f"Of {len(found)} statements in the quoted parts, these bear most on the task:"
        return self._outcome("cite", head, cited, f"Found {len(cited)} statements that bear on the task; first")

    async def check(self, cited: Sequence[Statement]) -> Outcome:
        """Proposes one of the cited statements."""
        checked = await self._weighed(cited[:SCORED_MAX], (1,))
        agrees = checked[0].text == cited[0].text
        head = "Each citation stands in the document word for word. Proposed answer first:"
        note = "agrees with the first citation" if agrees else "prefers another citation"
        return self._outcome(
            "check", f"{head} ({note})", checked[:CITED_MAX], f"Checked {len(checked)} citations; proposes"
        )

    async def conclude(self, cited: Sequence[Statement]) -> Outcome:
        """Answers with the statement that has the most evidence."""
        weighed = await self._weighed(cited[:SCORED_MAX], (0, 1))
        best = weighed[0]
        source = f'"{best.text}" [unit {short_id(best.unit_id)}]'
        weak = best.nats is None or best.nats < SUPPORT_NATS_MIN
        if weak:
            content = f"The document does not clearly answer this. The nearest statement is: {source}"
        else:
            content = f"From the document: {source}"
        summary = limited(f"Concluded with: {best.text}", STEP_WORDS_MAX)
        return Outcome(content, "answer", summary, self._verdict(best), whole=self._engine.spent is None)

    def _outcome(self, action: str, head: str, cited: Sequence[Statement], short: str) -> Outcome:
        lines = [f'{n}. "{one.text}" [unit {short_id(one.unit_id)}]{_shown(one)}' for n, one in enumerate(cited, 1)]
        summary = limited(f"{short}: {cited[0].text}", STEP_WORDS_MAX)
        content = "\n".join([head, *lines])
        return Outcome(content, action, summary, self._verdict(cited[0]), whole=self._engine.spent is None)

    def _verdict(self, best: Statement) -> str:
        evidence = "not scored" if best.nats is None else f"evidence {best.nats:+.1f} nats over no text"
        return evidence if self._engine.spent is None else f"{evidence}; cut short: no {self._engine.spent} left"

    async def _weighed(self, statements: Sequence[Statement], wordings: tuple[int, ...]) -> list[Statement]:
        """The statements by falling evidence; unscored ones last, in the order in which they came."""
        weighed = list(statements)
        try:
            if not (await self._engine.capabilities()).score:
                return weighed
            free = [await self._nats(NO_TEXT, wording) for wording in wordings]
            for at, one in enumerate(statements):
                seen = [await self._nats(one.text, wording) for wording in wordings]
                mean = sum(a - b for a, b in zip(seen, free, strict=True)) / len(wordings)
                weighed[at] = replace(one, nats=mean)
                self._on_progress(self._engine.tokens, f"weighed {at + 1} of {len(statements)}: {one.text}")
        except SliceSpent:
            pass  # `engine.spent` names the reason; what was weighed so far decides
        return sorted(weighed, key=lambda one: (one.nats is None, -(one.nats or 0.0)))

    async def _nats(self, text: str, wording: int) -> float:
        (logprob,) = await self._engine.score(question_prefix(text, wording), (self._work.objective.strip(),))
        return logprob


def stems(text: str) -> frozenset[str]:
    """The words that carry meaning, lower case, cut to six letters."""
    return frozenset(word[:_STEM_CHARS] for word in _words(text) if word not in _COMMON)


def statements_of(quote: Quoted) -> list[Statement]:
    """The sentences of a document part; a heading or a number goes with the sentence after it."""
    found: list[Statement] = []
    held = ""
    for sentence in sentences(quote.text):
        text = f"{held} {sentence}".strip()
        held = text if len(text.split()) <= HEADING_WORDS_MAX else ""
        if not held:
            found.append(Statement(text.removesuffix(" and").removesuffix(" or").removesuffix(";"), quote.unit.id))
    if held:
        found.append(Statement(held, quote.unit.id))
    return found


def _cited(quotes: Sequence[Quoted]) -> list[Statement]:
    """What working units cite and the document quotes really hold, first cited first, each once."""
    documents = [quote for quote in quotes if quote.unit.is_document]
    parts = [(short_id(part.unit.id), part.unit.id, " ".join(part.text.split())) for part in documents]
    found: dict[str, Statement] = {}
    for quote in quotes:
        if quote.unit.is_document:
            continue
        for text, short in _CITATION.findall(quote.text):
            holder = next((unit_id for name, unit_id, whole in parts if name == short and text in whole), None)
            if holder is not None:
                found.setdefault(text, Statement(text, holder))
    return list(found.values())


async def _narrowed(work: Work, encoder: Encoder) -> list[Statement]:
    """The statements of the document quotes by fused rank of similarity and shared words, best first."""
    everything = [one for quote in work.quotes if quote.unit.is_document for one in statements_of(quote)]
    unique = list({one.text: one for one in everything}.values())[:STATEMENTS_MAX]
    if not unique:
        raise EngineError("there is no statement to work on")
    vectors = await encoder.encode(tuple(one.text for one in unique))
    near = rank(work.query, vectors, [one.text.encode() for one in unique]).order
    place = {at: position for position, at in enumerate(near)}
    shared = sorted(place, key=_by_shared_words(work.objective, [one.text for one in unique], place))
    fused = {at: 1 / (_FUSION + place[at]) + 1 / (_FUSION + position) for position, at in enumerate(shared)}
    return [unique[at] for at in sorted(fused, key=lambda at: (-fused[at], place[at]))]


def _by_shared_words(
    question: str, texts: Sequence[str], place: dict[int, int]
) -> Callable[[int], tuple[Fraction, int]]:
    """Orders texts by the words that they share with the question, a word in n of the texts counting 1/n."""
    wanted = stems(question)
    said = [stems(text) & wanted for text in texts]
    spread = Counter(word for words in said for word in sorted(words))
    weights = [sum((Fraction(1, spread[word]) for word in sorted(words)), Fraction(0)) for words in said]
    return lambda at: (-weights[at], place[at])


def _shown(one: Statement) -> str:
    return "" if one.nats is None else f" ({one.nats:+.1f} nats)"


def _words(text: str) -> list[str]:
    return [word.casefold() for word in _WORD.findall(text)]
