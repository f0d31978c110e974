"""Certificates: who certified which node key, for what, until when, and how much it may write (protocol.md §3, §5).

A certificate may state a **quota**: the most that its subject, and everybody whom the subject certifies, may write in
any space. The tightest of a chain holds, so nobody passes on more than he was given. Which chains admit anybody is
`protocol.admission`'s to say.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Final, Self

from pydantic import ValidationError

from protocol.codec import Value, decode, encode
from protocol.errors import DecodeError
from protocol.identity import KeyPair, verify
from protocol.records import Quota

DAY_MS: Final = 86_400_000
CERT_LIFE_MS_MAX: Final = 90 * DAY_MS
INVITE_LIFE_MS_MAX: Final = 7 * DAY_MS
CERT_BYTES_MAX: Final = 1024
MEMBER: Final = "member"
ADMIT: Final = "admit"
INVITE: Final = "invite"
OPEN_QUOTA: Final = Quota(ops_per_s=2, burst=256, bytes_max=8_000_000)
"""What the members of an open swarm may write, per author and space (protocol.md §5; the bytes are a choice)."""


@dataclass(frozen=True, slots=True)
class Certificate:
    """`subject` may act in the swarm with these roles from `nbf_ms` to `exp_ms`; `uses` bounds an invite.

    `quota` bounds what the subject writes; without one the certificate has the shorter form on the wire.
    """

    swarm_id: bytes
    subject: bytes
    roles: tuple[str, ...]
    uses: int | None
    nbf_ms: int
    exp_ms: int
    issuer: bytes
    sig: bytes
    quota: Quota | None = None

    @classmethod
    def from_wire(cls, data: bytes) -> Self:
        """Shape-checked, signature verified.

        Raises:
            DecodeError: anything else.
        """
        cert = cls.unverified(data)
        if not verify(cert.issuer, "cert", cert.signed_part(), cert.sig):
            raise DecodeError("certificate is not signed by its issuer")
        return cert

    @classmethod
    def unverified(cls, data: bytes) -> Self:
        """Shape-checked only: for bytes that were verified before.

        Raises:
            DecodeError: not in the form of a certificate.
        """
        match decode(data, bytes_max=CERT_BYTES_MAX):
            case (
                bytes(swarm), bytes(subject), tuple(roles), (int() | None) as uses,
                *terms, int(nbf), int(exp), bytes(issuer), bytes(sig),
            ) if all(isinstance(role, str) for role in roles) and len(roles) <= 8:  # fmt: skip
                names = tuple(str(role) for role in roles)
                return cls(swarm, subject, names, uses, nbf, exp, issuer, sig, _quota_of(terms))
            case _:
                raise DecodeError("not a certificate")

    def signed_part(self) -> bytes:
        """What the issuer signs, under the purpose `cert`."""
        return encode(self._fields())

    def wire(self) -> bytes:
        """Fields and signature."""
        return encode((*self._fields(), self.sig))

    def _fields(self) -> tuple[Value, ...]:
        quota = self.quota
        terms = () if quota is None else ((quota.ops_per_s, quota.burst, quota.bytes_max),)
        window = (self.nbf_ms, self.exp_ms)
        return (self.swarm_id, self.subject, self.roles, self.uses, *terms, *window, self.issuer)


def _quota_of(terms: list[Value]) -> Quota | None:
    match terms:
        case []:
            return None
        case [(int(ops_per_s), int(burst), int(bytes_max))]:
            try:
                return Quota(ops_per_s=ops_per_s, burst=burst, bytes_max=bytes_max)
            except ValidationError as exc:
                raise DecodeError("a certificate with an impossible quota") from exc
        case _:
            raise DecodeError("not a certificate")


def issue(  # noqa: PLR0913 - one parameter per field of a certificate
    issuer: KeyPair,
    swarm_id: bytes,
    subject: bytes,
    roles: tuple[str, ...],
    window_ms: tuple[int, int],
    *,
    uses: int | None = None,
    quota: Quota | None = None,
) -> bytes:
    """A signed certificate in wire form."""
    draft = Certificate(swarm_id, subject, roles, uses, *window_ms, issuer.public, b"", quota)
    return replace(draft, sig=issuer.sign("cert", draft.signed_part())).wire()


def granted_quota(chain: tuple[bytes, ...]) -> Quota | None:
    """The tightest quota that a chain states, field by field; None if it states none.

    It reads and does not verify, so ask it only about a chain that `check_chain` took.
    """
    granted: Quota | None = None
    for link in chain:
        try:
            stated = Certificate.unverified(link).quota
        except DecodeError:
            continue  # what is no certificate states nothing
        if stated is not None:
            granted = tighter(stated, granted)
    return granted


def tighter(quota: Quota, other: Quota | None) -> Quota:
    """The smaller of two quotas, field by field; None bounds nothing."""
    if other is None:
        return quota
    return Quota(
        ops_per_s=min(quota.ops_per_s, other.ops_per_s),
        burst=min(quota.burst, other.burst),
        bytes_max=min(quota.bytes_max, other.bytes_max),
    )
