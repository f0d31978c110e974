"""`masos up`: the daemon in the foreground."""

from __future__ import annotations

import os
import sys
from dataclasses import asdict
from typing import Annotated

import typer

from node.cli.logs import configure
from node.cli.options import (
    EngineOption,
    JsonOption,
    ListenOption,
    OutputOption,
    ProfileOption,
    RelayOption,
    flags_of,
    profile_of,
    screen_of,
)
from node.cli.output import Form, Screen, columns, one_line
from node.config import load_config
from node.daemon import Started, run_daemon
from node.keystore import Keystore
from protocol.peer import short


def up(  # noqa: PLR0913 - one argument per option
    *,
    listen: ListenOption = None,
    engine: EngineOption = None,
    relay: RelayOption = None,
    verbose: Annotated[bool, typer.Option("--verbose", "-v", help="Log everything.")] = False,
    profile: ProfileOption = None,
    output: OutputOption = Form.HUMAN,
    json_form: JsonOption = False,
) -> None:
    """Run the node in the foreground until Ctrl-C or SIGTERM; the log goes to stderr.

    With -o json one object on stdout says where it answers, once it does.
    """
    screen, place = screen_of(output, json_form=json_form), profile_of(profile)
    configure(sys.stderr, short(Keystore(place).node().public), verbose=verbose)

    config = load_config(place, os.environ, flags_of(listen, engine, relay))
    run_daemon(place, config, os.environ, lambda started: _tell_started(screen, started))


def _tell_started(screen: Screen, started: Started) -> None:
    if not screen.human:
        value = asdict(started)
        screen.record({**value, "profile": str(started.profile), "listen": list(started.listen)})
        return
    rows = [
        ["node", started.peer],
        ["swarm", f"{one_line(started.swarm)} ({started.swarm_id[:16]})"],
        ["profile", one_line(str(started.profile), 200)],
        ["life", f"{started.incarnation}, {_before(started)}"],
        *(["listens", addr] for addr in started.listen),
        ["control", f"{started.control} (this machine, with the token of the profile)"],
        ["engine", started.engine],
    ]
    for line in columns(rows):
        screen.note(line)
    screen.note("up. Stop with Ctrl-C; ask with `masos status`.")


def _before(started: Started) -> str:
    if started.incarnation == 1:
        return "the first"
    return "after a clean stop" if started.clean else "after a crash"
