"""Who the kernel acts for, and its parameters; units are in the names (replication.md §12, masos-kernel.md)."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final

from protocol.admission import Genesis
from protocol.identity import KeyPair
from protocol.records import Quota

MACHINE: Final = "kernel"
"""Names the kernel in timers."""


@dataclass(frozen=True, slots=True)
class Self:
    """Who this node acts for."""

    node: KeyPair
    user: KeyPair
    genesis: Genesis


@dataclass(frozen=True, slots=True)
class TaskDefaults:
    """What a task gets where its user says nothing (protocol.md §6)."""

    deadline_ms: int = 3_600_000
    lease_ms: int = 30_000
    eps_ms: int = 5_000
    renew_max: int = 40
    max_steps: int = 12
    f: int = 0
    quota: Quota = field(default_factory=Quota)


@dataclass(frozen=True, slots=True)
class KernelConfig:
    """Waits and bounds of turns."""

    tau_us: int = 2_000_000  # rank spacing; below 2 s a loaded machine runs turns twice (replication.md §3.4)
    vote_delay_us: int = 200_000  # votes ride on the next own op; alone after this
    decide_us: int = 20_000_000  # then the heuristic decides (protocol.md §7.2)
    no_agent_wait_us: int = 60_000_000  # a node without the agent waits so long before it ends a step
    stamp_wait_us: int = 60_000_000  # a claim waits no longer for swarm time to come near its stamp (the quarantine)
    turn_failures_max: int = 3  # own failed runs of one step; then the step ends as `failed`
    pool_snapshot_max: int = 256  # units given to a job
    ack_wait_us: int = 10_000_000  # submit answers with an error when the asked level is not reached
    progress_every_us: int = 250_000  # at most four a second
    tasks_max: int = 10_000
    watchers_max: int = 64
    defaults: TaskDefaults = field(default_factory=TaskDefaults)
