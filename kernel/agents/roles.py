"""The agents of this node, as data: adding one changes no code (masos-kernel.md §2).

Three of the paper's ten are here: Reasoning, Critic and Concluder, in our own words (no wording of the reference code
is used). `name` is what travels in ops and capability records, lower case; `label` is the letter that stands for the
agent where a policy scores its choices (protocol.md §10).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Final

REASONING: Final = "reasoning"
CRITIC: Final = "critic"
CONCLUDER: Final = "concluder"


@dataclass(frozen=True, slots=True)
class Agent:
    """One agent.

    Attributes:
        name: its whole, unique, lower-case name.
        label: one letter for scored choices.
        about: what it is for, shown to schedulers and people; at most 200 characters (masos-kernel.md §2).
        instruction: what it is told to do with the quotes.
        max_new_tokens: of its reply.
        concludes: its content is the task's answer.
    """

    name: str
    label: str
    about: str
    instruction: str
    max_new_tokens: int
    concludes: bool = False

    def __post_init__(self) -> None:
        assert self.name, "an agent has a name"
        assert self.name == self.name.lower(), "agent names are lower case"
        assert len(self.about) <= 200, "the observation holds 200 characters about an agent"


class Roster:
    """The agents that a node knows, by name."""

    def __init__(self, agents: Iterable[Agent]) -> None:
        self._by_name = {agent.name: agent for agent in agents}

    @property
    def names(self) -> tuple[str, ...]:
        """All names in the order given."""
        return tuple(self._by_name)

    def get(self, name: str) -> Agent | None:
        """The agent of this whole name, case-blind."""
        return self._by_name.get(name.lower())

    def __iter__(self) -> Iterator[Agent]:
        return iter(self._by_name.values())


ROSTER: Final = Roster(
    (
        Agent(
            REASONING,
            "A",
            "Reads the quoted material and works out what in it bears on the task.",
            "Find what in the quotes bears on the task. State it briefly and name the number of each quote you use.",
            220,
        ),
        Agent(
            CRITIC,
            "B",
            "Checks what was said so far against the quoted material and proposes the best supported answer.",
            "Check the earlier statements against the quotes. Say which one the quotes support best, and why.",
            160,
        ),
        Agent(
            CONCLUDER,
            "C",
            "Gives the final answer from what was found and checked.",
            "Give the final answer to the task in one or two sentences, using only what the quotes say.",
            120,
            concludes=True,
        ),
    )
)
