"""SimSwarm: a swarm of real node cores in virtual time, on one seed.

Honest by name: everything between the cores (network, disks, clocks, engines) is simulated; the cores, the frames,
the ops and their signatures are those of the product. One run is a function of (seed, configuration, what is done to
it), and its history has a digest that says so.

    swarm = SimSwarm(SwarmConfig(), seed=7)
    swarm.start()
    ask = swarm.submit(0, "demo", "Which clause ends the lease?")
    swarm.run_until(lambda: ask.done, limit_s=30)
    swarm.crash(swarm.owner(ask.space))
    swarm.settle()              # heal, restart, run until the swarm is quiet; then every end checker

Faults: crash (process or power), restart (on the same disk or a rolled-back one), stop, suspend, partition, wrong
clocks, slow or full disks, and what `NetConfig` does to frames. A failed check raises `Violation`, which names the
seed that replays it.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Final

from kernel.commands import CancelTask, Offer, Submit
from kernel.task import Task
from kernel.turns.rank import current_claim
from node.core import CoreConfig, Membership, NodeCore
from protocol.admission import MEMBER, EncoderSpec, Genesis, issue
from protocol.identity import KeyPair
from protocol.machine import Effect
from protocol.peer import PeerID, peer_text
from protocol.spaces import task_space
from simulations.checkers import Checker, Violation, standard_checkers
from simulations.codec import Crypto, FrameCodec, RoundTrip, Wire, verifier
from simulations.engine import ENCODER, Behaviour, EngineConfig, ScriptedEngine, always_answer
from simulations.heap import EventHeap
from simulations.history import History
from simulations.host import EPOCH_US, SimHost
from simulations.link import Delivery, NetConfig
from simulations.network import SimNetwork
from simulations.rng import derive, stream
from simulations.store import DiskConfig
from simulations.world import Ask, World

SECOND_US: Final = 1_000_000
MINUTE_US: Final = 60 * SECOND_US
DAY_MS: Final = 86_400_000
QUIET_US: Final = 40 * SECOND_US  # nothing new for longer than a round of repair: the swarm is quiet
SETTLE_S: Final = 900
STEPS_MAX: Final = 3_000_000  # of one wait


@dataclass(frozen=True, slots=True)
class SwarmConfig:
    """What a swarm is made of. `skews_us`: how wrong the wall clocks of the first nodes are."""

    n: int = 5
    net: NetConfig = field(default_factory=NetConfig)
    disk: DiskConfig = field(default_factory=DiskConfig)
    engine: EngineConfig = field(default_factory=EngineConfig)
    core: CoreConfig = field(default_factory=CoreConfig)
    wire: Wire = "bytes"
    crypto: Crypto = "memo"
    random_ties: bool = True
    skews_us: tuple[int, ...] = ()
    boot_spread_us: int = 500_000
    bootstrap: int = 2  # how many nodes the ticket names
    offer: Callable[[int], Offer] = lambda _: Offer()  # what a node says of its agents
    dim: int = 512
    build_core: Callable[..., NodeCore] = NodeCore


class SimSwarm:
    """The swarm, its world, and what can be done to it.

    Attributes:
        submitted: spaces of the tasks that were submitted, by client key.
        asks: every submit.
    """

    def __init__(self, config: SwarmConfig, seed: int, checkers: Sequence[Checker] | None = None) -> None:
        self.config = config
        self.seed = seed
        self.history = History()
        self.heap = EventHeap(stream(seed, "ties") if config.random_ties else None)
        self.network = SimNetwork(self.heap, config.net, seed)
        self.network.watch = self._on_delivery
        self.checkers = list(standard_checkers() if checkers is None else checkers)
        self.user = KeyPair(derive(seed, "user"))
        self.genesis = Genesis(
            name="simulated",
            creator=self.user.public,
            admins=(self.user.public,),
            encoder=EncoderSpec(id=ENCODER, dim=config.dim),
            created_ms=EPOCH_US // 1_000,
        )
        self.submitted: dict[str, bytes] = {}
        self.asks: list[Ask] = []
        self._groups: tuple[frozenset[PeerID], ...] = ()
        world = World(
            heap=self.heap,
            network=self.network,
            history=self.history,
            watch=self,
            codec=FrameCodec(config.wire),
            verify=verifier(config.crypto),
            core=config.core,
            seed=seed,
            build_core=config.build_core,
        )
        keys = [KeyPair(derive(seed, "node", index)) for index in range(config.n)]
        addrs = [f"{self.network.address(PeerID(k.public))}/p2p/{peer_text(k.public)}" for k in keys]
        self.hosts = [self._host(index, key, addrs, world) for index, key in enumerate(keys)]
        for checker in self.checkers:
            checker.bind(self)

    def _host(self, index: int, key: KeyPair, addrs: list[str], world: World) -> SimHost:
        config = self.config
        now_ms = EPOCH_US // 1_000
        chain = (
            issue(self.user, self.genesis.swarm_id, key.public, (MEMBER,), (now_ms - DAY_MS, now_ms + 30 * DAY_MS)),
        )
        member = Membership(key, self.user, self.genesis, chain, tuple(addrs[: config.bootstrap]))
        engine = ScriptedEngine(config.engine, self.seed, config.dim)
        skew_us = config.skews_us[index] if index < len(config.skews_us) else 0
        host = SimHost(index, member, world, config.disk, engine, skew_us=skew_us)
        host.offer = config.offer(index)
        return host

    # ---- what is done to the swarm

    def start(self) -> None:
        """Switch every node on, within the boot spread."""
        rng = stream(self.seed, "boot")
        for host in self.hosts:
            self.heap.after(rng.randrange(self.config.boot_spread_us + 1), host.start)

    def begin(self, limit_s: float = 120.0) -> None:
        """Switch every node on and wait until all are linked and know each other's offers.

        Raises:
            Violation: they are not in time.
        """
        self.start()
        self.run_until(self.linked, limit_s)

    def crash(self, node: int, *, power: bool = False) -> None:
        """End a node's process, or cut the power of its machine."""
        self.history.nemesis(self.heap.now_us, "power_cut" if power else "crash", str(node))
        self.hosts[node].crash(power=power)

    def restart(self, node: int, *, rollback: int | None = None) -> None:
        """Start a node that is down, on its disk or on a backup of it."""
        self.history.nemesis(self.heap.now_us, "restart", f"{node} {rollback}")
        host = self.hosts[node]
        if rollback is not None:
            host.disk.rollback(rollback)
        host.start()

    def restart_if_down(self, node: int) -> None:
        """Start a node unless it is up, or about to go down."""
        if not self.hosts[node].up:
            self.restart(node)

    def slow_disk(self, node: int, factor: int) -> None:
        """A disk takes so many times its configured time from now on."""
        self.history.nemesis(self.heap.now_us, "slow_disk", f"{node} {factor}")
        self.hosts[node].slow_disk(factor)

    def script(self, node: int, behaviour: Behaviour) -> None:
        """What a node's engine does with the turns that it is given from now on."""
        self.history.nemesis(self.heap.now_us, "script", f"{node} {behaviour}")
        self.hosts[node].engine.script = lambda _: behaviour

    def stop(self, node: int) -> None:
        """The operator stops a node."""
        self.history.nemesis(self.heap.now_us, "stop", str(node))
        self.hosts[node].stop()

    def suspend(self, node: int, us: int) -> None:
        """A machine sleeps for a while."""
        self.history.nemesis(self.heap.now_us, "suspend", f"{node} {us}")
        self.hosts[node].suspend(us)

    def set_clock(self, node: int, skew_us: int) -> None:
        """Somebody sets a wall clock."""
        self.history.nemesis(self.heap.now_us, "set_clock", f"{node} {skew_us}")
        self.hosts[node].set_clock(skew_us)

    def partition(self, *groups: Collection[int]) -> None:
        """Cut the network into groups of nodes."""
        self.history.nemesis(self.heap.now_us, "partition", repr([sorted(group) for group in groups]))
        peers = [[self.hosts[node].peer for node in sorted(group)] for group in groups]
        self._groups = tuple(frozenset(group) for group in peers)
        self.network.partition(peers)

    def heal(self) -> None:
        """Make the network whole."""
        self.history.nemesis(self.heap.now_us, "heal")
        self._groups = ()
        self.network.heal()

    def cut(self, a: PeerID, b: PeerID) -> bool:
        """Whether two peers are on different sides, by the swarm's own book and not the network's."""
        return bool(self._groups) and not any(a in group and b in group for group in self._groups)

    def after(self, wait_s: float, run: Callable[[], None]) -> None:
        """Plan a deed."""
        self.heap.after(int(wait_s * SECOND_US), run)

    # ---- what users do

    def submit(self, node: int, client_key: str, objective: str = "Which clause applies?", **more: object) -> Ask:
        """Submit a task on a node."""
        self.submitted[client_key] = task_space(self.genesis.swarm_id, self.user.public, client_key)
        ask = self.hosts[node].ask(Submit(client_key=client_key, objective=objective, **more))  # type: ignore[arg-type]
        self.asks.append(ask)
        return ask

    def cancel(self, node: int, client_key: str) -> Ask:
        """Cancel a task on a node."""
        return self.hosts[node].ask(CancelTask(self.submitted[client_key].hex(), "changed my mind"))

    # ---- what one sees

    def up(self) -> list[SimHost]:
        """The hosts whose node is up."""
        return [host for host in self.hosts if host.up]

    def task(self, node: int, client_key: str) -> Task | None:
        """A task as one node sees it."""
        return self.task_in(self.hosts[node], self.submitted[client_key])

    def task_in(self, host: SimHost, space: bytes) -> Task | None:
        """A task as a host sees it, if it is up and knows it."""
        return host.core.kernel.task(space) if host.up else None

    def owner(self, client_key: str) -> int | None:
        """The node that runs a turn of a task now."""
        running = [host.index for host in self.up() if (t := self.task(host.index, client_key)) is not None and t.run]
        return running[0] if running else None

    def digests(self, space: bytes) -> list[tuple[bytes, bytes] | None]:
        """Per up node: digest of the set of ops and of the derived state."""
        found: list[tuple[bytes, bytes] | None] = []
        for host in self.up():
            task = self.task_in(host, space)
            found.append(None if task is None else (task.log.digest(), task.fold.state_digest()))
        return found

    def turns(self, client_key: str) -> list[tuple[int, int, str]]:
        """Every engine turn of a task: (node, step, how it ended)."""
        space = self.submitted[client_key]
        return [(h.index, ran.spec.step, ran.ended) for h in self.hosts for ran in h.turns if ran.spec.space == space]

    # ---- time

    def run_for(self, seconds: float) -> None:
        """Let time pass."""
        end_us = self.heap.now_us + int(seconds * SECOND_US)
        while self.heap.next_us is not None and self.heap.next_us <= end_us:
            self._advance()
        self.heap.now_us = end_us

    def run_until(self, until: Callable[[], bool], limit_s: float = 300.0) -> None:
        """Step until a condition holds.

        Raises:
            Violation: it does not hold within the limit.
        """
        end_us = self.heap.now_us + int(limit_s * SECOND_US)
        for _ in range(STEPS_MAX):
            if until():
                return
            if self.heap.next_us is None or self.heap.next_us > end_us:
                break
            self._advance()
        raise Violation(self.report(f"not reached within {limit_s:g} virtual seconds"))

    def _advance(self) -> None:
        try:
            self.heap.step()
        except (Violation, RoundTrip) as exc:
            raise Violation(self.report(str(exc))) from exc

    def linked(self) -> bool:
        """True when every node is up and holds its links, knows that all others live, and what each offers."""
        return all(self._joined(host) for host in self.hosts)

    def _joined(self, host: SimHost) -> bool:
        others, config = len(self.hosts) - 1, self.config.core.gossip
        links = others if others <= config.links_full_max else min(config.links_min, others)
        if not host.up or len(host.core.links.linked) < links:
            return False
        if not host.core.records.complete:
            return host.core.dht.dht.joined  # what others offer, and who they are, is asked
        return len(host.core.kernel.offers()) > others and len(host.core.members.alive()) == others

    def settle(self, limit_s: float = SETTLE_S) -> None:
        """The liveness phase: no more faults, everybody back, until the swarm is quiet; then the end checks.

        Raises:
            Violation: it does not become quiet in time, or an end check fails.
        """
        if self._groups:
            self.heal()
        for host in self.hosts:
            host.disk.broken = False
            host.slow_disk(1)
            host.engine.script = always_answer
            if not host.up:
                self.restart(host.index)
        self.run_until(self.quiet, limit_s)
        before = self._op_counts()
        for _ in range(SETTLE_S):
            self.run_for(QUIET_US / SECOND_US)
            after = self._op_counts()
            if after == before and self.quiet():
                break
            before = after
        self.check_end()

    def check_end(self) -> None:
        """Run the end checkers.

        Raises:
            Violation: one fails.
        """
        for checker in self.checkers:
            try:
                checker.at_end()
            except Violation as exc:
                raise Violation(self.report(str(exc))) from exc

    def quiet(self) -> bool:
        """True when all are linked, every submitted task that anybody knows has ended everywhere, and all agree."""
        if not self.linked() or any(host.unwritten for host in self.hosts):
            return False
        return all(self.ended(client_key) for client_key in self.submitted)

    def ended(self, client_key: str) -> bool:
        """True when a task has ended on every node, with equal states; or was lost before anybody could know it."""
        space = self.submitted[client_key]
        tasks = [self.task_in(host, space) for host in self.up()]
        if all(task is None for task in tasks):
            return True  # lost with its submitter before anybody could know
        if any(task is None or task.fold.outcome == "open" for task in tasks):
            return False
        first, *rest = self.digests(space)
        return all(digest == first for digest in rest)

    def _op_counts(self) -> list[int]:
        spaces = list(self.submitted.values())
        return [len(t.log) for host in self.up() for s in spaces if (t := self.task_in(host, s)) is not None]

    # ---- watching

    def on_event(self, host: SimHost, event: object) -> None:
        """See simulations.host.Watch."""
        for checker in self.checkers:
            checker.on_event(host, event)

    def on_effects(self, host: SimHost, effects: list[Effect]) -> None:
        """See simulations.host.Watch."""
        for checker in self.checkers:
            checker.on_effects(host, effects)

    def _on_delivery(self, delivery: Delivery) -> None:
        for checker in self.checkers:
            checker.on_delivery(delivery)

    def report(self, what: str) -> str:
        """A failure with all that replays it: the seed, what was done, how each node sees the tasks, the last steps."""
        deeds = [
            f"  {row.t_us / SECOND_US:10.3f} {row.node} {row.f} {row.type} {row.value[:160]}"
            for row in self.history.rows
        ]
        lines = [
            what,
            f"replay: seed {self.seed}, {self.config.n} nodes, digest {self.history.digest()}",
            "deeds:",
            *deeds,
        ]
        lines += ["tasks:", *self._task_lines(), "last steps:", *(f"  {line}" for line in self.history.tail())]
        return "\n".join(lines)

    def _task_lines(self) -> Iterable[str]:
        for client_key, space in self.submitted.items():
            for host in self.hosts:
                task = self.task_in(host, space)
                if task is None:
                    yield f"  {client_key} node {host.index} {'up' if host.up else 'down'}: unknown"
                    continue
                fold = task.fold
                claim = current_claim(task) if fold.open is not None else None
                yield (
                    f"  {client_key} node {host.index}: {fold.outcome}, {len(fold.chain)} steps, {len(task.log)} ops, "
                    f"run {task.run.stage if task.run else None}, epoch {claim.e if claim else None}, "
                    f"state {fold.state_digest().hex()[:8]}"
                )
