"""Finding agents by meaning over the capability records that a node holds (protocol.md §8, replication.md §8).

    hit   iff   live, passes every filter, same encoder,  dot > 0,  q²·dot² >= p²·|query|²·|record|²   (cosine >= p/q)

Hits come by falling cosine, then tier (standard before demo), then publisher and key; the best `k` of them are given.
Every verdict and every place is decided by exact integers, so all nodes with the same records give the same answer. A
record that is no hit can be given too, with the first reason that it met, in the order of `Reason`.

The text behind a record's vector is the description and the skills that its operator wrote, or, where there are none,
what its roles do. Role texts beside a description do harm: every node of a swarm has the same ones, so they draw all
vectors together (best F2 on a first draft of the labelled set, k = 5: .82 without, .77 with). Tags only filter.

The threshold belongs to the encoder and was calibrated on `discovery_calibration.toml`, which holds the labelled set,
its figures and how they were chosen; a test recomputes them. Another encoder gets the threshold of the swarm's
semantic edges, which is stricter than need be: calibrate it the same way.

One look at 20,000 records of 512 dimensions takes 41 to 53 ms, explained or not, at 1,000 it is 4 ms [measured on two
cores under some load]; so it runs within the step of the core.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from math import isqrt
from typing import Final, Literal

import numpy as np

from kernel.agents.roles import ROSTER
from kernel.memory.edges import DIM_MAX, Tau, as_row, signed_square, squared_norm
from kernel.trust import Trust
from protocol.admission import EncoderSpec
from protocol.capability import AgentValue, SignedRecord

DataPolicy = Literal["local", "external"]
Reason = Literal[
    "withdrawn", "expired", "down", "tool", "model", "context", "price", "data", "skill", "encoder", "no_vector",
    "below_threshold", "beyond_limit",
]  # fmt: skip

LIMIT_MAX: Final = 100
_MARGIN: Final = 1e-9  # far above the error of a float64 division
SCORE_ONE: Final = 10_000
"""Scores are cosines in ten-thousandths, rounded towards zero."""


@dataclass(frozen=True, slots=True)
class Threshold:
    """From which cosine on a record is a hit, and how many hits are given where nobody says."""

    tau: Tau
    k: int


K_DEFAULT: Final = 5
CALIBRATED: Final[Mapping[str, Threshold]] = {"use-512": Threshold(Tau(11, 50), K_DEFAULT)}


def threshold_of(encoder: EncoderSpec) -> Threshold:
    """The calibrated threshold of an encoder, or that of the swarm's semantic edges."""
    p, q = encoder.tau
    return CALIBRATED.get(encoder.id) or Threshold(Tau(min(max(p, 1), q), q), K_DEFAULT)


def capability_text(description: str, skills: Sequence[str], roles: Sequence[str]) -> str:
    """What a record is found by: the operator's words, or what its roles do."""
    said = " ".join(part for part in (description.strip(), f"{', '.join(skills)}." if skills else "") if part)
    if said:
        return said
    known = [agent.about for role in roles if (agent := ROSTER.get(role)) is not None]
    return " ".join(known) or " ".join(roles)


