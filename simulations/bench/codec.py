"""`bench codec`: decoding and verifying one op, beside the bare Ed25519 verification that it cannot do without."""

from __future__ import annotations

from collections.abc import Iterator

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey

from protocol.identity import KeyPair, verify_raw
from protocol.op import OpKind, Position, decode_wire_op, make_op
from protocol.records import Unit, body_bytes, parse_body
from simulations.bench.figure import Beside, Line, cpu_s, held
from simulations.bench.options import Options

OPS = 1_000
TARGET = 0.8


def run(_options: Options) -> Iterator[Line]:
    """One figure: ops per CPU second."""
    keys = KeyPair(bytes(range(32)))
    body = body_bytes(Unit(agent="reasoning", role="reasoning", content="x" * 400, summary="y" * 120, emb=bytes(512)))
    deps = tuple(bytes([n]) * 32 for n in range(3))
    ops = [make_op(keys, OpKind.UNIT, Position(bytes(16), 1, n + 1, b"p" * 32, deps, n + 1), body) for n in range(OPS)]
    wires = [op.wire() for op in ops]
    public = Ed25519PublicKey.from_public_bytes(keys.public)

    def bare() -> None:
        for op in ops:
            public.verify(op.sig, op.id)

    def ours() -> None:
        for wire in wires:
            op = decode_wire_op(wire)
            assert op.signed_by_author(verify_raw)
            assert op.body is not None
            assert parse_body(op.kind, op.body) is not None

    baseline, value = OPS / cpu_s(bare), OPS / cpu_s(ours)
    yield held(
        "codec", "decode, verify and parse one unit op", (value, "ops/s"),
        Beside(baseline, "Ed25519 verify alone (cryptography)"), f">= {TARGET}", ok=value / baseline >= TARGET,
    )  # fmt: skip
