"""Making, entering and opening a swarm, and shutting a node out of it, on one profile's disk; no daemon takes part.

    <profile>/swarm/swarm.bin    genesis, swarm key, own certificate chain, bootstrap addresses    0600

A profile is in one swarm for good (protocol.md §3): its log, its certificates and its user's tasks belong there.
All verbs that write hold the profile's lock, so that a running daemon never finds another swarm under itself.

Certificates and invites start `BACKDATE_MS` in the past: an op counts only after its author's certificate began by
swarm time, and the clock that issued it may be ahead of the others by minutes (complaint 14 of conventions.md).

Wall time, randomness and addresses are handed in.
"""

from __future__ import annotations

from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from node.keystore import Keystore
from node.profile import Profile, write_private
from node.store import SqliteStore
from protocol.admission import (
    ADMIT,
    CERT_LIFE_MS_MAX,
    DAY_MS,
    INVITE_LIFE_MS_MAX,
    MEMBER,
    OPEN_QUOTA,
    Genesis,
    Mode,
    SwarmSecrets,
    Ticket,
    check_chain,
    issue,
    make_invite,
)
from protocol.certificate import granted_quota
from protocol.clock import hlc_from_ms
from protocol.errors import ConfigError, DecodeError
from protocol.identity import SIGNATURE_BYTES, KeyPair
from protocol.op import Op, Position, make_op
from protocol.peer import Multiaddr, peer_text
from protocol.records import KIND_OF, Deny, Join, Quota, body_bytes, sign_body
from protocol.spaces import swarm_space
from protocol.store import OpRow

BACKDATE_MS: Final = 15 * 60_000
BOOTSTRAP_MAX: Final = 16
"""Addresses in a ticket; it has to stay a word that can be pasted."""
SECRETS_BYTES_MAX: Final = 16 * 1024
NAME_CHARS_MAX: Final = 64


@dataclass(frozen=True, slots=True)
class Invitation:
    """What a ticket is good for: how long it can be used, and where joiners find the swarm.

    Nothing counts how often: whoever holds the ticket can join until it expires.
    """

    life_ms: int
    bootstrap: tuple[str, ...]


def secrets_file(profile: Profile) -> Path:
    """Where a profile keeps its place in its swarm."""
    return profile.swarm / "swarm.bin"


def load_secrets(profile: Profile) -> SwarmSecrets:
    """The swarm of a profile.

    Raises:
        ConfigError: no such profile, it is in no swarm, or the file cannot be read or is damaged.
    """
    profile.check()
    path = secrets_file(profile)
    try:
        with path.open("rb") as file:
            raw = file.read(SECRETS_BYTES_MAX)
    except FileNotFoundError as exc:
        raise ConfigError(
            f"the profile {profile.path} is in no swarm",
            hint="found one with `masos swarm create NAME`, or enter one with `masos swarm join TICKET`",
        ) from exc
    except OSError as exc:
        raise ConfigError(f"cannot read {path}: {exc.strerror}") from exc
    try:
        return SwarmSecrets.from_wire(raw)
    except DecodeError as exc:
        raise ConfigError(
            f"{path} is damaged", hint="restore it from a backup, or join again in a new profile"
        ) from exc


def create(profile: Profile, name: str, psk: bytes, now_ms: int, mode: Mode = "private") -> Genesis:
    """Found a swarm: this profile's user is its admin, this node its first member and may admit others.

    In an open swarm who joins by a ticket gets the tight quota, an admin's own node that of a task (protocol.md §5).

    Raises:
        ConfigError: no keys, a swarm already, a daemon is running, or an impossible name.
    """
    if not 0 < len(name.strip()) <= NAME_CHARS_MAX:
        raise ConfigError(f"a swarm's name has 1 to {NAME_CHARS_MAX} characters", hint="choose another name")
    keys = Keystore(profile)
    node, user = keys.node(), keys.user()
    genesis = Genesis(name=name.strip(), creator=user.public, admins=(user.public,), mode=mode, created_ms=now_ms)
    cert = _own_certificate(user, genesis, node.public, now_ms)
    with profile.lock():
        _write(profile, SwarmSecrets(genesis=genesis.wire(user), psk=psk, chain=(cert,)))
    return genesis


