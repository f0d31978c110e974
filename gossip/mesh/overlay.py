"""Who forwards to whom: per topic a mesh of about `degree` peers, kept by Graft and Prune (gossipsub v1.1).

A mesh edge is meant to be mutual. A mesh with fewer than `degree_low` peers grafts, one with more than `degree_high` is
cut back to its best and a random rest; a bad score ends an edge. After a Prune both ends wait: who grafts before that
is refused and blamed. Every few heartbeats a mesh whose median score is poor takes in a few better peers, so that a
node which silent peers surround comes free. `Dout` of gossipsub is left out: a machine is not told who dialled whom.

**Silence.** A peer that takes messages and never forwards any keeps its place in a plain gossipsub mesh. Here a mesh
peer is charged with a heartbeat if, of the messages accepted two to three heartbeats before while it was in the mesh,

- at least one was had in time by at least two *other* mesh peers, which sent or offered it, and
- it gave a sign of none of them.

Messages that their origin sent to everybody (`wide`) do not count, an idle topic charges nobody, and neither does a
node that hears nothing itself. Any sign, however late, clears the account, a copy that was judged `ignore` as well: the
peer forwarded what was news where it is. Meanwhile it is grafted anew a few times, in case the first Graft was lost;
after `silent_heartbeats` it is pruned with back-off and a lower score.

An honest peer behind this node gets everything from here and has nothing to forward. So who is brought messages of a
topic by a mesh peer offers it a few of the same ids (the *echo*, gossip/mesh/lazy.py): at its heartbeat if it gave that
peer nothing, else every `echo_heartbeats`.

**Colluding witnesses** cannot get an honest peer pruned. Each message for which it may be charged either came from it,
which is a sign, or was forwarded to it from here, and is echoed. The echo hangs on nothing that a third one does: not
on which of several near-equal messages reaches whom first, nor on what either end thinks of them. (That this node
forwarded a message to a peer is no excuse for it: silent peers are forwarded everything.) An honest peer is pruned for
silence only if nothing of it comes through for `silent_heartbeats` in a row: its round trip takes longer than they do,
or its link is as good as dead. A peer that echoes and still withholds is not found by this rule; it gets no points for
first deliveries, so cuts and better peers push it out.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import chain

from gossip.mesh.cache import Entry
from gossip.mesh.state import State
from protocol.machine import Effect, Send
from protocol.messages import Graft, Prune
from protocol.peer import PeerID
from protocol.transport import Lane

_SECOND_US = 1_000_000
_DUE_AGE = 2  # heartbeats after which a message is missed by who gave no sign of it
_SLACK_HEARTBEATS = 2  # own grafts come so much after the back-off: the other end began to count later


@dataclass(slots=True)
class _Edge:
    since_us: int
    silent: int = 0  # heartbeats with a miss since the last sign


class Overlay:
    """Meshes and back-offs of all topics of this node."""

    def __init__(self, state: State) -> None:
        self._state = state
        self._config = state.config
        self._meshes: dict[str, dict[PeerID, _Edge]] = {topic: {} for topic in state.topics}
        self._backoffs: dict[str, dict[PeerID, int]] = {topic: {} for topic in state.topics}
        self._beats = 0

    def mesh(self, topic: str) -> list[PeerID]:
        """The mesh peers of a topic, in order."""
        return sorted(self._meshes[topic])

    def has(self, topic: str, peer: PeerID) -> bool:
        """Whether a peer is in the mesh of a topic."""
        return peer in self._meshes[topic]

    def meshed(self) -> list[PeerID]:
        """The peers in any mesh, each once, in order."""
        return sorted(dict.fromkeys(chain.from_iterable(self._meshes.values())))

    def backoffs(self, topic: str) -> int:
        """How many peers are not to be grafted now."""
        return len(self._backoffs[topic])

    def drop(self, topic: str, peer: PeerID) -> None:
        """A peer left the mesh of a topic, or never heard that it is in it."""
        if self._meshes[topic].pop(peer, None) is not None:
            self._state.scores.pruned(peer)

    def unlink(self, peer: PeerID) -> None:
        """A peer is gone; its back-offs stay."""
        for mesh in self._meshes.values():
            mesh.pop(peer, None)

    def heard(self, topic: str, peer: PeerID) -> None:
        """A peer gave a sign of a message that this node accepted."""
        if (edge := self._meshes[topic].get(peer)) is not None:
            edge.silent = 0

    def on_graft(self, peer: PeerID, topic: str, now_us: int) -> list[Effect]:
        """A peer wants to be in the mesh: it is, or hears a Prune."""
        if peer in self._meshes[topic]:
            return []
        state = self._state
        until_us = self._backoffs[topic].get(peer, 0)
        if now_us < until_us:
            began_us = until_us - self._config.backoff_us
            state.scores.misbehaved(peer, 2 if now_us < began_us + self._config.graft_flood_us else 1)
            return [*state.count("mesh_grafts_in_backoff"), *self._prune(peer, topic, now_us)]
        if state.scores.of(peer) < 0 or len(self._meshes[topic]) >= self._config.degree_high:
            return [*state.count("mesh_grafts_refused"), *self._prune(peer, topic, now_us)]
        self._meshes[topic][peer] = _Edge(now_us)
        return []

    def on_prune(self, peer: PeerID, topic: str, backoff_s: int, now_us: int) -> list[Effect]:
        """A peer ends the edge, or refuses it."""
        self.drop(topic, peer)
        wait_us = min(backoff_s * _SECOND_US, self._config.backoff_us_max)
        self._back_off(peer, topic, now_us + max(wait_us, self._config.backoff_us))
        return []

    def heartbeat(self, now_us: int) -> list[Effect]:
        """Keep the meshes of all topics. Before the cache moves on."""
        self._beats += 1
        effects: list[Effect] = []
        for topic in self._state.topics:
            backoffs = self._backoffs[topic]
            for peer in [peer for peer, until_us in backoffs.items() if self._over(until_us, now_us)]:
                del backoffs[peer]
            for peer in self.mesh(topic):
                if self._state.scores.of(peer) < 0:
                    effects += [*self._state.count("mesh_bad_pruned"), *self._prune(peer, topic, now_us)]
            effects += self._charge(topic, now_us)
            effects += self._keep_degree(topic, now_us)
            if self._beats % self._config.opportunistic_heartbeats == 0:
                effects += self._take_better(topic, now_us)
        return effects

    def _keep_degree(self, topic: str, now_us: int) -> list[Effect]:
        config, state, mesh = self._config, self._state, self._meshes[topic]
        effects: list[Effect] = []
        if len(mesh) < config.degree_low:
            for peer in state.sample(self._candidates(topic), config.degree - len(mesh)):
                effects += self._graft(peer, topic, now_us)
        elif len(mesh) > config.degree_high:
            ranked = sorted(mesh, key=lambda peer: (-state.scores.of(peer), peer))
            best, rest = ranked[: config.degree_score], sorted(ranked[config.degree_score :])
            stay = {*best, *state.sample(rest, config.degree - len(best))}
            for peer in rest:
                effects += self._prune(peer, topic, now_us) if peer not in stay else []
        return effects

    def _take_better(self, topic: str, now_us: int) -> list[Effect]:
        config, state, mesh = self._config, self._state, self._meshes[topic]
        if not mesh:
            return []
        scores = sorted(state.scores.of(peer) for peer in mesh)
        median = scores[len(scores) // 2]
        better = [peer for peer in self._candidates(topic) if state.scores.of(peer) > median]
        room = min(config.opportunistic_peers, config.degree_high - len(mesh))
        if median >= config.opportunistic_milli or room <= 0 or not better:
            return []
        best = sorted(better, key=lambda peer: (-state.scores.of(peer), peer))[:room]
        effects = state.count("mesh_better_grafted", len(best))
        return [*effects, *(effect for peer in best for effect in self._graft(peer, topic, now_us))]

    def _charge(self, topic: str, now_us: int) -> list[Effect]:
        due = [e for _, e in self._state.cache.window(_DUE_AGE) if e.topic == topic and not e.wide]
        due = due[-self._config.silent_sample :]
        effects: list[Effect] = []
        for peer in self.mesh(topic) if due else []:
            edge = self._meshes[topic][peer]
            expected = [e for e in due if e.born_us >= edge.since_us and self._witnessed(e, topic, peer)]
            if not expected or any(peer in e.holders for e in expected):
                continue
            edge.silent += 1
            if edge.silent >= self._config.silent_heartbeats:
                self._state.scores.silent(peer)
                effects += [*self._state.count("mesh_silent_pruned"), *self._prune(peer, topic, now_us)]
            elif edge.silent % self._config.silent_ask_heartbeats == 0:
                effects += [*self._state.count("mesh_grafted_again"), Send(peer, Lane.CONTROL, Graft(topic))]
        return effects

    def _witnessed(self, entry: Entry, topic: str, peer: PeerID) -> bool:
        mesh = self._meshes[topic]
        return sum(other in mesh and other != peer for other in entry.holders) >= self._config.silent_witnesses

    def _candidates(self, topic: str) -> list[PeerID]:
        mesh, backoffs = self._meshes[topic], self._backoffs[topic]
        return [peer for peer in self._state.subscribers(topic, 0) if peer not in mesh and peer not in backoffs]

    def _over(self, until_us: int, now_us: int) -> bool:
        return until_us + _SLACK_HEARTBEATS * self._config.heartbeat_us <= now_us

    def _graft(self, peer: PeerID, topic: str, now_us: int) -> list[Effect]:
        self._meshes[topic][peer] = _Edge(now_us)
        return [Send(peer, Lane.CONTROL, Graft(topic), topic)]

    def _prune(self, peer: PeerID, topic: str, now_us: int) -> list[Effect]:
        self.drop(topic, peer)
        self._back_off(peer, topic, now_us + self._config.backoff_us)
        return [Send(peer, Lane.CONTROL, Prune(topic, self._config.backoff_us // _SECOND_US))]

    def _back_off(self, peer: PeerID, topic: str, until_us: int) -> None:
        backoffs = self._backoffs[topic]
        backoffs[peer] = max(until_us, backoffs.get(peer, 0))
        if len(backoffs) > self._config.backoffs_max:
            del backoffs[next(iter(backoffs))]
