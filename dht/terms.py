"""What a swarm asks of the records that its DHT holds, names and follows: its encoder, and who is admitted."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Self

from protocol.admission import Genesis, check_chain
from protocol.capability import AgentValue, SignedRecord
from protocol.errors import DecodeError
from protocol.identity import Verify

Window = tuple[int, int]  # swarm milliseconds, both ends included
Admission = Callable[[bytes, tuple[bytes, ...]], Window | None]


@dataclass(frozen=True, slots=True)
class Terms:
    """Handed to the machine once.

    Attributes:
        encoder: id of the swarm's encoder, and `dim`: how many components its vectors have.
        verify: (public key, message, signature) -> bool.
        admitted: whether a key is known to belong to the swarm, by what the other machines of the node have heard.
        admission: (key, certificate chain) -> when the chain admits the key; None if it never does. A function of its
            arguments, so that an answer may be remembered.
    """

    encoder: str
    dim: int
    verify: Verify
    admitted: Callable[[bytes], bool]
    admission: Admission

    @classmethod
    def of(cls, genesis: Genesis, verify: Verify, admitted: Callable[[bytes], bool]) -> Self:
        """The terms of the swarm that a genesis founded."""

        def admission(key: bytes, chain: tuple[bytes, ...]) -> Window | None:
            try:
                found = check_chain(genesis, chain, key)
            except DecodeError:
                return None
            return (found.nbf_ms, found.exp_ms)

        return cls(genesis.encoder.id, genesis.encoder.dim, verify, admitted, admission)

    def fits(self, record: SignedRecord) -> bool:
        """Whether the vector of a record, where there is one, is of the swarm's encoder: no other means anything."""
        value = record.value
        if not isinstance(value, AgentValue) or value.vector is None:
            return True
        return value.encoder == self.encoder and len(value.vector) == self.dim
