"""SIGKILL at any moment: what was acknowledged is there, nothing is half there, and a start needs no hand (C2)."""

from __future__ import annotations

import random
import subprocess
import sys
import time
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path

import pytest

from node.life import begin_life, end_life
from node.store import SqliteStore
from protocol.identity import verify_raw

ROUNDS = 20
START_S_MAX = 30.0
known_signature = cache(verify_raw)

# Two authors, the node and a peer, who stand on each other; ids are printed after `apply` has answered.
CHILD = """
import sys
from pathlib import Path
from node.life import begin_life
from node.store import SqliteStore
from protocol.identity import KeyPair
from protocol.op import OpKind, Position, make_op
from protocol.store import MetaRow, OpRow

space = b"s" * 16
authors = [KeyPair(bytes([n]) * 32) for n in (1, 2)]
store = SqliteStore(Path(sys.argv[1]))
life = begin_life(store)
heads = {op.author: op for op in store.ops(space)}
stamp = max((op.hlc for op in heads.values()), default=0)
print("life", life.inst, life.clean, flush=True)

def new_op(mine, other):
    global stamp
    stamp += 1
    prev, dep = heads.get(mine.public), heads.get(other.public)
    at = Position(space, life.inst, prev.seq + 1 if prev else 0, prev and prev.id, (dep.id,) if dep else (), stamp)
    heads[mine.public] = op = make_op(mine, OpKind.UNIT, at, b"%d" % (stamp // 3) * (1 + stamp % 700))
    return op

batch = 0
while True:
    batch += 1
    own = batch % 3 == 0  # one batch in three is synced
    mine, other = authors if own else reversed(authors)
    ops = [new_op(mine, other) for _ in range(1 + batch * 17 % 50)]
    meta = (MetaRow("high", str(stamp).encode()),) if own else ()
    store.apply((*(OpRow(op, own) for op in ops), *meta))
    print("ops", stamp, *(op.id.hex() for op in ops), flush=True)
"""


@dataclass
class Acknowledged:
    """What the children said over all rounds."""

    lives: list[int] = field(default_factory=list)
    ids: set[bytes] = field(default_factory=set)
    high: int = 0

    def hear(self, line: str) -> None:
        if not line.endswith("\n"):
            return  # cut by the kill: not acknowledged
        what, first, *rest = line.split()
        if what == "life":
            self.lives.append(int(first))
            assert rest == ["False"], "no life before this one ended in order"
        else:
            self.ids.update(bytes.fromhex(text) for text in rest)
            self.high = int(first)


def one_life(path: Path, rng: random.Random, heard: Acknowledged) -> None:
    """Start a writer, let it go on for a while, kill it at a random point of its work, or of its start."""
    child = subprocess.Popen(
        [sys.executable, "-c", CHILD, str(path)], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    assert child.stdout is not None
    assert child.stderr is not None
    with child:
        try:
            if rng.random() < 0.2:
                time.sleep(rng.uniform(0.0, 0.6))
            else:
                for _ in range(rng.randrange(1, 10)):
                    heard.hear(child.stdout.readline())
                time.sleep(rng.uniform(0.0, rng.choice((0.0, 0.0005, 0.005))))
        finally:
            child.kill()
        for line in child.stdout:
            heard.hear(line)
        assert not child.stderr.read()


@pytest.mark.slow
def test_no_acknowledged_op_is_lost_by_sigkill(tmp_path: Path) -> None:
    path = tmp_path / "masos.db"
    rng = random.Random(20)
    heard = Acknowledged()
    for _ in range(ROUNDS):
        one_life(path, rng, heard)
        if not path.exists():
            continue
        with SqliteStore(path) as store:
            stored = {op.id for space in store.spaces() for op in store.ops(space)}
            assert heard.ids <= stored
            report = store.verify(known_signature)
            assert report.ok, report.problems  # chains without gaps, refs closed, bodies whole
    assert len(heard.ids) > ROUNDS
    assert heard.lives == sorted(set(heard.lives)), "every life has its own, greater number"
    with SqliteStore(path) as store:
        life = begin_life(store)
        assert life.inst > heard.lives[-1]
        assert not life.clean
        end_life(store, life)
        assert begin_life(store).clean
