"""`masos ping`: round trips over the open link to a peer."""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from typing import Annotated, Final

import typer

from gossip.links import PEER_CHARS_MIN
from node.cli.options import (
    JsonOption,
    OutputOption,
    ProfileOption,
    TimeoutOption,
    profile_of,
    screen_of,
    seconds_of,
)
from node.cli.output import Form, Json, one_line
from node.control.client import ANSWER_S, ControlClient
from protocol.errors import RequestTimeout, UsageError

COUNT_MAX: Final = 10_000


@dataclass(slots=True)
class _Trips:
    """What came of the pings so far."""

    peer: str
    rtt_ms: list[float] = field(default_factory=list)
    lost: int = 0

    def summary(self) -> Json:
        """Plain data."""
        times = sorted(self.rtt_ms)
        return {
            "peer": self.peer,
            "sent": len(times) + self.lost,
            "received": len(times),
            "min_ms": times[0] if times else None,
            "median_ms": times[len(times) // 2] if times else None,
            "max_ms": times[-1] if times else None,
            "rtt_ms": self.rtt_ms,
        }


def ping(  # noqa: PLR0913 - one parameter per option
    peer: Annotated[str, typer.Argument(metavar="PEER", help="Its peer id, or the end of it.")],
    *,
    count: Annotated[int, typer.Option("-c", "--count", min=1, max=COUNT_MAX, help="How many pings.")] = 4,
    interval: Annotated[str, typer.Option("--interval", metavar="TIME", help="Between two of them.")] = "1s",
    timeout: TimeoutOption = None,
    profile: ProfileOption = None,
    output: OutputOption = Form.HUMAN,
    json_form: JsonOption = False,
) -> None:
    """Measure round trips to a linked peer, through both nodes; lost pings are counted."""
    screen = screen_of(output, json_form=json_form)
    wait_s = min(ANSWER_S, seconds_of(timeout, "--timeout")) if timeout is not None else ANSWER_S
    between_s = seconds_of(interval, "--interval")
    trips, error = _Trips(_named(peer)), None
    with ControlClient.for_profile(profile_of(profile)) as client:
        for number in range(1, count + 1):
            try:
                trips.peer, rtt_ms = _once(client, trips.peer, wait_s)
            except RequestTimeout as exc:
                trips.lost, error = trips.lost + 1, exc
                screen.note(f"ping {number}: {exc.message}")
            else:
                trips.rtt_ms.append(rtt_ms)
                if screen.human:
                    screen.lines([f"…{one_line(trips.peer)[-8:]}: ping {number}, {rtt_ms:.2f} ms"])
                elif screen.form is Form.JSONL:
                    screen.record({"peer": trips.peer, "ping": number, "rtt_ms": rtt_ms})
            if number < count:
                time.sleep(between_s)
    if error is not None and not trips.rtt_ms:
        raise error
    found = trips.summary()
    if screen.form is not Form.JSONL:
        screen.result(found, [_summary_line(found)])


def _named(peer: str) -> str:
    """A peer as the daemon takes it.

    Raises:
        UsageError: too little of it.
    """
    name = peer.removeprefix("…")
    if len(name) < PEER_CHARS_MIN:
        raise UsageError(
            f"{name!r} is too short for the name of a peer",
            hint=f"give {PEER_CHARS_MIN} characters of the end of its id or more, as `masos peers` shows it",
        )
    return name


def _once(client: ControlClient, peer: str, wait_s: float) -> tuple[str, float]:
    """The whole peer id, and the time in milliseconds."""
    answer = client.ping(peer, wait_s)
    rtt_us = answer["rtt_us"]
    return str(answer["peer"]), rtt_us / 1000 if isinstance(rtt_us, int) else 0.0


def _summary_line(found: Json) -> str:
    return (
        f"{found['received']} of {found['sent']} answered, "
        f"min {found['min_ms']:.2f} / median {found['median_ms']:.2f} / max {found['max_ms']:.2f} ms"
    )
