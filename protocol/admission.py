"""Who belongs to a swarm: genesis, certificates, tickets (protocol.md §3).

- The **genesis** is signed by its creator and fixes what all nodes must agree on; its hash is the swarm.
- A **certificate** admits a node key. It is issued by an admin key, or by a key that an admin certified with
  the role `invite` or `admit` (chain ≤ 2). A child must have been issued while its issuer was valid; it may
  outlive an invite, whose own life is at most seven days.
- In an **open** swarm, where whoever holds the public ticket certifies himself, a chain without a quota
  (`protocol.certificate`) admits nobody.
- A **ticket** carries all that joining needs: the swarm's pre-shared key, the genesis, bootstrap addresses and
  an invite key with its certificate, so that no particular node has to be online.

Verdicts depend on the bytes and a swarm time handed in, never on who connected first.
"""

from __future__ import annotations

import base64
import itertools
from dataclasses import dataclass
from typing import Annotated, Final, Literal, Self, TypeVar

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from protocol.certificate import (
    ADMIT,
    CERT_BYTES_MAX,
    CERT_LIFE_MS_MAX,
    DAY_MS,
    INVITE,
    INVITE_LIFE_MS_MAX,
    MEMBER,
    OPEN_QUOTA,
    Certificate,
    issue,
)
from protocol.codec import decode, encode
from protocol.errors import ConfigError, DecodeError
from protocol.identity import KeyPair, digest, verify
from protocol.peer import Multiaddr
from protocol.records import Id, Millis, Name, Quota
from protocol.versions import DERIVE_VERSIONS

__all__ = [
    "ADMIT",
    "CERT_BYTES_MAX",
    "CERT_LIFE_MS_MAX",
    "DAY_MS",
    "INVITE",
    "INVITE_LIFE_MS_MAX",
    "MEMBER",
    "OPEN_QUOTA",
    "TICKET_BYTES_MAX",
    "TICKET_PREFIX",
    "Admission",
    "Certificate",
    "EncoderSpec",
    "Genesis",
    "Mode",
    "SwarmSecrets",
    "Ticket",
    "check_chain",
    "issue",
    "make_invite",
]

GENESIS_BYTES_MAX: Final = 4096
TICKET_BYTES_MAX: Final = 16 * 1024
TICKET_PREFIX: Final = "masos1-"
CHAIN_MAX: Final = 2
Mode = Literal["private", "open"]

_CONFIG: Final = ConfigDict(strict=True, extra="ignore", frozen=True)
M = TypeVar("M", bound=BaseModel)


class EncoderSpec(BaseModel):
    """The swarm's encoder: `find` and semantic edges compare its vectors, so it is the same everywhere."""

    model_config = _CONFIG
    id: Name = "use-512"
    dim: Annotated[int, Field(ge=1, le=4096)] = 512
    tau: tuple[Annotated[int, Field(ge=0, le=10_000)], Annotated[int, Field(ge=1, le=10_000)]] = (
        7,
        20,
    )
    k: Annotated[int, Field(ge=0, le=1024)] = 8  # 0: no cap (profile `paper`)


class Genesis(BaseModel):
    """What a swarm is; signed by `creator`, who is an admin."""

    model_config = _CONFIG
    name: Annotated[str, Field(min_length=1, max_length=64)]
    creator: Id
    admins: Annotated[tuple[Id, ...], Field(min_length=1, max_length=16)]
    mode: Mode = "private"
    encoder: EncoderSpec = EncoderSpec()
    created_ms: Millis
    derive_ver: Annotated[int, Field(ge=1)] = DERIVE_VERSIONS[-1]

    def body(self) -> bytes:
        """Canonical bytes; their hash names the swarm."""
        return encode(self.model_dump())

    @property
    def swarm_id(self) -> bytes:
        """SHA-256 under the purpose `swarm`."""
        return digest("swarm", self.body())

    def wire(self, creator: KeyPair) -> bytes:
        """Body and signature."""
        return encode((self.body(), creator.sign("genesis", self.body())))

    @classmethod
    def from_wire(cls, data: bytes) -> Self:
        """A genesis whose creator signed it.

        Raises:
            DecodeError: not a well-formed, signed genesis.
        """
        match decode(data, bytes_max=GENESIS_BYTES_MAX):
            case (bytes(body), bytes(sig)):
                genesis = _validated(cls, decode(body, bytes_max=GENESIS_BYTES_MAX))
            case _:
                raise DecodeError("a genesis is [body, signature]")
        if genesis.body() != body or not verify(genesis.creator, "genesis", body, sig):
            raise DecodeError("genesis is not signed by its creator")
        return genesis


