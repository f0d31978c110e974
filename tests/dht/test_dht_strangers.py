"""Keys are free, admission is not: what strangers sign is dialled by nobody, and fills nobody's store.

What another encoder made is held, handed on and used by nobody either.
"""

from __future__ import annotations

import random
from collections import Counter

import pytest
from hypothesis import given, strategies as st

from dht import events as e
from dht.behaviour import Dht
from dht.config import DhtConfig
from dht.record_store import RecordStore, Verdict
from dht.terms import Terms, Window
from dht.verified import VerifiedRecords
from protocol import messages as m
from protocol.admission import MEMBER, Genesis, issue
from protocol.capability import AgentValue, PeerValue, SignedRecord, key_of, make_record
from protocol.certificate import DAY_MS
from protocol.clock import SwarmClock
from protocol.identity import KeyPair
from protocol.machine import Boot, Dial, Effect, Received, Send, TimerFired, TimerKey
from protocol.peer import PeerID, peer_text
from tests.dht.dht_world import ALWAYS, SECOND, WALL_MS, World, read, swarm, terms, verify
from tests.dht.test_dht_placement import BOOK, VECTORS
from tests.dht.test_dht_record_store import plain
from tests.dht.test_dht_server import agent, server, store
from tests.strategies import keypair

DIM = len(VECTORS[0])
CERT = (b"certificate",)
SOURCE = PeerID(keypair("bringer").public)
OTHER = PeerID(keypair("other bringer").public)
ADDR = "/ip4/198.51.100.7/tcp/1"


def certified_only(until_ms: int = ALWAYS[1]) -> Terms:
    """A swarm that nobody is known to belong to, but who shows a certificate."""

    def admission(_key: bytes, chain: tuple[bytes, ...]) -> Window | None:
        return (0, until_ms) if chain == CERT else None

    return terms(DIM, admitted=lambda _key: False, admission=admission)


def peer_of(keys: KeyPair, cert: tuple[bytes, ...], *addrs: str) -> SignedRecord:
    value = PeerValue(addrs=addrs or (ADDR,), cert=cert)
    return read(make_record(keys, value, seq=1, issued_ms=WALL_MS))


# ---- dialling


class Lone:
    """One machine with one link, to a member that serves; frames that it sends are at hand."""

    def __init__(self, swarm_terms: Terms) -> None:
        self.keys = keypair("strangers peer")
        self.peer = PeerID(self.keys.public)
        me = PeerID(keypair("strangers lone").public)
        self.dht = Dht(me, SwarmClock(WALL_MS * 1000), DhtConfig(), random.Random(1), terms=swarm_terms)
        self.give(Boot(1, WALL_MS * 1000, clean=True))
        self.give(e.PeerSeen(self.peer))

    def give(self, event: object, now_us: int = 0) -> list[Effect]:
        return self.dht.handle(event, now_us)

    def introduce(self, cert: tuple[bytes, ...]) -> list[Effect]:
        return self.give(Received(self.peer, m.Introduce(peer_of(self.keys, cert).wire)))

    def named(self, wires: tuple[bytes, ...]) -> list[PeerID]:
        """Whom it dials when the answer to a look-up names these."""
        asked = [effect for effect in self.give(e.Lookup(1, b"key")) if isinstance(effect, Send)]
        assert [effect.peer for effect in asked] == [self.peer]
        assert isinstance(asked[0].frame, m.FindNode)
        effects = self.give(Received(self.peer, m.FoundNodes(asked[0].frame.req, wires)))
        return [effect.info.peer for effect in effects if isinstance(effect, Dial)]


def test_nobody_is_dialled_for_an_answer_that_names_strangers() -> None:
    lone = Lone(certified_only())
    lone.introduce(CERT)
    strangers = [peer_of(keypair(f"stranger {number}"), ()).wire for number in range(16)]
    foreign = [peer_of(keypair(f"foreign {number}"), (b"of another swarm",)).wire for number in range(3)]
    member = peer_of(keypair("named member"), CERT)
    assert lone.named((*strangers, *foreign, member.wire)) == [member.publisher]
    assert lone.dht.table.get(lone.peer) is not None, "who named them may know no better"


def test_a_stranger_that_introduces_itself_is_no_contact() -> None:
    lone = Lone(certified_only())
    assert [effect.name for effect in lone.introduce(())] == ["dht_introductions_refused"]  # type: ignore[union-attr]
    assert len(lone.dht.table) == 0
    lone.introduce(CERT)
    assert len(lone.dht.table) == 1


def test_a_contact_whose_certificate_ends_goes() -> None:
    lone = Lone(certified_only(until_ms=WALL_MS + 90_000))
    lone.introduce(CERT)
    lone.give(TimerFired(TimerKey("dht", "expire")), 60 * SECOND)
    assert len(lone.dht.table) == 1
    lone.give(TimerFired(TimerKey("dht", "expire")), 120 * SECOND)
    assert len(lone.dht.table) == 0
    assert lone.dht.handle(Received(lone.peer, m.Introduce(peer_of(lone.keys, CERT).wire)), 120 * SECOND)
    assert len(lone.dht.table) == 0


