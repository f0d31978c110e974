"""From a finished turn to what comes next: a pure function, run on the node that finished it.

    concluded ............ answer
    budget gone .......... budget_exhausted      (a slice of 0 would only be spent on saying so)
    last step ............ failed                (the done of step max_steps carries an end, protocol.md §7.6)
    going in circles ..... loop
    nobody fits .......... no_capable_agent
    else ................. next = role by the policy, peer by the assignment, units by the allocator, a slice

The order is the order of these lines: an answer is worth more than the reason why there would be none later. Whatever
a policy says, the result is well-formed: an unparsable or illegal choice falls back to the heuristic, and says so.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Final

from kernel.agents.roles import ROSTER, Roster
from kernel.allocator.candidates import Order, candidates
from kernel.allocator.select import NEW_TOKENS_MIN, Budget, BudgetTooSmall, Cost, allocate, estimate_tokens
from kernel.jobs import Decide, Decision
from kernel.memory.pool import UnitView
from kernel.scheduler.assignment import Assignment, NoCapable, assign
from kernel.scheduler.heuristic import Heuristic
from kernel.scheduler.policy import OBSERVED_SUMMARY_CHARS_MAX, Finish, Observation, Policy, Role, legal_roles
from protocol.contract import exhausted, least
from protocol.records import Next

LOOP_ROUNDS: Final = 3
"""A pattern of roles that ran so often in a row, without an answer, is a loop [judgement]."""
PROMPT_OVERHEAD_TOKENS: Final = 160
"""System text, instruction and chat template of any agent here, at most."""
WHY_CHARS_MAX: Final = 1_000  # protocol.records.Next.why
UNITS_MAX: Final = 256  # protocol.records.Next.units

POLICIES: Final[Mapping[str, Policy]] = {"heuristic": Heuristic()}


def decide(spec: Decide, query: bytes | None = None, roster: Roster = ROSTER) -> Decision:
    """What comes after the turn. `query`: the vector of the objective, where the caller has an encoder."""
    if (end := _end(spec)) is not None:
        return end
    choice, how = _choose(spec, roster)
    if isinstance(choice, Finish):
        return Decision("failed", None, f"nothing left to run: {choice.why}")
    need = PROMPT_OVERHEAD_TOKENS + estimate_tokens(spec.objective) + estimate_tokens(spec.summary) + NEW_TOKENS_MIN
    match assign(choice.name, spec.candidates, spec.claim, need):
        case NoCapable(rejected):
            why = ": ".join([f"nobody runs {choice.name}", *(["; ".join(rejected)] if rejected else [])])
            return Decision("no_capable_agent", None, why[:500])
        case Assignment() as assignment:
            return _next(spec, choice, how, assignment, query)


def missing_role(spec: Decide, roster: Roster = ROSTER) -> str:
    """The role that would come next if all were offered, where no live candidate offers it; else empty.

    A policy chooses among what is offered, so a node that knows too few agents makes do with the wrong one. Who may
    not know all asks for this role first (kernel/scout.py).
    """
    offered = {name for candidate in spec.candidates if candidate.alive for name in candidate.agents}
    if _end(spec) is not None or offered.issuperset(roster.names):
        return ""
    choice = Heuristic().choose_role(
        replace(_observe(spec, roster), legal=legal_roles(roster.names, spec.roles_so_far))
    )
    return choice.name if isinstance(choice, Role) and choice.name not in offered else ""


def _end(spec: Decide) -> Decision | None:
    if spec.answer:
        return Decision("answer", None, "the turn concluded")
    if (component := exhausted(spec.left)) is not None:
        return Decision("budget_exhausted", None, f"no {component} left of the budget")
    if spec.step >= spec.max_steps:
        return Decision("failed", None, f"no answer within {spec.max_steps} steps")
    if least(spec.slice_max, spec.left)[0] <= NEW_TOKENS_MIN:
        return Decision("budget_exhausted", None, f"{spec.left[0]} tokens left are too few for a reply")
    why = _circles(spec)
    return None if why is None else Decision("loop", None, why)


def _choose(spec: Decide, roster: Roster) -> tuple[Role | Finish, str]:
    wanted = dict(spec.policies).get("scheduler", "heuristic")
    policy = POLICIES.get(wanted)
    observation = _observe(spec, roster)
    fallback = Heuristic()
    if policy is None:
        choice, how = fallback.choose_role(observation), f"heuristic, no policy {wanted[:60]} here"
    else:
        choice, how = policy.choose_role(observation), policy.name
    if isinstance(choice, Finish) or (isinstance(choice, Role) and choice.name in observation.legal):
        return choice, how
    choice = fallback.choose_role(observation)
    assert isinstance(choice, (Role, Finish)), "the heuristic always answers"
    return choice, f"heuristic, {how} gave no legal role"


def _observe(spec: Decide, roster: Roster) -> Observation:
    newest = next((unit for unit in spec.pool if not unit.is_document), None)
    offered = {name for candidate in spec.candidates for name in candidate.agents}
    known = tuple(name for name in roster.names if name in offered) or roster.names
    return Observation(
        objective=spec.objective,
        summary=spec.summary,
        last_summary="" if newest is None else newest.summary[:OBSERVED_SUMMARY_CHARS_MAX],
        roles_so_far=spec.roles_so_far,
        legal=legal_roles(known, spec.roles_so_far),
        steps_left=spec.max_steps - spec.step,
        answered=spec.answer,
        documents=any(unit.is_document for unit in spec.pool),
    )


def _circles(spec: Decide) -> str | None:
    """Whether the roles repeat themselves; patterns of one to four roles are looked at."""
    roles = spec.roles_so_far
    for length in range(1, 5):
        tail = roles[-length * LOOP_ROUNDS :]
        if len(tail) == length * LOOP_ROUNDS and tail == tail[:length] * LOOP_ROUNDS:
            return f"{' -> '.join(tail[:length])} ran {LOOP_ROUNDS} times without an answer"[:500]
    return None


def _next(spec: Decide, choice: Role, how: str, assignment: Assignment, query: bytes | None) -> Decision:
    peer = assignment.candidate
    part = least(spec.slice_max, spec.left)
    why = f"{how}: {choice.name} {choice.why}; {assignment.why}"
    units = _memory(spec, min(peer.context_tokens, part[0]), query)
    following = Next(
        role=choice.name,
        agent=choice.name,
        peer=peer.peer,
        model=peer.model[:128],
        units=units,
        slice=part,
        why=why[:WHY_CHARS_MAX],
        rejected=tuple(reason[:200] for reason in assignment.rejected),
    )
    return Decision("next", following, why[:500])


def _memory(spec: Decide, window: int, query: bytes | None) -> tuple[bytes, ...]:
    """The units for the next agent by estimated tokens; the node that runs it counts with its own tokenizer."""
    order: Order = "graph" if dict(spec.policies).get("allocator") == "graph" else "query"
    found = candidates(spec.pool, query, order)
    costs = {candidate.unit.id: _cost(candidate.unit) for candidate in found.ranked}
    fixed = PROMPT_OVERHEAD_TOKENS + estimate_tokens(spec.objective) + estimate_tokens(spec.summary)
    try:
        quotes = allocate(found, costs, Budget(window, fixed, 256)).quotes
        return tuple(quote.unit.id for quote in quotes[:UNITS_MAX])
    except BudgetTooSmall:
        return ()  # the turn itself says so, with exact counts


def _cost(unit: UnitView) -> Cost:
    header = 24
    whole = header + max(estimate_tokens(unit.content), min(unit.tokens, 1 << 20))
    return Cost(whole, header + estimate_tokens(unit.summary) if unit.summary else None)
