"""NodeCore: the whole protocol behaviour of a node as one pure machine.

Production steps it from one trio task (node/driver.py), simulation from a heap (simulations/swarm.py), on the same
code. An event goes to every machine in a fixed order; `Local` effects are drained first-in first-out within the
same call; last, everything written in the step becomes one Persist. The order tested is the order shipped.
"""

from __future__ import annotations

import random
from collections import deque
from dataclasses import asdict, dataclass, field

from dht.config import DhtConfig
from dht.terms import Terms
from gossip.config import GossipConfig
from gossip.context import Context
from gossip.events import Publish, SpaceChanged
from gossip.links import Links, Refusal
from gossip.membership.behaviour import Membership as Members
from gossip.membership.config import MemberConfig
from gossip.membership.statement import TOPIC as MEMBERS
from gossip.membership.views import MemberView
from gossip.mesh.behaviour import Mesh
from gossip.mesh.config import MeshConfig
from gossip.reach import RELAY_ROLE, ReachabilityChanged, ReachConfig
from gossip.reachability import Reachability
from gossip.record_map import TOPIC as RECORDS, RecordMap
from gossip.repair import Repair
from gossip.replication import TOPIC as OPS, Replication
from kernel.behaviour import Kernel, Self
from kernel.codebook import shipped_codebooks
from kernel.config import KernelConfig
from kernel.jobs import Candidate
from kernel.searches import Reach
from node.dht_bridge import DhtBridge
from protocol import versions
from protocol.admission import MEMBER, Genesis, check_chain
from protocol.capability import PeerValue
from protocol.clock import SwarmClock
from protocol.identity import KeyPair, Verify
from protocol.machine import (
    Boot,
    Command,
    Count,
    Effect,
    JobDone,
    JobFailed,
    JobIds,
    JobProgress,
    Local,
    Machine,
    Reply,
    TimerFired,
)
from protocol.messages import Hello
from protocol.peer import ADDRESSES_PER_PEER_MAX, PeerID, peer_text
from protocol.store import StoreReader

LOCAL_EVENTS_MAX = 10_000  # more in one call is a livelock, a bug of ours
BOOT_EVENTS_MAX = 100_000  # one notice per stored space and record; both tables are bounded far below
PEER_STATES = ("linked", "alive", "suspect", "dead", "left", "dialling")  # of `masos peers`, in the order shown


@dataclass(frozen=True, slots=True)
class CoreConfig:
    """Parameters of all machines."""

    gossip: GossipConfig = field(default_factory=GossipConfig)
    mesh: MeshConfig = field(default_factory=MeshConfig)
    members: MemberConfig = field(default_factory=MemberConfig)
    reach: ReachConfig = field(default_factory=ReachConfig)
    dht: DhtConfig = field(default_factory=lambda: DhtConfig(server=False))  # serves once it is known to be reached
    kernel: KernelConfig = field(default_factory=KernelConfig)
    codebooks: tuple[bytes, ...] | None = None  # None: those that this release ships for the encoder of the swarm


@dataclass(frozen=True, slots=True)
class Membership:
    """Who the node is, and its place in the swarm."""

    node: KeyPair
    user: KeyPair
    genesis: Genesis
    chain: tuple[bytes, ...]
    bootstrap: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class ListenAddrs:
    """The transport listens: these are the addresses to announce."""

    addrs: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Status:
    """What this node is, who it is linked to, what it holds."""


@dataclass(frozen=True, slots=True)
class ListPeers:
    """Every peer that is linked, may be dialled or is a member, linked ones first."""


