"""`masos swarm local`: a playground of real daemons on this machine that stays until it is taken down."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated

import typer

from node.cli.model import fetch
from node.cli.options import JsonOption, OutputOption, entropy, screen_of, wall_ms
from node.cli.output import Form, Json, Screen, columns, one_line
from node.cli.verbs import new_app
from node.demo.playground import ENGINES_FEW, ENGINES_MAX, NODES_MAX, Engines, Playground, default_folder
from node.engines.models import DEFAULT_MODEL, model_facts
from protocol.errors import UsageError

app = new_app("A playground: a swarm of real daemons on this machine that stays.")

FolderOption = Annotated[
    Path | None, typer.Option("--folder", metavar="PATH", help="Where it lives; else masos-local in the XDG place.")
]


@app.command()
def up(  # noqa: PLR0913 - one parameter per option
    *,
    nodes: Annotated[
        int | None, typer.Option("-n", "--nodes", min=1, max=NODES_MAX, help=f"How many; else {ENGINES_MAX}.")
    ] = None,
    engine: Annotated[
        str | None, typer.Option("--engine", metavar="KIND", help="embedded, openai or none, for new nodes.")
    ] = None,
    base_url: Annotated[str | None, typer.Option("--base-url", metavar="URL", help="For openai: the server.")] = None,
    model: Annotated[str | None, typer.Option("--model", metavar="NAME", help="For openai: the model.")] = None,
    folder: FolderOption = None,
    output: OutputOption = Form.HUMAN,
    json_form: JsonOption = False,
) -> None:
    """Have N linked daemons on loopback in the background; run again, it starts what is missing.

    Without --engine up to 4 nodes run the embedded model (about 500 MB of memory each); of more nodes the first 2 do,
    and the others none (about 120 MB each). Engines are fixed when a node is made, in its config.toml.
    """
    screen = screen_of(output, json_form=json_form)
    engines = _engines(engine, base_url, model)
    playground = _playground(folder, screen)
    kinds = playground.kinds(nodes, engines)
    if "embedded" in kinds:
        fetch(screen, model_facts(DEFAULT_MODEL))
    if engine is None and len(kinds) > ENGINES_MAX:
        screen.note(f"over {ENGINES_MAX} nodes: new ones after the first {ENGINES_FEW} get no engine, to save memory")
    rows = playground.up(nodes, engines, wall_ms())
    screen.results("nodes", rows, [*_table(rows), *_how(rows)] if screen.human else ())


@app.command()
def status(*, folder: FolderOption = None, output: OutputOption = Form.HUMAN, json_form: JsonOption = False) -> None:
    """Show each node of the playground: whether it runs, where, and to how many it is linked."""
    screen = screen_of(output, json_form=json_form)
    rows = _playground(folder, screen).status()
    screen.results("nodes", rows, _table(rows) if screen.human else ())


@app.command()
def down(
    *,
    purge: Annotated[bool, typer.Option("--purge", help="Remove the profiles as well: keys, memory, all.")] = False,
    folder: FolderOption = None,
    output: OutputOption = Form.HUMAN,
    json_form: JsonOption = False,
) -> None:
    """Stop the daemons that `up` started, and no others; what they hold stays, unless it is purged."""
    screen = screen_of(output, json_form=json_form)
    playground = _playground(folder, screen)
    rows = playground.down(purge=purge)
    lines = columns([[str(row["name"]), str(row["pid"] or "-"), str(row["ended"])] for row in rows])
    left = "stays; `masos swarm local up` starts them again" if playground.folder.exists() else "is gone"
    lines.append(f"{one_line(str(playground.folder), 200)} {left}")
    screen.results("nodes", rows, lines)


def _playground(folder: Path | None, screen: Screen) -> Playground:
    return Playground(folder if folder is not None else default_folder(os.environ), entropy, screen.note)


def _engines(kind: str | None, base_url: str | None, model: str | None) -> Engines:
    settings = {key: value for key, value in (("base_url", base_url), ("model", model)) if value is not None}
    if settings and kind != "openai":
        raise UsageError("--base-url and --model belong to a server", hint="add --engine openai")
    return Engines(kind, settings)


def _table(rows: list[Json]) -> list[str]:
    head = ["name", "state", "pid", "linked", "engine", "address", "peer", "profile"]
    return columns(
        [head, *([one_line(str(row[key] if row[key] is not None else "-"), 200) for key in head] for row in rows)]
    )


def _how(rows: list[Json]) -> list[str]:
    profile = one_line(str(rows[0]["profile"]), 200)
    return [
        "",
        f"use a node:  masos status --profile {profile}",
        f"     or:     export MASOS_PROFILE={profile}; masos task submit 'What …?' --document FILE --watch",
        "see all:     masos swarm local status",
        "stop:        masos swarm local down        (--purge removes it)",
    ]