def test_the_addresses_of_a_member_are_dialled_as_everywhere_circuits_too() -> None:
    keys, relay = keypair("circuit member"), keypair("circuit relay")
    circuit = f"/ip4/198.51.100.7/tcp/4001/p2p/{peer_text(relay.public)}/p2p-circuit/p2p/{peer_text(keys.public)}"
    bad = ("/ip4/0.0.0.0/tcp/1", "/ip4/224.0.0.1/tcp/1", "/ip4/169.254.1.1/tcp/1", "/ip4/10.0.0.1/tcp/0")
    cache = VerifiedRecords(certified_only(), 10)
    contact = cache.contact(peer_of(keys, CERT, circuit, *bad).wire, WALL_MS)
    assert contact is not None
    assert contact.addrs == (circuit,)
    assert cache.contact(peer_of(keys, CERT, *bad).wire, WALL_MS) is None


def test_a_certificate_is_checked_once_per_record_and_what_is_remembered_is_bounded() -> None:
    checked: Counter[bytes] = Counter()

    def admission(key: bytes, _chain: tuple[bytes, ...]) -> Window | None:
        checked[key] += 1
        return ALWAYS

    cache = VerifiedRecords(terms(DIM, admitted=lambda _key: False, admission=admission), 5)
    records = [peer_of(keypair(f"checked {number}"), CERT) for number in range(9)]
    for record in records[:5] * 3:
        assert cache.contact(record.wire, WALL_MS) is not None
        assert cache.of_member(record, WALL_MS)
    assert set(checked.values()) == {1}
    for record in records:
        cache.contact(record.wire, WALL_MS)
    assert len(cache._windows) == len(cache._members) == 5


def test_the_terms_of_a_genesis_ask_for_a_chain_of_its_swarm() -> None:
    admin, node = keypair("terms admin"), keypair("terms node")
    genesis = Genesis(name="terms", creator=admin.public, admins=(admin.public,), created_ms=WALL_MS)
    made = Terms.of(genesis, verify, lambda _key: False)
    window = (WALL_MS, WALL_MS + DAY_MS)
    chain = (issue(admin, genesis.swarm_id, node.public, (MEMBER,), window),)
    assert made.admission(node.public, chain) == window
    assert made.admission(keypair("terms thief").public, chain) is None
    assert made.admission(node.public, ()) is None
    assert (made.encoder, made.dim) == (genesis.encoder.id, genesis.encoder.dim)
    cache = VerifiedRecords(made, 10)
    record = peer_of(node, chain)
    assert [cache.contact(record.wire, now) is not None for now in (WALL_MS - 1, WALL_MS)] == [False, True]


# ---- holding


def test_a_record_of_another_encoder_is_refused_under_every_key_whoever_signed_it() -> None:
    one, held = server()
    held.directory.use(BOOK)
    for name, dim in (("evil", DIM), ("enc", DIM + 1)):
        value = AgentValue(agent="a", roles=(), vector=bytes([5]) * dim, encoder=name, codebooks=(b"unknown!",))
        record = read(make_record(keypair("asker"), value, seq=1, issued_ms=WALL_MS))
        for key in (record.key, b"u" * 20, BOOK.keys_for(VECTORS[0], 1)[0]):
            assert store(one, key, record.wire).reason == "wrong_encoder"
    blind = read(make_record(keypair("asker"), AgentValue(agent="b", roles=()), seq=1, issued_ms=WALL_MS))
    assert store(one, blind.key, blind.wire).ok, "it claims nothing about any encoder"


def test_under_an_unknown_key_stands_only_who_names_a_codebook_that_is_unknown_too() -> None:
    one, held = server()
    held.directory.use(BOOK)
    value = AgentValue(agent="a", roles=(), vector=VECTORS[0], encoder="enc")
    for books, ok in (((), False), ((BOOK.name,), False), ((BOOK.name, b"unknown!"), True)):
        named = value.model_copy(update={"codebooks": books})
        wire = make_record(keypair("asker"), named, seq=1, issued_ms=WALL_MS)
        assert store(one, b"u" * 20, wire).ok == ok


def test_one_peer_with_many_free_keys_gets_a_small_share_and_members_lose_nothing() -> None:
    config = DhtConfig(records_of_strangers_max=20, records_of_strangers_per_source_max=8)
    one, held = server(config, certified_only())
    for number in range(60):
        record = agent(f"free key {number}")
        answer = store(one, record.key, record.wire, peer=SOURCE)
        assert answer.reason == ("accept_new" if number < 8 else "quota")
    last = agent("free key 59")
    assert store(one, last.key, last.wire, peer=OTHER).ok, "the share of another is its own"
    assert held.store.of_strangers == held.store.count == 9
    member = keypair("member that brings its own")
    own = agent("member that brings its own")
    assert store(one, own.key, own.wire, peer=PeerID(member.public)).ok, "links are admitted"
    shown = peer_of(keypair("member with a certificate"), CERT)
    assert store(one, shown.key, shown.wire, peer=SOURCE).ok, "the certificate says who it is"
    known = agent("member with a certificate")
    assert store(one, known.key, known.wire, peer=SOURCE).ok, "and is remembered"
    assert held.store.of_strangers == held.store.count - 3
    bare = peer_of(keypair("stranger with an address"), ())
    assert store(one, bare.key, bare.wire, peer=SOURCE).reason == "quota"


