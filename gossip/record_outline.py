"""What a record says before anybody checked its signature: enough to see that the check would be in vain.

A signature check and the reading of the value cost ten times what this costs, and a peer can push records that expired,
that are known, or that are of another encoder for ever. Nothing is believed from an outline: it only lets a record be
passed over, never taken, and nobody is blamed for it but for what is wrong whoever signed it.
"""

from __future__ import annotations

from dataclasses import dataclass

from protocol.capability import FUTURE_MS_MAX, RECORD_TTL_MS
from protocol.codec import decode
from protocol.errors import DecodeError
from protocol.messages import RECORD_BYTES_MAX


@dataclass(frozen=True, slots=True)
class Outline:
    """The fields of a record, unverified."""

    key: bytes
    kind: str
    publisher: bytes
    seq: int
    issued_ms: int
    expiry_ms: int
    vector: bytes | None  # of an agent record
    encoder: str

    @property
    def withdrawal(self) -> bool:
        """As `SignedRecord.withdrawal`."""
        return self.expiry_ms == self.issued_ms

    @property
    def end_ms(self) -> int:
        """When it would leave the table."""
        return self.issued_ms + RECORD_TTL_MS if self.withdrawal else self.expiry_ms

    @property
    def too_long(self) -> bool:
        """It claims to live longer than any record may."""
        return self.expiry_ms > self.issued_ms + RECORD_TTL_MS

    def timely(self, now_ms: int) -> bool:
        """Whether its times are possible now; as `SignedRecord.acceptable`."""
        return self.issued_ms <= now_ms + FUTURE_MS_MAX and now_ms < self.end_ms


def outline(wire: bytes) -> Outline:
    """Read the fields that need no signature.

    Raises:
        DecodeError: this cannot be a record.
    """
    match decode(wire, bytes_max=RECORD_BYTES_MAX):
        case (bytes(body), bytes()):
            fields = decode(body, bytes_max=RECORD_BYTES_MAX)
        case _:
            raise DecodeError("a record is [body, signature]")
    match fields:
        case (bytes(key), str(kind), dict(value), bytes(publisher), int(seq), int(issued_ms), int(expiry_ms)):
            vector, encoder = value.get("vector"), value.get("encoder", "")
            return Outline(
                key, kind, publisher, seq, issued_ms, expiry_ms,
                vector if kind == "agent" and isinstance(vector, bytes) else None,
                encoder if isinstance(encoder, str) else "",
            )  # fmt: skip
        case _:
            raise DecodeError("record fields do not fit")
