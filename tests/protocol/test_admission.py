"""Who is let in: only whom an admin's chain admits, in its window, with no more rights than its issuer may give."""

from __future__ import annotations

import base64
import dataclasses
from functools import lru_cache
from typing import Any

import pytest
from hypothesis import given, strategies as st

from protocol.admission import (
    ADMIT,
    CERT_BYTES_MAX,
    CERT_LIFE_MS_MAX,
    DAY_MS,
    INVITE,
    INVITE_LIFE_MS_MAX,
    MEMBER,
    OPEN_QUOTA,
    TICKET_PREFIX,
    Certificate,
    Genesis,
    SwarmSecrets,
    Ticket,
    check_chain,
    issue,
    make_invite,
)
from protocol.certificate import granted_quota, tighter
from protocol.codec import decode, encode
from protocol.errors import ConfigError, DecodeError
from protocol.identity import KeyPair
from protocol.peer import peer_text
from protocol.records import Quota
from tests.strategies import damaged, keypair, values

NOW = 1_700_000_000_000
ADMIN, NODE, INVITER, MALLORY = (keypair(name) for name in ("admin", "node", "inviter", "mallory"))
GENESIS = Genesis(name="test swarm", creator=ADMIN.public, admins=(ADMIN.public,), created_ms=NOW)
FOREIGN = GENESIS.model_copy(update={"name": "another swarm"})
WEEK = (NOW, NOW + INVITE_LIFE_MS_MAX)
QUARTER = (NOW, NOW + CERT_LIFE_MS_MAX)
BOOTSTRAP = (f"/ip4/127.0.0.1/tcp/4001/p2p/{peer_text(ADMIN.public)}", "/ip6/::1/tcp/4002")


def cert(
    issuer: KeyPair = ADMIN,
    subject: KeyPair = NODE,
    roles: tuple[str, ...] = (MEMBER,),
    window: tuple[int, int] = QUARTER,
    swarm: Genesis = GENESIS,
) -> bytes:
    return issue(issuer, swarm.swarm_id, subject.public, roles, window)


INVITE_CERT = cert(subject=INVITER, roles=(INVITE,), window=WEEK)


def secrets() -> SwarmSecrets:
    return SwarmSecrets(
        genesis=GENESIS.wire(ADMIN), psk=bytes(range(32)), chain=(cert(subject=ADMIN),), bootstrap=BOOTSTRAP
    )


@lru_cache(maxsize=1)
def ticket() -> Ticket:
    return make_invite(ADMIN, secrets(), bytes(range(1, 33)), WEEK, uses=3)


# ---- genesis


def test_a_genesis_comes_back_equal_and_names_its_swarm() -> None:
    again = Genesis.from_wire(GENESIS.wire(ADMIN))
    assert again == GENESIS
    assert again.swarm_id == GENESIS.swarm_id != FOREIGN.swarm_id


def test_a_genesis_of_another_signer_is_refused() -> None:
    with pytest.raises(DecodeError):
        Genesis.from_wire(GENESIS.wire(MALLORY))


@given(st.data())
def test_a_damaged_genesis_is_refused(data: st.DataObject) -> None:
    wire = GENESIS.wire(ADMIN)
    raw = data.draw(damaged(wire))
    if raw != wire:
        with pytest.raises(DecodeError):
            Genesis.from_wire(raw)


@given(values)
def test_any_value_is_no_genesis(value: Any) -> None:
    for body in (encode(value), encode((encode(value), bytes(64)))):
        with pytest.raises(DecodeError):
            Genesis.from_wire(body)


@pytest.mark.parametrize(
    "changes",
    [{"admins": ()}, {"mode": "public"}, {"name": ""}, {"encoder": {"dim": 0}}, {"created_ms": -1}, {"creator": b""},
     {"derive_ver": True}],
    ids=str,
)  # fmt: skip
def test_a_signed_genesis_with_an_impossible_field_is_refused(changes: dict[str, Any]) -> None:
    body = encode({**GENESIS.model_dump(), **changes})
    with pytest.raises(DecodeError):
        Genesis.from_wire(encode((body, ADMIN.sign("genesis", body))))


# ---- certificates


@given(st.data())
def test_a_damaged_certificate_is_refused(data: st.DataObject) -> None:
    raw = data.draw(damaged(cert()))
    if raw != cert():
        with pytest.raises(DecodeError):
            Certificate.from_wire(raw)


@given(values)
def test_any_value_is_no_certificate(value: Any) -> None:
    with pytest.raises(DecodeError):
        Certificate.from_wire(encode(value))


