"""The threshold of `find` is the one its labelled set asks for, and the figures beside the set are true."""

from __future__ import annotations

import tomllib
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

import kernel.discovery
from kernel.agents.roles import ROSTER
from kernel.discovery import CALIBRATED, Filters, Query, Threshold, capability_text, find
from kernel.memory.edges import Tau
from node.engines.encoder import UseEncoder
from protocol.capability import AgentValue, SignedRecord, record_key

SET = tomllib.loads((Path(kernel.discovery.__file__).parent / "discovery_calibration.toml").read_text())
NOW_MS = 1_000
STEPS = 50  # of the grid of thresholds
ROUNDING = 0.0006  # figures are written with three digits; int8 may move a score by one step of its own


@dataclass(frozen=True)
class Vectors:
    """Everything of the set, embedded once."""

    records: tuple[SignedRecord, ...]
    queries: tuple[bytes, ...]


@pytest.fixture(scope="module")
def loaded() -> list[Vectors]:
    return []


async def vectors(loaded: list[Vectors]) -> Vectors:
    if not loaded:
        encoder = UseEncoder()
        records = []
        for offer in SET["offers"]:
            text = capability_text(offer["description"], offer["skills"], ROSTER.names)
            (vector,) = await encoder.encode((text,))
            records.append(record_of(offer["id"], vector))
        queries = [(await encoder.encode((query["text"],)))[0] for query in SET["queries"]]
        loaded.append(Vectors(tuple(records), tuple(queries)))
    return loaded[0]


def record_of(name: str, vector: bytes) -> SignedRecord:
    value = AgentValue(agent=name, roles=ROSTER.names, vector=vector, encoder=SET["encoder"])
    publisher = name.encode().ljust(32, b"\0")
    return SignedRecord(record_key(publisher, "agent", name), "agent", value, publisher, 1, 0, 10**9, b"", b"")


def shown(given: Vectors, query: bytes, tau: Tau, k: int) -> list[str]:
    asked = Query(query, SET["encoder"], Threshold(tau, k))
    return [hit.value.agent for hit in find(given.records, asked, Filters(), NOW_MS, {}).hits]


def figures(given: Vectors, tau: Tau, k: int) -> dict[str, float]:
    found = [shown(given, query, tau, k) for query in given.queries]
    wanted: list[list[str]] = [query["wants"] for query in SET["queries"]]
    right = total(len(set(names) & set(wants)) for names, wants in zip(found, wanted, strict=True))
    precision, recall = right / max(1, total(map(len, found))), right / total(map(len, wanted))
    silent = total(not names and not wants for names, wants in zip(found, wanted, strict=True))
    f2 = 5 * precision * recall / max(1e-9, 4 * precision + recall)
    return {"precision": precision, "recall": recall, "f2": f2, "silent": silent}


def total(parts: Iterable[int]) -> int:
    return sum(parts)


def test_the_set_is_well_formed_and_in_force() -> None:
    ids = [offer["id"] for offer in SET["offers"]]
    texts = [query["text"] for query in SET["queries"]]
    assert len(set(ids)) == len(ids) >= 40
    assert len(set(texts)) == len(texts) >= 60
    assert {want for query in SET["queries"] for want in query["wants"]} <= set(ids)
    assert CALIBRATED[SET["encoder"]] == Threshold(Tau(*SET["tau"]), SET["k"])


@pytest.mark.slow
async def test_the_figures_beside_the_set_are_what_comes_out(loaded: list[Vectors]) -> None:
    given, expected = await vectors(loaded), dict[str, Any](SET["figures"])
    first = expected.pop("first")
    assert figures(given, Tau(*SET["tau"]), SET["k"]) == pytest.approx(expected, abs=ROUNDING)
    wanting = [(v, q["wants"]) for v, q in zip(given.queries, SET["queries"], strict=True) if q["wants"]]
    best = [shown(given, vector, Tau(1, 10_000), 1) for vector, _ in wanting]
    right = total(names[0] in wants for names, (_, wants) in zip(best, wanting, strict=True) if names)
    assert right / len(wanting) == pytest.approx(first, abs=ROUNDING)


@pytest.mark.slow
async def test_no_other_threshold_of_the_grid_is_better(loaded: list[Vectors]) -> None:
    given = await vectors(loaded)
    scores = {p: figures(given, Tau(p, STEPS), SET["k"])["f2"] for p in range(1, STEPS)}
    p, q = SET["tau"]
    assert q == STEPS
    assert max(scores, key=lambda step: scores[step]) == p
