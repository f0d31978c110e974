"""The scheduler: three kinds of choice, the no-repeat mask, and a deterministic assignment."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given, strategies as st

from kernel.agents.roles import CONCLUDER, CRITIC, REASONING, ROSTER
from kernel.jobs import Candidate
from kernel.scheduler.assignment import REJECTED_MAX, Assignment, NoCapable, assign
from kernel.scheduler.heuristic import Heuristic
from kernel.scheduler.policy import Finish, Observation, Role, Unparsable, legal_roles

ROLES = (REASONING, CRITIC, CONCLUDER)


def observation(so_far: tuple[str, ...], steps_left: int = 8, *, answered: bool = False) -> Observation:
    legal = legal_roles(ROLES, so_far)
    return Observation("task", "", "", so_far, legal, steps_left, answered, documents=True)


def candidate(number: int, **fields: object) -> Candidate:
    base = Candidate(bytes([number]) * 32, ROLES, "model", "demo", 2048, 50, alive=True, turns_done=0)
    return replace(base, **fields)  # type: ignore[arg-type] # fields of the dataclass by name


def test_the_pipeline_reasons_checks_and_concludes() -> None:
    so_far: tuple[str, ...] = ()
    for _ in range(3):
        choice = Heuristic().choose_role(observation(so_far))
        assert isinstance(choice, Role)
        so_far += (choice.name,)
    assert so_far == ROLES


@given(st.lists(st.sampled_from((*ROLES, "someone")), max_size=12).map(tuple), st.integers(0, 12), st.booleans())
def test_the_heuristic_always_answers_within_the_mask(so_far: tuple[str, ...], left: int, answered: bool) -> None:  # noqa: FBT001 - drawn
    seen = observation(so_far, left, answered=answered)
    choice = Heuristic().choose_role(seen)
    assert not isinstance(choice, Unparsable)
    if answered:
        assert isinstance(choice, Finish)
    else:
        assert isinstance(choice, Role)
        assert choice.name in seen.legal
        assert not so_far or choice.name != so_far[-1]
    assert choice == Heuristic().choose_role(seen)


@pytest.mark.parametrize(
    ("so_far", "left", "role"), [((), 1, CONCLUDER), ((REASONING,), 2, CONCLUDER), ((REASONING,), 3, CRITIC)]
)
def test_the_last_step_concludes_and_the_critic_goes_first_when_steps_are_few(
    so_far: tuple[str, ...], left: int, role: str
) -> None:
    choice = Heuristic().choose_role(observation(so_far, left))
    assert isinstance(choice, Role)
    assert choice.name == role


def test_no_role_repeats_unless_it_is_the_only_one() -> None:
    assert legal_roles(ROLES, (CRITIC,)) == (REASONING, CONCLUDER)
    assert legal_roles((CRITIC,), (CRITIC,)) == (CRITIC,)
    assert legal_roles(ROLES, ()) == ROLES


def test_assignment_prefers_linked_then_quality_then_load_then_speed() -> None:
    nodes: tuple[Candidate, ...] = (
        candidate(1, alive=False, quality="standard"),
        candidate(2, turns_done=1, tokens_per_s=90),
        candidate(3, tokens_per_s=40),
        candidate(4, tokens_per_s=60),
        candidate(5, agents=(REASONING,)),
        candidate(6, context_tokens=100),
        candidate(7, quality="standard", turns_done=9, tokens_per_s=1),
    )
    chosen: list[int] = []
    left = nodes
    for _ in range(5):
        found = assign(CRITIC, left, b"claim", 200)
        assert isinstance(found, Assignment)
        chosen.append(found.candidate.peer[0])
        left = tuple(node for node in left if node != found.candidate)
    assert chosen == [7, 4, 3, 2, 1]
    assert isinstance(assign(CRITIC, left, b"claim", 200), NoCapable)


def test_every_other_candidate_is_rejected_with_a_reason() -> None:
    nodes = tuple(candidate(number, turns_done=number) for number in range(4))
    found = assign(REASONING, nodes, b"claim", 10)
    assert isinstance(found, Assignment)
    assert [line.split(":")[0] for line in found.rejected] == [bytes([number]).hex() * 4 for number in (1, 2, 3)]
    assert "turns" in found.why


@given(st.permutations([candidate(number) for number in range(5)]), st.binary(min_size=4, max_size=4))
def test_assignment_does_not_depend_on_order_and_equal_nodes_take_turns(nodes: list[Candidate], claim: bytes) -> None:
    assert assign(REASONING, tuple(nodes), claim, 1) == assign(REASONING, tuple(sorted(nodes, key=str)), claim, 1)
    first = {assign(REASONING, tuple(nodes), bytes([at]), 1).candidate.peer for at in range(40)}  # type: ignore[union-attr] # all are capable
    assert len(first) > 1


def test_rejections_are_bounded() -> None:
    nodes = tuple(candidate(number) for number in range(40))
    found = assign(REASONING, nodes, b"claim", 1)
    assert isinstance(found, Assignment)
    assert len(found.rejected) == REJECTED_MAX


def test_the_roster_finds_whole_names_case_blind() -> None:
    assert ROSTER.names == ROLES
    assert ROSTER.get("Critic") is ROSTER.get("critic")
    assert ROSTER.get("criti") is None
    assert [agent.label for agent in ROSTER] == ["A", "B", "C"]