def _validated(cls: type[M], value: object) -> M:
    try:
        return cls.model_validate(value)
    except ValidationError as exc:
        first = exc.errors(include_url=False, include_input=False)[0]
        raise DecodeError(f"{cls.__name__}: {first['loc']}: {first['msg']}") from exc


@dataclass(frozen=True, slots=True)
class Admission:
    """What a valid chain grants: roles and a window in swarm milliseconds."""

    roles: tuple[str, ...]
    nbf_ms: int
    exp_ms: int


def check_chain(genesis: Genesis, chain: tuple[bytes, ...], subject: bytes) -> Admission:
    """The admission that a certificate chain gives to `subject`.

    Raises:
        DecodeError: the chain is empty, too long, foreign, for another key, or breaks the issuing rules.
    """
    if not 0 < len(chain) <= CHAIN_MAX:
        raise DecodeError("a certificate chain has one or two links")
    certs = [Certificate.from_wire(link) for link in chain]
    if any(cert.swarm_id != genesis.swarm_id for cert in certs):
        raise DecodeError("certificate of another swarm")
    if certs[0].issuer not in genesis.admins:
        raise DecodeError("certificate is not issued by an admin of the swarm")
    for parent, child in itertools.pairwise(certs):
        if child.issuer != parent.subject or not {INVITE, ADMIT} & set(parent.roles):
            raise DecodeError("certificate is not issued by the key before it")
        if not parent.nbf_ms <= child.nbf_ms <= parent.exp_ms or ADMIT in child.roles:
            raise DecodeError("certificate was issued outside its issuer's rights")
    last = certs[-1]
    if last.subject != subject or MEMBER not in last.roles:
        raise DecodeError("certificate does not admit this node")
    if any(not 0 < cert.exp_ms - cert.nbf_ms <= _life_max(cert) for cert in certs):
        raise DecodeError("certificate lives too long")
    if genesis.mode == "open" and all(cert.quota is None for cert in certs):
        raise DecodeError("an open swarm admits nobody without a quota")
    return Admission(last.roles, last.nbf_ms, last.exp_ms)


def _life_max(cert: Certificate) -> int:
    return INVITE_LIFE_MS_MAX if INVITE in cert.roles else CERT_LIFE_MS_MAX


def _checksum(raw: bytes) -> bytes:
    """A ticket is typed and pasted by people: a wrong character must not become a swarm that never answers."""
    return digest("ticket", raw)[:4]


def _unchecked(text: str) -> bytes:
    data = base64.b64decode(text + "=" * (-len(text) % 4), altchars=b"-_", validate=True)
    if base64.urlsafe_b64encode(data).decode().rstrip("=") != text:
        raise DecodeError("not the text that these bytes have")
    if len(data) < 4 or _checksum(data[:-4]) != data[-4:]:
        raise DecodeError("the checksum does not fit")
    return data[:-4]


class _TicketBody(BaseModel):
    model_config = _CONFIG
    psk: Id
    genesis: Annotated[bytes, Field(max_length=GENESIS_BYTES_MAX)]
    bootstrap: Annotated[tuple[Annotated[str, Field(max_length=256)], ...], Field(max_length=32)]
    invite_seed: Id
    invite_cert: Annotated[bytes, Field(max_length=CERT_BYTES_MAX)]


