"""Choosing among labelled options by their log-probabilities, less a content-free prior.

A small model prefers some labels whatever the question is. Scoring every label as the next token
and taking away its score under a content-free input removes that preference (Zhao et al. 2021,
"Calibrate before use"); with a model of 135 M parameters this is the difference between 12/20 and
18/20 right choices [engine.md §6]. Free text of such a model picks wrong among near ties.

The candidates carry one-letter labels, the same in inference, rollout and training; calibration
is an inference matter and stays out of training. The prior depends on the prompt's frame only, so
the caller may keep it for as long as the frame and the labels stay.
"""

from __future__ import annotations

from dataclasses import dataclass

from kernel.engine import SCORE_OPTIONS_MAX, Engine, EngineRefused


@dataclass(frozen=True, slots=True)
class Choice:
    """What scoring found.

    Attributes:
        index: the best option; the lowest index among equals.
        scores: log-probability minus prior per option; only their differences mean anything.
        raw: the log-probabilities as the engine gave them.
        margin: best score minus the second best; 0.0 with a single option.
    """

    index: int
    scores: tuple[float, ...]
    raw: tuple[float, ...]
    margin: float


async def choose_label(
    engine: Engine, prompt: str, labels: tuple[str, ...], *, prior: tuple[float, ...] | None = None
) -> Choice:
    """The label that `prompt` raises most above `prior`.

    Args:
        engine: must be able to score.
        prompt: the text right before the label, few-shot examples included.
        labels: distinct continuations, such as " A", " B".
        prior: `label_prior` of the same frame; None compares the raw log-probabilities.

    Raises:
        EngineRefused: no labels, too many, equal ones, or the engine cannot score them.
        EngineUnavailable: the engine is down.
    """
    _check_labels(labels)
    raw = await engine.score(prompt, labels)
    base = prior if prior is not None else (0.0,) * len(labels)
    scores = tuple(value - before for value, before in zip(raw, base, strict=True))
    order = sorted(range(len(scores)), key=lambda i: (-scores[i], i))
    margin = scores[order[0]] - scores[order[1]] if len(order) > 1 else 0.0
    return Choice(order[0], scores, raw, margin)


async def label_prior(engine: Engine, frames: tuple[str, ...], labels: tuple[str, ...]) -> tuple[float, ...]:
    """Mean log-probability of each label over content-free inputs.

    Args:
        engine: must be able to score.
        frames: the prompt with its content replaced, for instance by "N/A" and by "".
        labels: as in `choose_label`.
    """
    _check_labels(labels)
    if not frames:
        raise EngineRefused("a prior needs at least one content-free frame")
    rows = [await engine.score(frame, labels) for frame in frames]
    return tuple(sum(column) / len(rows) for column in zip(*rows, strict=True))


def _check_labels(labels: tuple[str, ...]) -> None:
    if not 0 < len(labels) <= SCORE_OPTIONS_MAX:
        raise EngineRefused(f"{len(labels)} labels are outside 1..{SCORE_OPTIONS_MAX}")
    if len(set(labels)) != len(labels) or not all(labels):
        raise EngineRefused("labels are distinct and not empty")
