r"""The op: a signed, content-addressed entry of one author's chain in one space (replication.md §2.1).

    header = [v=1, kind, space:16, author:32, inst, seq, prev:32|nil, deps:[32] sorted ≤16, hlc,
              body_len, body_hash, ext]
    id     = SHA256("masos/op/1\0" ‖ header bytes)      sig = Ed25519(id)      wire = [header bytes, sig, body|nil]

The received header bytes are hashed, stored and forwarded as they are; nothing is ever encoded again. The id
covers `body_hash`, so a body can go (redaction) without breaking a chain. `ext[0]` holds votes; what follows
it is unknown here, kept and hashed.

`decode_op` checks shape only. Signature, chain and certificates are the log's business (gossip/space_log.py).
"""

from __future__ import annotations

import hashlib
import itertools
from dataclasses import dataclass
from enum import IntEnum
from typing import Final

from protocol.clock import HLC_MAX
from protocol.codec import Value, decode, encode
from protocol.errors import DecodeError, UsageError
from protocol.identity import SIGNATURE_BYTES, KeyPair, Verify, digest

ID_BYTES: Final = 32
SPACE_BYTES: Final = 16
DEPS_MAX: Final = 16
VOTES_MAX: Final = 8
BODY_BYTES_MAX: Final = 64 * 1024
HEADER_BYTES_MAX: Final = 4 * 1024
OP_BYTES_MAX: Final = BODY_BYTES_MAX + HEADER_BYTES_MAX + 128
_U32: Final = 2**32 - 1
_U63: Final = 2**63 - 1


class OpKind(IntEnum):
    """Append only: the position in the list of protocol.md §5, from 1."""

    JOIN = 1
    DENY = 2
    OPEN = 3
    UNIT = 4
    EDGE = 5
    SUMMARY = 6
    CLAIM = 7
    RENEW = 8
    RELEASE = 9
    DONE = 10
    SEEN = 11
    SPEND = 12
    GRANT = 13
    REDACT = 14
    CANCEL = 15
    SETTLE = 16
    CHECKPOINT = 17
    REHOLD = 18
    RATING = 19
    SEAL_VOTE = 20
    WORK = 21
    NEED = 22
    NOTE = 23
    NORM = 24
    APPROVAL = 25
    SUBTASK = 26
    INTENT = 27


KNOWN: Final = frozenset(int(kind) for kind in OpKind)
RESERVED: Final = frozenset(range(OpKind.WORK, OpKind.INTENT + 1))  # named now, built later


@dataclass(frozen=True, slots=True)
class Op:
    """One op, with the exact bytes it came in. `body` is None once redacted."""

    id: bytes
    header: bytes
    sig: bytes
    body: bytes | None
    kind: int
    space: bytes
    author: bytes
    inst: int
    seq: int
    prev: bytes | None
    deps: tuple[bytes, ...]
    hlc: int
    body_hash: bytes
    votes: tuple[bytes, ...]

    @property
    def refs(self) -> tuple[bytes, ...]:
        """Everything the op stands on: deps, then prev."""
        return self.deps if self.prev is None else (*self.deps, self.prev)

    def wire(self) -> bytes:
        """The form in which ops travel."""
        return encode((self.header, self.sig, self.body))

    def signed_by_author(self, verify: Verify) -> bool:
        """True iff the signature is the author's over the id."""
        return verify(self.author, self.id, self.sig)

    def __repr__(self) -> str:
        name = OpKind(self.kind).name if self.kind in KNOWN else self.kind
        return f"Op({name} {self.id.hex()[:8]} by {self.author.hex()[:6]} seq {self.seq})"


@dataclass(frozen=True, slots=True)
class Position:
    """Where a new op goes: its space, its place in the author's chain, what it stands on, its stamp."""

    space: bytes
    inst: int
    seq: int
    prev: bytes | None
    deps: tuple[bytes, ...]
    hlc: int