def test_a_certificate_has_a_bound() -> None:
    raw = issue(ADMIN, GENESIS.swarm_id, NODE.public, ("r" * CERT_BYTES_MAX,), QUARTER)
    with pytest.raises(DecodeError):
        Certificate.from_wire(raw)


def test_an_admin_admits_a_node_directly_or_through_an_invite() -> None:
    direct = check_chain(GENESIS, (cert(),), NODE.public)
    assert (direct.roles, direct.nbf_ms, direct.exp_ms) == ((MEMBER,), *QUARTER)
    invited = check_chain(GENESIS, (INVITE_CERT, cert(issuer=INVITER)), NODE.public)
    assert (invited.roles, invited.exp_ms) == ((MEMBER,), QUARTER[1])
    admitter = cert(subject=INVITER, roles=(MEMBER, ADMIT))
    assert check_chain(GENESIS, (admitter,), INVITER.public).roles == (MEMBER, ADMIT)
    assert check_chain(GENESIS, (admitter, cert(issuer=INVITER)), NODE.public).roles == (MEMBER,)


late = (WEEK[1] + 1, WEEK[1] + DAY_MS)
early = (NOW - 1, NOW + DAY_MS)
BAD_CHAINS: dict[str, tuple[bytes, ...]] = {
    "empty": (),
    "not a certificate": (b"\x80",),
    "self-signed": (cert(issuer=NODE),),
    "by somebody": (cert(issuer=MALLORY),),
    "of another swarm": (cert(swarm=FOREIGN),),
    "parent of another swarm": (
        cert(subject=INVITER, roles=(INVITE,), window=WEEK, swarm=FOREIGN),
        cert(issuer=INVITER),
    ),
    "for another node": (cert(subject=MALLORY),),
    "no member": (cert(roles=(ADMIT,)),),
    "no role": (cert(roles=()),),
    "an invite alone": (cert(roles=(INVITE,), window=WEEK),),
    "lives too long": (cert(window=(NOW, NOW + CERT_LIFE_MS_MAX + 1)),),
    "ends before it begins": (cert(window=(NOW, NOW)),),
    "an invite that lives too long": (
        cert(subject=INVITER, roles=(INVITE,), window=(NOW, NOW + INVITE_LIFE_MS_MAX + 1)),
        cert(issuer=INVITER),
    ),
    "issued by a plain member": (cert(subject=INVITER), cert(issuer=INVITER)),
    "an invite that gives admit": (INVITE_CERT, cert(issuer=INVITER, roles=(MEMBER, ADMIT))),
    "an admitter that gives admit": (
        cert(subject=INVITER, roles=(MEMBER, ADMIT)),
        cert(issuer=INVITER, roles=(MEMBER, ADMIT)),
    ),
    "issued after the invite ran out": (INVITE_CERT, cert(issuer=INVITER, window=late)),
    "issued before the invite": (INVITE_CERT, cert(issuer=INVITER, window=early)),
    "links in the wrong order": (cert(issuer=INVITER), INVITE_CERT),
    "links that do not meet": (INVITE_CERT, cert(issuer=MALLORY)),
    "three links": (
        INVITE_CERT,
        cert(issuer=INVITER, subject=MALLORY, roles=(INVITE, MEMBER), window=WEEK),
        cert(issuer=MALLORY),
    ),
    "the tail of three links": (
        cert(issuer=INVITER, subject=MALLORY, roles=(INVITE, MEMBER), window=WEEK),
        cert(issuer=MALLORY),
    ),
    "the own certificate, prolonged by oneself": (cert(), cert(issuer=NODE)),
}


@pytest.mark.parametrize("name", BAD_CHAINS)
def test_a_chain_that_breaks_a_rule_admits_nobody(name: str) -> None:
    with pytest.raises(DecodeError):
        check_chain(GENESIS, BAD_CHAINS[name], NODE.public)


role_sets = st.lists(st.sampled_from((MEMBER, ADMIT, INVITE, "root")), max_size=3, unique=True).map(tuple)
windows = st.tuples(st.integers(NOW - DAY_MS, NOW + 100 * DAY_MS), st.integers(0, 100 * DAY_MS)).map(
    lambda pair: (pair[0], pair[0] + pair[1])
)


@given(role_sets, windows, role_sets, windows)
def test_no_chain_of_two_gives_more_than_its_first_link_may(
    first: tuple[str, ...], window: tuple[int, int], second: tuple[str, ...], inner: tuple[int, int]
) -> None:
    chain = (cert(subject=INVITER, roles=first, window=window), cert(issuer=INVITER, roles=second, window=inner))
    try:
        admission = check_chain(GENESIS, chain, NODE.public)
    except DecodeError:
        return
    assert {ADMIT, INVITE} & set(first)
    assert ADMIT not in admission.roles
    assert MEMBER in admission.roles
    assert window[0] <= admission.nbf_ms <= window[1]
    assert 0 < admission.exp_ms - admission.nbf_ms <= CERT_LIFE_MS_MAX


