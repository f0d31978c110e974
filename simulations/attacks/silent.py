"""The attack of silent peers: what it costs the honest ones, and how long until they are rid of it.

A swarm above the full mesh, in virtual time, some of it `SilentCore` from its first second, without an engine: they
take and give nothing. Every node says that it is alive; once the swarm is whole, honest nodes change their capabilities
and submit tasks as well. Each second every honest mesh of every topic is looked at for silent peers. What is measured:

- per topic, the seconds from the first start of a node until no honest mesh holds a silent peer,
- the share of places in honest meshes that silent peers have, until then and in the time after it,
- prunes for silence among honest peers: there must be none,
- deliveries: each change at every honest node, each task ended everywhere with equal states, everybody known alive.

Each node believes only what it saw itself, so each pair of an honest and a silent peer has to be tried once; a mesh
tries a few at a time. A pruned peer is not hated for ever: minutes later it may graft anew, and is pruned anew.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import Final

from gossip.mesh.config import MeshConfig
from kernel.commands import EngineReport
from node.core import CoreConfig, Membership, NodeCore
from protocol.identity import KeyPair, Verify
from protocol.store import StoreReader
from simulations.attacks.silent_core import SilentCore, WatchedCore
from simulations.engine import EngineConfig, ScriptedEngine
from simulations.host import SimHost
from simulations.rng import derive, stream
from simulations.swarm import SECOND_US, SimSwarm, SwarmConfig

TOPICS: Final = ("members", "ops", "records")
NODES: Final = 48
BOOT_SPREAD_US: Final = 10_000_000
WHOLE_S: Final = 120.0
TRAFFIC_S: Final = 240  # at most, until all meshes were clear once
AFTER_S: Final = 30  # and so much more traffic
REST_S: Final = 120  # for what is under way when it ends
TASK_EVERY_S: Final = 9
CHANGE_EVERY_S: Final = 1


@dataclass(frozen=True, slots=True)
class Plan:
    """One run. `mesh`: with another rule in it, to see what the rule is worth."""

    share: float
    n: int = NODES
    seed: int = 1
    mesh: MeshConfig = field(default_factory=MeshConfig)


@dataclass(frozen=True, slots=True)
class Seen:
    """What a run showed; times in virtual seconds.

    Attributes:
        silent: how many of the n nodes were.
        ran_s: from the first start of a node to the end.
        clear_s: per topic, until no honest mesh held a silent peer; None: that never was.
        before, after: per topic, the share of places in honest meshes that silent peers had in the mean, in the time
            until all topics were clear and after it. All of it is `before` where that never was.
        pruned: prunes of silent peers by honest ones for silence.
        false_prunes: of honest peers by honest ones.
        changes_s: per change, until every honest node showed it; None: not within the run.
        tasks, tasks_ended: how many were submitted, and how many ended everywhere with equal states.
        unseen: pairs of an honest node and one that it does not take for alive, at the end.
    """

    n: int
    silent: int
    ran_s: float
    clear_s: dict[str, float | None]
    before: dict[str, float]
    after: dict[str, float]
    pruned: int
    false_prunes: int
    changes_s: tuple[float | None, ...]
    tasks: int
    tasks_ended: int
    unseen: int


@dataclass(slots=True)
class _Change:
    """An honest node says that it decodes so fast now; no other says just that."""

    host: SimHost
    tokens_per_s: int
    at_us: int
    done_s: float | None = None


@dataclass(slots=True)
class _Places:
    """In honest meshes, summed over looks."""

    silent: int = 0
    all: int = 0

    def share(self) -> float:
        return self.silent / self.all if self.all else 0.0


def attacked(plan: Plan) -> Seen:
    """Run one attack, from the first start of a node to the end of all traffic.

    Raises:
        Violation: the swarm does not come up.
    """
    attack = Attack(plan)
    attack.begin()
    attack.load()
    return attack.seen()


class Attack:
    """A swarm with silent peers in it, and the eye on it."""

    def __init__(self, plan: Plan) -> None:
        self._rng = stream(plan.seed, "silent peers", plan.n)
        numbers = self._rng.sample(range(1, plan.n), round(plan.share * plan.n))
        silent = {KeyPair(derive(plan.seed, "node", number)).public for number in numbers}

        def build(
            member: Membership, config: CoreConfig, rng: random.Random, *, store: StoreReader, verify: Verify
        ) -> NodeCore:
            kind = SilentCore if member.node.public in silent else WatchedCore
            return kind(member, config, rng, store=store, verify=verify)

        core = CoreConfig(mesh=plan.mesh)
        config = SwarmConfig(n=plan.n, core=core, wire="frozen", boot_spread_us=BOOT_SPREAD_US, build_core=build)
        self.swarm = SimSwarm(config, plan.seed, checkers=())
        self.honest = [host for host in self.swarm.hosts if host.peer not in silent]
        self.silent = {host.peer: host for host in self.swarm.hosts if host.peer in silent}
        for host in self.silent.values():
            host.engine = ScriptedEngine(EngineConfig(roles=()), plan.seed, config.dim)
        self._changes: list[_Change] = []
        self._clear_us: dict[str, int] = {}
        self._before = {topic: _Places() for topic in TOPICS}
        self._after = {topic: _Places() for topic in TOPICS}

    @property
    def clear(self) -> bool:
        """Every topic was free of silent peers at some time."""
        return len(self._clear_us) == len(TOPICS)

    def begin(self) -> None:
        """Switch all on; look every second until everybody is linked and known.

        Raises:
            Violation: they are not in time.
        """
        self.swarm.start()
        for _ in range(int(WHOLE_S)):
            if self._whole():
                return
            self._look()
        self.swarm.run_until(self._whole, 0)

    def load(self) -> None:
        """Traffic until all meshes were clear, and a little more; then rest until everything has arrived."""
        left = AFTER_S
        for second in range(TRAFFIC_S + AFTER_S):
            if second % TASK_EVERY_S == 0:
                self.swarm.submit(self._rng.choice(self.honest).index, f"task {second}")
            if second % CHANGE_EVERY_S == 0:
                self._change()
            self._look()
            left -= self.clear
            if not left:
                break
        for _ in range(REST_S):
            if self._arrived():
                break
            self._look()

    def seen(self) -> Seen:
        """What it showed."""
        swarm = self.swarm
        silenced = [peer for core in self._cores() for peer, _ in core.silenced]
        everybody = {host.peer for host in swarm.hosts}
        return Seen(
            n=len(swarm.hosts),
            silent=len(self.silent),
            ran_s=swarm.heap.now_us / SECOND_US,
            clear_s={t: self._clear_us[t] / SECOND_US if t in self._clear_us else None for t in TOPICS},
            before={topic: places.share() for topic, places in self._before.items()},
            after={topic: places.share() for topic, places in self._after.items()},
            pruned=sum(peer in self.silent for peer in silenced),
            false_prunes=sum(peer not in self.silent for peer in silenced),
            changes_s=tuple(change.done_s for change in self._changes),
            tasks=len(swarm.submitted),
            tasks_ended=sum(map(swarm.ended, swarm.submitted)),
            unseen=sum(len(everybody - {host.peer, *host.core.members.alive()}) for host in self.honest),
        )

    def _cores(self) -> Iterator[WatchedCore]:
        for host in self.honest:
            assert isinstance(host.core, WatchedCore)
            yield host.core

    # ---- traffic

    def _change(self) -> None:
        """An honest node has another capability. What it said before is news to nobody any more."""
        host, speed = self._rng.choice(self.honest), 1_000 + self.swarm.heap.now_us // SECOND_US
        able = replace(host.engine.capabilities(), tokens_per_s=speed)
        host.ask(EngineReport(able, host.engine.config.roles, host.offer))
        self._changes = [each for each in self._changes if each.host is not host or each.done_s is not None]
        self._changes.append(_Change(host, speed, self.swarm.heap.now_us))

    def _whole(self) -> bool:
        others, least = len(self.swarm.hosts) - 1, self.swarm.config.core.gossip.links_min
        return all(
            host.up and len(host.core.links.linked) >= least and len(host.core.members.alive()) == others
            for host in self.swarm.hosts
        )

    def _arrived(self) -> bool:
        return all(change.done_s is not None for change in self._changes) and all(
            map(self.swarm.ended, self.swarm.submitted)
        )

    # ---- looking

    def _look(self) -> None:
        """Let a second pass, and look."""
        self.swarm.run_for(1)
        share = self._after if self.clear else self._before
        for topic in TOPICS:
            meshes = [host.core.mesh.mesh(topic) for host in self.honest if host.up]
            found = sum(peer in self.silent for mesh in meshes for peer in mesh)
            share[topic].silent += found
            share[topic].all += sum(map(len, meshes))
            if share[topic].silent and not found:
                self._clear_us.setdefault(topic, self.swarm.heap.now_us)
        pending = [change for change in self._changes if change.done_s is None]
        if pending:
            self._look_for(pending)

    def _look_for(self, pending: list[_Change]) -> None:
        views = [host.core.kernel.offers() for host in self.honest]
        for change in pending:
            shown = [view.get(change.host.peer) for view in views]
            if all(offer is not None and offer.tokens_per_s == change.tokens_per_s for offer in shown):
                change.done_s = (self.swarm.heap.now_us - change.at_us) / SECOND_US
