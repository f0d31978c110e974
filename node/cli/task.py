"""`masos task`: submit, show, watch, cancel, ls."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated, Final

import typer

from node.cli.options import (
    JsonOption,
    OutputOption,
    ProfileOption,
    TimeoutOption,
    entropy,
    profile_of,
    screen_of,
    seconds_of,
)
from node.cli.output import Form, Json, Screen, columns, one_line
from node.cli.task_text import view_lines
from node.cli.verbs import new_app
from node.cli.watching import follow
from node.control.client import ControlClient
from protocol.errors import DaemonUnreachable, RequestTimeout, UsageError

app = new_app("Submit a task, follow it, stop it.")

DOCUMENT_BYTES_MAX: Final = 900_000
"""Of a document file; the node takes 128 parts, some 70 kB of prose, and says so if it is more."""
KEY_BYTES: Final = 8

TaskArgument = Annotated[str, typer.Argument(metavar="TASK", help="Id of the task, or the start of it.")]


@app.command()
def submit(  # noqa: PLR0913 - one parameter per option
    text: Annotated[str, typer.Argument(metavar="TEXT", help="What the task is.")],
    *,
    document: Annotated[
        Path | None, typer.Option("--document", metavar="FILE", help="What it is about; '-' reads stdin.")
    ] = None,
    key: Annotated[
        str | None, typer.Option("--key", metavar="CLIENT_KEY", help="Your name for it: the same key is the same task.")
    ] = None,
    tokens: Annotated[int | None, typer.Option("--tokens", min=1, help="Budget of tokens.")] = None,
    calls: Annotated[int | None, typer.Option("--calls", min=1, help="Budget of engine calls.")] = None,
    seconds: Annotated[float | None, typer.Option("--seconds", min=0.001, help="Budget of engine time.")] = None,
    deadline: Annotated[str | None, typer.Option("--deadline", metavar="TIME", help="From now, such as 10m.")] = None,
    max_steps: Annotated[int | None, typer.Option("--max-steps", min=1, max=1000, help="Turns at most.")] = None,
    ack: Annotated[
        str | None,
        typer.Option(
            "--ack",
            metavar="local|w1",
            help="Return once it is on this disk, or on another node's too: w1, unless no other node is known.",
        ),
    ] = None,
    watch: Annotated[bool, typer.Option("--watch", help="Then follow it to its end.")] = False,
    timeout: TimeoutOption = None,
    profile: ProfileOption = None,
    output: OutputOption = Form.HUMAN,
    json_form: JsonOption = False,
) -> None:
    """Submit a task.

    Sent again with the same --key it is the same task, on this node and on every other that has your user key
    (`masos init --user-key`).
    """
    screen, place = screen_of(output, json_form=json_form), profile_of(profile)
    if ack is not None and ack not in ("local", "w1"):
        raise UsageError(f"--ack {ack[:20]!r} is neither local nor w1")
    client_key = key or entropy(KEY_BYTES).hex()
    body: Json = {
        "client_key": client_key,
        "objective": text,
        "document": _read(document) if document is not None else None,
        "tokens": tokens,
        "calls": calls,
        "seconds": seconds,
        "deadline_s": seconds_of(deadline, "--deadline") if deadline is not None else None,
        "max_steps": max_steps,
        "ack": ack,
    }
    wait_s = seconds_of(timeout, "--timeout") if timeout is not None else None
    with ControlClient.for_profile(place) as client:
        if ack is None:
            body["ack"] = _default_ack(client, screen)
        if key is None:
            screen.note(f"client key {client_key}: the same command with --key {client_key} is the same task")
        line = _submit(client, {name: value for name, value in body.items() if value is not None}, client_key)
    task = str(line["task"])
    if not watch:
        known = "it was there already" if line["existing"] else f"acknowledged ({line['ack']})"
        lines = [f"task {task}", f"client key {one_line(client_key)}", known]
        screen.result({**line, "client_key": client_key}, lines)
        return
    screen.note(f"task {task}")
    raise typer.Exit(follow(place, task, screen, wait_s))


def _default_ack(client: ControlClient, screen: Screen) -> str:
    """`w1`, and `local` for a node that is alone as far as it knows: waiting would end in nothing."""
    status = client.status()
    if status["known"] or status["linked"]:
        return "w1"
    screen.note("this node knows no other: the task is acknowledged by this disk alone (--ack local)")
    return "local"


def _submit(client: ControlClient, body: Json, client_key: str) -> Json:
    """Submit; an error that leaves open what came of it says how to find out."""
    try:
        return client.submit(body)
    except (RequestTimeout, DaemonUnreachable) as exc:
        exc.hint = f"the same command with --key {client_key} finds it, or submits it; {exc.hint}".removesuffix("; ")
        raise


def _read(path: Path) -> str:
    """The text of a document.

    Raises:
        UsageError: no such file, too large, or not text.
    """
    try:
        if str(path) == "-":
            raw = sys.stdin.buffer.read(DOCUMENT_BYTES_MAX + 1)
        else:
            with path.open("rb") as file:
                raw = file.read(DOCUMENT_BYTES_MAX + 1)
    except OSError as exc:
        raise UsageError(f"cannot read {path}: {exc.strerror}", hint="--document takes a text file") from exc
    if len(raw) > DOCUMENT_BYTES_MAX:
        raise UsageError(f"{path} is over {DOCUMENT_BYTES_MAX} bytes", hint="cut it to what the question needs")
    try:
        return raw.decode()
    except UnicodeDecodeError as exc:
        raise UsageError(f"{path} is not UTF-8 text", hint="convert it to text first") from exc


@app.command()
def show(
    task: TaskArgument,
    *,
    profile: ProfileOption = None,
    output: OutputOption = Form.HUMAN,
    json_form: JsonOption = False,
) -> None:
    """Show all that this node knows of a task: turns, context receipts, budget, answer."""
    screen = screen_of(output, json_form=json_form)
    with ControlClient.for_profile(profile_of(profile)) as client:
        view = client.show(task)
    screen.result(view, view_lines(view) if screen.human else ())


@app.command()
def watch(
    task: TaskArgument,
    *,
    timeout: TimeoutOption = None,
    profile: ProfileOption = None,
    output: OutputOption = Form.HUMAN,
    json_form: JsonOption = False,
) -> None:
    """Follow a task to its end, also across restarts of the daemon; exit 1 if it ends without an answer."""
    wait_s = seconds_of(timeout, "--timeout") if timeout is not None else None
    raise typer.Exit(follow(profile_of(profile), task, screen_of(output, json_form=json_form), wait_s))


@app.command()
def cancel(
    task: TaskArgument,
    *,
    reason: Annotated[str, typer.Option("--reason", help="Kept in the task's memory.")] = "",
    profile: ProfileOption = None,
    output: OutputOption = Form.HUMAN,
    json_form: JsonOption = False,
) -> None:
    """Stop a task, and the engine call that runs for it."""
    with ControlClient.for_profile(profile_of(profile)) as client:
        line = client.cancel(task, reason)
    screen_of(output, json_form=json_form).result(line, [f"task {line['task']}: {one_line(str(line['status']))}"])


@app.command("ls")
def list_tasks(
    *, profile: ProfileOption = None, output: OutputOption = Form.HUMAN, json_form: JsonOption = False
) -> None:
    """List the tasks that this node holds."""
    with ControlClient.for_profile(profile_of(profile)) as client:
        tasks = client.tasks()
    rows = [["TASK", "STATUS", "STEPS", "OBJECTIVE"]]
    rows += [
        [str(task["task"]), one_line(str(task["status"])), str(task["steps"]), one_line(str(task["objective"]), 60)]
        for task in tasks
    ]
    screen_of(output, json_form=json_form).results("tasks", tasks, columns(rows) if tasks else ["no tasks"])
