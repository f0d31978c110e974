"""Lazy pull: ids are offered (IHave), what is missing is asked for (IWant) and given (Spread).

At each heartbeat a peer is told at most once per topic:

- outside the mesh, a few drawn peers: the ids of the last `history_gossip` heartbeats;
- any drawn peers, of messages that their origin sent to all, once, a heartbeat later, when it should have come: these
  are not forwarded, so nothing else repairs the loss of one, or a lie about it;
- who lost messages to a full queue: their ids;
- in the mesh, who brought messages: a few of the same ids, as a sign of life (the *echo*, gossip/mesh/overlay.py). At
  once if it was given none, else every `echo_heartbeats`. It has them, so it asks for nothing.

Ids that a peer is known to have are not offered to it. An id is asked of one peer at a time, then of the next that
offered it lately. Who offered, was asked and did not deliver in `promise_us` broke a promise, whoever delivered
instead: else an offer without an answer would cost nothing and delay everybody.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from gossip.mesh.batches import batches
from gossip.mesh.overlay import Overlay
from gossip.mesh.state import State, remember
from protocol.machine import Effect, Send
from protocol.messages import MESSAGE_IDS_MAX, IHave, IWant
from protocol.peer import PeerID
from protocol.transport import Lane

_Offers = dict[PeerID, dict[bytes, None]]


@dataclass(slots=True)
class _Want:
    """An id that is asked for. `others` offered it too, and when; `asked` owe it until a time."""

    topic: str
    last_us: int
    asked: dict[PeerID, int] = field(default_factory=dict)
    others: dict[PeerID, int] = field(default_factory=dict)
    got: bool = False


class Lazy:
    """What is asked for, and the answers to what others ask for."""

    def __init__(self, state: State, overlay: Overlay) -> None:
        self._state = state
        self._config = state.config
        self._overlay = overlay
        self._wants: dict[bytes, _Want] = {}

    def __len__(self) -> int:
        return len(self._wants)

    def told(self, peer: PeerID, topic: str, ids: tuple[bytes, ...]) -> None:
        """A peer said that it has these: nobody sends them to it, and it gave a sign of those that are here."""
        remember(self._state.peers[peer].has, ids, self._config.dont_want_max)
        for mid in ids:
            self.sign(peer, topic, mid)

    def sign(self, peer: PeerID, topic: str, mid: bytes) -> None:
        """A peer showed that it has a message; a sign of life, however late."""
        entry = self._state.cache.get(mid)
        if entry is not None and entry.topic == topic:
            entry.holders[peer] = None
        if self._state.seen.get(mid) in ("accepted", "ignored"):
            self._overlay.heard(topic, peer)

    def on_ihave(self, peer: PeerID, topic: str, ids: tuple[bytes, ...], now_us: int) -> list[Effect]:
        """Ask for what is missing, within what a peer may bring, and cost per heartbeat."""
        state, record = self._state, self._state.peers[peer]
        if record.ihave_frames >= self._config.ihave_frames_max or state.scores.of(peer) < self._config.gossip_milli:
            return state.count("mesh_ihaves_ignored")
        record.ihave_frames += 1
        self.told(peer, topic, ids)
        most = min(self._config.iwant_ids_max, state.allowance(peer, topic, now_us).left(now_us))
        asked: list[bytes] = []
        for mid in dict.fromkeys(ids):
            want = self._wants.get(mid)
            if state.knows(mid):
                continue
            if want is not None:
                if peer in want.others or len(want.others) < self._config.want_others_max:
                    want.others[peer] = now_us
            elif record.owes + len(asked) < most and len(self._wants) < self._config.wants_max:
                self._wants[mid] = _Want(topic, now_us, {peer: now_us + self._config.promise_us})
                asked.append(mid)
        return self._ask(peer, topic, asked)

    def on_iwant(self, peer: PeerID, topic: str, ids: tuple[bytes, ...]) -> list[Effect]:
        """Give what is still here, within what a peer may cost per heartbeat."""
        state, config, record = self._state, self._config, self._state.peers[peer]
        if state.scores.of(peer) < config.gossip_milli:
            return state.count("mesh_iwants_ignored")
        found: list[tuple[bytes, bytes]] = []
        for mid in dict.fromkeys(ids):
            entry = state.cache.get(mid)
            if entry is None or entry.topic != topic or entry.answered.get(peer, 0) >= config.answers_per_id_max:
                continue
            full = record.answered_ids >= config.answer_ids_max
            if full or record.answered_bytes + len(entry.item) > config.answer_bytes_max:
                return [*state.count("mesh_answers_cut"), *batches(peer, topic, found, wide=False)]
            entry.answered[peer] = entry.answered.get(peer, 0) + 1
            record.answered_ids += 1
            record.answered_bytes += len(entry.item)
            found.append((mid, entry.item))
        return [*state.count("mesh_pulled", len(found)), *batches(peer, topic, found, wide=False)]

    def arrived(self, peer: PeerID, mid: bytes) -> None:
        """A message came, from whomever."""
        want = self._wants.get(mid)
        if want is not None:
            want.got = True
            self._quit(want, peer)
            if not want.asked:
                del self._wants[mid]

    def not_asked(self, peer: PeerID, ids: tuple[bytes, ...]) -> None:
        """An IWant was not sent: the peer owes nothing."""
        for mid in ids:
            if (want := self._wants.get(mid)) is not None:
                self._quit(want, peer)

    def unlink(self, peer: PeerID) -> None:
        """A peer is gone: it owes nothing and will not be asked."""
        for want in self._wants.values():
            want.asked.pop(peer, None)
            want.others.pop(peer, None)

    def heartbeat(self, now_us: int) -> list[Effect]:
        """Blame who broke a promise, ask the next peers, offer what is here. Before the cache moves on."""
        effects = self._blame(now_us)
        effects += self._ask_others(now_us)
        for topic in self._state.topics:
            effects += self._offer(topic)
        return effects

    def _quit(self, want: _Want, peer: PeerID) -> None:
        if want.asked.pop(peer, None) is not None:
            self._state.peers[peer].owes -= 1

    def _ask(self, peer: PeerID, topic: str, ids: list[bytes]) -> list[Effect]:
        if not ids:
            return []
        self._state.peers[peer].owes += len(ids)
        return [
            *self._state.count("mesh_asked", len(ids)),
            Send(peer, Lane.CONTROL, IWant(topic, tuple(ids)), tuple(ids)),
        ]

    def _blame(self, now_us: int) -> list[Effect]:
        broke: dict[tuple[PeerID, int], None] = {}  # one per IWant: its ids are due together
        for want in self._wants.values():
            for peer, due_us in [(peer, due_us) for peer, due_us in want.asked.items() if due_us <= now_us]:
                self._quit(want, peer)
                broke[peer, due_us] = None
        for peer, _ in broke:
            self._state.scores.misbehaved(peer)
        return self._state.count("mesh_promises_broken", len(broke))

    def _ask_others(self, now_us: int) -> list[Effect]:
        fresh_us = now_us - (self._config.history - self._config.history_gossip) * self._config.heartbeat_us
        asks: dict[tuple[PeerID, str], list[bytes]] = {}
        for mid, want in list(self._wants.items()):
            want.others = {peer: at_us for peer, at_us in want.others.items() if at_us > fresh_us}
            if not want.asked and (want.got or not want.others):
                del self._wants[mid]
            elif not want.got and want.others and now_us - want.last_us >= self._config.want_retry_us:
                peer = next(iter(want.others))
                del want.others[peer]
                ids = asks.setdefault((peer, want.topic), [])
                if self._state.peers[peer].owes + len(ids) < self._config.iwant_ids_max:
                    want.asked[peer] = now_us + self._config.promise_us
                    want.last_us = now_us
                    ids.append(mid)
        return [effect for (peer, topic), ids in asks.items() for effect in self._ask(peer, topic, ids)]

    # ---- offers

    def _offer(self, topic: str) -> list[Effect]:
        offers: _Offers = {}
        self._offer_lazily(topic, offers)
        self._offer_owed(topic, offers)
        effects: list[Effect] = []
        for peer in sorted(self._state.peers):
            ids = list(offers.get(peer, ()))
            ids += [mid for mid in self._echo(topic, peer) if mid not in ids]
            if len(ids) > MESSAGE_IDS_MAX:
                ids = self._state.rng.sample(ids, MESSAGE_IDS_MAX)
            if ids:
                effects.append(Send(peer, Lane.CONTROL, IHave(topic, tuple(ids))))
        return effects

    def _echo(self, topic: str, peer: PeerID) -> tuple[bytes, ...]:
        """What is offered back to who brought it in this heartbeat."""
        record = self._state.peers[peer]
        brought = tuple(record.brought.get(topic, ()))
        if not brought or not self._overlay.has(topic, peer):
            return ()
        beats = record.unechoed.get(topic, 0) + 1
        quiet = topic in record.given and beats < self._config.echo_heartbeats
        record.unechoed[topic] = beats if quiet else 0
        return () if quiet else brought

    def _offer_lazily(self, topic: str, offers: _Offers) -> None:
        cache, config = self._state.cache, self._config
        held = [pair for age in range(config.history_gossip) for pair in cache.window(age) if pair[1].topic == topic]
        lazy = [(mid, entry) for mid, entry in held if not entry.wide]
        wide = [(mid, entry) for mid, entry in cache.window(1) if entry.topic == topic and entry.wide]
        if not lazy and not wide:
            return
        everybody = self._state.subscribers(topic, config.gossip_milli)
        outside = [peer for peer in everybody if not self._overlay.has(topic, peer)]
        for entries, peers in ((lazy, outside), (wide, everybody)):
            most = max(config.degree_lazy, len(peers) * config.lazy_percent // 100)
            for peer in self._state.sample(peers, most) if entries else ():
                has = self._state.peers[peer].has
                missing = [mid for mid, entry in entries if peer not in entry.holders and mid not in has]
                offers.setdefault(peer, {}).update(dict.fromkeys(missing))

    def _offer_owed(self, topic: str, offers: _Offers) -> None:
        for peer in sorted(self._state.peers):
            owed = self._state.peers[peer].owed
            here = [mid for mid in owed if (entry := self._state.cache.get(mid)) and entry.topic == topic]
            offers.setdefault(peer, {}).update(dict.fromkeys(here))
            for mid in here:
                del owed[mid]
