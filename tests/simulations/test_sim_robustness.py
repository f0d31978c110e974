"""What ordinary and hostile input must not do: end a node, leave a task without an end, or run a step twice at once."""

from __future__ import annotations

from dataclasses import replace

import pytest

from gossip.events import Publish, Withdraw
from gossip.replication import Draft
from kernel.commands import Submit
from kernel.config import TaskDefaults
from kernel.engine import Capabilities
from kernel.jobs import Embed, Embedded, RunTurn
from kernel.memory.manager import chunk_document
from kernel.submission import Swarm, build_open
from protocol.admission import MEMBER, issue
from protocol.capability import AgentValue
from protocol.clock import hlc_from_ms
from protocol.errors import Refused, RequestTimeout, UsageError
from protocol.identity import KeyPair
from protocol.machine import JobSpec, Received, Stopping
from protocol.messages import OpBatch, Watch
from protocol.op import Op, Position, make_op
from protocol.peer import PeerID
from protocol.records import KIND_OF, Deny, Join, Record, Seen, Summary, body_bytes, sign_body
from protocol.spaces import task_space
from simulations.engine import EngineConfig, Plan, ScriptedEngine
from simulations.host import EPOCH_US, SimHost
from simulations.swarm import DAY_MS, SimSwarm, SwarmConfig

KEY = "the-task"
SLOW = SwarmConfig(engine=EngineConfig(reply_tokens_per_s=1, reply_tokens=(100, 100)))
CJK = "\n".join("\u7b2c\u4e00\u6761\u672c\u534f\u8bae\u7531\u53cc\u65b9\u7b7e\u8ba2\u3002" * 25 for _ in range(100))


def begun(seed: int, config: SwarmConfig | None = None) -> SimSwarm:
    swarm = SimSwarm(config or SwarmConfig(), seed)
    swarm.begin()
    return swarm


def submitted(seed: int, config: SwarmConfig | None = None) -> SimSwarm:
    swarm = begun(seed, config)
    ask = swarm.submit(0, KEY)
    swarm.run_until(lambda: ask.done, 30)
    assert ask.ok, ask.result
    return swarm


def running(swarm: SimSwarm) -> int:
    """Run until an engine works on a turn; on which node."""

    def at_work() -> list[int]:
        tasks = {host.index: swarm.task(host.index, KEY) for host in swarm.up()}
        return [node for node, task in tasks.items() if task is not None and task.run and task.run.stage == "running"]

    swarm.run_until(lambda: bool(at_work()), 60)
    return at_work()[0]


def outcomes(swarm: SimSwarm) -> set[str | None]:
    tasks = [swarm.task(host.index, KEY) for host in swarm.up()]
    return {None if task is None or task.fold.open is None else task.fold.outcome for task in tasks}


class Stranger:
    """An author of its own, a member of the swarm, that writes whatever it likes to every node."""

    def __init__(self, swarm: SimSwarm, space: bytes) -> None:
        self.keys = KeyPair(b"s" * 32)
        self.swarm, self.space = swarm, space
        self.ops: list[Op] = []

    @property
    def now_ms(self) -> int:
        return (EPOCH_US + self.swarm.heap.now_us) // 1_000

    def write(self, record: Record, hlc_ms: int) -> Op:
        last = self.ops[-1] if self.ops else None
        at = Position(
            self.space, 1, len(self.ops), last.id if last else None, (), hlc_from_ms(hlc_ms) + len(self.ops)
        )  # fmt: skip
        op = make_op(self.keys, KIND_OF[type(record)], at, body_bytes(record))
        self.ops.append(op)
        return op

    def join(self, hlc_ms: int) -> None:
        times = (self.now_ms - DAY_MS, self.now_ms + DAY_MS)
        chain = (issue(self.swarm.user, self.swarm.genesis.swarm_id, self.keys.public, (MEMBER,), times),)
        self.write(Join(cert=chain), hlc_ms)

    def tell(self) -> None:
        batch = OpBatch(tuple(op.wire() for op in self.ops))
        for host in self.swarm.up():
            host._step(Received(self.swarm.hosts[(host.index + 1) % 5].peer, batch))


