"""Hypothesis strategies for everything that crosses a wire, and helpers to damage it."""

from __future__ import annotations

import hashlib
import json
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from hypothesis import strategies as st

from protocol import messages as m, records as r
from protocol.contract import INT63_MAX
from protocol.identity import KeyPair

CASES = Path(__file__).resolve().parents[2] / "shared" / "cases" / "files"


def case_lines(name: str) -> list[dict[str, Any]]:
    """The JSON lines of a case file; the test is skipped where the cases are not at hand."""
    path = CASES / name
    if not path.exists():
        pytest.skip(f"needs the case file {name} beside the checkout")
    return [json.loads(line) for line in path.read_text().splitlines() if line.strip()]


@cache
def keypair(name: str) -> KeyPair:
    """A key that has the same bytes in every run."""
    return KeyPair(hashlib.sha256(f"key of {name}".encode()).digest())


def sized(size: int) -> st.SearchStrategy[bytes]:
    """Bytes of one length."""
    return st.binary(min_size=size, max_size=size)


def texts(chars_max: int = 20) -> st.SearchStrategy[str]:
    """Text that UTF-8 can carry."""
    return st.text(st.characters(exclude_categories=["Cs"]), max_size=chars_max)


def tuples_of(item: st.SearchStrategy[Any], least: int = 0, most: int = 3) -> st.SearchStrategy[tuple[Any, ...]]:
    return st.lists(item, min_size=least, max_size=most).map(tuple)


ids = sized(32)
spaces = sized(16)
uints = st.integers(0, INT63_MAX)
small = st.integers(0, 2**32 - 1)
millis = st.integers(0, 2**47)
names = texts(12)
vectors = st.tuples(uints, uints, uints, uints)
maybe_ids = st.none() | ids

scalars = st.none() | st.booleans() | st.integers(-(2**63), 2**64 - 1) | texts() | st.binary(max_size=40)
values: st.SearchStrategy[Any] = st.recursive(
    scalars,
    lambda inner: st.lists(inner, max_size=5).map(tuple) | st.dictionaries(texts(8), inner, max_size=5),
    max_leaves=12,
)


@st.composite
def damaged(draw: st.DrawFn, data: bytes) -> bytes:
    """The bytes after one to three changes: a flip, a cut, an insertion, a removal, or more at the end."""
    out = bytearray(data)
    for _ in range(draw(st.integers(1, 3))):
        at = draw(st.integers(0, max(0, len(out) - 1)))
        match draw(st.sampled_from(("flip", "cut", "insert", "remove", "append"))):
            case "flip" if out:
                out[at] ^= draw(st.integers(1, 255))
            case "cut":
                del out[at:]
            case "remove" if out:
                del out[at]
            case "insert":
                out[at:at] = draw(st.binary(min_size=1, max_size=3))
            case _:
                out += draw(st.binary(min_size=1, max_size=3))
    return bytes(out)


# ---- bodies of ops

nexts = st.builds(
    r.Next, role=names, agent=names, peer=maybe_ids, model=names, units=tuples_of(ids), slice=vectors,
    why=texts(), rejected=tuples_of(texts()),
)  # fmt: skip
limits = st.tuples(*[st.none() | uints] * 4)
opens = st.builds(
    r.Open, client_key=texts().filter(bool), by=ids, objective=texts().filter(bool), attachments=tuples_of(ids),
    contract=limits, deadline_ms=millis, lease_ms=st.integers(100, 3_600_000), eps_ms=st.integers(0, 600_000),
    renew_max=st.integers(0, 10_000), max_steps=st.integers(1, 1_000), slice_max=vectors, f=st.integers(0, 2),
    participants=tuples_of(ids, 1), holders=tuples_of(ids, 1), ack=st.sampled_from(("local", "w1", "majority")),
    visibility=st.sampled_from(("swarm", "participants", "local")), train=st.sampled_from(("deny", "allow")),
    policies=st.dictionaries(names, names, max_size=3), derive_ver=uints, encoder=names, next=nexts, sig=sized(64),
    quota=st.builds(r.Quota, ops_per_s=st.integers(1, 10_000), burst=st.integers(1, 100_000)),
)  # fmt: skip
units = st.builds(
    r.Unit, claim=maybe_ids, agent=names, role=names, action=names, content=st.none() | texts(), blob=maybe_ids,
    summary=texts(), tokens=uints, emb=st.none() | st.binary(max_size=16), encoder=st.none() | names,
    verdict=st.none() | texts(), context=tuples_of(st.tuples(ids, uints)),
)  # fmt: skip
signed_bodies: dict[type[Any], st.SearchStrategy[Any]] = {
    r.Open: opens,
    r.Cancel: st.builds(r.Cancel, reason=texts(), by=ids, sig=sized(64)),
    r.Settle: st.builds(r.Settle, done=ids, by=ids, sig=sized(64)),
    r.Deny: st.builds(r.Deny, author=ids, keep=uints, by=ids, sig=sized(64)),
    r.Redact: st.builds(r.Redact, target=ids, by=ids, sig=sized(64)),
}
BODIES: dict[type[Any], st.SearchStrategy[Any]] = {
    **signed_bodies,
    r.Join: st.builds(r.Join, cert=tuples_of(st.binary(max_size=40), 1, 2)),
    r.Unit: units,
    r.Edge: st.builds(
        r.Edge, relation=st.sampled_from(("refutes", "duplicates", "depends_on")), source=ids, target=ids
    ),
    r.Summary: st.builds(
        r.Summary, frontier=tuples_of(ids, 1), covers_count=uints, level=uints, text=texts(), model=names,
        merges=tuples_of(ids),
    ),
    r.Claim: st.builds(
        r.Claim, parent=ids, e=st.integers(0, 2**31), after=maybe_ids, ended=maybe_ids, slice=vectors
    ),
    r.Renew: st.builds(r.Renew, claim=ids),
    r.Release: st.builds(r.Release, claim=maybe_ids, done=maybe_ids, reason=texts()),
    r.Done: st.builds(
        r.Done, claim=ids, unit=maybe_ids, next=st.none() | nexts, outcome=st.sampled_from(("next", *sorted(r.ENDS))),
        used=vectors, reason=texts(),
    ),
    r.Seen: st.builds(r.Seen),
    r.Spend: st.builds(r.Spend, claim=ids, used=vectors),
    r.Grant: st.builds(r.Grant, subtask=spaces, slice=vectors),
    r.Checkpoint: st.builds(
        r.Checkpoint, frontier=tuples_of(ids), state_root=ids, op_count=uints, heads_root=ids, derive_ver=uints
    ),
    r.Rehold: st.builds(r.Rehold, epoch=uints, holders=tuples_of(ids, 1), pledges=tuples_of(st.binary(max_size=40))),
    r.Rating: st.builds(r.Rating, done=ids, score=st.integers(0, 100)),
    r.SealVote: st.builds(r.SealVote, done=ids),
}  # fmt: skip