@given(st.binary(max_size=200), st.binary(max_size=200))
def test_arbitrary_bytes_as_a_chain_raise_nothing_but_decode_error(a: bytes, b: bytes) -> None:
    for chain in ((a,), (a, b), (INVITE_CERT, b)):
        with pytest.raises(DecodeError):
            check_chain(GENESIS, chain, NODE.public)


# ---- quotas

OPEN = GENESIS.model_copy(update={"mode": "open"})
TIGHT = Quota(ops_per_s=3, burst=9, bytes_max=1_000)
quotas = st.builds(
    Quota, ops_per_s=st.integers(1, 10_000), burst=st.integers(1, 100_000), bytes_max=st.integers(1, 2**40)
)


def bound(quota: Quota | None, issuer: KeyPair = ADMIN, subject: KeyPair = NODE, swarm: Genesis = GENESIS) -> bytes:
    """A certificate that states a quota."""
    roles, window = ((INVITE,), WEEK) if subject is INVITER else ((MEMBER,), QUARTER)
    return issue(issuer, swarm.swarm_id, subject.public, roles, window, quota=quota)


@given(st.data())
def test_a_certificate_with_a_quota_comes_back_and_no_damage_passes(data: st.DataObject) -> None:
    quota = data.draw(quotas)
    wire = bound(quota)
    assert Certificate.from_wire(wire).quota == quota
    assert Certificate.from_wire(wire).wire() == wire
    raw = data.draw(damaged(wire))
    if raw != wire:
        with pytest.raises(DecodeError):
            Certificate.from_wire(raw)


def test_a_certificate_without_a_quota_has_the_bytes_that_it_always_had() -> None:
    fields = (GENESIS.swarm_id, NODE.public, (MEMBER,), None, *QUARTER, ADMIN.public)
    assert cert() == encode((*fields, ADMIN.sign("cert", encode(fields))))
    assert Certificate.from_wire(cert()).quota is None


@pytest.mark.parametrize("stated", [(0, 1, 1), (1, 1, 0), (-1, 1, 1), (1, 1), (True, 1, 1), 7, None, ((1, 1, 1),) * 2])
def test_a_signed_quota_that_cannot_be_is_refused(stated: Any) -> None:
    terms = stated if isinstance(stated, tuple) and isinstance(stated[0], tuple) else (stated,)
    fields = (GENESIS.swarm_id, NODE.public, (MEMBER,), None, *terms, *QUARTER, ADMIN.public)
    with pytest.raises(DecodeError):
        Certificate.from_wire(encode((*fields, ADMIN.sign("cert", encode(fields)))))


@given(st.none() | quotas, st.none() | quotas)
def test_nobody_passes_on_more_than_he_was_given(first: Quota | None, second: Quota | None) -> None:
    chain = (bound(first, subject=INVITER), bound(second, issuer=INVITER))
    check_chain(GENESIS, chain, NODE.public)
    granted = granted_quota(chain)
    stated = [quota for quota in (first, second) if quota is not None]
    assert (granted is None) == (not stated)
    for quota in stated:
        assert granted is not None
        assert granted == tighter(granted, quota)
        for name in Quota.model_fields:
            assert getattr(granted, name) == min(getattr(each, name) for each in stated)


def test_an_open_swarm_admits_nobody_without_a_quota() -> None:
    for chain in (
        (bound(None, swarm=OPEN),),
        (bound(None, subject=INVITER, swarm=OPEN), bound(None, INVITER, swarm=OPEN)),
    ):
        with pytest.raises(DecodeError, match="quota"):
            check_chain(OPEN, chain, NODE.public)
    check_chain(OPEN, (bound(TIGHT, swarm=OPEN),), NODE.public)
    check_chain(OPEN, (bound(TIGHT, subject=INVITER, swarm=OPEN), bound(None, INVITER, swarm=OPEN)), NODE.public)


def test_whoever_joins_an_open_swarm_by_a_ticket_is_bound_by_its_quota() -> None:
    base = secrets().model_copy(update={"genesis": OPEN.wire(ADMIN)})
    for asked, given_ in ((None, OPEN_QUOTA), (TIGHT, TIGHT)):
        chain = make_invite(ADMIN, base, bytes(32), WEEK, quota=asked).admit(NODE.public, NOW)
        check_chain(OPEN, chain, NODE.public)
        assert granted_quota(chain) == given_
    assert granted_quota(ticket().admit(NODE.public, NOW)) is None  # a private swarm knows its members