# ---- what people and engines give


@pytest.mark.parametrize("text", ["A" * 60_000, CJK, "\U0001f600" * 30_000], ids=["one_word", "cjk", "emoji"])
def test_a_document_without_blanks_is_answered(text: str) -> None:
    swarm = begun(1)
    ask = swarm.submit(0, KEY, document=chunk_document(text))
    swarm.run_until(lambda: ask.done, 120)
    assert ask.ok, ask.result
    swarm.settle()
    assert outcomes(swarm) == {"answer"}


@pytest.mark.parametrize(
    "more",
    [
        {"document": ("A" * 60_000,)},
        {"document": ("short", CJK)},
        {"objective": "\u6761" * 20_000},
        {"lease_ms": 1},
        {"deadline_ms": 2**50},
        {"contract": (-1, None, None, None)},
    ],
    ids=["chunk", "chunk_in_bytes", "objective_in_bytes", "lease", "deadline", "contract"],
)
def test_what_no_task_can_hold_is_refused_and_nothing_is_written(more: dict[str, object]) -> None:
    swarm = begun(2)
    ask = swarm.submit(0, KEY, **more)  # type: ignore[arg-type]
    swarm.run_until(lambda: ask.done, 60)
    assert isinstance(ask.result, UsageError), ask.result
    swarm.run_for(20)
    assert outcomes(swarm) == {None}


def test_a_chunk_that_fails_late_takes_the_whole_task_with_it(monkeypatch: pytest.MonkeyPatch) -> None:
    plain = ScriptedEngine.plan

    def miscounting(engine: ScriptedEngine, spec: JobSpec) -> Plan:
        plan = plain(engine, spec)
        if isinstance(spec, Embed) and isinstance(plan.result, Embedded) and len(spec.texts) == 3:
            return replace(plan, result=replace(plan.result, tokens=(1, 1, -1)))
        return plan

    monkeypatch.setattr(ScriptedEngine, "plan", miscounting)
    swarm = begun(3)
    ask = swarm.submit(0, KEY, document=("one", "two", "three"))
    swarm.run_until(lambda: ask.done, 60)
    assert isinstance(ask.result, UsageError), ask.result
    swarm.run_for(20)
    assert outcomes(swarm) == {None}


@pytest.mark.parametrize("content", ["\u6f22" * 40_000, "x" * 60_000], ids=["bytes", "characters"])
def test_a_reply_that_no_unit_holds_is_a_failed_turn(content: str, monkeypatch: pytest.MonkeyPatch) -> None:
    plain = ScriptedEngine._turn

    def endless(engine: ScriptedEngine, spec: RunTurn) -> Plan:
        plan = plain(engine, spec)
        return replace(plan, result=replace(plan.result, content=content))  # type: ignore[type-var]

    monkeypatch.setattr(ScriptedEngine, "_turn", endless)
    swarm = submitted(4)
    swarm.run_until(lambda: swarm.ended(KEY), 600)
    assert outcomes(swarm) == {"failed"}
    assert {ended for _, _, ended in swarm.turns(KEY)} == {"answered"}


def test_figures_of_an_engine_beyond_all_bounds_are_cut(monkeypatch: pytest.MonkeyPatch) -> None:
    plain = ScriptedEngine.capabilities

    def wild(engine: ScriptedEngine) -> Capabilities:
        return replace(plain(engine), model="m" * 300, backend="b" * 300, context_tokens=2**40, tokens_per_s=2**40)

    monkeypatch.setattr(ScriptedEngine, "capabilities", wild)
    swarm = submitted(5)
    swarm.settle()
    assert outcomes(swarm) == {"answer"}


