"""The pool is a pure function of the set of ops: any order, any cut into updates, one graph."""

from __future__ import annotations

from fractions import Fraction

from hypothesis import given, strategies as st

from kernel.memory.pool import Pool, UnitView
from protocol.op import Op
from protocol.records import Redact, Release, Spend
from tests.kernel.pool_log import DIM, ENCODER, Change, FakeLog, Writer, causal_shuffle
from tests.vectors import similarity_parts

TAU = (7, 20)


def pool_of(log: FakeLog, k: int | None = 2) -> Pool:
    return Pool(log, tau=TAU, k=k, encoder=ENCODER, dim=DIM)


def graph(pool: Pool) -> list[tuple[object, ...]]:
    def ids(views: tuple[UnitView, ...]) -> tuple[bytes, ...]:
        return tuple(view.id for view in views)

    return [
        *((view, ids(pool.predecessors(view.id)), ids(pool.neighbours(view.id))) for view in pool.units()),
        (ids(pool.snapshot(5)), pool.frontier(), pool.newest(), pool.incomparable),
    ]


@st.composite
def histories(draw: st.DrawFn) -> list[Op]:
    """Up to four authors; units and other ops that refer to any earlier ops; odd vectors; redactions."""
    writer = Writer()
    for _ in range(draw(st.integers(1, 22))):
        author = draw(st.integers(0, 3))
        earlier = [op.id for op in writer.ops]
        deps = draw(st.lists(st.sampled_from(earlier), max_size=3)) if earlier else []
        kind = draw(st.sampled_from(["unit", "unit", "unit", "other", "document", "redact"]))
        emb = draw(st.one_of(st.none(), st.lists(st.integers(0, 3), min_size=3, max_size=5).map(bytes)))
        if kind == "unit":
            writer.unit(author, emb, deps)
        elif kind == "document":
            writer.unit(author, emb, deps, role="document", agent="user")
        elif kind == "redact" and earlier:
            writer.write(author, Redact(target=draw(st.sampled_from(earlier))), deps)
        else:
            writer.write(author, Spend(claim=bytes(32), used=(0, 0, 0, 0)), deps)
    return writer.ops


@given(
    histories(),
    st.lists(st.integers(0, 1000), min_size=1, max_size=8),
    st.lists(st.integers(1, 5), min_size=1),
    st.booleans(),
)
def test_permuted_and_incremental_arrival_give_the_graph_of_a_fresh_start(
    ops: list[Op],
    order: list[int],
    cuts: list[int],
    blanks: bool,  # noqa: FBT001 - drawn
) -> None:
    fresh = pool_of(FakeLog(ops))
    log = FakeLog(blanks=blanks)
    grown = pool_of(log)
    left = causal_shuffle(ops, order)
    at = 0
    while left:
        size = cuts[at % len(cuts)]
        at += 1
        batch, left = left[:size], left[size:]
        grown.update(log.add(*batch))
    assert graph(grown) == graph(fresh)


@given(histories())
def test_edges_follow_their_definition(ops: list[Op]) -> None:
    log = FakeLog(ops)
    pool = pool_of(log)
    past: dict[bytes, set[bytes]] = {}
    for op in ops:
        refs = [*op.deps, *([op.prev] if op.prev else [])]
        past[op.id] = set().union(*({ref, *past[ref]} for ref in refs)) if refs else set()
    units = {view.id: view for view in pool.units()}
    for view in units.values():
        below = past[view.id] & units.keys()
        near = {one for one in below if not any(one in past[two] for two in below)}
        assert {one.id for one in pool.predecessors(view.id)} == near
        assert [one.id for one in pool.neighbours(view.id)] == _neighbours(view, [units[one] for one in sorted(below)])
    covered = set().union(*(past[one] for one in units)) if units else set()
    assert set(pool.frontier()) == units.keys() - covered  # at most four authors: never cut at 16


def _neighbours(view: UnitView, below: list[UnitView]) -> list[bytes]:
    found = []
    for other in below:
        if view.emb is None or other.emb is None or len(view.emb) != DIM or len(other.emb) != DIM:
            continue
        dot, norm_a, norm_b = similarity_parts(view.emb, other.emb)
        if dot > 0 and TAU[1] ** 2 * dot * dot >= TAU[0] ** 2 * norm_a * norm_b:
            found.append((-Fraction(dot * dot, norm_b), other.id))
    return [one for _, one in sorted(found)[:2]]


