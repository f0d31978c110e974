"""Signed records that are not ops: what a node's agents can do, and where it may be dialled (protocol.md §8).

    body = [key, kind, value, publisher, seq, issued_ms, expiry_ms]      wire = [body bytes, sig]

They replace each other: of one (publisher, key) the greatest (seq, hash) wins, on every node alike, whatever
arrived first. A record is neither taken nor offered after its expiry, nor when it claims to live longer than
its kind may. `ttl 0` (expiry = issued) withdraws it. Verified over the exact bytes before its value is used,
and forwarded as the same bytes.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Final, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from protocol.codec import decode, encode
from protocol.errors import DecodeError
from protocol.identity import KeyPair, Verify, digest, prefixed
from protocol.messages import RECORD_BYTES_MAX
from protocol.peer import ADDRESSES_PER_PEER_MAX, Multiaddr
from protocol.records import Name

RECORD_TTL_MS: Final = 6 * 3_600_000
FUTURE_MS_MAX: Final = 600_000  # a publisher's clock may be wrong by ten minutes (complaint 14)
KEY_BYTES: Final = 20
DESCRIPTION_CHARS_MAX: Final = 1000
TAXONOMY_CHARS_MAX: Final = 256
LABELS_MAX: Final = 32  # of one kind, such as skills
CODEBOOK_NAME_BYTES: Final = 8  # the start of a codebook's id
CODEBOOKS_NAMED_MAX: Final = 4
Kind = Literal["peer", "agent"]
Labels = Annotated[tuple[Name, ...], Field(max_length=LABELS_MAX)]


class UnknownKind(DecodeError):
    """A record of a kind that a later version added: nobody's fault, and of no use here."""


class PeerValue(BaseModel):
    """Where the publisher may be dialled; the only addresses of others that a node ever dials."""

    model_config = ConfigDict(strict=True, extra="ignore", frozen=True)
    addrs: Annotated[tuple[Annotated[str, Field(max_length=256)], ...], Field(max_length=ADDRESSES_PER_PEER_MAX)]
    cert: Annotated[tuple[bytes, ...], Field(max_length=2)] = ()  # its admission: only members are ever dialled


class AgentValue(BaseModel):
    """What one agent of the publisher can do, and on what terms.

    One agent, one model: a node that serves more models publishes more agents. What a later version adds is ignored
    here and forwarded.

    Attributes:
        vector: `int8[dim]` of the text by which it is found (kernel/discovery.py) under `encoder`; None where the
            publisher has no encoder at hand.
        codebooks: names of the codebooks under whose shards its publisher puts it (dht/directory.py), oldest first;
            none where there are none for its encoder.
        tools: names of the tools that its turns may call, and `permissions`: what these may touch on that machine.
        skills: what it is good at, in its operator's words or as ids of A2A or OASF; taken as plain strings.
        tags: labels without an order.
        taxonomy: a path from the general to the special, parted by `/`.
        price_micro_money: for 1,000 tokens.
        tokens_per_s: decode speed as measured by the publisher, 0 while unmeasured.
        data_policy: `external` where prompts leave the publisher's machine, such as to a hosted model.
    """

    model_config = ConfigDict(strict=True, extra="ignore", frozen=True)
    agent: Name
    roles: Annotated[tuple[Name, ...], Field(max_length=16)]
    description: Annotated[str, Field(max_length=DESCRIPTION_CHARS_MAX)] = ""
    vector: Annotated[bytes, Field(max_length=4096)] | None = None
    encoder: Name = ""
    codebooks: Annotated[
        tuple[Annotated[bytes, Field(min_length=CODEBOOK_NAME_BYTES, max_length=CODEBOOK_NAME_BYTES)], ...],
        Field(max_length=CODEBOOKS_NAMED_MAX),
    ] = ()
    model: Name = ""
    backend: Name = ""
    quality: Literal["demo", "standard"] = "standard"
    context_tokens: Annotated[int, Field(ge=0, le=2**31)] = 0
    tools: Labels = ()
    permissions: Labels = ()
    skills: Labels = ()
    tags: Labels = ()
    taxonomy: Annotated[str, Field(max_length=TAXONOMY_CHARS_MAX)] = ""
    price_micro_money: Annotated[int, Field(ge=0, le=2**53)] = 0
    tokens_per_s: Annotated[int, Field(ge=0, le=2**31)] = 0
    data_policy: Literal["local", "external"] = "local"


