"""Decide is total and well-formed: whatever it is given, the done that is made of it can be valid."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given, strategies as st

import kernel.decide as module
from kernel.agents.roles import CONCLUDER, CRITIC, REASONING
from kernel.decide import LOOP_ROUNDS, decide, missing_role
from kernel.jobs import Candidate, Decide
from kernel.memory.pool import UnitView
from kernel.scheduler.policy import Choice, Observation, Role, Unparsable
from protocol.contract import INT63_MAX, Vector, fits
from protocol.records import ENDS, Next

ROLES = (REASONING, CRITIC, CONCLUDER)
FULL: Vector = (40_000, 100, 600_000, INT63_MAX)
SLICE: Vector = (10_000, 25, 150_000, INT63_MAX)


def unit(number: int, *, document: bool = False, emb: bytes | None = None, content: str = "text") -> UnitView:
    role = "document" if document else REASONING
    claim = None if document else b"c" * 32
    base = (number.to_bytes(32, "big"), claim, b"a" * 32, role, role, "", content, "short", 0)
    return UnitView(*base, emb, "test", number, number)


def node(number: int, **fields: object) -> Candidate:
    base = Candidate(bytes([number]) * 32, ROLES, "model", "demo", 2048, 50, alive=True, turns_done=0)
    return replace(base, **fields)  # type: ignore[arg-type] # fields of the dataclass by name


def spec(**fields: object) -> Decide:
    base = Decide(
        space=bytes(16), claim=b"k" * 32, step=1, max_steps=12, objective="What is it?", summary="", role=REASONING,
        roles_so_far=(REASONING,), answer=False, pool=(unit(1),), candidates=(node(1), node(2)), left=FULL,
        slice_max=SLICE,
    )  # fmt: skip
    return replace(base, **fields)  # type: ignore[arg-type] # fields of the dataclass by name


def following(decide_spec: Decide) -> Next:
    decision = decide(decide_spec)
    assert decision.outcome == "next"
    assert decision.next is not None
    return decision.next


NODES = st.builds(node, st.integers(1, 9), context_tokens=st.integers(0, 4096), alive=st.booleans())
vectors = st.tuples(*(st.one_of(st.just(0), st.integers(0, 5000), st.just(INT63_MAX)) for _ in range(4)))


@given(
    step=st.integers(1, 14),
    roles=st.lists(st.sampled_from((*ROLES, "other")), min_size=1, max_size=12).map(tuple),
    answer=st.booleans(),
    left=vectors,
    slice_max=vectors,
    nodes=st.lists(NODES, max_size=4),
    sizes=st.lists(st.tuples(st.integers(0, 3000), st.booleans()), max_size=10),
    policy=st.sampled_from(["heuristic", "unknown-one"]),
)
def test_a_decision_is_an_end_or_a_valid_successor(  # noqa: PLR0917 - one argument for each thing that is drawn
    step: int,
    roles: tuple[str, ...],
    answer: bool,  # noqa: FBT001 - drawn
    left: Vector,
    slice_max: Vector,
    nodes: list[Candidate],
    sizes: list[tuple[int, bool]],
    policy: str,
) -> None:
    pool = tuple(unit(at, document=document, content="w" * size) for at, (size, document) in enumerate(sizes))
    asked = spec(
        step=step, role=roles[-1], roles_so_far=roles, answer=answer, left=left, slice_max=slice_max,
        candidates=tuple(nodes), pool=pool, policies=(("scheduler", policy),),
    )  # fmt: skip
    decision = decide(asked)
    assert decision == decide(asked)
    assert len(decision.reason) <= 500
    if decision.next is None:
        assert decision.outcome in ENDS
        return
    assert decision.outcome == "next"
    assert step < 12
    chosen = decision.next
    assert fits(chosen.slice, left)
    assert fits(chosen.slice, slice_max)
    assert chosen.role in ROLES
    assert chosen.role != roles[-1]
    assert chosen.peer in {one.peer for one in nodes}
    assert set(chosen.units) <= {one.id for one in pool}
    assert len(set(chosen.units)) == len(chosen.units)
    Next.model_validate(chosen.model_dump())  # every bound of the record holds


def test_the_ends_come_in_their_order() -> None:
    spent: Vector = (0, 5, 5, 5)
    assert decide(spec(answer=True, left=spent, step=12)).outcome == "answer"
    assert decide(spec(left=spent, step=12)).outcome == "budget_exhausted"
    assert decide(spec(step=12)).outcome == "failed"
    assert decide(spec(candidates=())).outcome == "no_capable_agent"
    assert decide(spec(candidates=(node(1, agents=(CONCLUDER,)),), roles_so_far=(REASONING,))).next is not None
    assert decide(spec(left=(10, 5, 5, 5))).outcome == "budget_exhausted"


@pytest.mark.parametrize("component", [0, 1, 2])
def test_a_spent_component_ends_the_task_and_is_named(component: int) -> None:
    left = [*FULL]
    left[component] = 0
    decision = decide(spec(left=(left[0], left[1], left[2], left[3])))
    assert decision.outcome == "budget_exhausted"
    assert ("tokens", "calls", "ms")[component] in decision.reason


def test_no_money_is_no_end() -> None:
    assert decide(spec(left=(40_000, 100, 600_000, 0))).outcome == "next"


def test_the_last_step_is_the_concluders() -> None:
    assert following(spec(step=11, roles_so_far=(REASONING,))).role == CONCLUDER
    assert following(spec(step=1)).role == CRITIC


@pytest.mark.parametrize("pattern", [(REASONING, CRITIC), (REASONING, CRITIC, CONCLUDER), (CONCLUDER, REASONING)])
def test_circles_end_as_a_loop(pattern: tuple[str, ...]) -> None:
    rounds = pattern * LOOP_ROUNDS
    assert decide(spec(roles_so_far=rounds, step=len(rounds), max_steps=50)).outcome == "loop"
    assert decide(spec(roles_so_far=rounds[1:], step=len(rounds) - 1, max_steps=50)).outcome == "next"


class Odd:
    """A policy that answers what it is told."""

    name = "odd"

    def __init__(self, choice: Choice) -> None:
        self.choice = choice

    def choose_role(self, observation: Observation) -> Choice:
        assert observation.legal
        return self.choice


@pytest.fixture
def odd_policy(monkeypatch: pytest.MonkeyPatch) -> Odd:
    odd = Odd(Unparsable("?"))
    monkeypatch.setattr(module, "POLICIES", {"odd": odd})
    return odd


@pytest.mark.parametrize("choice", [Unparsable("well..."), Role(REASONING, "again"), Role("nobody", "x")])
def test_an_unusable_choice_falls_back_to_the_heuristic_and_says_so(odd_policy: Odd, choice: Choice) -> None:
    odd_policy.choice = choice
    chosen = following(spec(policies=(("scheduler", "odd"),)))
    assert chosen.role == CRITIC
    assert "odd gave no legal role" in chosen.why


def test_documents_follow_the_query_and_else_the_newest_unit() -> None:
    parts = tuple(unit(10 + at, document=True, emb=bytes([at, 5 - at])) for at in range(6))
    newest = unit(1, emb=bytes([0, 1]))
    asked = spec(pool=(newest, *parts))
    by_newest = decide(asked).next
    by_query = decide(asked, query=bytes([1, 0])).next
    assert by_newest is not None
    assert by_query is not None
    assert by_newest.units == (newest.id, *(part.id for part in parts))
    assert by_query.units == (newest.id, *(part.id for part in reversed(parts)))


def test_a_capable_node_that_is_away_is_named_rather_than_ending_the_task() -> None:
    chosen = following(spec(candidates=(node(3, alive=False),)))
    assert chosen.peer == bytes([3]) * 32
    assert "not linked now" in chosen.why


def test_load_moves_turns_between_equal_nodes() -> None:
    chosen = following(spec(candidates=(node(1, turns_done=1), node(2, turns_done=0))))
    assert chosen.peer == bytes([2]) * 32
    assert chosen.rejected == ("01010101: has done 1 turns",)


def test_a_role_that_should_come_next_and_nobody_alive_offers_is_missing() -> None:
    after = {"role": REASONING, "roles_so_far": (REASONING,), "step": 1}
    alone = spec(candidates=(node(1, agents=(REASONING,)),), **after)
    assert missing_role(alone) == CRITIC
    assert missing_role(spec(candidates=(node(1, agents=(REASONING, CRITIC)),), **after)) == ""
    assert missing_role(spec(candidates=(node(1, alive=False), node(2, agents=(REASONING,))), **after)) == CRITIC
    assert missing_role(spec(candidates=(node(1),), **after)) == ""
    assert missing_role(replace(alone, answer=True)) == "", "nothing comes next"