@given(st.binary(max_size=100))
def test_what_is_no_certificate_states_no_quota(noise: bytes) -> None:
    assert granted_quota((noise, bound(TIGHT))) == TIGHT
    assert granted_quota((noise,)) is None


# ---- tickets


def test_a_ticket_comes_back_equal_and_admits_a_node_while_it_is_valid() -> None:
    made = ticket()
    again = Ticket.parse(made.text())
    assert again == made
    assert again.genesis == GENESIS
    assert again.invite.uses == 3
    chain = again.admit(NODE.public, NOW + DAY_MS)
    admission = check_chain(GENESIS, chain, NODE.public)
    assert (admission.roles, admission.nbf_ms) == ((MEMBER,), NOW + DAY_MS)
    with pytest.raises(DecodeError):
        check_chain(GENESIS, chain, MALLORY.public)


def test_a_ticket_survives_line_breaks_of_a_mail() -> None:
    word = ticket().text()
    broken = "\n  ".join(word[i : i + 60] for i in range(0, len(word), 60))
    assert Ticket.parse(f" {broken}\n") == ticket()


@pytest.mark.parametrize("now", [WEEK[0] - 1, WEEK[1] + 1, 0])
def test_a_ticket_admits_nobody_outside_its_window(now: int) -> None:
    with pytest.raises(ConfigError) as refused:
        ticket().admit(NODE.public, now)
    assert refused.value.hint


def test_any_damaged_character_of_a_ticket_is_noticed() -> None:
    """Each character in turn becomes another: a wrong key would show only as a swarm that never answers."""
    word = ticket().text()
    for at, was in enumerate(word):
        for instead in ("A" if was != "A" else "B", "_" if was != "_" else "-", "!", ""):
            with pytest.raises(ConfigError):
                Ticket.parse(word[:at] + instead + word[at + 1 :])


@given(st.text(max_size=80), st.integers(0, 2000), st.integers(0, 2000))
def test_damaged_ticket_text_raises_nothing_but_config_error(noise: str, start: int, end: int) -> None:
    word = ticket().text()
    for text in (TICKET_PREFIX + noise, word[:start] + noise + word[end:]):
        try:
            parsed = Ticket.parse(text)
        except ConfigError:
            continue
        assert parsed == ticket()


@given(values)
def test_any_value_in_the_form_of_a_ticket_is_refused(value: Any) -> None:
    with pytest.raises(ConfigError):
        Ticket.parse(TICKET_PREFIX + base64.urlsafe_b64encode(encode(value)).decode())


BAD_TICKETS: dict[str, dict[str, Any]] = {
    "an invite of another swarm": {"invite_cert": cert(subject=INVITER, roles=(INVITE,), window=WEEK, swarm=FOREIGN)},
    "an invite by no admin": {
        "invite_cert": issue(MALLORY, GENESIS.swarm_id, KeyPair(bytes(range(1, 33))).public, (INVITE,), WEEK)
    },
    "a key that is not invited": {"invite_seed": bytes(32)},
    "a certificate that does not invite": {
        "invite_cert": issue(ADMIN, GENESIS.swarm_id, KeyPair(bytes(range(1, 33))).public, (MEMBER,), WEEK)
    },
    "a genesis by somebody": {"genesis_wire": GENESIS.wire(MALLORY)},
    "a bootstrap that is no address": {"bootstrap": ("/dns4/example.org/tcp/1",)},
}


@pytest.mark.parametrize("name", BAD_TICKETS)
def test_a_ticket_whose_parts_do_not_belong_together_is_refused(name: str) -> None:
    made = dataclasses.replace(ticket(), **BAD_TICKETS[name])
    with pytest.raises(ConfigError):
        Ticket.parse(made.text())


def test_only_an_admin_invites_and_for_a_week_at_most() -> None:
    with pytest.raises(ConfigError):
        make_invite(MALLORY, secrets(), bytes(32), WEEK)
    for window in ((NOW, NOW), (NOW, NOW + INVITE_LIFE_MS_MAX + 1)):
        with pytest.raises(ConfigError):
            make_invite(ADMIN, secrets(), bytes(32), window)


# ---- the profile's copy


def test_swarm_secrets_come_back_equal() -> None:
    assert SwarmSecrets.from_wire(secrets().wire()) == secrets()


@given(st.data())
def test_damaged_swarm_secrets_raise_nothing_but_decode_error(data: st.DataObject) -> None:
    raw = data.draw(damaged(secrets().wire()))
    try:
        again = SwarmSecrets.from_wire(raw)
    except DecodeError:
        return
    assert decode(again.wire(), bytes_max=1 << 16)
