"""The scheduler that needs no model: Reasoning, then a Critic if there is time for one, then the Concluder.

It is the fallback of every other policy, so it always has an answer. The Concluder gets the last step whatever came
before, in training and in evaluation alike (masos-kernel.md §4, I4). A Concluder that did not conclude starts the
round again; that this ends is seen to by the loop rule and by `max_steps` (kernel/decide.py).
"""

from __future__ import annotations

from dataclasses import dataclass

from kernel.agents.roles import CONCLUDER, CRITIC, REASONING
from kernel.scheduler.policy import Choice, Finish, Observation, Role

_NEXT = {REASONING: CRITIC, CRITIC: CONCLUDER, CONCLUDER: REASONING}


@dataclass(frozen=True, slots=True)
class Heuristic:
    """Deterministic and total."""

    name: str = "heuristic"

    def choose_role(self, observation: Observation) -> Choice:
        """The next of the three roles that is legal."""
        if observation.answered:
            return Finish("the last turn concluded")
        if not observation.legal:
            return Finish("no role is legal")
        if observation.steps_left <= 1 and CONCLUDER in observation.legal:
            return Role(CONCLUDER, "the last step concludes")
        last = observation.roles_so_far[-1] if observation.roles_so_far else None
        wanted = REASONING if last is None else _NEXT.get(last, CONCLUDER)
        if wanted == CRITIC and observation.steps_left <= 2 and CONCLUDER in observation.legal:
            return Role(CONCLUDER, "too few steps for a critic")
        for _ in _NEXT:
            if wanted in observation.legal:
                return Role(wanted, f"after {last or 'the start'}")
            wanted = _NEXT[wanted]
        return Role(observation.legal[0], "the first legal role")
