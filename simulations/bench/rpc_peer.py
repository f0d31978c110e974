"""One end of `bench rpc`: a real transport in a process of its own, run as `python -m simulations.bench.rpc_peer ROLE`.

    answer        listens on loopback, prints {"addr"}, answers every request until its stdin ends
    ask ADDR      links to it; per line {"size", "calls", "in_flight"} on stdin one line of figures on stdout
    one           both on one event loop

What a call is: a request frame is encoded, sent, decoded by the other side with the strict decoder, answered by a
frame with the same payload, and decoded here, as node/driver.py does it; between the two there is `Libp2pTransport`
with a swarm key. Small payloads travel on CONTROL (FindValue, FoundValue), large ones on BULK (Fetched both ways).
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial
from typing import Final

import trio

from node.transport import Libp2pTransport
from protocol.identity import KeyPair
from protocol.messages import (
    DHT_PROBE_BYTES_MAX,
    LANE_OF,
    Fetched,
    FindValue,
    FoundValue,
    Frame,
    decode_frame,
    encode_frame,
)
from protocol.peer import PeerID, PeerInfo
from protocol.transport import LinkDialFailed, LinkDown, LinkFrame, LinkUp, TransportEvent
from simulations.bench.figure import quantile, wall_s

SWARM_KEY: Final = bytes(range(32))
SEEDS: Final = {"answer": b"a" * 32, "ask": b"b" * 32}
HELLO: Final = b"\x90"
KEY: Final = bytes(20)
SPACE: Final = bytes(16)


def request(req: int, payload: bytes) -> Frame:
    """A request that carries a payload."""
    if len(payload) <= DHT_PROBE_BYTES_MAX:
        return FindValue(req, KEY, payload)
    return Fetched(req, SPACE, (payload,), (), (), more=False)


def answered(frame: Frame) -> Frame:
    """The answer to a request, with the same payload."""
    match frame:
        case FindValue(req, _, probe):
            return FoundValue(req, (probe,), ())
        case Fetched():
            return frame
        case _:
            raise AssertionError(f"{type(frame).__name__} is no request of this bench")


def payload_of(frame: Frame) -> tuple[int, bytes]:
    """Request id and payload of an answer."""
    match frame:
        case FoundValue(req, (payload,), _):
            return req, payload
        case Fetched(req, _, (payload,)):
            return req, payload
        case _:
            raise AssertionError(f"{type(frame).__name__} is no answer of this bench")


def send(transport: Libp2pTransport, event: LinkFrame | LinkUp, frame: Frame) -> None:
    """Encode and queue a frame for the peer of an event."""
    assert transport.send(event.peer, LANE_OF[type(frame)], encode_frame(frame)), (
        "the queue holds all that is in flight"
    )


def _say(value: object) -> None:
    sys.stdout.write(json.dumps(value) + "\n")
    sys.stdout.flush()


async def _line() -> str:
    return await trio.to_thread.run_sync(sys.stdin.readline)


# ---- the end that answers


@asynccontextmanager
async def answering() -> AsyncIterator[str]:
    """Serve while in the context; gives the address."""
    transport = Libp2pTransport(SEEDS["answer"], ("/ip4/127.0.0.1/tcp/0",), psk=SWARM_KEY)
    async with transport.run(lambda _: HELLO), trio.open_nursery() as nursery:
        nursery.start_soon(_serve, transport)
        yield transport.listen_addrs()[0]
        nursery.cancel_scope.cancel()


async def answer() -> None:
    """Serve until stdin ends; each line of it is answered with the CPU seconds so far."""
    async with answering() as addr:
        _say({"addr": addr})
        while await _line():
            _say({"cpu_s": time.process_time()})


async def one() -> None:
    """Both ends here."""
    async with answering() as addr:
        await ask(addr)


async def _serve(transport: Libp2pTransport) -> None:
    async for event in transport.events():
        if isinstance(event, LinkFrame):
            send(transport, event, answered(decode_frame(event.frame, event.lane)))


# ---- the end that asks


async def ask(addr: str) -> None:
    """Link to the other end, then measure what each line of stdin says."""
    transport = Libp2pTransport(SEEDS["ask"], (), psk=SWARM_KEY)
    async with transport.run(lambda _: HELLO):
        events = transport.events()
        peer = PeerID(KeyPair(SEEDS["answer"]).public)
        transport.connect(PeerInfo(peer, (addr,)))
        link = await _linked(events)
        _say({"up": True})
        while question := await _line():
            _say(await measured(transport, link, json.loads(question)))


async def _linked(events: AsyncIterator[TransportEvent]) -> LinkUp:
    async for event in events:
        match event:
            case LinkUp():
                return event
            case LinkDialFailed(_, reason):
                raise AssertionError(f"the other end cannot be dialled: {reason}")
            case _:
                continue
    raise AssertionError("the transport stopped")


async def measured(transport: Libp2pTransport, link: LinkUp, plan: dict[str, int]) -> dict[str, float]:
    """Figures of so many calls, so many of them in flight at a time."""
    payload, calls = b"x" * plan["size"], plan["calls"]
    begun, cpu = wall_s(), time.process_time()
    took = await _calls(transport, link, payload, calls, plan["in_flight"])
    passed = wall_s() - begun
    return {
        "p50_ms": quantile(took, 0.5) * 1e3,
        "p95_ms": quantile(took, 0.95) * 1e3,
        "per_s": calls / passed,
        "cpu_ms": (time.process_time() - cpu) / calls * 1e3,
    }


async def _calls(transport: Libp2pTransport, link: LinkUp, payload: bytes, calls: int, in_flight: int) -> list[float]:
    """Make the calls; seconds of each."""
    sent: dict[int, float] = {}
    took: list[float] = []

    def next_call() -> None:
        req = len(sent) + len(took)
        sent[req] = wall_s()
        send(transport, link, request(req, payload))

    for _ in range(min(in_flight, calls)):
        next_call()
    async for event in transport.events():
        assert not isinstance(event, LinkDown), f"the link ended: {event}"
        if not isinstance(event, LinkFrame):
            continue
        req, echoed = payload_of(decode_frame(event.frame, event.lane))
        assert echoed == payload, "an answer carries what was asked"
        took.append(wall_s() - sent.pop(req))
        if len(sent) + len(took) < calls:
            next_call()
        if len(took) == calls:
            return took
    raise AssertionError("the transport stopped")


def main(argv: list[str]) -> None:
    """Run one end."""
    match argv:
        case ["answer"]:
            trio.run(answer)
        case ["ask", addr]:
            trio.run(partial(ask, addr))
        case ["one"]:
            trio.run(one)
        case _:
            raise SystemExit("usage: rpc_peer answer | ask ADDR | one")


if __name__ == "__main__":
    main(sys.argv[1:])
