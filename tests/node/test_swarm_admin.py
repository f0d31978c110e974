"""Founding, inviting, inspecting, joining: what a profile may do, and what it never gives away."""

from __future__ import annotations

import stat
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from gossip.config import GossipConfig
from gossip.context import Context
from gossip.replication import Replication
from node import swarm
from node.keystore import Keystore
from node.node import load_member
from node.profile import Profile
from node.store import SqliteStore
from protocol.admission import ADMIT, CERT_LIFE_MS_MAX, DAY_MS, OPEN_QUOTA, Ticket, check_chain
from protocol.certificate import granted_quota
from protocol.clock import SwarmClock
from protocol.errors import ConfigError
from protocol.machine import Boot, JobIds
from protocol.peer import peer_text
from protocol.records import Quota
from protocol.spaces import swarm_space
from protocol.store import OpRow
from tests.gossip_world import MemoryStore, verify

NOW = 1_800_000_000_000
PSK = bytes(range(32))
ADDRESS = "/ip4/192.0.2.7/tcp/27420/p2p/" + peer_text(bytes([9]) * 32)
DAY_LONG = swarm.Invitation(DAY_MS, (ADDRESS,))


def make_profile(folder: Path, seed: int) -> Profile:
    profile = Profile(folder)
    profile.make()
    Keystore(profile).create(bytes([seed]) * 32, bytes([seed + 1]) * 32)
    return profile


@pytest.fixture
def founder(tmp_path: Path) -> Profile:
    profile = make_profile(tmp_path / "founder", 1)
    swarm.create(profile, "orchard", PSK, NOW)
    return profile


@pytest.fixture
def guest(tmp_path: Path) -> Profile:
    return make_profile(tmp_path / "guest", 11)


def _ticket(founder: Profile) -> str:
    return swarm.invite(founder, bytes([77]) * 32, NOW, DAY_LONG).text()


def test_a_founder_is_admin_and_its_node_a_member_who_may_admit(founder: Profile) -> None:
    member, psk = load_member(founder, NOW)
    admission = check_chain(member.genesis, member.chain, member.node.public)
    assert psk == PSK
    assert member.genesis.admins == (member.user.public,)
    assert ADMIT in admission.roles


def test_certificates_begin_in_the_past_so_that_no_clock_mutes_a_node(founder: Profile, guest: Profile) -> None:
    swarm.join(guest, _ticket(founder), NOW)
    for profile in (founder, guest):
        member, _ = load_member(profile, NOW)
        admission = check_chain(member.genesis, member.chain, member.node.public)
        assert admission.nbf_ms <= NOW - 10 * 60_000  # a peer's clock may be ten minutes behind


def test_a_guest_with_a_ticket_is_in_the_same_swarm(founder: Profile, guest: Profile) -> None:
    swarm.join(guest, _ticket(founder), NOW + 1000)
    host, visitor = load_member(founder, NOW)[0], load_member(guest, NOW)
    assert visitor[0].genesis.swarm_id == host.genesis.swarm_id
    assert visitor[1] == PSK
    assert visitor[0].bootstrap == (ADDRESS,)


def test_one_profile_is_one_swarm(founder: Profile, guest: Profile, tmp_path: Path) -> None:
    text = _ticket(founder)
    swarm.join(guest, text, NOW)
    other = make_profile(tmp_path / "other", 21)
    swarm.create(other, "meadow", PSK, NOW)
    foreign = _ticket(other)
    for again in (partial(swarm.join, guest, foreign, NOW), partial(swarm.create, guest, "x", PSK, NOW)):
        with pytest.raises(ConfigError, match="in a swarm already") as caught:
            again()
        assert "init" in caught.value.hint


def test_nothing_is_written_while_a_daemon_holds_the_profile(founder: Profile, guest: Profile) -> None:
    text = _ticket(founder)
    with guest.lock():
        for act in (partial(swarm.join, guest, text, NOW), partial(swarm.create, guest, "x", PSK, NOW)):
            with pytest.raises(ConfigError, match="in use") as caught:
                act()
            assert "stop" in caught.value.hint
    assert not swarm.secrets_file(guest).exists()


def test_the_secrets_are_for_the_owner_only(founder: Profile) -> None:
    assert stat.S_IMODE(swarm.secrets_file(founder).stat().st_mode) == 0o600


def test_inspect_shows_what_will_be_joined_and_no_secret(founder: Profile, guest: Profile) -> None:
    text = _ticket(founder)
    seen = swarm.inspect(text, NOW)
    assert (seen["swarm"], seen["bootstrap"], seen["valid_now"]) == ("orchard", [ADDRESS], True)
    assert seen["grants"] == ["member"]
    ticket = Ticket.parse(text)
    assert ticket.psk.hex() not in str(seen)
    assert ticket.invite_seed.hex() not in str(seen)
    assert not swarm.secrets_file(guest).exists()
    assert swarm.inspect(text, NOW + 2 * DAY_MS)["valid_now"] is False