Value = PeerValue | AgentValue


@dataclass(frozen=True, slots=True)
class SignedRecord:
    """A verified record with its exact bytes."""

    key: bytes
    kind: Kind
    value: Value
    publisher: bytes
    seq: int
    issued_ms: int
    expiry_ms: int
    wire: bytes
    hash: bytes

    @property
    def version(self) -> tuple[int, bytes]:
        """Greater wins."""
        return (self.seq, self.hash)

    def live(self, now_ms: int) -> bool:
        """True while it may be used and offered; never a withdrawal, even one that lies ahead of the own clock."""
        return not self.withdrawal and now_ms < self.expiry_ms

    def acceptable(self, now_ms: int) -> bool:
        """True if its times are possible now: live, and not longer than a record may live.

        A withdrawal is told on as long as what it withdraws could still be offered.
        """
        if self.issued_ms > now_ms + FUTURE_MS_MAX or self.expiry_ms > self.issued_ms + RECORD_TTL_MS:
            return False
        return now_ms < self.issued_ms + RECORD_TTL_MS if self.withdrawal else self.live(now_ms)

    @property
    def withdrawal(self) -> bool:
        """It ends what an earlier one offered (`ttl 0`)."""
        return self.expiry_ms == self.issued_ms

    @classmethod
    def from_wire(cls, data: bytes, verify: Verify) -> Self:
        """Verify, then decode.

        Raises:
            DecodeError: not a well-formed record signed by its publisher.
        """
        match decode(data, bytes_max=RECORD_BYTES_MAX):
            case (bytes(body), bytes(sig)):
                fields = decode(body, bytes_max=RECORD_BYTES_MAX)
            case _:
                raise DecodeError("a record is [body, signature]")
        match fields:
            case (
                bytes(key),
                str(kind),
                dict(value),
                bytes(pk),
                int(seq),
                int(issued),
                int(expiry),
            ) if len(pk) == 32 and len(key) == KEY_BYTES and _times_fit(seq, issued, expiry):
                if not verify(pk, prefixed("record", body), sig):
                    raise DecodeError("record is not signed by its publisher")
                typed, parsed = _value(kind, value)
                _check_key(key, pk, parsed)
                return cls(key, typed, parsed, pk, seq, issued, expiry, data, digest("rec", data))
            case _:
                raise DecodeError("record fields do not fit")


def _times_fit(seq: int, issued_ms: int, expiry_ms: int) -> bool:
    if any(isinstance(number, bool) for number in (seq, issued_ms, expiry_ms)):
        return False  # True is an int in Python, and is no number on the wire
    return 0 <= seq < 2**63 and 0 <= issued_ms <= expiry_ms < 2**48


def _value(kind: str, value: object) -> tuple[Kind, Value]:
    try:
        match kind:
            case "peer":
                peer = PeerValue.model_validate(value)
                for addr in peer.addrs:
                    Multiaddr.parse(addr)
                return "peer", peer
            case "agent":
                return "agent", AgentValue.model_validate(value)
            case _:
                raise UnknownKind(f"unknown record kind {kind[:32]!r}")
    except ValidationError as exc:
        first = exc.errors(include_url=False, include_input=False)[0]
        raise DecodeError(f"record value: {first['loc']}: {first['msg']}") from exc


def _check_key(key: bytes, publisher: bytes, value: Value) -> None:
    if key != key_of(publisher, value):
        raise DecodeError("record key is not derived from its publisher and agent")


def record_key(publisher: bytes, kind: Kind, agent: str = "") -> bytes:
    """One slot per (publisher, agent): nobody can fill the key space with records of one agent."""
    return digest("record-key", publisher, kind.encode(), b"\0", agent.encode())[:KEY_BYTES]


def key_of(publisher: bytes, value: Value) -> bytes:
    """The slot of a value."""
    if isinstance(value, AgentValue):
        return record_key(publisher, "agent", value.agent)
    return record_key(publisher, "peer")


def make_record(keys: KeyPair, value: Value, *, seq: int, issued_ms: int, ttl_ms: int = RECORD_TTL_MS) -> bytes:
    """A signed record in wire form; `ttl_ms` 0 withdraws."""
    kind: Kind = "agent" if isinstance(value, AgentValue) else "peer"
    body = encode(
        (key_of(keys.public, value), kind, value.model_dump(), keys.public, seq, issued_ms, issued_ms + ttl_ms)
    )
    return encode((body, keys.sign("record", body)))