# ---- frames

blobs = st.binary(max_size=40)
digests = sized(12)
dht_keys = sized(m.DHT_KEY_BYTES)
topics = st.text("abc/", min_size=1, max_size=9)
FRAMES: dict[type[Any], st.SearchStrategy[Any]] = {
    m.Hello: st.builds(
        m.Hello, small, small, ids, tuples_of(blobs, 0, 2), small, millis, tuples_of(small), tuples_of(texts()),
        tuples_of(texts()), tuples_of(texts()),
    ),
    m.Bye: st.builds(m.Bye, texts(), texts()),
    m.Ping: st.builds(m.Ping, small, millis),
    m.Pong: st.builds(m.Pong, small, millis),
    m.OpBatch: st.builds(m.OpBatch, tuples_of(blobs, 1)),
    m.Digests: st.builds(m.Digests, small, tuples_of(st.tuples(spaces, digests))),
    m.Heads: st.builds(m.Heads, small, spaces, st.booleans(), tuples_of(st.tuples(ids, uints, uints, digests))),
    m.GetLog: st.builds(m.GetLog, small, spaces, ids, uints, uints),
    m.GetOps: st.builds(m.GetOps, small, spaces, tuples_of(ids, 1)),
    m.GetIds: st.builds(m.GetIds, small, spaces, ids, uints),
    m.IdList: st.builds(m.IdList, small, spaces, ids, tuples_of(ids), st.none() | uints),
    m.Fetched: st.builds(
        m.Fetched, small, spaces, tuples_of(blobs), tuples_of(st.tuples(blobs, blobs)),
        tuples_of(st.tuples(ids, uints)), st.booleans(),
    ),
    m.Receipt: st.builds(m.Receipt, spaces, small, tuples_of(ids, 1), sized(64)),
    m.Records: st.builds(m.Records, tuples_of(blobs, 1)),
    m.Watch: st.builds(m.Watch, spaces, st.booleans()),
    m.Progress: st.builds(m.Progress, spaces, uints, ids, uints, texts()),
    m.FindNode: st.builds(m.FindNode, small, dht_keys),
    m.FoundNodes: st.builds(m.FoundNodes, small, tuples_of(blobs)),
    m.FindValue: st.builds(m.FindValue, small, dht_keys, blobs),
    m.FoundValue: st.builds(m.FoundValue, small, tuples_of(blobs), tuples_of(blobs)),
    m.StoreRecord: st.builds(m.StoreRecord, small, dht_keys, blobs),
    m.Stored: st.builds(m.Stored, small, st.booleans(), texts(), small),
    m.Busy: st.builds(m.Busy, small, small),
    m.Introduce: st.builds(m.Introduce, blobs),
    m.Subscribe: st.builds(m.Subscribe, tuples_of(st.tuples(topics, st.booleans()), 1)),
    m.Graft: st.builds(m.Graft, topics),
    m.Prune: st.builds(m.Prune, topics, small),
    m.IHave: st.builds(m.IHave, topics, tuples_of(dht_keys, 1)),
    m.IWant: st.builds(m.IWant, topics, tuples_of(dht_keys, 1)),
    m.IDontWant: st.builds(m.IDontWant, topics, tuples_of(dht_keys, 1)),
    m.Spread: st.builds(m.Spread, topics, st.booleans(), tuples_of(blobs, 1)),
    m.ProbeFor: st.builds(m.ProbeFor, small, ids),
    m.ProbedFor: st.builds(m.ProbedFor, small, ids, st.booleans()),
    m.RecordDigests: st.builds(m.RecordDigests, blobs),
    m.DialBack: st.builds(m.DialBack, small, tuples_of(texts(), 1)),
    m.DialedBack: st.builds(m.DialedBack, small, tuples_of(texts()), texts()),
}  # fmt: skip
frames: st.SearchStrategy[Any] = st.one_of(*FRAMES.values())
