"""What the operator may ask of the kernel, and the reports that the outside world gives it."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from kernel.discovery import DataPolicy, Filters
from kernel.engine import Capabilities
from protocol.contract import Limits

Ack = Literal["local", "w1"]


@dataclass(frozen=True, slots=True)
class Submit:
    """Open a task, or find the one that this client key already names.

    Everything but `ack` is what the user gave; a second submit that differs in it is a `Conflict`.
    """

    client_key: str
    objective: str
    document: tuple[str, ...] = ()  # chunks, in order; each becomes a memory unit
    contract: Limits = (None, None, None, None)
    deadline_ms: int | None = None  # from now
    lease_ms: int | None = None
    eps_ms: int | None = None
    max_steps: int | None = None
    ack: Ack = "w1"


@dataclass(frozen=True, slots=True)
class ShowTask:
    """The whole state of a task; `task` is its id or a unique prefix, in hex."""

    task: str


@dataclass(frozen=True, slots=True)
class ListTasks:
    """One line per task that this node holds."""


@dataclass(frozen=True, slots=True)
class CancelTask:
    """The user stops a task."""

    task: str
    reason: str = ""


@dataclass(frozen=True, slots=True)
class FollowTask:
    """Ask other nodes for partial output of a task, or stop asking."""

    task: str
    on: bool


@dataclass(frozen=True, slots=True)
class MemoryDigests:
    """Per space: number of ops, digest of the set, digest of the derived state."""


@dataclass(frozen=True, slots=True)
class FindAgents:
    """The agents whose capability is nearest to a text, among those that pass the filters.

    Attributes:
        limit: hits at most; None is what was calibrated for the encoder.
        explain: also who was rejected, and why.
    """

    text: str
    filters: Filters = field(default_factory=Filters)
    limit: int | None = None
    explain: bool = False


@dataclass(frozen=True, slots=True)
class ListAgents:
    """Every live capability record that this node holds."""


@dataclass(frozen=True, slots=True)
class Offer:
    """What the operator says of this node's agents, and on what terms they work; fields as in `AgentValue`."""

    description: str = ""
    skills: tuple[str, ...] = ()
    tags: tuple[str, ...] = ()
    taxonomy: str = ""
    tools: tuple[str, ...] = ()
    permissions: tuple[str, ...] = ()
    price_micro_money: int = 0
    data_policy: DataPolicy = "local"


@dataclass(frozen=True, slots=True)
class EngineReport:
    """The engine of this node came up, changed or went away (None); `roles` are what its agents do."""

    capabilities: Capabilities | None
    roles: tuple[str, ...] = ()
    offer: Offer = field(default_factory=Offer)


KernelCommand = Submit | ShowTask | ListTasks | CancelTask | FollowTask | MemoryDigests | FindAgents | ListAgents