def make_op(keys: KeyPair, kind: int, at: Position, body: bytes, votes: tuple[bytes, ...] = ()) -> Op:
    """Sign a new op.

    Raises:
        UsageError: a reserved or unknown kind, or a bound of the header is exceeded.
    """
    if kind not in KNOWN or kind in RESERVED:
        raise UsageError(f"op kind {kind} is reserved", hint="a later version of masos writes it")
    if len(body) > BODY_BYTES_MAX:
        raise UsageError(f"body of {len(body)} bytes is over {BODY_BYTES_MAX}", hint="store it as a blob")
    deps = tuple(sorted(set(at.deps) - {at.prev}))
    header = encode(
        (
            *(1, kind, at.space, keys.public, at.inst, at.seq, at.prev, deps, at.hlc),
            *(len(body), hashlib.sha256(body).digest(), (votes,) if votes else ()),
        )
    )
    op_id = digest("op", header)
    try:
        return decode_op(header, keys.sign_raw(op_id), body)
    except DecodeError as exc:
        raise UsageError(f"op is not well-formed: {exc.message}") from exc


def decode_wire_op(data: bytes) -> Op:
    """The op behind its wire bytes, shape-checked.

    Raises:
        DecodeError: not a well-formed op.
    """
    value = decode(data, bytes_max=OP_BYTES_MAX)
    match value:
        case (bytes(header), bytes(sig), (bytes() | None) as body):
            return decode_op(header, sig, body)
        case _:
            raise DecodeError("an op is [header, signature, body]")


def decode_op(header: bytes, sig: bytes, body: bytes | None) -> Op:
    """The op behind stored bytes, shape-checked.

    Raises:
        DecodeError: not a well-formed op.
    """
    value = decode(header, bytes_max=HEADER_BYTES_MAX)
    if not isinstance(value, tuple) or len(value) != 12 or value[0] != 1 or value[0] is True:
        raise DecodeError("op header is not twelve fields of version 1")
    _, kind, space, author, inst, seq, prev, deps, hlc, body_len, body_hash, ext = value
    op = Op(
        id=digest("op", header),
        header=header,
        sig=_sized(sig, SIGNATURE_BYTES, "signature"),
        body=body,
        kind=_uint(kind, 255, "kind"),
        space=_sized(space, SPACE_BYTES, "space"),
        author=_sized(author, ID_BYTES, "author"),
        inst=_uint(inst, _U32, "inst"),
        seq=_uint(seq, _U63, "seq"),
        prev=None if prev is None else _sized(prev, ID_BYTES, "prev"),
        deps=_ids(deps, DEPS_MAX, "deps"),
        hlc=_uint(hlc, HLC_MAX, "hlc"),
        body_hash=_sized(body_hash, ID_BYTES, "body hash"),
        votes=_votes(ext),
    )
    _check_shape(op, _uint(body_len, BODY_BYTES_MAX, "body length"))
    return op


def _check_shape(op: Op, body_len: int) -> None:
    if (op.prev is None) != (op.seq == 0):
        raise DecodeError("seq 0 and no prev go together")
    if any(a >= b for a, b in itertools.pairwise(op.deps)) or op.prev in op.deps:
        raise DecodeError("deps are not sorted, unique and apart from prev")
    if op.body is not None and (len(op.body) != body_len or hashlib.sha256(op.body).digest() != op.body_hash):
        raise DecodeError("body does not match its hash and length")


def _votes(ext: Value) -> tuple[bytes, ...]:
    if not isinstance(ext, tuple):
        raise DecodeError("ext is not an array")
    return _ids(ext[0], VOTES_MAX, "votes") if ext else ()


def _ids(value: Value, count_max: int, name: str) -> tuple[bytes, ...]:
    if not isinstance(value, tuple) or len(value) > count_max:
        raise DecodeError(f"{name} is not an array of at most {count_max}")
    return tuple(_sized(item, ID_BYTES, name) for item in value)


def _sized(value: Value, size: int, name: str) -> bytes:
    if not isinstance(value, bytes) or len(value) != size:
        raise DecodeError(f"{name} is not {size} bytes")
    return value


def _uint(value: Value, top: int, name: str) -> int:
    if not isinstance(value, int) or isinstance(value, bool) or not 0 <= value <= top:
        raise DecodeError(f"{name} is not an integer in 0..{top}")
    return value
