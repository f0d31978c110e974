"""What a relay allows, and how it carries bytes: circuits between two streams, without knowing what is in them.

Both ends of a circuit speak Noise through it, so a relay sees sizes and times and no content. It gives its bandwidth
under limits of its own (the library's are not enforced, libp2p.md §6):

- a place is given to a peer whose direct link is up, and is of use only while one is: so places are for members of
  the swarm that can be told of a dial;
- a circuit is for a member too, at either end: `RelayConfig.admits`. Who dials need not be linked to the relay;
- circuits in all, per peer that dials, per peer that is dialled, and between two of them, so that no one peer takes
  all that another may have;
- for each circuit its bytes both ways together and its duration. One that ends by a limit costs its two ends one link,
  which they dial again.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import Final, Literal

import trio

from node.clock import BootClock, Clock
from node.lanes import ByteStream
from protocol.errors import PeerError, Refused
from protocol.peer import PeerID

RelayUse = Literal["off", "client", "serve"]
CARRY_BYTES: Final = 64 * 1024  # read at once
LINGER_S: Final = 2.0  # for the other direction, when one has ended


@dataclass(frozen=True, slots=True)
class CircuitLimits:
    """What a relay gives.

    Attributes:
        places_max: peers that others may reach through it.
        place_s: a place is renewed within this time or lost.
        circuits_max: at once, in all.
        circuits_per_source_max, circuits_per_target_max: of them that one peer dialled, and that lead to one.
        circuits_per_pair_max: of them from one peer to one other: a link, and the one that shall replace it.
        bytes_max: of one circuit, both directions together.
        duration_s: of one circuit.
    """

    places_max: int = 64
    place_s: float = 1_800.0
    circuits_max: int = 64
    circuits_per_source_max: int = 16
    circuits_per_target_max: int = 16
    circuits_per_pair_max: int = 2
    bytes_max: int = 256 * 1024 * 1024
    duration_s: float = 4 * 3_600.0


@dataclass(frozen=True, slots=True)
class RelayConfig:
    """What a transport does with relays.

    Attributes:
        use: `off`; `client` may take a place at a relay; `serve` is a relay. Dialling others through relays is
            always possible, it costs this node nothing.
        limits: what it gives.
        admits: whether a peer is a member, and not denied, as far as this node knows. None: whoever has a link.
        clock: for the end of a place, which travels as wall time.
    """

    use: RelayUse = "off"
    limits: CircuitLimits = field(default_factory=CircuitLimits)
    admits: Callable[[PeerID], bool] | None = None
    clock: Clock = field(default_factory=BootClock)

    def wall_s(self) -> int:
        """Seconds since 1970 by this machine."""
        return (self.clock.now_us() + self.clock.wall_offset_us()) // 1_000_000


class Places:
    """Who may be reached through this relay, and the circuits that are open."""

    def __init__(self, limits: CircuitLimits) -> None:
        self._limits = limits
        self._until: dict[PeerID, float] = {}  # trio time
        self._open: Counter[tuple[PeerID, PeerID]] = Counter()  # circuits from one peer to another

    def __len__(self) -> int:
        return len(self._until)

    def take(self, peer: PeerID, now_s: float) -> float:
        """Give a peer a place, or renew it; how long it holds in seconds.

        Raises:
            Refused: all places are taken.
        """
        self._until = {each: until for each, until in self._until.items() if until > now_s}
        if peer not in self._until and len(self._until) >= self._limits.places_max:
            raise Refused("all places of this relay are taken")
        self._until[peer] = now_s + self._limits.place_s
        return self._limits.place_s

    def holds(self, peer: PeerID, now_s: float) -> bool:
        """Whether the peer has a place now."""
        return self._until.get(peer, now_s) > now_s

    @contextmanager
    def circuit(self, source: PeerID, target: PeerID) -> Iterator[None]:
        """Count a circuit while it is open.

        Raises:
            Refused: too many, in all, of one of the two, or between them.
        """
        if not self._has_room(source, target):
            raise Refused("too many circuits through this relay")
        pair = source, target
        self._open[pair] += 1
        try:
            yield
        finally:
            self._open[pair] -= 1
            if not self._open[pair]:
                del self._open[pair]

    def _has_room(self, source: PeerID, target: PeerID) -> bool:
        limits, circuits = self._limits, self._open
        return (
            circuits.total() < limits.circuits_max
            and circuits[source, target] < limits.circuits_per_pair_max
            and sum(n for (one, _), n in circuits.items() if one == source) < limits.circuits_per_source_max
            and sum(n for (_, one), n in circuits.items() if one == target) < limits.circuits_per_target_max
        )


@dataclass(slots=True)
class _Budget:
    left: int


async def carry(one: ByteStream, other: ByteStream, limits: CircuitLimits) -> int:
    """Carry bytes both ways until one side ends or a limit is reached; how many it were.

    What was read before the end is delivered. Errors of the streams are ends.
    """
    budget = _Budget(limits.bytes_max)
    with trio.move_on_after(limits.duration_s):
        async with trio.open_nursery() as nursery:
            ended = trio.Event()

            async def carry_one(source: ByteStream, target: ByteStream) -> None:
                await _copy(source, target, budget)
                ended.set()

            nursery.start_soon(partial(carry_one, one, other))
            nursery.start_soon(partial(carry_one, other, one))
            await ended.wait()
            nursery.cancel_scope.deadline = trio.current_time() + LINGER_S
    return limits.bytes_max - max(0, budget.left)


async def _copy(source: ByteStream, target: ByteStream, budget: _Budget) -> None:
    try:
        while data := await source.read(CARRY_BYTES):
            budget.left -= len(data)
            if budget.left < 0:
                return
            await target.write(data)
        await target.finish()
    except PeerError:
        return
