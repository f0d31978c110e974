"""What members say of themselves and of each other, signed: `[body, sig]` in canonical msgpack.

    body = [kind, subject, inc, by, at_ms, hold_s]       sig: of `by` over the body, under the purpose `member`

`alive` and `left` are said by the subject alone, `suspect` and `dead` by anybody else. An incarnation is
life · 2^20 + n: the life number grows at each start of a node, n each time it refutes, so a later life outranks an
earlier one and only the owner raises it. `at_ms` is swarm time; among statements of one owner about one incarnation
the later counts.

`hold_s` goes with `alive` and is 0 in the others: how long this word stands for its owner, who knows when it will speak
next. The larger the swarm the rarer all speak, and two nodes may count it differently; so no listener has to guess.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Literal, cast

from protocol.codec import decode, encode
from protocol.errors import DecodeError
from protocol.identity import SIGNATURE_BYTES, KeyPair, Verify, prefixed
from protocol.messages import message_id
from protocol.peer import PEER_ID_BYTES, PeerID

TOPIC: Final = "members"
PURPOSE: Final = "member"
STATEMENT_BYTES_MAX: Final = 256
REFUTES_PER_LIFE: Final = 1 << 20
_INC_MAX: Final = (1 << 32) * REFUTES_PER_LIFE - 1  # a life number has 32 bits (Hello)
_AT_MS_MAX: Final = 2**47  # as every time on the wire
HOLD_S_MAX: Final = 86_400
TABLE: Final = message_id(TOPIC, b"")
"""No statement has this id: who asks for it wants the words of all who are alive (gossip/membership/tables.py)."""

Kind = Literal["alive", "suspect", "dead", "left"]
OWN_KINDS: Final = ("alive", "left")
_KINDS: Final = ("alive", "suspect", "dead", "left")


@dataclass(frozen=True, slots=True)
class Statement:
    """One decoded statement. `body` and `sig` are as they came; `genuine` says whether they belong together."""

    kind: Kind
    subject: PeerID
    inc: int
    by: PeerID
    at_ms: int
    hold_s: int
    body: bytes
    sig: bytes

    def genuine(self, verify: Verify) -> bool:
        """True iff `by` signed exactly this."""
        return verify(self.by, prefixed(PURPOSE, self.body), self.sig)

    @property
    def wire(self) -> bytes:
        """As it came."""
        return encode((self.body, self.sig))

    @property
    def accuses(self) -> bool:
        """Said about another node."""
        return self.kind not in OWN_KINDS


def first_inc(life: int) -> int:
    """The incarnation with which a life begins."""
    return life * REFUTES_PER_LIFE


def life_of(inc: int) -> int:
    """The life to which an incarnation belongs."""
    return inc // REFUTES_PER_LIFE


def make_statement(keys: KeyPair, kind: Kind, subject: bytes, inc: int, at_ms: int, hold_s: int = 0) -> bytes:
    """The wire form of a statement of this node."""
    body = encode((kind, subject, inc, keys.public, at_ms, hold_s))
    return encode((body, keys.sign(PURPOSE, body)))


def read_statement(wire: bytes) -> Statement:
    """The statement behind bytes; its signature is not checked yet.

    Raises:
        DecodeError: no statement, or one that this signer cannot make.
    """
    outer = decode(wire, bytes_max=STATEMENT_BYTES_MAX)
    match outer:
        case (bytes() as body, bytes() as sig) if len(sig) == SIGNATURE_BYTES:
            pass
        case _:
            raise DecodeError("a membership statement is a body and a signature")
    match decode(body, bytes_max=STATEMENT_BYTES_MAX):
        case (str() as kind, bytes() as subject, int() as inc, bytes() as by, int() as at_ms, int() as hold_s):
            pass
        case _:
            raise DecodeError("a membership statement has a kind, subject, incarnation, signer, time and hold")
    if kind not in _KINDS or len(subject) != PEER_ID_BYTES or len(by) != PEER_ID_BYTES:
        raise DecodeError("unknown kind of statement, or a peer id that is none")
    if any(isinstance(each, bool) for each in (inc, at_ms, hold_s)):
        raise DecodeError("a number of a membership statement is none")
    if not (0 <= inc <= _INC_MAX and 0 <= at_ms <= _AT_MS_MAX):
        raise DecodeError("incarnation or time out of range")
    if not 0 <= hold_s <= (HOLD_S_MAX if kind == "alive" else 0):
        raise DecodeError(f"`{kind}` cannot hold for {hold_s} s")
    if (kind in OWN_KINDS) != (subject == by):
        raise DecodeError(f"`{kind}` said by the wrong node")
    return Statement(cast("Kind", kind), PeerID(subject), inc, PeerID(by), at_ms, hold_s, body, sig)
