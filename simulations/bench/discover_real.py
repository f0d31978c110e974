"""Being found among real daemons: processes, sockets, signatures, the encoder; only the models behind them are empty.

Nodes join one after the other. The time runs from the start of a process; beside it stands the time from when the new
daemon answers its own control API, which is what remains when interpreter and imports are left out.
"""

from __future__ import annotations

import random
from typing import Final

from kernel.agents.roles import ROSTER
from kernel.discovery import capability_text
from node.control.client import ControlClient
from node.demo.nodes import DemoNode
from simulations.bench.discover_sim import model_of
from simulations.bench.figure import polled, wall_s
from simulations.bench.real_nodes import Nodes, engine_of, models, real_nodes
from simulations.bench.seen import FINDS_MAX, KILLED_SHARE, Seen

FIND_S: Final = 60.0
KILLED_FIND_S: Final = 10.0
POLL_S: Final = 0.05
TEXT: Final = capability_text("", (), ROSTER.names)


def real(size: int, seed: int) -> Seen:
    """Join, be found; kill 30 %, find.

    Raises:
        LocalError: a daemon does not come up, or dies.
    """
    rng = random.Random(seed)
    joins: list[float | None] = []
    ups: list[float | None] = []
    with real_nodes() as nodes, models(*(model_of(index) for index in range(size))) as url:
        for index in range(size):
            node = nodes.add(engine_of(url, model_of(index)))
            if index == 0:
                node.start()
                nodes.until_up([node])
                with node.client() as client:
                    until_found(client, index, FIND_S)  # its encoder is loaded
                continue
            with rng.choice(nodes.all[:index]).client() as client:
                begun = wall_s()
                node.start()
                found, up = until_found(client, index, FIND_S, node)
            joins.append(None if found is None else found - begun)
            ups.append(None if found is None or up is None else max(0.0, found - up))
            nodes.until_up([node])
        finds = tuple(killed(nodes, rng))
    return Seen(size, tuple(joins), finds, ups=tuple(ups))


def killed(nodes: Nodes, rng: random.Random) -> list[float | None]:
    """Kill, then look: seconds of finds of survivors by survivors."""
    size = len(nodes.all)
    for index in rng.sample(range(1, size), int(KILLED_SHARE * size)):
        nodes.all[index].kill()
    alive = [index for index in range(size) if nodes.all[index].running]
    times: list[float | None] = []
    for _ in range(min(2 * len(alive), FINDS_MAX)):
        wanted, asked = rng.sample(alive, 2)
        with nodes.all[asked].client() as client:
            client.agents()  # connected
            begun = wall_s()
            found, _up = until_found(client, wanted, KILLED_FIND_S)
        times.append(None if found is None else found - begun)
    return times


def until_found(
    client: ControlClient, wanted: int, limit_s: float, joining: DemoNode | None = None
) -> tuple[float | None, float | None]:
    """When the node behind a client finds a model, and when `joining` was first seen to answer; None for never."""
    body: dict[str, object] = {"text": TEXT, "model": model_of(wanted), "limit": 1}
    up: float | None = None
    for _ in polled(limit_s, POLL_S):
        if joining is not None and up is None and joining.profile.control_address.exists():
            up = wall_s()
        if client.find(body)["agents"]:
            return wall_s(), up
    return None, up
