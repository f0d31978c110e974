"""A node that takes and never gives, and a watcher for the honest ones.

`SilentCore` is the product's core with a gag on the mesh: it links, subscribes, grafts, asks for what it misses,
answers pings, probes and every exchange beside the mesh, and sends what it says itself. Of what others said it sends
nothing over the mesh: no copy, no answer to a request, no offer, no echo, no notice that it has it already. To a plain
gossipsub mesh such a peer looks like a good one with bad luck.

`WatchedCore` is the product's core and notes whom it prunes for silence; behaviour is that of `NodeCore`. Both take the
report of an engine as a command, since a simulated host reports its engine at start only.
"""

from __future__ import annotations

import random
from itertools import pairwise
from typing import Final

from gossip.events import Broadcast
from kernel.commands import EngineReport
from node.core import CoreConfig, Membership, NodeCore
from protocol.identity import Verify
from protocol.machine import Command, Count, Effect, Local, Reply, Send
from protocol.messages import IDontWant, IHave, Prune, Spread, message_id
from protocol.peer import PeerID
from protocol.store import StoreReader

OWN_MAX: Final = 4_096  # ids of own messages that are remembered; the mesh itself keeps them for seconds


class WatchedCore(NodeCore):
    """Honest. `silenced`: (peer, topic) of each prune for silence, in order; at most one per edge in ten heartbeats."""

    def __init__(
        self, member: Membership, config: CoreConfig, rng: random.Random, *, store: StoreReader, verify: Verify
    ) -> None:
        super().__init__(member, config, rng, store=store, verify=verify)
        self.silenced: list[tuple[PeerID, str]] = []

    def handle(self, event: object, now_us: int) -> list[Effect]:
        """As the product's, and the report of an engine as a command."""
        if isinstance(event, Command) and isinstance(event.command, EngineReport):
            return [Reply(event.request_id, None), *super().handle(event.command, now_us)]
        return super().handle(event, now_us)

    def _step(self, event: object, now_us: int) -> list[Effect]:
        effects = super()._step(event, now_us)
        for reason, deed in pairwise(effects):  # the mesh counts the reason right before the deed
            match reason, deed:
                case Count("mesh_silent_pruned"), Send(peer, _, Prune(topic)):
                    self.silenced.append((peer, topic))
                case _:
                    pass
        return effects


class SilentCore(WatchedCore):
    """Takes and never gives."""

    def __init__(
        self, member: Membership, config: CoreConfig, rng: random.Random, *, store: StoreReader, verify: Verify
    ) -> None:
        super().__init__(member, config, rng, store=store, verify=verify)
        self._own: dict[bytes, None] = {}  # ids of what it said itself, the oldest first

    def _step(self, event: object, now_us: int) -> list[Effect]:
        kept = [self._gagged(effect) for effect in super()._step(event, now_us)]
        return [effect for effect in kept if effect is not None]

    def _gagged(self, effect: Effect) -> Effect | None:
        """What remains of an effect; None: nothing."""
        match effect:
            case Local(Broadcast(topic, items)):
                self._own |= dict.fromkeys(message_id(topic, item) for item in items)
                while len(self._own) > OWN_MAX:
                    del self._own[next(iter(self._own))]
                return effect
            case Send(peer, lane, Spread(topic, wide, items)):
                own = {mid: item for item in items if (mid := message_id(topic, item)) in self._own}
                return Send(peer, lane, Spread(topic, wide, tuple(own.values())), tuple(own)) if own else None
            case Send(peer, lane, IHave(topic, ids)):
                mine = tuple(mid for mid in ids if mid in self._own)
                return Send(peer, lane, IHave(topic, mine)) if mine else None
            case Send(_, _, IDontWant()):
                return None
            case _:
                return effect
