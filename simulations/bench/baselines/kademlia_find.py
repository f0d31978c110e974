# pyright: basic, reportMissingImports=false
"""Join, publish, be found, over the UDP DHT of the `kademlia` package (no encryption, no signatures).

kademlia_find.py SIZES SEED      sizes with commas; a line of figures per size on stdout
"""

from __future__ import annotations

import asyncio
import json
import logging
import random
import socket
import sys
import time
from importlib import import_module
from typing import Any

VALUE = "v" * 512
FIND_S = 20.0
POLL_S = 0.01
FINDS_MAX = 24  # all at once: each waits for the time-outs of the dead, one after the other it would take minutes

# By name: within masos only dht/ may import the package, and this is another process with another one.
Server = import_module("kademlia.network").Server
Node = Any  # one of its servers


async def until_found(node: Node, key: str) -> float | None:
    """Seconds until a node reads the value of a key, None if it never does."""
    begun = time.perf_counter()
    while time.perf_counter() - begun < FIND_S:
        try:
            if await asyncio.wait_for(node.get(key), FIND_S) == VALUE:
                return time.perf_counter() - begun
        except TimeoutError:
            return None
        await asyncio.sleep(POLL_S)
    return None


def free_port() -> int:
    """A UDP port that nobody has now."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
        sock.bind(("127.0.0.1", 0))
        return int(sock.getsockname()[1])


async def measured(size: int, rng: random.Random) -> dict[str, object]:
    """Nodes join one after the other, each puts a value, an earlier one looks for it; then 30 % are gone."""
    nodes: list[Node] = []
    ports: list[int] = []
    joins: list[float | None] = []
    for index in range(size):
        begun = time.perf_counter()
        node, port = Server(), free_port()
        await node.listen(port, interface="127.0.0.1")
        if nodes:
            await node.bootstrap([("127.0.0.1", rng.choice(ports))])
        await node.set(f"k{index}", VALUE)
        if nodes:
            found = await until_found(rng.choice(nodes), f"k{index}")
            joins.append(None if found is None else time.perf_counter() - begun)
        nodes.append(node)
        ports.append(port)
    dead = set(rng.sample(range(1, size), int(0.3 * size)))
    for index in sorted(dead):
        nodes[index].stop()
    alive = [index for index in range(size) if index not in dead]
    pairs = [rng.sample(alive, 2) for _ in range(min(2 * len(alive), FINDS_MAX))]
    finds = await asyncio.gather(*(until_found(nodes[asked], f"k{wanted}") for wanted, asked in pairs))
    for index in alive:
        nodes[index].stop()
    return {"n": size, "joins_s": joins, "finds_s": finds}


async def main(sizes: str, seed: str) -> None:
    """All sizes."""
    logging.disable(logging.CRITICAL)
    for size in sizes.split(","):
        sys.stdout.write(json.dumps(await measured(int(size), random.Random(int(seed)))) + "\n")
        sys.stdout.flush()


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