def invite(profile: Profile, seed: bytes, now_ms: int, wanted: Invitation) -> Ticket:
    """A ticket for the profile's swarm, signed by its user, who must be an admin. May be made while a daemon runs.

    Raises:
        ConfigError: no swarm, no admin, no usable address, or a life that is not within seven days.
    """
    if not 0 < wanted.life_ms <= INVITE_LIFE_MS_MAX - BACKDATE_MS:
        raise ConfigError("an invite lives at most seven days", hint="choose a shorter life")
    secrets = load_secrets(profile)
    usable = dict.fromkeys(text for text in (*wanted.bootstrap, *secrets.bootstrap) if _is_bootstrap(text))
    if not usable:
        raise ConfigError(
            "the ticket would hold no address that can be dialled",
            hint="start the node first (`masos up`), or name one with --bootstrap /ip4/HOST/tcp/PORT/p2p/PEER",
        )
    addressed = secrets.model_copy(update={"bootstrap": tuple(usable)[:BOOTSTRAP_MAX]})
    window = (now_ms - BACKDATE_MS, now_ms + wanted.life_ms)
    return make_invite(Keystore(profile).user(), addressed, seed, window)


def inspect(text: str, now_ms: int) -> dict[str, object]:
    """All that a ticket says, before anything is joined; its two secrets are left out.

    Raises:
        ConfigError: it is no ticket, is damaged, or its parts do not belong together.
    """
    ticket = Ticket.parse(text)
    genesis, cert = ticket.genesis, ticket.invite
    quota = granted_quota((ticket.invite_cert,))
    return {
        "swarm": genesis.name,
        "swarm_id": genesis.swarm_id.hex(),
        "mode": genesis.mode,
        "created_ms": genesis.created_ms,
        "creator": genesis.creator.hex(),
        "admins": [admin.hex() for admin in genesis.admins],
        "encoder": genesis.encoder.model_dump(mode="json"),
        "derive_ver": genesis.derive_ver,
        "bootstrap": list(ticket.bootstrap),
        "issuer": cert.issuer.hex(),
        "valid_from_ms": cert.nbf_ms,
        "valid_until_ms": cert.exp_ms,
        "valid_now": cert.nbf_ms <= now_ms <= cert.exp_ms,
        "grants": [MEMBER],
        "quota": None if quota is None else quota.model_dump(),
        "membership_days": CERT_LIFE_MS_MAX // 86_400_000,
    }


def renew_own(profile: Profile, now_ms: int) -> bool:
    """An admin's node certifies itself anew once two thirds of its certificate are over; True iff it did.

    Other members renew by joining again with a new ticket of the same swarm.

    Raises:
        ConfigError: no keys, no swarm, or damaged files. The profile must not be locked by another process.
    """
    keys, secrets = Keystore(profile), load_secrets(profile)
    node, user = keys.node(), keys.user()
    try:
        genesis = Genesis.from_wire(secrets.genesis)
        admission = check_chain(genesis, secrets.chain, node.public)
    except DecodeError:
        return False  # said by who loads the member
    due_ms = admission.nbf_ms + (admission.exp_ms - admission.nbf_ms) * 2 // 3
    if user.public not in genesis.admins or now_ms < due_ms:
        return False
    cert = _own_certificate(user, genesis, node.public, now_ms)
    _write(profile, secrets.model_copy(update={"chain": (cert,)}), replace=True)
    return True


def _own_certificate(user: KeyPair, genesis: Genesis, node_pk: bytes, now_ms: int) -> bytes:
    """An admin certifies a node of his own."""
    start = now_ms - BACKDATE_MS
    window = (start, start + CERT_LIFE_MS_MAX)
    quota = Quota() if genesis.mode == "open" else None
    return issue(user, genesis.swarm_id, node_pk, (MEMBER, ADMIT), window, quota=quota)