def test_all_sources_together_are_bounded_too() -> None:
    records = RecordStore(DhtConfig(records_of_strangers_max=20, records_of_strangers_per_source_max=8))
    sources = [PeerID(number.to_bytes(32, "big")) for number in range(10)]
    for number in range(100):
        records.offer(b"k" * 20, plain(number), sources[number % 10], WALL_MS, stranger=True)
    assert records.of_strangers == records.count == 20


@given(st.lists(st.tuples(st.integers(0, 5), st.integers(0, 2), st.booleans(), st.sampled_from("offer expire admit"))))
def test_the_share_of_strangers_is_counted_exactly(steps: list[tuple[int, int, bool, str]]) -> None:
    records = RecordStore(DhtConfig(records_of_strangers_max=4, records_of_strangers_per_source_max=2))
    sources = [PeerID(number.to_bytes(32, "big")) for number in range(3)]
    for number, source, stranger, what in steps:
        record = plain(number)
        match what:
            case "admit":
                records.admit(lambda each, who=record.publisher: each.publisher == who)  # type: ignore[misc]
            case "expire":
                records.expire(WALL_MS + 2_000 * stranger)
            case _:
                records.offer(b"k" * 20, record, sources[source], WALL_MS, stranger=stranger)
        slots = [slot for slot in records.slots(b"k" * 20) if records.is_stranger(b"k" * 20, slot)]
        assert len(slots) == records.of_strangers == sum(records._strangers_per_source.values()) <= 4
        assert all(0 < count <= 2 for count in records._strangers_per_source.values())


def test_who_turns_out_to_be_a_member_leaves_the_share_at_once_or_soon() -> None:
    records = RecordStore(DhtConfig())
    one, other = plain(1), plain(2)
    for record in (one, other):
        assert records.offer(record.key, record, SOURCE, WALL_MS, stranger=True) is Verdict.NEW
    assert records.offer(one.key, one, OTHER, WALL_MS) is Verdict.KNOWN
    assert records.of_strangers == 1, "its publisher brought it itself"
    records.admit(lambda record: record.publisher == other.publisher)
    assert records.of_strangers == 0
    assert records.count == 2


# ---- handing on, reading, publishing


def test_what_strangers_signed_is_handed_to_nobody() -> None:
    world = swarm(4)
    holders = list(world.nodes.values())
    now_ms = WALL_MS + world.now_us // 1000
    value = AgentValue(agent="a", roles=("r",))
    stranger, member = (
        read(make_record(keypair(f"handed {number}"), value, seq=1, issued_ms=now_ms)) for number in range(2)
    )
    world.terms = terms(1, admitted=lambda key: key != stranger.publisher)
    for node in holders:
        node.dht._verified._terms = world.terms
        for record in (stranger, member):
            is_stranger = record is stranger
            assert node.dht.store.offer(record.key, record, node.peer, now_ms, stranger=is_stranger).holds
    late = world.add("handed late")
    world.link(late, holders[0])
    world.run(60)
    assert late.dht.store.get(member.key, (member.publisher, member.key)) == member
    assert late.dht.store.get(stranger.key, (stranger.publisher, stranger.key)) is None


@pytest.mark.parametrize("encoder", ["enc", "evil"])
def test_a_holder_that_gives_a_record_of_another_encoder_gives_nothing(encoder: str) -> None:
    world = swarm(6)
    reader, *holders = world.nodes.values()
    now_ms = WALL_MS + world.now_us // 1000
    value = AgentValue(agent="a", roles=("r",), vector=b"\x01", encoder=encoder)
    record = read(make_record(keypair("evil holder"), value, seq=1, issued_ms=now_ms))
    for node in holders:
        assert node.dht.store.offer(record.key, record, node.peer, now_ms).holds
    done = world.answer(reader, lambda r: e.Get(r, record.key))
    assert done.record == (record if encoder == "enc" else None)
    assert all(reader.dht.table.get(node.peer) for node in holders)


def test_an_address_that_no_certificate_vouches_for_is_read_by_nobody() -> None:
    cache = VerifiedRecords(certified_only(), 10)
    assert not cache.usable(peer_of(keypair("reader's stranger"), ()), WALL_MS)
    assert cache.usable(peer_of(keypair("reader's member"), CERT), WALL_MS)
    assert cache.usable(agent("reader's stranger"), WALL_MS), "whom an agent belongs to is for its finder to ask"


def test_an_own_record_of_another_encoder_is_not_published() -> None:
    world = World()
    node = world.add("a")
    other = world.sign(node, AgentValue(agent="a", roles=(), vector=b"\x01", encoder="evil"))
    world.give(node, e.OwnRecord(other))
    assert world.counts["dht_own_records_refused"] == 1
    assert key_of(node.peer, other.value) not in node.dht._publisher._own
