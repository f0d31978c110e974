"""Every life of a database has a number of its own, and knows whether the one before it ended in order."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given, settings, strategies as st

from node.life import INST_KEY, INST_MAX, Life, begin_life, end_life
from node.store import SqliteStore
from protocol.errors import StoreError
from protocol.store import MetaRow


@settings(max_examples=10)
@given(ends=st.lists(st.booleans(), max_size=6))
def test_a_life_is_clean_iff_the_one_before_ended_in_order(
    tmp_path_factory: pytest.TempPathFactory, ends: list[bool]
) -> None:
    path = tmp_path_factory.mktemp("life") / "masos.db"
    before = False  # the first life knows nothing of the time before it
    for number, end in enumerate([*ends, False], start=1):
        with SqliteStore(path) as store:
            life = begin_life(store)
            assert life == Life(number, clean=before)
            if end:
                end_life(store, life)
        before = end


def test_the_number_is_on_disk_before_the_life_begins(tmp_path: Path) -> None:
    path = tmp_path / "masos.db"
    with SqliteStore(path) as store:
        begin_life(store)
        (level,) = store._writer.execute("PRAGMA synchronous").fetchone()
        assert level == 2
        with SqliteStore(path) as another:
            assert begin_life(another).inst == 2


def test_a_damaged_or_used_up_number_is_refused(tmp_path: Path) -> None:
    with SqliteStore(tmp_path / "masos.db") as store:
        store.apply((MetaRow(INST_KEY, b"12345"),))
        with pytest.raises(StoreError, match="damaged"):
            begin_life(store)
        store.apply((MetaRow(INST_KEY, INST_MAX.to_bytes(4, "big")),))
        with pytest.raises(StoreError, match="used up"):
            begin_life(store)