@dataclass(frozen=True, slots=True)
class Ticket:
    """An invitation; whoever holds it can join, so it is a secret until it expires."""

    psk: bytes
    genesis_wire: bytes
    bootstrap: tuple[str, ...]
    invite_seed: bytes
    invite_cert: bytes

    @property
    def genesis(self) -> Genesis:
        """The swarm that the ticket opens."""
        return Genesis.from_wire(self.genesis_wire)

    @property
    def invite(self) -> Certificate:
        """The invite's certificate."""
        return Certificate.from_wire(self.invite_cert)

    def text(self) -> str:
        """One word to paste."""
        body = _TicketBody(
            psk=self.psk,
            genesis=self.genesis_wire,
            bootstrap=self.bootstrap,
            invite_seed=self.invite_seed,
            invite_cert=self.invite_cert,
        )
        raw = encode(body.model_dump())
        return TICKET_PREFIX + base64.urlsafe_b64encode(raw + _checksum(raw)).decode().rstrip("=")

    @classmethod
    def parse(cls, text: str) -> Self:
        """Read a ticket and check all its signatures.

        Raises:
            ConfigError: the text is no ticket, is damaged, or its parts do not belong together.
        """
        word = "".join(text.split())
        if not word.startswith(TICKET_PREFIX):
            raise ConfigError("not a masos ticket", hint=f"a ticket starts with {TICKET_PREFIX}")
        try:
            raw = _unchecked(word[len(TICKET_PREFIX) :])
            body = _validated(_TicketBody, decode(raw, bytes_max=TICKET_BYTES_MAX))
            ticket = cls(body.psk, body.genesis, body.bootstrap, body.invite_seed, body.invite_cert)
            for addr in body.bootstrap:
                Multiaddr.parse(addr)
            genesis, invite = ticket.genesis, ticket.invite
        except (DecodeError, ValueError) as exc:
            raise ConfigError(f"ticket is damaged: {exc}", hint="copy it again, whole, or ask for a new one") from exc
        rightful = invite.issuer in genesis.admins and INVITE in invite.roles
        if invite.swarm_id != genesis.swarm_id or not rightful:
            raise ConfigError("ticket's invite is not of its swarm", hint="ask an admin for a new ticket")
        if KeyPair(body.invite_seed).public != invite.subject:
            raise ConfigError("ticket's invite key is not the certified one", hint="ask for a new ticket")
        return ticket

    def admit(self, node_pk: bytes, now_ms: int) -> tuple[bytes, ...]:
        """The certificate chain for a node that joins now.

        Raises:
            ConfigError: the invite is not valid at this time.
        """
        invite = self.invite
        if not invite.nbf_ms <= now_ms <= invite.exp_ms:
            raise ConfigError(
                "ticket has expired or is not valid yet",
                hint="ask for a new ticket; check your clock",
            )
        window = (now_ms, now_ms + CERT_LIFE_MS_MAX)
        cert = issue(KeyPair(self.invite_seed), invite.swarm_id, node_pk, (MEMBER,), window)
        return (self.invite_cert, cert)


class SwarmSecrets(BaseModel):
    """What a node keeps of its swarm on disk: genesis, pre-shared key, own chain, bootstrap addresses."""

    model_config = _CONFIG
    genesis: bytes
    psk: Id
    chain: tuple[bytes, ...]
    bootstrap: tuple[str, ...] = ()

    def wire(self) -> bytes:
        """Canonical bytes for the profile."""
        return encode(self.model_dump())

    @classmethod
    def from_wire(cls, data: bytes) -> Self:
        """Read the profile's copy.

        Raises:
            DecodeError: damaged.
        """
        return _validated(cls, decode(data, bytes_max=TICKET_BYTES_MAX))


def make_invite(
    admin: KeyPair,
    secrets: SwarmSecrets,
    seed: bytes,
    window_ms: tuple[int, int],
    uses: int | None = None,
    quota: Quota | None = None,
) -> Ticket:
    """A ticket signed by an admin; `seed` is fresh randomness for the invite key.

    `quota` bounds whoever joins with it; in an open swarm it is OPEN_QUOTA where none is given.

    Raises:
        ConfigError: not an admin, or a life over seven days.
    """
    genesis = Genesis.from_wire(secrets.genesis)
    if admin.public not in genesis.admins:
        raise ConfigError("this profile's user is no admin of the swarm", hint="ask the swarm's creator to invite")
    if not 0 < window_ms[1] - window_ms[0] <= INVITE_LIFE_MS_MAX:
        raise ConfigError("an invite lives at most seven days", hint="choose a shorter life")
    granted = OPEN_QUOTA if quota is None and genesis.mode == "open" else quota
    cert = issue(admin, genesis.swarm_id, KeyPair(seed).public, (INVITE,), window_ms, uses=uses, quota=granted)
    return Ticket(secrets.psk, secrets.genesis, secrets.bootstrap, seed, cert)
