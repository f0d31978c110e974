"""`memory verify`: is what is on disk whole, and does it give what the node shows?

Two questions. The audit looks at the bytes (node/store_verify.py). Then every digest is derived anew from the store
and compared with the one that the running node serves: a difference is a bug in deriving, or memory that never
reached the disk. The node goes on meanwhile, so a space that changed during the comparison is looked at again, a few
times; one that does not stand still is called `changing`, which is no fault.
"""

from __future__ import annotations

from typing import Final, cast

import trio

from kernel.commands import MemoryDigests
from node.control.port import NodePort
from node.node import Digests
from node.store_verify import VerifyReport

ROUNDS_MAX: Final = 3
ROUND_S: Final = 1.0


def report_of(report: VerifyReport, digests: Digests, differing: list[str], changing: list[str]) -> dict[str, object]:
    """The answer, with `ok` iff nothing is wrong."""
    return {
        "ok": report.ok and not differing,
        "spaces": report.spaces,
        "ops": report.ops,
        "redacted": report.redacted,
        "problems": list(report.problems),
        "problem_count": report.problem_count,
        "digests": digests,
        "differing": differing,
        "changing": changing,
    }


async def verify_running(node: NodePort) -> dict[str, object]:
    """Audit and compare on a running node; takes about a second per 6,000 ops.

    Raises:
        SwarmError: the node did not answer, or its store failed.
    """
    report = await node.verify()
    digests: Digests = []
    differing: list[str] = []
    changing: list[str] = []
    for round_number in range(ROUNDS_MAX):
        before = await _digests(node)
        rebuilt = _by_space(await node.rebuilt_digests())
        digests = await _digests(node)
        shown, after = _by_space(before), _by_space(digests)
        unequal = [space for space in after if after[space] != rebuilt.get(space)]
        differing = [space for space in unequal if shown.get(space) == after[space]]
        changing = [space for space in unequal if space not in differing]
        if not unequal:
            break
        if round_number < ROUNDS_MAX - 1:
            await trio.sleep(ROUND_S)  # ops that are on their way to the disk arrive
    return report_of(report, digests, differing, changing)


async def _digests(node: NodePort) -> Digests:
    return cast(Digests, await node.ask(MemoryDigests()))


def _by_space(digests: Digests) -> dict[str, tuple[object, object]]:
    return {str(line["space"]): (line["set"], line["state"]) for line in digests}