def test_an_expired_ticket_admits_nobody(founder: Profile, guest: Profile) -> None:
    with pytest.raises(ConfigError, match="expired"):
        swarm.join(guest, _ticket(founder), NOW + DAY_MS + 1)


def test_a_clock_that_is_minutes_behind_still_joins(founder: Profile, guest: Profile) -> None:
    swarm.join(guest, _ticket(founder), NOW - 10 * 60_000)
    with pytest.raises(ConfigError, match="not valid yet"):
        swarm.join(make_profile(guest.path / "other", 21), _ticket(founder), NOW - DAY_MS)


@pytest.mark.parametrize("change", [lambda t: t[:-3], lambda t: t.replace("masos1-", ""), lambda t: t + "AAAA"])
def test_a_ticket_that_is_not_whole_is_refused_with_a_hint(founder: Profile, guest: Profile, change: object) -> None:
    assert callable(change)
    with pytest.raises(ConfigError) as caught:
        swarm.join(guest, change(_ticket(founder)), NOW)
    assert caught.value.hint


def test_only_an_admin_invites(founder: Profile, guest: Profile) -> None:
    swarm.join(guest, _ticket(founder), NOW)
    with pytest.raises(ConfigError, match="no admin"):
        swarm.invite(guest, bytes(32), NOW, DAY_LONG)


@pytest.mark.parametrize("life_ms", [0, -1, 7 * DAY_MS + 1])
def test_an_invite_lives_within_seven_days(founder: Profile, life_ms: int) -> None:
    with pytest.raises(ConfigError, match="seven days"):
        swarm.invite(founder, bytes(32), NOW, swarm.Invitation(life_ms, (ADDRESS,)))


@pytest.mark.parametrize(
    "addresses", [(), ("/ip4/192.0.2.7/tcp/1",), ("nonsense",), (ADDRESS.replace("192.0.2.7", "0.0.0.0"),)]
)
def test_a_ticket_holds_an_address_that_can_be_dialled(founder: Profile, addresses: tuple[str, ...]) -> None:
    with pytest.raises(ConfigError) as caught:
        swarm.invite(founder, bytes(32), NOW, swarm.Invitation(DAY_MS, addresses))
    assert "/p2p/" in caught.value.hint or "p2p" in caught.value.message


def test_own_addresses_leave_out_what_nobody_can_dial() -> None:
    peer = bytes([3]) * 32
    listens = ("/ip4/0.0.0.0/tcp/27420", "/ip4/127.0.0.1/tcp/0", "/ip4/192.0.2.9/tcp/5")
    assert swarm.own_addresses(listens, peer) == (f"/ip4/192.0.2.9/tcp/5/p2p/{peer_text(peer)}",)


def test_an_expired_certificate_is_told_before_the_start(founder: Profile) -> None:
    with pytest.raises(ConfigError, match="expired"):
        load_member(founder, NOW + CERT_LIFE_MS_MAX)


def test_a_profile_in_no_swarm_says_how_to_get_into_one(guest: Profile) -> None:
    with pytest.raises(ConfigError, match="in no swarm") as caught:
        load_member(guest, NOW)
    assert "create" in caught.value.hint
    assert "join" in caught.value.hint


def test_keys_of_another_profile_do_not_fit(founder: Profile, guest: Profile) -> None:
    swarm.secrets_file(guest).write_bytes(swarm.secrets_file(founder).read_bytes())
    with pytest.raises(ConfigError, match="do not fit"):
        load_member(guest, NOW)


def test_damaged_secrets_are_named(founder: Profile) -> None:
    swarm.secrets_file(founder).write_bytes(b"\xff\x00")
    with pytest.raises(ConfigError, match="damaged"):
        swarm.load_secrets(founder)


