"""The bodies of ops: one strict model per kind, canonical maps on the wire (protocol.md §5 and §6).

A body that is no canonical map makes its op malformed. A map that does not fit its kind's model, and any body
of a reserved or unknown kind, is stored and forwarded, and has no effect (`parse_body` gives None): what a
later version adds must pass through nodes of today. Unknown fields are ignored for the same reason.

`open cancel settle redact deny rehold` may be signed inside the body by a user or an admin (`by`, `sig`), so
that any node may relay them: the signature covers space, kind and every other field of the body.
"""

from __future__ import annotations

from typing import Annotated, Final, Literal, TypeVar, cast

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from protocol.codec import Value, decode, encode
from protocol.contract import ZERO, Limits, Vector
from protocol.errors import DecodeError
from protocol.identity import KeyPair, prefixed
from protocol.op import BODY_BYTES_MAX, ID_BYTES, OpKind

PARTICIPANTS_MAX: Final = 5
HOLDERS_MAX: Final = 64
TEXT_CHARS_MAX: Final = 48_000  # a body is at most 64 KiB
NAME_CHARS_MAX: Final = 128
FUTURE_MS_MAX: Final = 2**47

Id = Annotated[bytes, Field(min_length=ID_BYTES, max_length=ID_BYTES)]
SpaceId = Annotated[bytes, Field(min_length=16, max_length=16)]
Sig = Annotated[bytes, Field(min_length=64, max_length=64)]
Name = Annotated[str, Field(max_length=NAME_CHARS_MAX)]
Text = Annotated[str, Field(max_length=TEXT_CHARS_MAX)]
Uint = Annotated[int, Field(ge=0, le=2**63 - 1)]
Millis = Annotated[int, Field(ge=0, le=FUTURE_MS_MAX)]
Ids = Annotated[tuple[Id, ...], Field(max_length=256)]

Outcome = Literal[
    "next",
    "answer",
    "no_capable_agent",
    "budget_exhausted",
    "policy_denied",
    "deadline",
    "loop",
    "failed",
    "held",
]
ENDS: Final = frozenset(
    (
        "answer",
        "no_capable_agent",
        "budget_exhausted",
        "policy_denied",
        "deadline",
        "loop",
        "failed",
        "held",
    )
)


class _Body(BaseModel):
    """Frozen, strict about types, lenient about fields it does not know."""

    model_config = ConfigDict(strict=True, extra="ignore", frozen=True)


class Join(_Body):
    """First op of every author in a space; a renewed certificate is a further one."""

    cert: Annotated[tuple[bytes, ...], Field(min_length=1, max_length=2)]


class Deny(_Body):
    """An admin takes away what the author did above `keep`; the smallest `keep` holds."""

    author: Id
    keep: Uint
    by: Id
    sig: Sig


class Next(_Body):
    """The successor that a finished turn names: rank 0 of the next step."""

    role: Name
    agent: Name
    peer: Id | None = None
    model: Name = ""
    units: Ids = ()
    slice: Vector = ZERO
    why: Annotated[str, Field(max_length=1000)] = ""
    rejected: Annotated[tuple[Annotated[str, Field(max_length=200)], ...], Field(max_length=16)] = ()


class Quota(_Body):
    """Token bucket on an author's own chain, by HLC, and its bytes in one space."""

    ops_per_s: Annotated[int, Field(ge=1, le=10_000)] = 50
    burst: Annotated[int, Field(ge=1, le=100_000)] = 2_000
    bytes_max: Annotated[int, Field(ge=1, le=2**40)] = 50_000_000