def join(profile: Profile, text: str, now_ms: int) -> Genesis:
    """Enter the swarm of a ticket; the next `masos up` takes part in it. In the same swarm again: a new certificate.

    Raises:
        ConfigError: no keys, a swarm already, a daemon is running, or a ticket that is damaged or not valid now.
    """
    ticket = Ticket.parse(text)
    node = Keystore(profile).node()
    if now_ms > ticket.invite.exp_ms:
        raise ConfigError("the ticket has expired", hint="ask for a new one; check your clock")
    chain = ticket.admit(node.public, max(now_ms - BACKDATE_MS, min(now_ms, ticket.invite.nbf_ms)))
    genesis = ticket.genesis
    try:
        check_chain(genesis, chain, node.public)
    except DecodeError as exc:
        raise ConfigError(f"the ticket admits nobody: {exc.message}", hint="ask for a new one") from exc
    entered = SwarmSecrets(genesis=ticket.genesis_wire, psk=ticket.psk, chain=chain, bootstrap=ticket.bootstrap)
    with profile.lock():
        again = secrets_file(profile).exists() and load_secrets(profile).genesis == entered.genesis
        _write(profile, entered, replace=again)
    return genesis


def deny(profile: Profile, peer: bytes, seed: bytes, now_ms: int) -> None:
    """Shut a node out for good: every member that hears of it refuses its links. The next `masos up` tells them.

    An admin's word is an op in the swarm's own space. It is carried by an author made for it alone, from `seed`: the
    own chain is not written before its head is certain (gossip/own_head.py), and what an admin signed counts whoever
    relays it (protocol.md §5).

    Raises:
        ConfigError: no swarm, a daemon is running, no admin, or a node that must not be shut out: the own one.
        StoreError: the database could not take it.
    """
    keys, secrets = Keystore(profile), load_secrets(profile)
    user, genesis = keys.user(), Genesis.from_wire(secrets.genesis)
    if user.public not in genesis.admins:
        raise ConfigError("this profile's user is no admin of the swarm", hint="ask the swarm's creator to deny it")
    if peer == keys.node().public:
        raise ConfigError("this is the profile's own node", hint="to leave a swarm, stop the node")
    space, courier = swarm_space(genesis.swarm_id), KeyPair(seed)
    start = now_ms - BACKDATE_MS
    cert = issue(user, genesis.swarm_id, courier.public, (MEMBER,), (start, now_ms + DAY_MS), quota=OPEN_QUOTA)
    word = sign_body(user, space, Deny(author=peer, keep=0, by=user.public, sig=bytes(SIGNATURE_BYTES)))
    ops: list[Op] = []
    records: tuple[Join | Deny, ...] = (Join(cert=(cert,)), word)
    for seq, record in enumerate(records):
        at = Position(space, 1, seq, ops[-1].id if ops else None, (), hlc_from_ms(now_ms) + seq)
        ops.append(make_op(courier, KIND_OF[type(record)], at, body_bytes(record)))
    with profile.lock(), closing(SqliteStore(profile.database)) as store:
        store.apply(tuple(OpRow(op, sync=True) for op in ops))


def own_addresses(addrs: tuple[str, ...], node_pk: bytes) -> tuple[str, ...]:
    """Addresses of this node as others may dial them, each with /p2p/<peer id>; the undialable ones left out.

    Raises:
        ConfigError: one is no multiaddr.
    """
    try:
        parsed = [Multiaddr.parse(text) for text in addrs]
    except DecodeError as exc:
        raise ConfigError(exc.message, hint="write it as /ip4/192.0.2.7/tcp/27420") from exc
    usable = [addr for addr in parsed if addr.dialable]
    return tuple(str(addr) if addr.relay else f"{addr.base}/p2p/{peer_text(node_pk)}" for addr in usable)


def _is_bootstrap(text: str) -> bool:
    try:
        addr = Multiaddr.parse(text)
    except DecodeError as exc:
        raise ConfigError(f"bootstrap address: {exc.message}", hint="write /ip4/HOST/tcp/PORT/p2p/PEER") from exc
    if addr.peer is None:
        raise ConfigError(f"{text} does not say whose address it is", hint="end it with /p2p/<peer id>")
    return addr.dialable


def _write(profile: Profile, secrets: SwarmSecrets, *, replace: bool = False) -> None:
    path = secrets_file(profile)
    try:
        write_private(path, secrets.wire(), replace=replace)
    except FileExistsError as exc:
        raise ConfigError(
            f"the profile {profile.path} is in a swarm already",
            hint="one profile is one swarm: make another with `masos init --profile PATH`",
        ) from exc
    except OSError as exc:
        raise ConfigError(f"cannot write {path}: {exc.strerror}") from exc