def test_chain_of_one_writer_is_the_temporal_chain_over_other_ops() -> None:
    writer = Writer()
    first = writer.unit(1, None)
    writer.write(1, Spend(claim=bytes(32), used=(0, 0, 0, 0)))
    second = writer.unit(1, None)
    writer.write(2, Release(reason="busy"), [second.id])
    third = writer.unit(2, None)
    pool = pool_of(FakeLog(writer.ops))
    assert [view.id for view in pool.predecessors(third.id)] == [second.id]
    assert [view.id for view in pool.predecessors(second.id)] == [first.id]


def test_a_stranger_redacts_nothing_and_a_signed_redact_does() -> None:
    writer = Writer()
    unit = writer.unit(1, None)
    writer.write(2, Redact(target=unit.id))
    pool = pool_of(FakeLog(writer.ops))
    view = pool.unit(unit.id)
    assert view is not None
    assert not view.redacted
    writer.write(2, Redact(target=unit.id, by=bytes(32), sig=bytes(64)))  # the log has checked the right of `by`
    view = pool_of(FakeLog(writer.ops)).unit(unit.id)
    assert view is not None
    assert view.redacted


def test_redacted_unit_keeps_its_place_and_loses_its_content() -> None:
    writer = Writer()
    secret = writer.unit(1, bytes([3, 0, 0, 0]), content="the secret", summary="about the secret")
    later = writer.unit(2, bytes([3, 1, 0, 0]), [secret.id])
    log = FakeLog(writer.ops)
    pool = pool_of(log)
    assert [view.id for view in pool.neighbours(later.id)] == [secret.id]
    pool.update(log.add(writer.write(1, Redact(target=secret.id))))
    view = pool.unit(secret.id)
    assert view is not None
    assert (view.redacted, view.content, view.summary, view.emb) == (True, "", "", None)
    assert pool.neighbours(later.id) == ()
    assert [one.id for one in pool.predecessors(later.id)] == [secret.id]


def test_foreign_encoder_and_dimension_have_no_edge_and_are_counted() -> None:
    writer = Writer()
    near = bytes([3, 0, 0, 0])
    writer.unit(1, near)
    foreign = writer.unit(1, near, encoder="other-4")
    longer = writer.unit(1, near + b"\x00")
    last = writer.unit(1, near)
    pool = pool_of(FakeLog(writer.ops))
    assert pool.neighbours(foreign.id) == pool.neighbours(longer.id) == ()
    assert pool.incomparable == 2
    assert [view.id for view in pool.neighbours(last.id)] == [writer.ops[0].id]


def test_snapshot_walks_semantic_then_temporal_then_reverse_time_and_adds_all_documents() -> None:
    writer = Writer()
    x, y = bytes([3, 0, 0, 0]), bytes([0, 3, 0, 0])
    parts = [writer.unit(9, x, role="document", agent="user") for _ in range(3)]
    lone = writer.unit(1, y)
    alike = writer.unit(1, x)
    before = writer.unit(1, y)
    newest = writer.unit(1, x, [part.id for part in parts])
    pool = pool_of(FakeLog(writer.ops), k=None)
    ids = [view.id for view in pool.snapshot(10)]
    assert ids == [op.id for op in (newest, alike, before, lone, *parts)]
    assert [view.id for view in pool.snapshot(2)] == [op.id for op in (newest, alike, *parts)]


def test_newest_is_the_deepest_not_the_latest() -> None:
    writer = Writer()
    first = writer.unit(1, None)
    deep = writer.unit(1, None, [first.id])
    shallow = writer.unit(2, None)
    assert shallow.hlc > deep.hlc
    newest = pool_of(FakeLog(writer.ops)).newest()
    assert newest is not None
    assert newest.id == deep.id


def test_refold_starts_anew() -> None:
    writer = Writer()
    kept = writer.unit(1, None)
    dropped = writer.unit(2, None)
    pool = pool_of(FakeLog(writer.ops))
    assert len(pool) == 2
    log = FakeLog([kept])
    pool = pool_of(log)
    pool.update(Change((dropped,)))
    assert len(pool) == 1 or log.get(dropped.id) is None
    pool.update(Change((), refold=True))
    assert [view.id for view in pool.units()] == [kept.id]


def test_a_body_of_another_kind_is_no_unit() -> None:
    writer = Writer()
    writer.write(1, Spend(claim=bytes(32), used=(1, 1, 1, 1)))
    assert pool_of(FakeLog(writer.ops)).units() == ()
