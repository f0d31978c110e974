"""A task's view as lines for a person. Every word of a peer, a model or a document in it is made printable."""

from __future__ import annotations

from typing import Final

from node.cli.output import Json, as_list, as_object, indented, one_line

PARTIAL_CHARS: Final = 240


def view_lines(view: Json) -> list[str]:
    """The whole view: `task show`, and the end of `task watch`."""
    lines = [
        f"task {view['task']}: {one_line(str(view['status']))}",
        f"  {one_line(str(view['objective']), 200)}",
    ]
    if "budget" not in view:
        return [*lines, "  its opening has not arrived here yet"]
    lines.append(
        f"  client key {one_line(str(view['client_key']))}, {view['ops']} ops, digest {short_id(view['digest'])}"
    )
    lines.append(f"  used {budget_text(view)}")
    for turn in as_list(view["turns"]):
        lines += turn_lines(as_object(turn))
    if view["running"]:
        lines += running_lines(view)
    if view["reason"]:
        lines.append(f"  reason: {one_line(str(view['reason']), 300)}")
    return lines + answer_lines(view)


def answer_lines(view: Json) -> list[str]:
    """The answer, if there is one."""
    return ["answer:", *indented(str(view["answer"]))] if view["answer"] is not None else []


def turn_lines(turn: Json) -> list[str]:
    """A finished turn: who, what it cost, how firm it is, what it was given, what it said."""
    who = f"{one_line(str(turn['role'] or '-'))} at {short_id(turn['peer'])}"
    how = f"{one_line(str(turn['outcome']))}, epoch {turn['epoch']}, {turn['finality']}"
    lines = [f"  step {turn['step']} {who}: {how}, {turn['tokens']} tokens, {turn['ms']} ms"]
    if turn["model"]:
        lines.append(f"      model {one_line(str(turn['model']))}, quality {one_line(str(turn['quality'] or '-'))}")
    if turn["summary"]:
        lines += indented(one_line(str(turn["summary"]), 200), "      ")
    if turn["verdict"]:
        lines.append(f"      verdict {one_line(str(turn['verdict']))}")
    lines += context_lines(turn)
    return lines


def context_lines(turn: Json) -> list[str]:
    """The receipt: which memory the agent was given, with the tokens of each."""
    given = [as_object(row) for row in as_list(turn["context"])]
    if not given:
        return []
    tokens = sum(int(str(row["tokens"])) for row in given)
    lines = [f"      given {len(given)} units, {tokens} tokens"]
    for row in given:
        what = one_line(str(row["summary"] or ""), 60)
        lines.append(f"        {short_id(row['unit'])} {one_line(str(row['role'] or '-'))}, {row['tokens']}: {what}")
    return lines


def running_lines(view: Json) -> list[str]:
    """The turn in progress: lease owner, agent, epoch, tokens of its slice, partial output."""
    running = as_object(view["running"])
    mine = " (this node)" if running["mine"] else ""
    stage = f", {one_line(str(running['stage']))}" if running["stage"] else ""
    part = as_object(running["slice"])["tokens"]
    who = f"{one_line(str(running['role'] or '-'))} at {short_id(running['peer'])}{mine}"
    spent = f"{running['tokens']} of {_limit(part)} tokens"
    lines = [f"  step {running['step']} runs: {who}, epoch {running['epoch']}{stage}, {spent}"]
    if running["partial"]:
        lines += indented(one_line(str(running["partial"])[-PARTIAL_CHARS:], PARTIAL_CHARS), "      ")
    return lines


def budget_text(view: Json) -> str:
    """What was used of the budget, by component."""
    used, budget = as_object(view["used"]), as_object(view["budget"])
    return ", ".join(f"{used[name]} of {_limit(budget[name])} {name}" for name in ("tokens", "calls", "ms"))


def short_id(value: object) -> str:
    """The end of a peer id or the start of a hash, enough to tell them apart."""
    text = one_line(str(value))
    return f"…{text[-8:]}" if text.startswith("12D3") else text[:12]


def _limit(amount: object) -> str:
    return "unlimited" if amount is None else str(amount)