def test_vectors_count_for_the_submit_that_asked_for_them() -> None:
    swarm = begun(6, SwarmConfig(engine=EngineConfig(embed_us=15_000_000)))
    first = swarm.submit(0, KEY, document=("one",))
    swarm.run_until(lambda: first.done, 60)
    assert isinstance(first.result, RequestTimeout)
    assert swarm.hosts[0].jobs_in_flight == 0, "nobody waits for these vectors any more"
    second = swarm.submit(0, KEY, document=("first", "second", "third"))
    swarm.run_until(lambda: second.done, 200)
    assert isinstance(second.result, RequestTimeout)
    swarm.hosts[0].engine.config = replace(swarm.hosts[0].engine.config, embed_us=1_000)
    third = swarm.submit(0, KEY, document=("this", "that"))
    swarm.run_until(lambda: third.done, 60)
    assert third.ok, third.result
    task = swarm.task(0, KEY)
    assert task is not None
    assert sorted(unit.content for unit in task.pool.units() if unit.is_document) == ["that", "this"]


# ---- deadlines


def test_a_task_whose_document_never_comes_ends_by_its_deadline() -> None:
    swarm = begun(7)
    swarm.submitted[KEY] = space = task_space(swarm.genesis.swarm_id, swarm.user.public, KEY)
    stranger = Stranger(swarm, space)
    offers = swarm.hosts[0].core.kernel.offers()
    world = Swarm(offers, tuple(sorted(host.peer for host in swarm.hosts)), swarm.genesis.encoder.id, stranger.now_ms)
    command = Submit(client_key=KEY, objective="What is due?", document=("a part",), deadline_ms=60_000)
    stranger.join(stranger.now_ms)
    stranger.write(build_open(swarm.user, space, command, world, TaskDefaults()), stranger.now_ms)
    stranger.tell()
    swarm.run_for(59)
    assert outcomes(swarm) == {"open"}
    swarm.run_for(20)
    assert outcomes(swarm) == {"deadline"}
    assert swarm.turns(KEY) == []


def test_a_fitting_peer_that_never_claims_does_not_hold_up_the_deadline() -> None:
    swarm = SimSwarm(SwarmConfig(), 8)
    for host in swarm.hosts[1:]:
        host.engine.config = replace(host.engine.config, roles=())
    swarm.start()
    fits = swarm.hosts[0]
    swarm.run_until(lambda: all(h.up and fits.peer in h.core.kernel.offers() for h in swarm.hosts), 60)
    swarm.run_until(lambda: all(len(h.core.links.linked) == 4 for h in swarm.hosts), 60)
    fits.core.kernel.handle(Stopping(0), fits.now_us)  # it takes nothing on any more, and stays linked
    ask = swarm.submit(1, KEY, deadline_ms=120_000)
    swarm.run_until(lambda: ask.done, 30)
    assert ask.ok, ask.result
    swarm.run_for(110)
    assert outcomes(swarm) == {"open"}
    swarm.run_for(30)
    assert outcomes(swarm) == {"deadline"}
    claims = [task.fold.claims_on(task.fold.root or b"") for h in swarm.up() if (task := swarm.task(h.index, KEY))]
    assert all(len(each) == 1 for each in claims), "the participants claim by rank, not all at once"


# ---- acknowledgements


