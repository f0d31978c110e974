"""Swarm mode: random faults on random worlds, every checker on; a failure prints the seed that replays it."""

from __future__ import annotations

import os

import pytest

from simulations.nemesis import draw_plan, random_run

CI = os.environ.get("CI", "").lower() not in {"", "0", "false"} or os.environ.get("HYPOTHESIS_PROFILE") in {
    "ci",
    "deep",
}
SEEDS = 40 if CI else 20  # about a second each


@pytest.mark.slow
@pytest.mark.parametrize("first", range(0, SEEDS, 5))
def test_random_faults_break_nothing(first: int) -> None:
    for seed in range(first, first + 5):
        swarm = random_run(seed)
        for client_key in swarm.submitted:
            assert swarm.ended(client_key)


def test_plans_use_every_kind_of_fault() -> None:
    kinds = {deed.kind for seed in range(SEEDS) for deed in draw_plan(seed, 5, 60, 6)}
    assert kinds >= {
        *("crash", "power_cut", "crash_all", "rollback", "stop", "partition", "suspend", "set_clock", "slow_disk"),
        *("bad_engine", "submit", "cancel"),
    }
