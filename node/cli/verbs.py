"""The tree of verbs, each imported when it is called: `masos version` loads neither libp2p nor numpy.

A verb is a name and `module:attribute`. The attribute is a function with typer's annotations, or a `typer.Typer` for
a group of verbs. Other distributions add verbs by entry points of the group `masos.verbs`; they cannot replace ours,
and one that does not load costs its own verb only.
"""

from __future__ import annotations

import difflib
import importlib
import importlib.metadata
import importlib.util
from collections.abc import Callable, Iterable
from typing import Any, Final, cast

import typer
import typer.core
import typer.main

from protocol.errors import ConfigError, UsageError

GROUP: Final = "masos.verbs"
VERBS: Final = {
    "init": ("node.cli.init:init", "Make a profile: keys, token and settings."),
    "up": ("node.cli.up:up", "Run the node in the foreground."),
    "status": ("node.cli.status:status", "Show what a running node is, does and holds."),
    "swarm": ("node.cli.swarm:app", "Found a swarm, invite into it, look at a ticket, join."),
    "peers": ("node.cli.peers:peers", "List the peers: linked, alive or down, how far, what they offer."),
    "ping": ("node.cli.ping:ping", "Measure round trips to a linked peer."),
    "agents": ("node.cli.agents:agents", "List what every node of the swarm offers."),
    "find": ("node.cli.find:find", "Find agents by what they should be able to do."),
    "task": ("node.cli.task:app", "Submit a task, follow it, stop it."),
    "memory": ("node.cli.memory:app", "Check the replicated memory."),
    "model": ("node.cli.model:app", "Fetch a model for the embedded engine."),
    "demo": ("node.cli.demo:demo", "Three nodes, one question, one of them killed."),
    "version": ("node.cli.version:version", "Show the version."),
}

Command = Any  # typer keeps these classes private
Context = Any
Formatter = Any


def new_app(about: str) -> typer.Typer:
    """A group of verbs in the house's manner: plain help, no traceback dressing, no completion installer."""
    return typer.Typer(
        help=about, add_completion=False, no_args_is_help=False, rich_markup_mode=None, pretty_exceptions_enable=False
    )


def own_verbs() -> dict[str, str]:
    """Our verbs whose modules are there."""
    return {name: target for name, (target, _) in VERBS.items() if _exists(target.partition(":")[0])}


def _exists(module: str) -> bool:
    return importlib.util.find_spec(module) is not None


def added_verbs(taken: Iterable[str]) -> dict[str, Callable[[], object]]:
    """Verbs of other distributions by name; those in `taken` are left out."""
    ours = set(taken)
    points = importlib.metadata.entry_points(group=GROUP)
    return {point.name: point.load for point in sorted(points) if point.name not in ours}


class VerbGroup(typer.core.TyperGroup):
    """The root command. Its verbs are found by name when they are asked for."""

    def __init__(self, **attrs: Any) -> None:  # noqa: ANN401 - passed on to typer as they come
        super().__init__(**attrs)
        self._ours = own_verbs()
        self._added = added_verbs(self._ours)

    def list_commands(self, ctx: Context) -> list[str]:  # noqa: ARG002 - typer's shape
        """Ours in the order of a first session, then the added ones."""
        return [*self._ours, *self._added]

    def format_commands(self, ctx: Context, formatter: Formatter) -> None:  # noqa: ARG002 - typer's shape
        """The list in `masos --help`, without importing a verb."""
        about = [(name, VERBS[name][1]) for name in self._ours]
        about += [(name, "Added by another package.") for name in self._added]
        with formatter.section("Verbs"):
            formatter.write_dl(about)

    def get_command(self, ctx: Context, cmd_name: str) -> Command | None:  # noqa: ARG002 - typer's shape
        """The command behind a name, imported now.

        Raises:
            ConfigError: an added verb does not load.
        """
        if cmd_name in self._ours:
            module, _, attribute = self._ours[cmd_name].partition(":")
            return command_of(cmd_name, getattr(importlib.import_module(module), attribute))
        if cmd_name in self._added:
            try:
                return command_of(cmd_name, self._added[cmd_name]())
            except Exception as exc:
                # The guard around code of other distributions: whatever it raises, it is their verb that is missing.
                raise ConfigError(f"the verb {cmd_name!r} does not load: {exc}", hint="reinstall its package") from exc
        return None

    def resolve_command(self, ctx: Context, args: list[str]) -> tuple[str | None, Command | None, list[str]]:
        """As typer's, with our error."""
        name = args[0]
        if not name.startswith("-") and name not in self.list_commands(ctx):
            near = difflib.get_close_matches(name, self.list_commands(ctx), 1)
            hint = f"did you mean {near[0]!r}?" if near else "see `masos --help`"
            raise UsageError(f"there is no verb {name[:40]!r}", hint=hint)
        return super().resolve_command(ctx, args)


def command_of(name: str, target: object) -> Command:
    """A function or a `typer.Typer` as a command.

    Raises:
        TypeError: it is neither.
    """
    if isinstance(target, typer.Typer):
        command = typer.main.get_command(target)
        command.name = name
        return command
    if not callable(target):
        raise TypeError(f"{target!r} is neither a function nor a typer app")
    app = new_app("")
    app.command(name)(cast(Callable[..., Any], target))
    return typer.main.get_command(app)
