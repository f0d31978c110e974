"""Texts as agents may write of themselves and people may ask for, made from a seed: what codebooks are trained on.

A codebook has to know where capability texts lie in the space of an encoder before a swarm has any. So texts are put
together from `codebook_vocabulary.toml`: domains x things x deeds, in several shapes, some with skills, as
`capability_text` of kernel/discovery.py joins them. Equal arguments give equal texts: the generator draws by
`random.Random` alone, in file order.
"""

from __future__ import annotations

import random
import tomllib
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from typing import Final

from kernel.discovery import capability_text

_VOCABULARY: Final = "codebook_vocabulary.toml"
_SKILLS_MAX: Final = 4


@dataclass(frozen=True, slots=True)
class Vocabulary:
    """Words by kind; `domains` pairs a name with the things that its agents work on."""

    deeds: tuple[str, ...]
    audiences: tuple[str, ...]
    manners: tuple[str, ...]
    domains: tuple[tuple[str, tuple[str, ...]], ...]


@cache
def vocabulary() -> Vocabulary:
    """The words that this release brings."""
    said = tomllib.loads(files("kernel").joinpath(_VOCABULARY).read_text(encoding="utf-8"))
    domains = tuple((name, tuple(things)) for name, things in said["domains"].items())
    return Vocabulary(tuple(said["deeds"]), tuple(said["audiences"]), tuple(said["manners"]), domains)


def offer_texts(count: int, rng: random.Random, words: Vocabulary | None = None) -> list[str]:
    """What `count` agents say of themselves; texts may repeat, as they do in a swarm, but seldom do."""
    return [_offer(rng, words or vocabulary()) for _ in range(count)]


def query_texts(count: int, rng: random.Random, words: Vocabulary | None = None) -> list[str]:
    """What `count` people look for."""
    return [_query(rng, words or vocabulary()) for _ in range(count)]


def _offer(rng: random.Random, words: Vocabulary) -> str:
    name, things = rng.choice(words.domains)
    one, other = rng.sample(things, 2)
    first, second = rng.sample(words.deeds, 2)
    audience, manner = rng.choice(words.audiences), rng.choice(words.manners)
    description = rng.choice(
        (
            f"{_third(first).capitalize()} {one}.",
            f"{_third(first).capitalize()} {one} and {_third(second)} {other} {manner}.",
            f"An assistant for {name} that {_third(first)} {one} {manner}.",
            f"An agent for {audience}: {_third(first)} {one}, {_third(second)} {other}.",
            f"Expert in {name}. Ask about {one} or {other}.",
            f"I help {audience} to {first} {one}. I work {manner}.",
            f"Specialised in {name}, above all {one}; can also {second} {other} for {audience}.",
            f"{name.capitalize()}: {one}, {other}.",
            "",
        )
    )
    labels = [name, *rng.sample(things, 2), first.split()[0]]
    skills = rng.sample(labels, rng.randint(1, _SKILLS_MAX)) if not description or rng.random() < 0.5 else []
    return capability_text(description, skills, ())


def _query(rng: random.Random, words: Vocabulary) -> str:
    name, things = rng.choice(words.domains)
    thing, deed = rng.choice(things), rng.choice(words.deeds)
    audience, manner = rng.choice(words.audiences), rng.choice(words.manners)
    return rng.choice(
        (
            f"who can {deed} {thing}?",
            f"{deed} {thing} {manner}",
            f"I need help with {thing}",
            f"somebody who knows {name}",
            f"help {audience} with {thing}",
            f"{name} {thing}",
            f"an agent that {_third(deed)} {thing} for {audience}",
        )
    )


def _third(deed: str) -> str:
    """A deed as its third person says it: `find errors in` gives `finds errors in`."""
    verb, *rest = deed.split(" ")
    if verb.endswith(("s", "sh", "ch", "x", "z")):
        verb += "es"
    elif verb.endswith("y") and verb[-2] not in "aeiou":
        verb = verb[:-1] + "ies"
    else:
        verb += "s"
    return " ".join([verb, *rest])