def test_an_admin_certifies_its_node_anew_at_two_thirds_of_its_certificate(founder: Profile) -> None:
    """Otherwise the founder's own node could not start on day 91."""
    assert not swarm.renew_own(founder, NOW + CERT_LIFE_MS_MAX // 2)
    late = NOW + CERT_LIFE_MS_MAX * 3 // 4
    assert swarm.renew_own(founder, late)
    assert not swarm.renew_own(founder, late)
    member, psk = load_member(founder, NOW + CERT_LIFE_MS_MAX + DAY_MS)
    assert ADMIT in check_chain(member.genesis, member.chain, member.node.public).roles
    assert psk == PSK


def test_a_member_renews_by_joining_its_swarm_again_and_no_other(founder: Profile, guest: Profile) -> None:
    swarm.join(guest, _ticket(founder), NOW)
    before = load_member(guest, NOW)[0]
    assert not swarm.renew_own(guest, NOW + CERT_LIFE_MS_MAX * 3 // 4)
    later = NOW + DAY_MS // 2
    swarm.join(guest, _ticket(founder), later)
    after = load_member(guest, later)[0]
    assert after.genesis == before.genesis
    assert after.chain != before.chain


# ---- open swarms


@pytest.fixture
def host(tmp_path: Path) -> Profile:
    profile = make_profile(tmp_path / "host", 31)
    swarm.create(profile, "commons", PSK, NOW, "open")
    return profile


def test_a_swarm_is_private_unless_it_is_founded_as_open(founder: Profile, host: Profile) -> None:
    assert load_member(founder, NOW)[0].genesis.mode == "private"
    assert load_member(host, NOW)[0].genesis.mode == "open"
    assert swarm.inspect(_ticket(founder), NOW)["mode"] == "private"
    assert swarm.inspect(_ticket(host), NOW)["mode"] == "open"


def test_a_member_of_an_open_swarm_has_the_tight_quota_and_its_host_that_of_a_task(
    founder: Profile, host: Profile, guest: Profile
) -> None:
    seen = swarm.inspect(_ticket(host), NOW)
    assert seen["quota"] == OPEN_QUOTA.model_dump() == {"ops_per_s": 2, "burst": 256, "bytes_max": 8_000_000}
    swarm.join(guest, _ticket(host), NOW)
    assert granted_quota(load_member(guest, NOW)[0].chain) == OPEN_QUOTA
    assert granted_quota(load_member(host, NOW)[0].chain) == Quota()
    assert granted_quota(load_member(founder, NOW)[0].chain) is None
    assert swarm.inspect(_ticket(founder), NOW)["quota"] is None


def test_the_host_of_an_open_swarm_can_renew_itself(host: Profile) -> None:
    """An open swarm admits nobody without a quota, its founder included."""
    assert swarm.renew_own(host, NOW + CERT_LIFE_MS_MAX * 3 // 4)
    assert granted_quota(load_member(host, NOW + CERT_LIFE_MS_MAX)[0].chain) == Quota()


@pytest.mark.parametrize("mode", ["private", "open"])
def test_a_new_swarm_has_a_key_and_no_public_bootstrap(tmp_path: Path, mode: Any) -> None:
    """Complaint 24: nothing that was not named by its user is ever dialled."""
    profile = make_profile(tmp_path / mode, 41)
    swarm.create(profile, "fresh", PSK, NOW, mode)
    secrets = swarm.load_secrets(profile)
    assert secrets.psk == PSK
    assert secrets.bootstrap == ()


# ---- denying


def reader(profile: Profile) -> Replication:
    """What a node of the profile makes of its database at the next start."""
    member, _ = load_member(profile, NOW)
    store = MemoryStore()
    with closing(SqliteStore(profile.database)) as disk:
        store.apply(tuple(OpRow(op, sync=False) for space in disk.spaces() for op in disk.ops(space)))
    ctx = Context(
        member.node, member.genesis, member.chain, SwarmClock(NOW), GossipConfig(), JobIds(), store=store, verify=verify
    )
    replication = Replication(ctx)
    replication.handle(Boot(1, NOW * 1000, clean=True), 0)
    return replication


@pytest.mark.parametrize("mode", ["private", "open"])
def test_whom_an_admin_denies_is_refused_from_the_next_start_on(tmp_path: Path, mode: Any) -> None:
    profile = make_profile(tmp_path / mode, 51)
    swarm.create(profile, "strict", PSK, NOW, mode)
    assert reader(profile).denied == frozenset()
    peers = [bytes([number]) * 32 for number in (90, 91)]
    for number, peer in enumerate(peers):
        swarm.deny(profile, peer, bytes([60 + number]) * 32, NOW)
    after = reader(profile)
    assert after.denied == frozenset(peers)
    member, _ = load_member(profile, NOW)
    log = after.log(swarm_space(member.genesis.swarm_id))
    assert log is not None
    assert log.head(member.node.public) is None  # the node's own chain was not written behind its back


def test_only_an_admin_denies_and_never_itself_nor_beside_a_daemon(founder: Profile, guest: Profile) -> None:
    other = bytes([90]) * 32
    swarm.join(guest, _ticket(founder), NOW)
    with pytest.raises(ConfigError, match="no admin"):
        swarm.deny(guest, other, bytes(32), NOW)
    with pytest.raises(ConfigError, match="own node"):
        swarm.deny(founder, Keystore(founder).node().public, bytes(32), NOW)
    with founder.lock(), pytest.raises(ConfigError, match="in use"):
        swarm.deny(founder, other, bytes(32), NOW)
    assert not founder.database.exists()