class Open(_Body):
    """A task as its user signed it; every field is fixed for the life of the task."""

    client_key: Annotated[str, Field(min_length=1, max_length=NAME_CHARS_MAX)]
    by: Id  # the user
    objective: Annotated[str, Field(min_length=1, max_length=TEXT_CHARS_MAX)]
    attachments: Annotated[tuple[Id, ...], Field(max_length=128)] = ()
    contract: Limits = (None, None, None, None)
    deadline_ms: Millis
    lease_ms: Annotated[int, Field(ge=100, le=3_600_000)] = 30_000
    eps_ms: Annotated[int, Field(ge=0, le=600_000)] = 5_000
    renew_max: Annotated[int, Field(ge=0, le=10_000)] = 40
    max_steps: Annotated[int, Field(ge=1, le=1_000)] = 12
    slice_max: Vector
    f: Annotated[int, Field(ge=0, le=2)] = 0
    participants: Annotated[tuple[Id, ...], Field(min_length=1, max_length=PARTICIPANTS_MAX)]
    holders: Annotated[tuple[Id, ...], Field(min_length=1, max_length=HOLDERS_MAX)]
    ack: Literal["local", "w1", "majority"] = "w1"
    visibility: Literal["swarm", "participants", "local"] = "swarm"
    train: Literal["deny", "allow"] = "deny"
    policies: Annotated[dict[str, Name], Field(max_length=16)] = Field(default_factory=dict)
    quota: Quota = Quota()
    derive_ver: Uint = 1
    encoder: Name = ""
    next: Next
    sig: Sig


class Unit(_Body):
    """A memory unit: what an agent (or the user's document) put into the pool; immutable."""

    claim: Id | None = None
    agent: Name
    role: Name
    action: Name = ""
    content: Text | None = None
    blob: Id | None = None
    summary: Annotated[str, Field(max_length=2_000)] = ""
    tokens: Uint = 0
    emb: Annotated[bytes, Field(max_length=4096)] | None = None
    encoder: Name | None = None
    verdict: Annotated[str, Field(max_length=1_000)] | None = None
    model: Name = ""
    quality: Name = ""  # tier of the engine that wrote it, shown wherever its content is
    context: Annotated[tuple[tuple[Id, Uint], ...], Field(max_length=64)] = ()  # receipt: (unit, tokens) given


class Edge(_Body):
    """A relation that an agent asserts between two units."""

    relation: Literal["refutes", "duplicates", "depends_on"]
    source: Id
    target: Id


class Summary(_Body):
    """A global summary, keyed by the causal frontier that it covers (replication.md §3.3)."""

    frontier: Annotated[tuple[Id, ...], Field(min_length=1, max_length=16)]
    covers_count: Uint
    level: Uint = 0
    text: Annotated[str, Field(max_length=8_000)]
    model: Name = ""
    merges: Annotated[tuple[Id, ...], Field(max_length=8)] = ()


class Claim(_Body):
    """An author takes the turn that continues `parent`, as epoch `e` (protocol.md §7.1)."""

    parent: Id
    e: Annotated[int, Field(ge=0, le=2**31)]
    after: Id | None = None
    ended: Id | None = None
    slice: Vector = ZERO


class Renew(_Body):
    """The owner moves the end of its lease to this op's stamp + lease_ms."""

    claim: Id


class Release(_Body):
    """The owner gives a turn back (`claim`), or the named peer declines an offer (`done`)."""

    claim: Id | None = None
    done: Id | None = None
    reason: Annotated[str, Field(max_length=500)] = ""


class Done(_Body):
    """A turn is complete; with outcome `next` it names its successor, else it ends the task."""

    claim: Id
    unit: Id | None = None
    next: Next | None = None
    outcome: Outcome
    used: Vector = ZERO
    reason: Annotated[str, Field(max_length=500)] = ""


class Seen(_Body):
    """Carries votes, for who has nothing else to say."""


class Spend(_Body):
    """A usage receipt; not counted by the budget rule."""

    claim: Id
    used: Vector


class Grant(_Body):
    """A slice for a delegated sub-task."""

    subtask: SpaceId
    slice: Vector


class Redact(_Body):
    """Drops the body of `target`; by its author, or signed by the user or an admin."""

    target: Id
    by: Id | None = None
    sig: Sig | None = None


class Cancel(_Body):
    """The user stops the task."""

    reason: Annotated[str, Field(max_length=500)] = ""
    by: Id
    sig: Sig


class Settle(_Body):
    """The user accepts a conclusion."""

    done: Id
    by: Id
    sig: Sig


class Checkpoint(_Body):
    """A state that a quorum of holders signed equally (protocol.md §9)."""

    frontier: Annotated[tuple[Id, ...], Field(max_length=16)]
    state_root: Id
    op_count: Uint
    heads_root: Id
    derive_ver: Uint


