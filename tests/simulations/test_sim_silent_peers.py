"""The shipped attack of silent peers: they leave the meshes in time, no honest peer is blamed, everything arrives."""

from __future__ import annotations

import os
from dataclasses import replace
from typing import Any

import pytest

from gossip.events import Broadcast
from gossip.membership.statement import make_statement
from gossip.mesh.config import MeshConfig
from protocol.machine import Count, Effect, Local, Send
from protocol.messages import Graft, IDontWant, IHave, IWant, Prune, Spread, message_id
from protocol.peer import PeerID
from protocol.transport import Lane
from simulations.attacks.silent import Attack, Plan, Seen, attacked
from simulations.attacks.silent_core import OWN_MAX, SilentCore, WatchedCore
from simulations.bench import silent as bench
from simulations.bench.figure import Figure
from tests.strategies import keypair

on_ci = pytest.mark.skipif(not os.environ.get("CI"), reason="CI only: minutes of CPU")

PEER = PeerID(keypair("somebody").public)
OWN, FOREIGN = (
    make_statement(keypair(name), "alive", keypair(name).public, 1, 1, 90) for name in ("silent one", "another")
)
OFF = replace(MeshConfig(), silent_heartbeats=10**9)


def gagged(core: SilentCore, *effects: Effect) -> list[Effect]:
    return [kept for effect in effects if (kept := core._gagged(effect)) is not None]


def silent_core(**options: Any) -> SilentCore:
    core = next(iter(attack_of(**options).silent.values()))
    core.start()
    assert isinstance(core.core, SilentCore)
    return core.core


def attack_of(**options: Any) -> Attack:
    return Attack(Plan(0.5, n=4, **options))


def test_a_silent_core_sends_its_own_words_and_nothing_of_others() -> None:
    core = silent_core()
    mine, theirs = message_id("members", OWN), message_id("members", FOREIGN)
    gagged(core, Local(Broadcast("members", (OWN,))))
    both = Send(PEER, Lane.BULK, Spread("members", wide=False, items=(FOREIGN, OWN)), (theirs, mine))
    assert gagged(core, both) == [Send(PEER, Lane.BULK, Spread("members", wide=False, items=(OWN,)), (mine,))]
    offer = Send(PEER, Lane.CONTROL, IHave("members", (theirs, mine)))
    assert gagged(core, offer) == [Send(PEER, Lane.CONTROL, IHave("members", (mine,)))]
    for frame in (
        Spread("members", wide=False, items=(FOREIGN,)),
        IHave("members", (theirs,)),
        IDontWant("ops", (mine,)),
    ):
        assert gagged(core, Send(PEER, Lane.CONTROL, frame)) == []
    for kept in (Graft("ops"), Prune("ops", 60), IWant("ops", (theirs,))):
        assert gagged(core, Send(PEER, Lane.CONTROL, kept)) == [Send(PEER, Lane.CONTROL, kept)]


def test_a_silent_core_remembers_a_bounded_number_of_own_words() -> None:
    core = silent_core()
    for number in range(OWN_MAX + 10):
        gagged(core, Local(Broadcast("ops", (number.to_bytes(4, "big"),))))
    assert len(core._own) == OWN_MAX


def test_a_watched_core_notes_prunes_for_silence_and_no_others(monkeypatch: pytest.MonkeyPatch) -> None:
    core = attack_of().honest[0]
    core.start()
    watched = core.core
    assert isinstance(watched, WatchedCore)
    prune = [Send(PEER, Lane.CONTROL, Prune("ops", 60))]
    for reason, noted in (("mesh_bad_pruned", []), ("mesh_silent_pruned", [(PEER, "ops")])):
        effects = [Count(reason), *prune]
        monkeypatch.setattr(watched.mesh, "handle", lambda _event, _now, effects=effects: effects)
        watched.handle("nothing", core.now_us)
        assert watched.silenced == noted


def test_the_bench_tells_a_time_that_never_came_as_a_miss() -> None:
    never = Seen(
        48, 5, 300.0, dict.fromkeys(bench.TOPICS), *[dict.fromkeys(bench.TOPICS, 0.1)] * 2, 0, 1, (None,), 1, 0, 3
    )
    lines = [line for line in bench.figures(0.1, never) if isinstance(line, Figure)]
    assert sum(not line.ok for line in lines) == len(bench.TOPICS) + 1 + 1 + 2 + 1
    good = Seen(
        48, 5, 300.0, dict.fromkeys(bench.TOPICS, 9.0), *[dict.fromkeys(bench.TOPICS, 0.0)] * 2, 9, 0, (1.0,), 1, 1, 0
    )
    assert all(line.ok for line in bench.figures(0.1, good) if isinstance(line, Figure))


@pytest.mark.slow
@pytest.mark.parametrize("share", [bench.SHARES[0], *(pytest.param(each, marks=on_ci) for each in bench.SHARES[1:])])
def test_silent_peers_leave_every_honest_mesh_in_time_and_nobody_honest_is_blamed(share: float) -> None:
    seen = attacked(Plan(share))
    assert seen.silent == round(share * seen.n)
    assert seen.pruned > 0
    assert seen.false_prunes == 0
    assert max(s if s is not None else 10**9 for s in seen.clear_s.values()) <= bench.CLEAR_S, seen
    assert max(seen.after.values()) <= bench.AFTER_MAX, seen
    assert None not in seen.changes_s
    assert seen.tasks_ended == seen.tasks > 5
    assert seen.unseen == 0


@on_ci
@pytest.mark.slow
def test_without_the_deficit_rule_silent_peers_keep_their_places() -> None:
    """The same measure, with the rule switched off: what the test above asserts is the rule's doing."""
    attack = Attack(Plan(0.3, mesh=OFF))
    attack.begin()
    for _ in range(int(bench.CLEAR_S)):
        attack._look()
    seen = attack.seen()
    assert not attack.clear
    assert seen.pruned == 0
    assert max(seen.before.values()) > 5 * bench.AFTER_MAX
