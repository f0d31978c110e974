"""`masos agents`: what every node of the swarm offers; and how an offer is shown to a person."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from node.cli.options import JsonOption, OutputOption, ProfileOption, profile_of, screen_of
from node.cli.output import Form, Json, as_list, columns, one_line
from node.control.client import ControlClient

HEADER = ("ROLES", "MODEL", "CONTEXT", "TOKENS/S", "PRICE", "DATA", "TRUST", "AGE", "ENCODER", "PEER")
ABOUT_CHARS = 140
INDEX: Final = {
    "light": "this node keeps no index of agents",
    "partial": "this node does not hold the records of all agents",
}
NOBODY: Final = {
    "complete": "no node of the swarm offers agents now",
    **{index: f"{why}, and holds none now; `masos find TEXT` asks the DHT" for index, why in INDEX.items()},
}
"""What is said where no agent is listed, by the `index` of `masos status`."""


def agents(*, profile: ProfileOption = None, output: OutputOption = Form.HUMAN, json_form: JsonOption = False) -> None:
    """List every agent that the swarm offers now, as this node holds their records; none of a node that is down."""
    screen = screen_of(output, json_form=json_form)
    with ControlClient.for_profile(profile_of(profile)) as client:
        found = client.agents()
        index = client.status()["index"] if screen.human else "complete"
    if found and index != "complete":
        screen.note(f"note: {INDEX[str(index)]}; `masos find TEXT` asks the DHT for others")
    nobody = [NOBODY[str(index)]]
    screen.results("agents", found, (agent_lines(found) if found else nobody) if screen.human else ())


def agent_lines(found: Sequence[Json], scores: Sequence[str] | None = None) -> list[str]:
    """A table of offers, each with what its operator says of it below; `scores` is a first column."""
    first = ["SCORE", *scores] if scores is not None else None
    rows = [list(HEADER), *(_row(agent) for agent in found)]
    if first is not None:
        rows = [[score, *row] for score, row in zip(first, rows, strict=True)]
    header, *lines = columns(rows)
    shown = [header]
    for line, agent in zip(lines, found, strict=True):
        shown.append(line)
        shown += [f"    {about}" for about in [_about(agent)] if about]
    return shown


def _row(agent: Json) -> list[str]:
    return [
        one_line(", ".join(str(role) for role in as_list(agent["roles"])), 36),
        one_line(f"{agent['model'] or '?'} ({agent['quality']})", 32),
        str(agent["context_tokens"]),
        str(agent["tokens_per_s"] or "?"),
        str(agent["price_micro_money"]),
        one_line(str(agent["data_policy"])),
        trust_text(agent),
        span_text(agent["age_ms"]),
        one_line(str(agent["encoder"]), 16),
        "this node" if agent["mine"] else peer_end(agent) + _presence(agent),
    ]


def _presence(agent: Json) -> str:
    """`unheard`: its node gave no sign of life yet to this one, which may be new here."""
    if agent["linked"]:
        return ""
    return " (not linked)" if agent["alive"] else " (unheard)"


def _about(agent: Json) -> str:
    labels = ", ".join(str(label) for label in [*as_list(agent["skills"]), *as_list(agent["tags"])])
    parts = (str(agent["description"]), f"[{labels}]" if labels else "", str(agent["taxonomy"]))
    return one_line(" ".join(part for part in parts if part), ABOUT_CHARS)


def trust_text(agent: Json) -> str:
    """The first-hand figure with how many turns it stands on; `unknown` without any."""
    turns = agent["turns_seen"]
    return f"{agent['trust']:.2f} ({turns})" if isinstance(agent["trust"], float) else "unknown"


def span_text(ms: object) -> str:
    """A length of time, by its largest unit."""
    seconds = int(ms) // 1000 if isinstance(ms, int | float) else 0
    for size, unit in ((86_400, "d"), (3_600, "h"), (60, "m")):
        if seconds >= size:
            return f"{seconds // size}{unit}"
    return f"{seconds}s"


def counted(n: object, noun: str) -> str:
    """So many of something, in words."""
    return f"{n} {noun}" if n == 1 else f"{n} {noun}s"


def peer_end(line: Json) -> str:
    """The end of a peer id, by which verbs take it too."""
    return f"…{one_line(str(line['peer']))[-8:]}"
