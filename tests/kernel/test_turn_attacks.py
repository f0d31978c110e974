"""The 22 histories that broke an earlier wording of the rules, told with real signed ops.

Each has the answer that the rules give, and the wrong one that it gives again as soon as its rule is taken out:
so the history proves the rule, and a fold that loses it fails here.
"""

from __future__ import annotations

import pytest

from tests.kernel import attacks_on_history, attacks_on_turns
from tests.kernel.attack import Attack, Patch

ATTACKS = [
    item
    for module in (attacks_on_history, attacks_on_turns)
    for item in vars(module).values()
    if isinstance(item, Attack)
]
NAMED = [pytest.param(a, id=a.answer.__name__) for a in ATTACKS]


@pytest.mark.parametrize("case", NAMED)
def test_the_rules_give_the_right_answer(case: Attack) -> None:
    assert case.answer() == case.right


@pytest.mark.parametrize("case", NAMED)
def test_without_its_rule_the_answer_is_wrong(case: Attack, monkeypatch: Patch) -> None:
    case.without(monkeypatch)
    assert case.answer() == case.wrong != case.right


def test_every_history_is_here() -> None:
    assert {a.answer.__name__[:3] for a in ATTACKS} == {f"a{n:02}" for n in range(1, 23)}
