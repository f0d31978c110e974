"""The gossip mesh: gossipsub v1.1 over the frames of protocol/messages.py, as a machine (replication.md §7).

It carries opaque messages of a few topics to every subscriber and knows nothing of what they mean:

    Broadcast(topic, items)   from a consumer of this node: sent at once to every linked subscriber (flood publishing)
    Spread from a peer        what is new becomes one Local(Arrived(peer, topic, items))
    Judged(topic, verdicts)   accept: remembered, given on request, forwarded to the mesh; ignore: remembered only;
                              reject: remembered, and everybody who brought it is blamed; later: forgotten

Rules of this package:

- Nothing is forwarded, offered or marked as seen before it was accepted, and an id is the hash of topic and content
  (case S2). A consumer rejects only what is wrong for everybody: who brought it is blamed for it.
- Gossip only lowers latency; a message may be lost, repair brings it. So every table is bounded and what does not fit
  is dropped and counted (cases N4, S3). What a full queue refused is offered to that peer at the next heartbeat.
- A peer may bring so many new messages of a topic per second; what is above that is dropped, and nobody blamed for it.
- A message that its origin sent to every living member itself (`wide`) is not forwarded, only offered once by id.
- The first accepted messages go on at once; further ones within `flush_us` share a frame.
- Nothing happens in an idle topic: no frame, no charge. Only peers whose Hello names the feature take part.

Parts: `eager.py` what comes and goes on, `overlay.py` who forwards to whom, `lazy.py` offers and requests,
`unjudged.py` what waits for its verdict, `cache.py` what passed, `scores.py` what peers are worth, `allowance.py` what
they may bring.
"""

from __future__ import annotations

import random
from collections.abc import Callable

from gossip.events import Broadcast, Judged, Linked, MemberDown, MemberUp, Unlinked
from gossip.mesh.config import MeshConfig
from gossip.mesh.eager import MACHINE, Eager
from gossip.mesh.lazy import Lazy
from gossip.mesh.overlay import Overlay
from gossip.mesh.state import State, remember
from protocol.machine import (
    Boot,
    Effect,
    Misbehaved,
    Received,
    Send,
    SendDropped,
    SetTimer,
    TimerFired,
    TimerKey,
)
from protocol.messages import (
    TOPIC_CHARS_MAX,
    TOPICS_MAX,
    Frame,
    Graft,
    Hello,
    IDontWant,
    IHave,
    IWant,
    Prune,
    Spread,
    Subscribe,
)
from protocol.peer import PeerID, peer_text
from protocol.transport import Lane
from protocol.versions import MESH

_HEARTBEAT = TimerKey(MACHINE, "heartbeat")


