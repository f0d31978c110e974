"""`bench silent`: how soon honest nodes are rid of peers that take and never give, and whether any of them is blamed.

The attack of simulations/attacks/silent.py with 10 % and with 30 % of 48 nodes. Virtual time, so a figure is a
function of the seed alone; a run takes some minutes of a slow machine.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from simulations.attacks.silent import TOPICS, Plan, Seen, attacked
from simulations.bench.figure import Line, held, quantile, told
from simulations.bench.options import Options

NAME: Final = "silent"
SHARES: Final = (0.1, 0.3)
CLEAR_S: Final = 180.0  # from the first start of a node until no honest mesh holds a silent peer
AFTER_MAX: Final = 0.02  # of the places in honest meshes, in the time after


def run(options: Options) -> Iterator[Line]:
    """Both shares."""
    for share in SHARES:
        plan = Plan(share, seed=options.seed)
        options.tell(f"silent: {share:.0%} of {plan.n} nodes are silent")
        yield from figures(share, attacked(plan))


def figures(share: float, seen: Seen) -> Iterator[Line]:
    """The lines of one attack. Where a time never came the length of the run stands for it, and misses the target."""
    where = f"{share:.0%} of {seen.n} silent"
    for topic in TOPICS:
        clear_s = seen.clear_s[topic]
        ok = clear_s is not None and clear_s <= CLEAR_S
        name = f"{where}: {'' if clear_s is not None else 'not '}out of every honest mesh of {topic}"
        value = clear_s if clear_s is not None else seen.ran_s
        yield held(NAME, name, (value, "virtual s"), None, f"<= {CLEAR_S:g}", ok=ok)
    for topic in TOPICS:
        yield told(NAME, f"{where}: their places in honest meshes of {topic} until then", seen.before[topic], "share")
    worst = max(seen.after.values())
    name = f"{where}: their places after that, in the worst topic"
    yield held(NAME, name, (worst, "share"), None, f"<= {AFTER_MAX:g}", ok=worst <= AFTER_MAX)
    yield told(NAME, f"{where}: prunes of silent peers for silence", seen.pruned, "prunes")
    blamed = seen.false_prunes
    yield held(NAME, f"{where}: prunes of honest peers for silence", (blamed, "prunes"), None, "0", ok=not blamed)
    yield from _deliveries(where, seen)


def _deliveries(where: str, seen: Seen) -> Iterator[Line]:
    changes = [each for each in seen.changes_s if each is not None]
    arrived = len(changes) / len(seen.changes_s) if seen.changes_s else 1.0
    if changes:
        name = f"{where}: a change of capabilities to every honest node, p95"
        yield told(NAME, name, quantile(changes, 0.95), "virtual s")
    for name, value in (
        (f"changes that arrived everywhere (of {len(seen.changes_s)})", arrived),
        (f"tasks that ended alike everywhere (of {seen.tasks})", seen.tasks_ended / seen.tasks if seen.tasks else 1.0),
    ):
        yield held(NAME, f"{where}: {name}", (value, "share"), None, "1", ok=value == 1.0)
    name = f"{where}: members that an honest node does not take for alive"
    yield held(NAME, name, (seen.unseen, "pairs"), None, "0", ok=not seen.unseen)
