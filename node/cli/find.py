"""`masos find`: agents by meaning, among those that have what is asked for, and where they were looked for."""

from __future__ import annotations

from typing import Annotated

import typer

from node.cli.agents import agent_lines, counted, peer_end
from node.cli.options import (
    JsonOption,
    OutputOption,
    ProfileOption,
    TimeoutOption,
    profile_of,
    screen_of,
    seconds_of,
)
from node.cli.output import Form, Json, as_list, as_object, columns, one_line
from node.control.client import ANSWER_S, ControlClient
from protocol.errors import UsageError


def find(  # noqa: PLR0913 - one parameter per option
    text: Annotated[str, typer.Argument(metavar="TEXT", help="What the agent should be able to do.")],
    *,
    tool: Annotated[list[str] | None, typer.Option("--tool", help="It has this tool; may be repeated.")] = None,
    model: Annotated[str, typer.Option("--model", help="Its model's name contains this.")] = "",
    skill: Annotated[str, typer.Option("--skill", help="A skill or tag of it, or the start of its taxonomy.")] = "",
    min_ctx: Annotated[int, typer.Option("--min-ctx", min=0, metavar="TOKENS", help="Window at least.")] = 0,
    price: Annotated[
        int | None, typer.Option("--price", min=0, metavar="MICRO", help="Micro-money for 1,000 tokens at most.")
    ] = None,
    data: Annotated[
        str | None,
        typer.Option("--data", metavar="local|external", help="Where prompts go; local: not beyond its node."),
    ] = None,
    limit: Annotated[int | None, typer.Option("--limit", "-k", min=1, max=100, help="Agents at most.")] = None,
    explain: Annotated[bool, typer.Option("--explain", help="Also who was rejected, and why.")] = False,
    timeout: TimeoutOption = None,
    profile: ProfileOption = None,
    output: OutputOption = Form.HUMAN,
    json_form: JsonOption = False,
) -> None:
    """Find the agents that are nearest to a text in meaning, best first."""
    screen = screen_of(output, json_form=json_form)
    if not text.strip():
        raise UsageError(
            "there is no word to look for", hint="say what the agent should do: masos find 'review a contract'"
        )
    if data not in (None, "local", "external"):
        raise UsageError(f"--data {data[:20]!r} is neither local nor external")
    wait_s = seconds_of(timeout, "--timeout") if timeout is not None else ANSWER_S
    body: Json = {
        "text": text,
        "tools": tool or [],
        "model": model,
        "skill": skill,
        "context_tokens_min": min_ctx,
        "price_micro_money_max": price,
        "data_policy": data,
        "limit": limit,
        "explain": explain,
    }
    with ControlClient.for_profile(profile_of(profile)) as client:
        found = client.find({name: value for name, value in body.items() if value is not None}, wait_s)
    if screen.form is Form.JSONL:
        for line in [*as_list(found["agents"]), *as_list(found.get("rejected"))]:
            screen.record(as_object(line))
        return
    screen.result(found, _lines(found) if screen.human else ())


def _lines(found: Json) -> list[str]:
    agents = [as_object(agent) for agent in as_list(found["agents"])]
    if agents:
        lines = agent_lines(agents, [_score_text(agent["score"]) for agent in agents])
    else:
        how = f"score {found['threshold']} or more with {one_line(str(found['encoder']))}"
        lines = [f"nobody passes ({how}; --explain says why)"]
    lines += _way(found)
    rejected = [as_object(line) for line in as_list(found.get("rejected"))]
    if rejected:
        lines.append("rejected:")
        lines += columns(
            [
                [f"  {peer_end(line)}", one_line(str(line["agent"]), 24), _score_text(line["score"]),
                 one_line(str(line["reason"])), one_line(str(line["why"]), 120)]
                for line in rejected
            ]
        )  # fmt: skip
    if found.get("rejected_more"):
        lines.append(f"  and {found['rejected_more']} more")
    return lines


def _way(found: Json) -> list[str]:
    """Where the node looked, and what it could not ask."""
    held = f"{counted(found['live'], 'record')} held here"
    if found["source"] == "index+dht":
        asked = f"{counted(found['rpcs'], 'request')}, {counted(found['rounds'], 'round')}"
        dht = f"{found['candidates']} that the DHT named in {asked}"
        return [f"source: {held} and {dht}"]
    lines = [f"source: the {held}" + ("" if found["index_complete"] else ", which are not all there are")]
    return [*lines, f"note: {one_line(str(found['note']), 160)}"] if found["note"] else lines


def _score_text(score: object) -> str:
    return f"{score:.3f}" if isinstance(score, float) else "-"