def test_a_retry_is_acknowledged_as_the_first_request_would_be() -> None:
    swarm = begun(9)
    swarm.partition([0], [1, 2, 3, 4])
    for _ in range(2):
        ask = swarm.submit(0, KEY, document=("a part",))
        swarm.run_until(lambda ask=ask: ask.done, 60)  # type: ignore[misc]
        assert isinstance(ask.result, RequestTimeout), ask.result
    local = swarm.submit(0, KEY, document=("a part",), ack="local")
    swarm.run_until(lambda: local.done, 60)
    assert isinstance(local.result, dict)
    assert (local.result["existing"], local.result["ack"]) == (True, "local")
    late = swarm.submit(0, KEY, document=("a part",))
    swarm.heal()
    swarm.run_until(lambda: late.done, 60)
    assert isinstance(late.result, dict), late.result
    assert (late.result["existing"], late.result["ack"]) == (True, "w1")
    assert any(swarm.task(node, KEY) is not None for node in range(1, 5))
    swarm.run_for(1)
    again = swarm.submit(0, KEY, document=("a part",))
    asked_us = swarm.heap.now_us
    swarm.run_until(lambda: again.done, 60)
    assert again.ok
    assert swarm.heap.now_us - asked_us < 1_000, "receipts on disk are enough, nobody is asked"


def test_a_retry_on_another_node_counts_the_author_as_a_holder() -> None:
    swarm = submitted(10)
    swarm.run_for(2)
    swarm.partition([1], [0, 2, 3, 4])
    ask = swarm.submit(1, KEY)
    swarm.run_until(lambda: ask.done, 60)
    assert isinstance(ask.result, dict), ask.result
    assert (ask.result["existing"], ask.result["ack"]) == (True, "w1")


def test_receipts_that_were_lost_come_again() -> None:
    swarm = submitted(11)
    swarm.hosts[0].disk._tables.receipts.clear()
    ask = swarm.submit(0, KEY)
    asked_us = swarm.heap.now_us
    swarm.run_until(lambda: ask.done, 60)
    assert isinstance(ask.result, dict), ask.result
    assert ask.result["ack"] == "w1"
    assert swarm.heap.now_us - asked_us < 2_000_000


def test_requests_that_differ_in_the_level_only_are_one_submit() -> None:
    swarm = begun(12)
    swarm.partition([0], [1, 2, 3, 4])
    asks = [swarm.submit(0, KEY, ack=ack) for ack in ("w1", "local")]
    swarm.run_until(lambda: asks[1].done, 5)
    assert asks[1].ok, asks[1].result
    assert not asks[0].done, "nobody else holds it"
    swarm.heal()
    swarm.run_until(lambda: asks[0].done, 60)
    assert asks[0].ok, asks[0].result


# ---- leases


def test_an_owner_knows_when_its_renewal_has_no_effect() -> None:
    """One op stamped 50 s ahead, below the quarantine, pushes every later stamp behind the ends of leases."""
    swarm = submitted(13, SLOW)
    owner = running(swarm)
    swarm.run_for(2)
    task = swarm.task(owner, KEY)
    assert task is not None
    assert task.run is not None
    claim = task.run.claim
    stranger = Stranger(swarm, task.space)
    stranger.join(stranger.now_ms + 50_000)
    stranger.tell()
    swarm.run_for(20)
    assert task.fold.renews(claim) == 0, "the case does not arise"
    assert task.run is not None
    assert task.run.lease_end_us <= swarm.hosts[owner].now_us + 8_000_000
    for _ in range(400):
        swarm.run_for(0.5)
        at_work = [h.index for h in swarm.up() if (t := swarm.task(h.index, KEY)) and t.run and t.run.step == 1]
        assert len(at_work) <= 1, f"nodes {at_work} run one step at once"
    assert [ended for _, step, ended in swarm.turns(KEY) if step == 1] == ["aborted", "answered"]


def test_a_member_that_keeps_stamping_ahead_delays_a_step_and_does_not_stop_it() -> None:
    swarm = submitted(14)
    stranger = Stranger(swarm, swarm.submitted[KEY])
    stranger.join(stranger.now_ms + 55_000)
    for _ in range(60):
        stranger.write(Seen(), stranger.now_ms + 55_000)
        stranger.tell()
        swarm.run_for(5)
    swarm.run_until(lambda: swarm.ended(KEY), 300)
    assert outcomes(swarm) == {"answer"}


