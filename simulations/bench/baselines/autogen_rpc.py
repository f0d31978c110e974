# pyright: basic, reportMissingImports=false
"""An echo over AutoGen's gRPC runtime, worker -> host -> worker, as its distributed runtime is laid out.

    host PORT       the host of the runtime
    answer PORT     a worker with the echo agent
    ask PORT        a worker that asks it: per line {"size", "calls", "in_flight"} on stdin a line of figures
    one PORT        all three on one event loop, as its tests have it

Each prints {"up": true} and ends with its stdin.
"""

from __future__ import annotations

import asyncio
import json
import sys
import time
from dataclasses import dataclass

from autogen_core import (  # type: ignore[import-not-found]
    AgentId,
    MessageContext,
    RoutedAgent,
    message_handler,
    try_get_known_serializers_for_type,
)
from autogen_ext.runtimes.grpc import (  # type: ignore[import-not-found]
    GrpcWorkerAgentRuntime,
    GrpcWorkerAgentRuntimeHost,
)


@dataclass
class Text:
    """What is sent."""

    content: str


class Echo(RoutedAgent):  # type: ignore[misc] # a class of the other system
    """Answers with what it was asked."""

    def __init__(self) -> None:
        super().__init__("echo")

    @message_handler  # type: ignore[untyped-decorator] # of the other system
    async def on_text(self, message: Text, ctx: MessageContext) -> Text:  # noqa: ARG002 - the shape of a handler
        """See the class."""
        return message


def say(value: object) -> None:
    """One line of JSON."""
    sys.stdout.write(json.dumps(value) + "\n")
    sys.stdout.flush()


async def line() -> str:
    """One line of stdin, empty at its end."""
    return await asyncio.get_running_loop().run_in_executor(None, sys.stdin.readline)


async def worker(address: str) -> GrpcWorkerAgentRuntime:
    """A running worker that knows the message."""
    made = GrpcWorkerAgentRuntime(host_address=address)
    made.add_message_serializer(try_get_known_serializers_for_type(Text))
    await made.start()
    return made


async def measured(runtime: GrpcWorkerAgentRuntime, plan: dict[str, int]) -> dict[str, float]:
    """Figures of so many calls, so many of them in flight at a time."""
    message, to, left = Text("x" * plan["size"]), AgentId("echo", "default"), iter(range(plan["calls"]))
    took: list[float] = []

    async def caller() -> None:
        for _ in left:
            begun = time.perf_counter()
            answer = await runtime.send_message(message, to)
            took.append(time.perf_counter() - begun)
            assert answer.content == message.content

    begun, cpu = time.perf_counter(), time.process_time()
    await asyncio.gather(*(caller() for _ in range(plan["in_flight"])))
    passed, cpu = time.perf_counter() - begun, time.process_time() - cpu
    took.sort()
    calls = len(took)
    return {
        "p50_ms": took[calls // 2] * 1e3,
        "p95_ms": took[int(calls * 0.95)] * 1e3,
        "per_s": calls / passed,
        "cpu_ms": cpu / calls * 1e3,
    }


async def main(role: str, address: str) -> None:
    """Run one part, or all of them."""
    host = runtime = None
    if role in {"host", "one"}:
        host = GrpcWorkerAgentRuntimeHost(address=address)
        host.start()
    if role in {"answer", "one"}:
        answering = await worker(address)
        await Echo.register(answering, "echo", Echo)
    if role in {"ask", "one"}:
        runtime = await worker(address)
    say({"up": True})
    while question := await line():
        if runtime is not None:
            say(await measured(runtime, json.loads(question)))
        else:
            say({"cpu_s": time.process_time()})


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1], f"127.0.0.1:{sys.argv[2]}"))