class NodeCore:
    """One node. `rng` seeds a stream per machine, so that a new consumer of one does not shift the others."""

    def __init__(
        self, member: Membership, config: CoreConfig, rng: random.Random, *, store: StoreReader, verify: Verify
    ) -> None:
        self.me = PeerID(member.node.public)
        self._member = member
        self._clock = SwarmClock(0, floor_ms=check_chain(member.genesis, member.chain, self.me).nbf_ms)
        self._jobs = JobIds()
        self._addrs: tuple[str, ...] = ()
        self._relay_addrs: tuple[str, ...] = ()
        self._relays = config.reach.relay == "serve"
        self._member_config = config.members
        self._counters: dict[str, int] = {}
        gossip = config.gossip
        streams = [random.Random(rng.randbytes(16)) for _ in range(7)]
        self.links = Links(self.me, member.genesis, self._clock, gossip, streams[0])
        self.links.add_bootstrap(member.bootstrap)
        ctx = Context(
            member.node, member.genesis, member.chain, self._clock, gossip, self._jobs, store=store, verify=verify
        )
        self.records = RecordMap(ctx, streams[2])
        self.members = Members(
            member.node, self._clock, config.members, streams[3], verify=verify, admitted=self._admitted
        )
        topics = (MEMBERS, OPS) if gossip.light_index else (MEMBERS, OPS, RECORDS)
        self.mesh = Mesh(self.me, config.mesh, streams[4], topics)
        self.reach = Reachability(self.me, config.reach, streams[5], self._jobs)
        self.replication = Replication(ctx)
        self.repair = Repair(self.me, self.replication, gossip, streams[1])
        codebooks = config.codebooks
        if codebooks is None:
            codebooks = shipped_codebooks(member.genesis.encoder.id)
        terms = Terms.of(member.genesis, verify, self._admitted)
        self.dht = DhtBridge(self.me, self._clock, config.dht, streams[6], terms=terms, codebooks=codebooks)
        self.kernel = Kernel(
            Self(member.node, member.user, member.genesis),
            self.replication,
            self._clock,
            config.kernel,
            self._jobs,
            Reach(lambda: self.records.complete, codebooks, self._silence_us),
        )
        self.mesh.worth = self.kernel.worth
        self._machines: dict[str, Machine] = {
            "links": self.links,
            "records": self.records,
            "members": self.members,
            "mesh": self.mesh,
            "reachability": self.reach,
            "replication": self.replication,
            "repair": self.repair,
            "dht": self.dht,
            "kernel": self.kernel,
        }

    def hello(self, now_us: int) -> Hello:
        """The first frame for a new link."""
        return Hello(
            wire_min=versions.WIRE_MIN,
            wire_max=versions.WIRE_MAX,
            swarm_id=self._member.genesis.swarm_id,
            cert_chain=self._member.chain,
            inst=self._jobs.inst,
            wall_ms=self._clock.wall_ms(now_us),
            derive_vers=versions.DERIVE_VERSIONS,
            roles=(MEMBER, RELAY_ROLE) if self._relays else (MEMBER,),
            listen_addrs=self._addrs[:ADDRESSES_PER_PEER_MAX],
            features=versions.FEATURES,
        )

    def handle(self, event: object, now_us: int) -> list[Effect]:
        """Take one event; the effects in the order in which they must happen.

        Raises:
            RuntimeError: the machines feed each other without end.
        """
        out: list[Effect] = []
        queue: deque[object] = deque([event])
        taken, most = 0, BOOT_EVENTS_MAX if isinstance(event, Boot) else LOCAL_EVENTS_MAX
        while queue:
            taken += 1
            if taken > most:
                raise RuntimeError(f"more than {most} local events in one step, last {queue[0]!r}")
            for effect in self._step(queue.popleft(), now_us):
                match effect:
                    case Local(inner):
                        queue.append(inner)
                    case Count(name, n):
                        self._counters[name] = self._counters.get(name, 0) + n
                    case _:
                        out.append(effect)
        return out + self.replication.flush()

    def _step(self, event: object, now_us: int) -> list[Effect]:
        match event:
            case Boot(inst, wall_offset_us):
                self._jobs.start(inst)
                self._clock.set_wall_offset(wall_offset_us)
            case JobDone(job) | JobFailed(job) | JobProgress(job) if job.inst != self._jobs.inst:
                return [Count("answers_of_an_earlier_life")]
            case TimerFired(key):
                return self._machines["kernel" if key.machine == "turns" else key.machine].handle(event, now_us)
            case ListenAddrs(addrs):
                self._addrs = addrs
                return self._announce()
            case ReachabilityChanged() if event.relay_addrs != self._relay_addrs:
                self._relay_addrs = event.relay_addrs
                return [*self._announce(), *self._offer(event, now_us)]
            case Command(request_id, Status()):
                return [Reply(request_id, self.status(now_us))]
            case Command(request_id, ListPeers()):
                return [Reply(request_id, self.peers(now_us))]
            case _:
                pass
        return self._offer(event, now_us)

    def _admitted(self, key: bytes) -> bool:
        return self.records.is_member(key) and key not in self.replication.denied

    def _silence_us(self, members: int) -> int | None:
        config = self._member_config
        if self.members.status().standing_down:
            return None
        return config.hold_us(config.period_us(members)) + config.presence_every_us

    def _announce(self) -> list[Effect]:
        addrs = (*self._addrs, *self._relay_addrs)[:ADDRESSES_PER_PEER_MAX]
        return [Local(Publish(PeerValue(addrs=addrs, cert=self._member.chain)))]

    def _offer(self, event: object, now_us: int) -> list[Effect]:
        """Give an event to every machine, in order."""
        effects = [effect for machine in self._machines.values() for effect in machine.handle(event, now_us)]
        if isinstance(event, SpaceChanged):
            self.links.denied = self.replication.denied
        return effects

    # ---- what the operator sees

    @property
    def counters(self) -> dict[str, int]:
        """Everything that was dropped, refused or lost, by name."""
        return dict(sorted(self._counters.items()))

    def status(self, now_us: int) -> dict[str, object]:
        """Plain data for `masos status`.

        `index`: `complete`, `partial` (there was no room for some records) or `light` (none of others are held).
        """
        offers, mesh = self.kernel.offers(), self.mesh.status()
        topics = mesh["topics"]
        light = isinstance(topics, dict) and RECORDS not in topics
        return {
            "peer": peer_text(self.me),
            "swarm": self._member.genesis.name,
            "swarm_id": self._member.genesis.swarm_id.hex(),
            "mode": self._member.genesis.mode,
            "user": self._member.user.public.hex(),
            "incarnation": self._jobs.inst,
            "listen": list(self._addrs),
            "linked": [self._peer_line(peer, offers.get(peer)) for peer in self.links.linked],
            "known": {peer_text(peer): list(addrs) for peer, addrs in self.links.known().items()},
            "isolated": not self.links.linked,
            "reachability": self.reach.status(now_us),
            "members": asdict(self.members.status()),
            "index": "light" if light else "complete" if self.records.complete else "partial",
            "index_complete": self.records.complete,
            "dht": self.dht.dht.status(),
            "mesh": mesh,
            "offer": self._offer_line(offers.get(self.me)),
            "clock_offset_ms": self._clock.offset_ms,
            "clock_warning": self._clock.skewed,
            "spaces": len(self.replication.spaces()),
            "unsure_spaces": len(self.replication.unsure()),
            "tasks": self.kernel.task_count(),
            "refusals": [{**asdict(each), "age_s": self._age_s(each, now_us)} for each in self.links.refusals],
            "counters": self.counters,
        }

    def peers(self, now_us: int) -> list[dict[str, object]]:
        """Plain data for `masos peers`: every other node that is linked, may be dialled, or is a member not forgotten.

        Sorted by `state`, in the order of `PEER_STATES`, then by PeerID. What speaks against a peer goes first: a link
        that still stands makes nobody `linked` whom membership holds for down. `why` is the reason of membership,
        `code` and `reason` the last trouble with a peer that is not linked, `score` its points in the mesh.
        """
        known, offers, scores = self.links.known(), self.kernel.offers(), self.mesh.scores()
        trouble = {refusal.peer: refusal for refusal in self.links.refusals}  # the newest of each
        heard_of = (*self.members.alive(), *map(PeerID, self.records.publishers()))
        members = [peer for peer in dict.fromkeys(heard_of) if self.members.view_of(peer) is not None]
        rows: list[dict[str, object]] = []
        for peer in sorted({*self.links.linked, *known, *members} - {self.me}):
            hello, view, member = self.links.hello_of(peer), self.links.view_of(peer), self.members.view_of(peer)
            refusal = trouble.get(peer_text(peer)) if view is None else None
            state = _peer_state(member, linked=view is not None)
            since_us = view.since_us if view and state == "linked" else member.since_us if member else None
            rtt_us = view.rtt_us if view is not None else None
            rows.append(
                {
                    "peer": peer_text(peer),
                    "state": state,
                    "linked": view is not None,
                    "why": member.why if member is not None else "",
                    "addrs": list(known.get(peer) or (hello.listen_addrs if hello is not None else ())),
                    "roles": list(hello.roles) if hello is not None else [],
                    "since_s": (now_us - since_us) // 1_000_000 if since_us is not None else None,
                    "heard_ms": (now_us - view.heard_us) // 1_000 if view is not None else None,
                    "rtt_ms": rtt_us / 1_000 if rtt_us is not None else None,
                    "score": scores[peer] / 1_000 if peer in scores else None,
                    "offer": self._offer_line(offers.get(peer)),
                    "code": refusal.code if refusal is not None else "",
                    "reason": refusal.reason if refusal is not None else "",
                    "reason_age_s": self._age_s(refusal, now_us) if refusal is not None else None,
                }
            )
        return sorted(rows, key=lambda row: PEER_STATES.index(str(row["state"])))

    def _age_s(self, refusal: Refusal, now_us: int) -> int:
        return max(0, self._clock.wall_ms(now_us) - refusal.wall_ms) // 1_000

    def _peer_line(self, peer: PeerID, offer: Candidate | None) -> dict[str, object]:
        hello = self.links.hello_of(peer)
        return {
            "peer": peer_text(peer),
            "addrs": list(hello.listen_addrs) if hello is not None else [],
            "incarnation": hello.inst if hello is not None else None,
            "offer": self._offer_line(offer),
        }

    def _offer_line(self, offer: Candidate | None) -> dict[str, object] | None:
        if offer is None:
            return None
        return {
            "roles": list(offer.agents),
            "model": offer.model,
            "quality": offer.quality,
            "context_tokens": offer.context_tokens,
            "tokens_per_s": offer.tokens_per_s,
        }


def _peer_state(member: MemberView | None, *, linked: bool) -> str:
    """What membership has against a peer, else whether there is a link, else that it lives elsewhere."""
    if member is not None and member.state != "alive":
        return member.state
    if linked:
        return "linked"
    return "alive" if member is not None else "dialling"
