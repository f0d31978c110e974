# pyright: basic, reportMissingImports=false
"""Join, publish, be found, over hivemind's DHT (a Go libp2p daemon per node, encrypted).

hivemind_find.py SIZES SEED      sizes with commas; a line of figures per size on stdout
"""

from __future__ import annotations

import asyncio
import json
import logging
import os
import random
import sys
import time
from typing import Any

from hivemind.dht.node import DHTNode  # type: ignore[import-not-found]
from hivemind.utils.timed_storage import get_dht_time  # type: ignore[import-not-found]

VALUE = b"v" * 512
FIND_S = 20.0
POLL_S = 0.01
FINDS_MAX = 24
KEPT_S = 600
BOOTSTRAPS = 3


async def until_found(node: DHTNode, key: str) -> float | None:
    """Seconds until a node reads the value of a key, None if it never does."""
    begun = time.perf_counter()
    while time.perf_counter() - begun < FIND_S:
        try:
            found = await asyncio.wait_for(node.get(key), FIND_S)
        except TimeoutError:
            return None
        if found is not None and found.value == VALUE:
            return time.perf_counter() - begun
        await asyncio.sleep(POLL_S)
    return None


async def measured(size: int, rng: random.Random) -> dict[str, object]:
    """Nodes join one after the other, each stores a value, an earlier one looks for it; then 30 % are gone."""
    nodes: list[Any] = []
    addrs: list[Any] = []
    joins: list[float | None] = []
    for index in range(size):
        begun = time.perf_counter()
        known = rng.sample(addrs, min(BOOTSTRAPS, len(addrs)))
        node = await DHTNode.create(initial_peers=known or None)
        await node.store(f"k{index}", VALUE, get_dht_time() + KEPT_S)
        if nodes:
            found = await until_found(rng.choice(nodes), f"k{index}")
            joins.append(None if found is None else time.perf_counter() - begun)
        nodes.append(node)
        addrs += (await node.get_visible_maddrs())[:1]
    dead = set(rng.sample(range(1, size), int(0.3 * size)))
    for index in sorted(dead):
        await nodes[index].shutdown()
    alive = [index for index in range(size) if index not in dead]
    finds = []
    for _ in range(min(2 * len(alive), FINDS_MAX)):
        wanted, asked = rng.sample(alive, 2)
        finds.append(await until_found(nodes[asked], f"k{wanted}"))
    await asyncio.gather(*(nodes[index].shutdown() for index in alive))
    return {"n": size, "joins_s": joins, "finds_s": finds}


async def main(sizes: str, seed: str) -> None:
    """All sizes."""
    logging.disable(logging.CRITICAL)
    for size in sizes.split(","):
        sys.stdout.write(json.dumps(await measured(int(size), random.Random(int(seed)))) + "\n")
        sys.stdout.flush()
    os._exit(0)  # its threads would hold the process


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