class Rehold(_Body):
    """New holders, signed by a quorum of the old ones."""

    epoch: Uint
    holders: Annotated[tuple[Id, ...], Field(min_length=1, max_length=HOLDERS_MAX)]
    pledges: Annotated[tuple[bytes, ...], Field(max_length=HOLDERS_MAX)]


class Rating(_Body):
    """The user's verdict on a result, 0 to 100."""

    done: Id
    score: Annotated[int, Field(ge=0, le=100)]


class SealVote(_Body):
    """A holder's one vote for a done that is final on its whole chain."""

    done: Id


Record = (
    Join | Deny | Open | Unit | Edge | Summary | Claim | Renew | Release | Done | Seen | Spend | Grant | Redact
    | Cancel | Settle | Checkpoint | Rehold | Rating | SealVote
)  # fmt: skip
R = TypeVar("R", Open, Cancel, Settle, Deny, Redact)

KIND_OF: Final[dict[type[_Body], OpKind]] = {
    Join: OpKind.JOIN, Deny: OpKind.DENY, Open: OpKind.OPEN, Unit: OpKind.UNIT, Edge: OpKind.EDGE,
    Summary: OpKind.SUMMARY, Claim: OpKind.CLAIM, Renew: OpKind.RENEW, Release: OpKind.RELEASE, Done: OpKind.DONE,
    Seen: OpKind.SEEN, Spend: OpKind.SPEND, Grant: OpKind.GRANT, Redact: OpKind.REDACT, Cancel: OpKind.CANCEL,
    Settle: OpKind.SETTLE, Checkpoint: OpKind.CHECKPOINT, Rehold: OpKind.REHOLD, Rating: OpKind.RATING,
    SealVote: OpKind.SEAL_VOTE,
}  # fmt: skip
_MODEL_OF: Final[dict[int, type[_Body]]] = {int(kind): cls for cls, kind in KIND_OF.items()}
SIGNED_BODIES: Final = frozenset((OpKind.OPEN, OpKind.CANCEL, OpKind.SETTLE, OpKind.DENY, OpKind.REDACT, OpKind.REHOLD))
_NAMED_FIELDS: Final = ("parent", "after", "ended", "claim", "unit", "done")


def body_bytes(record: Record) -> bytes:
    """The canonical map of a body."""
    return encode(record.model_dump())


def body_map(body: bytes) -> dict[str, Value]:
    """The map behind a body.

    Raises:
        DecodeError: not a canonical map.
    """
    value = decode(body, bytes_max=BODY_BYTES_MAX)
    if not isinstance(value, dict):
        raise DecodeError("an op body is a map")
    return value


def parse_body(kind: int, body: bytes) -> Record | None:
    """The record of a body; None when the kind has no model here or the map does not fit it.

    Raises:
        DecodeError: not a canonical map.
    """
    value = body_map(body)
    model = _MODEL_OF.get(kind)
    if model is None:
        return None
    try:
        return cast("Record", model.model_validate(value))
    except ValidationError:
        return None


def named_ids(value: dict[str, Value]) -> list[bytes]:
    """The op ids that must stand in deps or prev (protocol.md §5, Edges).

    `parent` may be the hash of an `open` body instead, which nothing but the past can tell: it is left to the
    validity of the claim, which demands the open in its past or the done among its refs.
    """
    found = [value.get(name) for name in _NAMED_FIELDS if name != "parent"]
    return [item for item in found if isinstance(item, bytes) and len(item) == ID_BYTES]


def signed_part(space: bytes, kind: int, body: dict[str, Value]) -> bytes:
    """What a signature inside a body covers."""
    rest = {key: item for key, item in body.items() if key != "sig"}
    return prefixed("body", encode((space, kind, rest)))


def sign_body(keys: KeyPair, space: bytes, record: R) -> R:
    """The record with `by` and `sig` of a user or an admin."""
    draft = record.model_copy(update={"by": keys.public, "sig": bytes(64)})
    body = body_map(body_bytes(draft))
    sig = keys.sign_raw(signed_part(space, KIND_OF[type(record)], body))
    return draft.model_copy(update={"sig": sig})