@dataclass(frozen=True, slots=True)
class Filters:
    """What a record must satisfy whatever it means; empty values ask for nothing.

    Attributes:
        tools: it has all of them.
        model: its model id contains this, case-blind.
        context_tokens_min: its window is at least so long.
        price_max: it costs at most so many micro-money for 1,000 tokens.
        data_policy: where prompts go.
        skill: one of its skills or tags, or the start of its taxonomy path, case-blind.
        down: publishers that are not alive, with the reason: no work goes to a ghost (case D2).
    """

    tools: tuple[str, ...] = ()
    model: str = ""
    context_tokens_min: int = 0
    price_max: int | None = None
    data_policy: DataPolicy | None = None
    skill: str = ""
    down: Mapping[bytes, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Query:
    """A text under the swarm's encoder, and what counts as near."""

    vector: bytes
    encoder: str
    threshold: Threshold


@dataclass(frozen=True, slots=True)
class Hit:
    """A record that was found; `score` None where nothing was compared, `trust` None where nothing was seen."""

    record: SignedRecord
    value: AgentValue
    score: int | None
    trust: Trust | None


@dataclass(frozen=True, slots=True)
class Rejection:
    """A record that was not, with the first reason; `score` where it was compared."""

    record: SignedRecord
    value: AgentValue
    reason: Reason
    why: str
    score: int | None = None


@dataclass(frozen=True, slots=True)
class FindResult:
    """Hits best first. Rejections best score first, then those never compared; `more` of them are not listed."""

    hits: tuple[Hit, ...]
    rejected: tuple[Rejection, ...]
    more: int


_Agent = tuple[SignedRecord, AgentValue]
_Faulty = tuple[SignedRecord, AgentValue, Reason]


def find(
    records: Iterable[SignedRecord],
    query: Query | None,
    filters: Filters,
    now_ms: int,
    trust: Mapping[bytes, Trust],
    *,
    explain_max: int = 0,
) -> FindResult:
    """What is near the query and passes the filters; without a query all that passes, in the order of ties.

    At most `explain_max` of the rejected are listed: 0 saves a quarter of the time.
    """
    passed: list[_Agent] = []
    faulty: list[_Faulty] = []
    for record in records:
        value = record.value
        if not isinstance(value, AgentValue):
            continue
        reason = _fault(record, value, filters, now_ms) or _incomparable(value, query)
        if reason is None:
            passed.append((record, value))
        else:
            faulty.append((record, value, reason))
    table = _Compared(passed, query) if query is not None and passed else None
    rejected: list[Rejection] = []
    if table is None:
        hits = [Hit(*agent, None, trust.get(agent[0].publisher)) for agent in sorted(passed, key=_tie)]
    else:
        rows = table.hits()
        hits = [Hit(*passed[row], table.score(row), trust.get(passed[row][0].publisher)) for row in rows]
        rejected = table.rejections(rows, explain_max)
    if explain_max:
        faulty.sort(key=lambda each: (each[0].publisher, each[0].key))
        rejected += [Rejection(*each, _why(each, filters, query, now_ms)) for each in faulty[:explain_max]]
    listed = tuple(rejected[:explain_max])
    return FindResult(tuple(hits), listed, len(passed) - len(hits) + len(faulty) - len(listed))


def _tie(agent: _Agent) -> tuple[bool, bytes, bytes]:
    """What orders equals."""
    record, value = agent
    return (value.quality == "demo", record.publisher, record.key)


# ---- reasons


def _fault(record: SignedRecord, value: AgentValue, filters: Filters, now_ms: int) -> Reason | None:
    """The first reason, other than meaning, against a record."""
    reason: Reason | None = None
    if record.withdrawal:
        reason = "withdrawn"
    elif not record.live(now_ms):
        reason = "expired"
    elif record.publisher in filters.down:
        reason = "down"
    elif filters.tools and not set(filters.tools) <= set(value.tools):
        reason = "tool"
    elif filters.model and filters.model.casefold() not in value.model.casefold():
        reason = "model"
    elif value.context_tokens < filters.context_tokens_min:
        reason = "context"
    elif filters.price_max is not None and value.price_micro_money > filters.price_max:
        reason = "price"
    elif filters.data_policy not in (None, value.data_policy):
        reason = "data"
    elif filters.skill and not _has_skill(value, filters.skill):
        reason = "skill"
    return reason


def _has_skill(value: AgentValue, wanted: str) -> bool:
    folded, path = wanted.casefold().strip("/"), value.taxonomy.casefold().strip("/")
    named = any(label.casefold() == folded for label in (*value.skills, *value.tags))
    return named or path == folded or path.startswith(folded + "/")


def _incomparable(value: AgentValue, query: Query | None) -> Reason | None:
    if query is None:
        return None
    if value.encoder != query.encoder:
        return "encoder"
    if value.vector is None:
        return "no_vector"
    return None if len(value.vector) == len(query.vector) else "encoder"


def _why(faulty: _Faulty, filters: Filters, query: Query | None, now_ms: int) -> str:
    """A reason in words, with the figures behind it."""
    record, value, reason = faulty
    mine, wanted = value.encoder or "no encoder", query.encoder if query is not None else ""
    words: dict[str, str] = {
        "withdrawn": "its node took it back",
        "down": f"its node is down: {filters.down.get(record.publisher, 'no reason')}",
        "expired": f"it ended {max(0, now_ms - record.expiry_ms) // 1000} s ago",
        "tool": f"it lacks {', '.join(tool for tool in filters.tools if tool not in value.tools)}",
        "model": f"it runs {value.model or 'an unnamed model'}",
        "context": f"its window is {value.context_tokens} tokens, {filters.context_tokens_min} are wanted",
        "price": f"it costs {value.price_micro_money} micro-money for 1,000 tokens, over {filters.price_max}",
        "data": f"its data policy is {value.data_policy}",
        "skill": f"it names no skill {filters.skill}",
        "encoder": f"it is embedded with {mine} ({len(value.vector or b'')} bytes), the swarm with {wanted}",
        "no_vector": "it has no vector to compare",
    }
    return words[reason]


# ---- meaning


class _Compared:
    """Agents against a query: exact dot products and squared norms. All vectors have the length of the query."""

    def __init__(self, agents: list[_Agent], query: Query) -> None:
        self._agents = agents
        self._threshold = query.threshold
        # Above DIM_MAX float32 no longer adds int8 products exactly; float64 does for every vector of a record.
        exact = np.float32 if len(query.vector) <= DIM_MAX else np.float64
        joined = b"".join(value.vector or b"" for _, value in agents)
        rows = np.frombuffer(joined, dtype=np.int8).reshape(len(agents), len(query.vector)).astype(exact)
        self._dots = np.rint(rows @ as_row(query.vector).astype(exact)).astype(np.int64)
        self._norms = np.rint(np.square(rows).sum(axis=1)).astype(np.int64)
        self._norm = squared_norm(query.vector)
        wide = self._dots.astype(np.float64)
        self._squares = wide * np.abs(wide) / np.maximum(self._norms, 1)

    def hits(self) -> list[int]:
        """The k best rows of those at or above the threshold, best first."""
        tau = self._threshold.tau
        floor = (tau.p / tau.q) ** 2 * self._norm * (1 - _MARGIN)
        field = np.flatnonzero(self._squares >= floor).tolist()
        return self._best([row for row in field if self._admitted(row)], self._threshold.k)

    def score(self, row: int) -> int:
        """The cosine in ten-thousandths, towards zero; 0 where a vector is zero."""
        dot, own, norm = self._parts(row)
        if not own or not norm:
            return 0
        size = isqrt(SCORE_ONE * SCORE_ONE * dot * dot // (own * norm))
        return size if dot > 0 else -size

    def rejections(self, hits: list[int], count: int) -> list[Rejection]:
        """The `count` best rows that are no hits, by falling score."""
        tau, k, taken = self._threshold.tau, self._threshold.k, frozenset(hits)
        late: tuple[Reason, str] = ("beyond_limit", f"{k} others are nearer")
        low: tuple[Reason, str] = ("below_threshold", f"its score is under {tau.p}/{tau.q}")
        rest = self._best([row for row in range(len(self._agents)) if row not in taken], count) if count else []
        return [Rejection(*self._agents[row], *(late if self._admitted(row) else low), self.score(row)) for row in rest]

    def _best(self, rows: list[int], count: int) -> list[int]:
        """The best rows, exactly: floats only drop what is worse than the last by more than their error."""
        if len(rows) > count:
            squares = self._squares[rows]
            last = float(np.partition(squares, len(rows) - count)[len(rows) - count])
            cut = last - abs(last) * _MARGIN
            rows = [row for row, square in zip(rows, squares.tolist(), strict=True) if square >= cut]
        return sorted(rows, key=self._order)[:count]

    def _admitted(self, row: int) -> bool:
        return self._threshold.tau.admits(*self._parts(row))

    def _parts(self, row: int) -> tuple[int, int, int]:
        return int(self._dots[row]), self._norm, int(self._norms[row])

    def _order(self, row: int) -> tuple[Fraction, tuple[bool, bytes, bytes]]:
        return (-signed_square(int(self._dots[row]), int(self._norms[row])), _tie(self._agents[row]))
