"""`masos demo`: the main job on one machine, told line by line; `--json` prints one object."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Annotated

import typer

from node.cli.model import fetch
from node.cli.options import JsonOption, OutputOption, screen_of
from node.cli.output import Form, indented, one_line
from node.demo.scenario import DEFAULT_QUESTION, Demo, Story, default_document
from node.engines.models import DEFAULT_MODEL, model_facts
from protocol.errors import UsageError

DOCUMENT_BYTES_MAX = 1 << 20


def demo(
    *,
    question: Annotated[str, typer.Option("--question", metavar="TEXT", help="What to ask.")] = DEFAULT_QUESTION,
    document: Annotated[
        Path | None, typer.Option("--document", metavar="FILE", help="A text to ask about; else the licence of masos.")
    ] = None,
    output: OutputOption = Form.HUMAN,
    json_form: JsonOption = False,
) -> None:
    """Three real daemons answer one question about a document, while the one that holds a turn is killed.

    Everything happens in a temporary folder and on loopback; nothing is left running.
    """
    screen = screen_of(output, json_form=json_form)
    text = _read(document) if document is not None else default_document()
    fetch(screen, model_facts(DEFAULT_MODEL))
    begun = time.monotonic()

    def tell(line: str) -> None:
        if screen.human:
            screen.lines([f"{time.monotonic() - begun:6.1f} s  {one_line(line, 160)}"])

    story = Demo(text, question, tell).run()
    screen.result(story.as_dict(), _told(story))


def _read(path: Path) -> str:
    try:
        raw = path.read_bytes()
    except OSError as exc:
        raise UsageError(f"cannot read {path}: {exc.strerror}") from exc
    if len(raw) > DOCUMENT_BYTES_MAX:
        raise UsageError(f"{path} is over {DOCUMENT_BYTES_MAX} bytes")
    return raw.decode(errors="replace")


def _told(story: Story) -> list[str]:
    lines = ["", f"question  {one_line(story.question, 160)}", "answer"]
    lines += indented(story.answer or "")
    lines += ["", "step  epoch  agent      peer      tokens  ms"]
    for turn in story.turns:
        peer = str(turn["peer"])[-8:]
        row = (turn["step"], turn["epoch"], turn["agent"], peer, turn["tokens"], turn["ms"])
        lines.append("{:<4}  {:<5}  {:<9}  {}  {:<6}  {}".format(*row))
    lines += ["", "memory and derived state on each node (sha256):"]
    lines += [f"    {node['name']:<6} {story.digests[str(node['peer'])]}" for node in story.nodes]
    equal = len(set(story.digests.values())) == 1
    lines += ["    equal, byte for byte" if equal else "    NOT EQUAL", ""]
    return [*lines, *_honest(story)]


def _honest(story: Story) -> list[str]:
    return [
        f"This took {story.elapsed_s:.0f} s. The model ({one_line(story.model, 60)}) is tiny: it ranks and quotes,",
        'it does not reason. For real answers set [engine] kind = "openai", base_url and model in config.toml.',
    ]