@pytest.mark.parametrize("seed", [1, 5, 11])
def test_a_claim_waits_for_every_running_claim(seed: int) -> None:
    """Two owners run after a partition; the one of the higher epoch dies, the other is alive and renews."""
    long = SwarmConfig(engine=EngineConfig(reply_tokens_per_s=1, reply_tokens=(300, 300)))
    swarm = submitted(seed, long)
    swarm.run_for(1)
    owner = running(swarm)
    others = [node for node in range(5) if node != owner]
    swarm.partition([owner], others)
    swarm.run_until(lambda: any((t := swarm.task(n, KEY)) is not None and t.run for n in others), 120)
    takers = [n for n in others if (t := swarm.task(n, KEY)) is not None and t.run]
    swarm.run_for(2)
    swarm.heal()
    swarm.run_for(30)
    for taker in takers:
        swarm.crash(taker)

    def owners() -> list[int]:
        tasks = {host.index: swarm.task(host.index, KEY) for host in swarm.up()}
        return [n for n, t in tasks.items() if t is not None and t.run is not None and t.run.step == 1]

    for _ in range(50):  # the lease of the dead taker ends within this time
        assert owners() == [owner], "the owner is at work and known to be"
        swarm.run_for(1)


def test_a_refused_renewal_stops_the_engine() -> None:
    swarm = submitted(15, SLOW)
    owner = running(swarm)
    swarm.run_for(2)
    space = swarm.submitted[KEY]
    stranger = Stranger(swarm, space)
    stranger.join(stranger.now_ms)
    deny = Deny(author=swarm.hosts[owner].peer, keep=0, by=bytes(32), sig=bytes(64))
    stranger.write(sign_body(swarm.user, space, deny), stranger.now_ms)
    stranger.tell()
    swarm.run_for(20)
    task = swarm.task(owner, KEY)
    assert task is not None
    assert task.run is None
    assert [ended for node, step, ended in swarm.turns(KEY) if (node, step) == (owner, 1)] == ["aborted"]
    assert swarm.hosts[owner].jobs_in_flight == 0


def test_a_refused_vote_or_summary_leaves_the_turn_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    swarm = begun(16)

    def refusing(host: SimHost) -> None:
        plain = host.core.replication.append

        def append(space: bytes, draft: Draft, now_us: int) -> object:
            if isinstance(draft.record, Seen | Summary):
                raise Refused("not this one")
            return plain(space, draft, now_us)

        monkeypatch.setattr(host.core.replication, "append", append)

    for host in swarm.hosts:
        refusing(host)
    ask = swarm.submit(0, KEY)
    swarm.run_until(lambda: ask.done, 30)
    swarm.run_until(lambda: swarm.ended(KEY), 60)
    assert outcomes(swarm) == {"answer"}
    assert [ended for _, _, ended in swarm.turns(KEY)] == ["answered"] * 3


# ---- peers


def test_nobody_watches_who_did_not_say_hello() -> None:
    swarm = submitted(17)
    stranger = PeerID(b"?" * 32)
    swarm.hosts[0]._step(Received(stranger, Watch(swarm.submitted[KEY], on=True)))
    task = swarm.task(0, KEY)
    assert task is not None
    assert stranger not in task.watchers


def test_agents_of_one_peer_stand_side_by_side() -> None:
    swarm = begun(18)
    host, peer = swarm.hosts[1], swarm.hosts[1].peer
    before = swarm.hosts[0].core.kernel.offers()[peer].agents

    def seen() -> tuple[str, ...]:
        return swarm.hosts[0].core.kernel.offers()[peer].agents

    second = AgentValue(agent="second", roles=("painter",), encoder=swarm.genesis.encoder.id)
    host._step(Publish(second))
    swarm.run_until(lambda: set(seen()) == {*before, "painter"}, 60)
    host._step(Withdraw("second"))
    swarm.run_until(lambda: seen() == before, 60)
