"""What the machines of a run share, and what one life of a node consists of (simulations/host.py)."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol

from node.core import CoreConfig, NodeCore
from protocol.errors import SwarmError
from protocol.identity import Verify
from protocol.machine import Effect, TimerKey
from simulations.codec import FrameCodec
from simulations.engine import EngineJobs
from simulations.heap import EventHeap
from simulations.history import History
from simulations.network import SimNetwork
from simulations.sim_transport import SimTransport
from simulations.writer import Writer

if TYPE_CHECKING:  # a host holds its world
    from simulations.host import SimHost


@dataclass(slots=True, eq=False)
class Ask:
    """A command to a node and what became of it."""

    node: int
    life: int
    command: object
    at_us: int
    result: object = None
    done: bool = False
    done_us: int = 0

    @property
    def ok(self) -> bool:
        """True once answered, and not with an error."""
        return self.done and not isinstance(self.result, SwarmError)


class Watch(Protocol):
    """What the checkers see of a host."""

    def on_event(self, host: SimHost, event: object) -> None:
        """Before a core takes an event."""
        ...

    def on_effects(self, host: SimHost, effects: list[Effect]) -> None:
        """After it, before they are carried out."""
        ...


@dataclass(frozen=True, slots=True)
class World:
    """What all hosts of a run share. `build_core`: where a test plants a bug."""

    heap: EventHeap
    network: SimNetwork
    history: History
    watch: Watch
    codec: FrameCodec
    verify: Verify
    core: CoreConfig
    seed: int
    build_core: Callable[..., NodeCore] = NodeCore


@dataclass(slots=True, eq=False)
class Life:
    """What ends with the life of a node.

    Attributes:
        timers: key -> (boot time, ticket of the entry that fires it).
        held: what fell due while the machine slept.
        inbox: events that wait for their turn, first-in first-out.
    """

    inst: int
    core: NodeCore
    transport: SimTransport
    jobs: EngineJobs
    writer: Writer
    timers: dict[TimerKey, tuple[int, int]] = field(default_factory=dict)
    held: deque[Callable[[], None]] = field(default_factory=deque)
    inbox: deque[object] = field(default_factory=deque)
    stopping: bool = False