class Mesh:
    """The machine of one node, for the topics that it wants."""

    def __init__(
        self,
        me: PeerID,
        config: MeshConfig,
        rng: random.Random,
        topics: tuple[str, ...] = ("ops", "records", "members"),
    ) -> None:
        assert len(topics) <= TOPICS_MAX
        assert all(0 < len(topic) <= TOPIC_CHARS_MAX for topic in topics)
        self._me = me
        self._config = config
        self._state = State(config, topics, rng)
        self._overlay = Overlay(self._state)
        self._lazy = Lazy(self._state, self._overlay)
        self._eager = Eager(self._state, self._overlay, self._lazy)

    # ---- what others see

    @property
    def worth(self) -> Callable[[PeerID], int]:
        """Points of a peer from outside this package, -50 to +20: verified outcomes. 0 unless set."""
        return self._state.scores.worth

    @worth.setter
    def worth(self, worth: Callable[[PeerID], int]) -> None:
        self._state.scores.worth = worth

    def scores(self) -> dict[PeerID, int]:
        """The score of every linked peer, in thousandths of a point."""
        return {peer: self._state.scores.of(peer) for peer in sorted(self._state.peers)}

    def mesh(self, topic: str) -> list[PeerID]:
        """The mesh peers of a topic of this node, in order."""
        return self._overlay.mesh(topic)

    def status(self) -> dict[str, object]:
        """Plain data for people: degrees, scores, what is held, what was dropped."""
        state = self._state
        return {
            "topics": {
                topic: {
                    "mesh": len(self._overlay.mesh(topic)),
                    "subscribers": sum(record.topics.get(topic, False) for record in state.peers.values()),
                    "backoffs": self._overlay.backoffs(topic),
                }
                for topic in state.topics
            },
            "peers": {
                peer_text(peer): {
                    "score_milli": state.scores.of(peer),
                    "drops": state.peers[peer].drops,
                    "meshes": [topic for topic in state.topics if self._overlay.has(topic, peer)],
                }
                for peer in sorted(state.peers)
            },
            "members": len(self._eager.members),
            "cached": len(state.cache),
            "cached_bytes": state.cache.bytes,
            "seen": len(state.seen),
            "unjudged": len(state.unjudged),
            "unjudged_bytes": state.unjudged.bytes,
            "asked": len(self._lazy),
            "counters": dict(sorted(state.counters.items())),
        }

    def handle(self, event: object, now_us: int) -> list[Effect]:
        """Links, frames, members, messages and time; everything else is nothing to this machine."""
        match event:
            case Boot():
                # Somewhere in the first heartbeat, so that nodes which start together do not beat together.
                first_us = 1 + self._state.rng.randrange(self._config.heartbeat_us)
                return [SetTimer(_HEARTBEAT, now_us + first_us)]
            case Linked(peer, hello):
                return self._on_linked(peer, hello, now_us)
            case Unlinked(peer):
                return self._on_unlinked(peer, now_us)
            case Received(peer, frame) if peer in self._state.peers:
                return self._on_frame(peer, frame, now_us)
            case SendDropped(peer, kind, ref) if peer in self._state.peers:
                return self._on_dropped(peer, kind, ref)
            case Broadcast(topic, items):
                return self._eager.on_broadcast(topic, items, now_us)
            case Judged(topic, verdicts):
                return self._eager.on_judged(topic, verdicts, now_us)
            case MemberUp(peer) if peer != self._me and len(self._eager.members) < self._config.members_max:
                self._eager.members[peer] = None
                return []
            case MemberDown(peer, _):
                self._eager.members.pop(peer, None)
                return []
            case Misbehaved(peer, _):
                self._state.scores.misbehaved(peer)
                return []
            case TimerFired(TimerKey(_, "heartbeat")):
                return self._on_heartbeat(now_us)
            case TimerFired(TimerKey(_, "flush")):
                return self._eager.flush(now_us)
            case _:
                return []

    # ---- links

    def _on_linked(self, peer: PeerID, hello: Hello, now_us: int) -> list[Effect]:
        self._on_unlinked(peer, now_us)  # a new link in the place of an old one
        if MESH not in hello.features or not self._state.topics:
            return []
        self._state.link(peer)
        return [self._subscribe(peer)]

    def _subscribe(self, peer: PeerID) -> Effect:
        return Send(peer, Lane.CONTROL, Subscribe(tuple((topic, True) for topic in self._state.topics)))

    def _on_unlinked(self, peer: PeerID, now_us: int) -> list[Effect]:
        if peer in self._state.peers:
            self._overlay.unlink(peer)
            self._lazy.unlink(peer)
            self._state.unlink(peer, now_us)
        return []

    def _on_dropped(self, peer: PeerID, kind: str, ref: object) -> list[Effect]:
        record = self._state.peers[peer]
        ids = tuple(mid for mid in ref if isinstance(mid, bytes)) if isinstance(ref, tuple) else ()
        match kind:
            case "Spread":
                remember(record.owed, ids, self._config.owed_max)
            case "Subscribe":
                record.told = False
            case "Graft" if isinstance(ref, str) and ref in self._state.topics:
                self._overlay.drop(ref, peer)
            case "IWant":
                self._lazy.not_asked(peer, ids)
            case "Graft" | "Prune" | "IHave" | "IDontWant":
                pass
            case _:
                return []
        record.drops += 1
        return self._state.count("mesh_drops")

    # ---- frames

    def _on_frame(self, peer: PeerID, frame: Frame, now_us: int) -> list[Effect]:
        if not isinstance(frame, Subscribe | Graft | Prune | IHave | IWant | IDontWant | Spread):
            return []
        if self._state.scores.of(peer) < self._config.graylist_milli:
            return self._state.count("mesh_graylisted")
        if isinstance(frame, Subscribe):
            return self._on_subscribe(peer, frame.topics)
        if frame.topic not in self._state.topics:
            return self._state.count("mesh_foreign_topics")
        # Who speaks of a topic wants it, though its Subscribe was dropped.
        self._state.peers[peer].topics.setdefault(frame.topic, True)
        return self._on_topic_frame(peer, frame, now_us)

    def _on_topic_frame(
        self, peer: PeerID, frame: Graft | Prune | IHave | IWant | IDontWant | Spread, now_us: int
    ) -> list[Effect]:
        match frame:
            case Graft(topic):
                self._state.peers[peer].topics[topic] = True
                return self._overlay.on_graft(peer, topic, now_us)
            case Prune(topic, backoff_s):
                return self._overlay.on_prune(peer, topic, backoff_s, now_us)
            case IHave(topic, ids):
                return self._lazy.on_ihave(peer, topic, ids, now_us)
            case IWant(topic, ids):
                return self._lazy.on_iwant(peer, topic, ids)
            case IDontWant(topic, ids):
                self._lazy.told(peer, topic, ids)
                return []
            case Spread():
                return self._eager.on_spread(peer, frame, now_us)

    def _on_subscribe(self, peer: PeerID, topics: tuple[tuple[str, bool], ...]) -> list[Effect]:
        """Only topics of this node are kept, so a peer cannot make the table grow (case S3)."""
        foreign = 0
        for topic, wanted in topics:
            if topic not in self._state.topics:
                foreign += 1
                continue
            self._state.peers[peer].topics[topic] = wanted
            if not wanted:
                self._overlay.drop(topic, peer)
        return self._state.count("mesh_foreign_topics", foreign)

    # ---- time

    def _on_heartbeat(self, now_us: int) -> list[Effect]:
        state = self._state
        effects: list[Effect] = [SetTimer(_HEARTBEAT, now_us + self._config.heartbeat_us)]
        for peer in sorted(state.peers):
            if not state.peers[peer].told:
                state.peers[peer].told = True
                effects.append(self._subscribe(peer))
        state.scores.heartbeat(self._overlay.meshed(), now_us)
        effects += self._overlay.heartbeat(now_us)
        effects += self._lazy.heartbeat(now_us)
        effects += state.count("mesh_unjudged_expired", state.unjudged.expire(now_us))
        state.seen.expire(now_us)
        state.cache.shift()
        for record in state.peers.values():
            record.heartbeat()
        return effects
