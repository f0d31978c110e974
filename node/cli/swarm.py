"""`masos swarm`: found one, invite into it, look at a ticket, join."""

from __future__ import annotations

import os
from datetime import UTC, datetime
from typing import Annotated

import typer

from node import swarm
from node.cli.options import (
    JsonOption,
    OutputOption,
    ProfileOption,
    entropy,
    profile_of,
    screen_of,
    seconds_of,
    wall_ms,
)
from node.cli.output import Form, Json, as_list, columns, one_line
from node.cli.swarm_local import app as local_app
from node.cli.verbs import new_app
from node.config import load_config
from node.control.client import ControlClient
from node.keystore import Keystore
from node.profile import Profile
from protocol.admission import Genesis
from protocol.errors import DaemonUnreachable
from protocol.identity import SEED_BYTES

app = new_app("Found a swarm, invite into it, look at a ticket, join.")
app.add_typer(local_app, name="local")

TicketArgument = Annotated[str, typer.Argument(metavar="TICKET", help="The word that `masos swarm invite` gave.")]


@app.command()
def create(
    name: Annotated[str, typer.Argument(metavar="NAME", help="What people call the swarm.")],
    *,
    profile: ProfileOption = None,
    output: OutputOption = Form.HUMAN,
    json_form: JsonOption = False,
) -> None:
    """Found a private swarm; this profile's user is its admin, this node its first member."""
    place = profile_of(profile)
    genesis = swarm.create(place, name, entropy(32), wall_ms())
    lines = [
        f"founded {one_line(genesis.name)} ({genesis.swarm_id.hex()[:16]})",
        "next: `masos up`, then `masos swarm invite` for each node that shall join",
    ]
    screen_of(output, json_form=json_form).result(_genesis(genesis), lines)


@app.command()
def invite(
    *,
    life: Annotated[str, typer.Option("--life", metavar="TIME", help="How long it can be used; under 7 days.")] = "24h",
    bootstrap: Annotated[
        list[str] | None, typer.Option("--bootstrap", metavar="MULTIADDR", help="/ip4/…/tcp/…/p2p/…; repeatable.")
    ] = None,
    profile: ProfileOption = None,
    output: OutputOption = Form.HUMAN,
    json_form: JsonOption = False,
) -> None:
    """Make a ticket. Whoever holds it can join until it expires, so pass it on like a password."""
    place, screen, now_ms = profile_of(profile), screen_of(output, json_form=json_form), wall_ms()
    life_ms = round(seconds_of(life, "--life") * 1000)
    swarm.load_secrets(place)
    addrs = tuple(bootstrap) if bootstrap else _own_addresses(place)
    wanted = swarm.Invitation(life_ms, addrs)
    ticket = swarm.invite(place, entropy(SEED_BYTES), now_ms, wanted)
    until_ms = ticket.invite.exp_ms
    value: Json = {"ticket": ticket.text(), "valid_until_ms": until_ms, "bootstrap": list(ticket.bootstrap)}
    screen.result(value, [ticket.text()])
    if screen.human:
        screen.note(f"valid until {_when(until_ms)}; names {len(ticket.bootstrap)} addresses; keep it secret")


def _own_addresses(place: Profile) -> tuple[str, ...]:
    """Where this node can be dialled: what the running daemon says, else what the settings fix."""
    node_pk = Keystore(place).node().public
    try:
        with ControlClient.for_profile(place) as client:
            listens = tuple(str(addr) for addr in as_list(client.status()["listen"]))
    except DaemonUnreachable:
        section = load_config(place, os.environ).node
        listens = section.announce or section.listen
    return swarm.own_addresses(listens, node_pk)


@app.command()
def inspect(ticket: TicketArgument, *, output: OutputOption = Form.HUMAN, json_form: JsonOption = False) -> None:
    """Show all that a ticket says, before anything is joined."""
    value = swarm.inspect(ticket, wall_ms())
    rows = [
        ["swarm", f"{one_line(str(value['swarm']))} ({value['swarm_id']})"],
        ["mode", f"{value['mode']}, founded {_when(value['created_ms'])}"],
        ["admins", ", ".join(str(admin)[:16] for admin in as_list(value["admins"]))],
        ["encoder", one_line(str(value["encoder"]))],
        ["grants", f"member for {value['membership_days']} days"],
        ["valid", f"{_when(value['valid_from_ms'])} to {_when(value['valid_until_ms'])}"],
        ["now", "it can be used" if value["valid_now"] else "it CANNOT be used: expired, or not valid yet"],
        *(["dials", one_line(str(addr), 200)] for addr in as_list(value["bootstrap"])),
    ]
    screen_of(output, json_form=json_form).result(value, columns(rows))


@app.command()
def join(
    ticket: TicketArgument,
    *,
    profile: ProfileOption = None,
    output: OutputOption = Form.HUMAN,
    json_form: JsonOption = False,
) -> None:
    """Enter the swarm of a ticket; the next `masos up` takes part in it."""
    genesis = swarm.join(profile_of(profile), ticket, wall_ms())
    lines = [f"joined {one_line(genesis.name)} ({genesis.swarm_id.hex()[:16]})", "next: `masos up`"]
    screen_of(output, json_form=json_form).result(_genesis(genesis), lines)


def _genesis(genesis: Genesis) -> Json:
    return {"swarm": genesis.name, "swarm_id": genesis.swarm_id.hex(), "creator": genesis.creator.hex()}


def _when(ms: object) -> str:
    """A time in UTC; a ticket can name one that no calendar holds."""
    try:
        return datetime.fromtimestamp(int(str(ms)) / 1000, UTC).strftime("%Y-%m-%d %H:%M UTC")
    except (ValueError, OverflowError, OSError):
        return f"{ms} ms"
