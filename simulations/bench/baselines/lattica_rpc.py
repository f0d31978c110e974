# pyright: basic, reportMissingImports=false
"""An echo between two lattica nodes, encrypted and without a middleman.

    answer PORT       serves; prints {"addr"}
    ask PORT ADDR     per line {"size", "calls", "in_flight"} on stdin a line of figures

Both end with their stdin.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections import deque
from typing import Any

from lattica import ConnectionHandler, Lattica, rpc_method  # type: ignore[import-not-found]

Stub = Any  # what the other system makes of a service
SETTLE_S = 2.0  # until the dialled peer can be called


class Echo(ConnectionHandler):  # type: ignore[misc] # a class of the other system
    """Answers with what it was asked."""

    @rpc_method  # type: ignore[untyped-decorator] # of the other system
    def echo(self, payload: bytes) -> bytes:
        """See the class."""
        return payload


def say(value: object) -> None:
    """One line of JSON."""
    sys.stdout.write(json.dumps(value) + "\n")
    sys.stdout.flush()


def node(port: str, *boot: str) -> Lattica:
    """A node that listens on loopback only."""
    made = Lattica.builder().with_listen_addrs([f"/ip4/127.0.0.1/tcp/{port}"])
    made = made.with_mdns(False).with_upnp(False)  # noqa: FBT003 - the other system's shape
    return (made.with_bootstraps(list(boot)) if boot else made).build()


def measured(stub: Stub, plan: dict[str, int]) -> dict[str, float]:
    """Figures of so many calls, so many of them in flight at a time."""
    payload: bytes = b"x" * plan["size"]
    took: list[float] = []
    waiting: deque[tuple[float, Any]] = deque()
    begun, cpu = time.perf_counter(), time.process_time()
    for left in range(plan["calls"] + plan["in_flight"] - 1, -1, -1):
        if left >= plan["in_flight"] - 1:
            waiting.append((time.perf_counter(), stub.echo(payload)))
        if waiting and (len(waiting) >= plan["in_flight"] or left < plan["in_flight"] - 1):
            asked, answer = waiting.popleft()
            assert answer.result() == payload
            took.append(time.perf_counter() - asked)
    passed, cpu = time.perf_counter() - begun, time.process_time() - cpu
    took.sort()
    calls = len(took)
    return {
        "p50_ms": took[calls // 2] * 1e3,
        "p95_ms": took[int(calls * 0.95)] * 1e3,
        "per_s": calls / passed,
        "cpu_ms": cpu / calls * 1e3,
    }


def main(role: str, port: str, *boot: str) -> None:
    """Run one end."""
    own = node(port, *boot)
    service = Echo(own)
    if role == "answer":
        say({"addr": f"/ip4/127.0.0.1/tcp/{port}/p2p/{own.peer_id()}"})
        sys.stdin.read()
    else:
        time.sleep(SETTLE_S)
        stub = service.get_stub(boot[0].rpartition("/")[2])
        say({"up": True})
        for question in sys.stdin:
            say(measured(stub, json.loads(question)))
    os._exit(0)  # its threads would hold the process


if __name__ == "__main__":
    main(*sys.argv[1:])
