"""`masos swarm`: found one, invite into it or publish its ticket, look at a ticket, join, deny a node."""

from __future__ import annotations

import os
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, Final

import trio
import typer

from node import open_swarm, swarm
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
from node.cli.output import Form, Json, as_list, as_object, columns, one_line
from node.cli.swarm_local import app as local_app
from node.cli.verbs import new_app
from node.config import load_config
from node.control.client import ControlClient
from node.keystore import Keystore
from node.profile import Profile
from protocol.admission import TICKET_PREFIX, Genesis, Ticket
from protocol.errors import DaemonUnreachable, DecodeError, UsageError
from protocol.identity import SEED_BYTES
from protocol.peer import parse_peer

app = new_app("Found a swarm, invite into it or publish its ticket, look at a ticket, join.")
app.add_typer(local_app, name="local")

BootstrapOption = Annotated[
    list[str] | None, typer.Option("--bootstrap", metavar="MULTIADDR", help="/ip4/…/tcp/…/p2p/…; repeatable.")
]
TICKET_HELP: Final = "The word that `masos swarm invite` gave, or the file that `masos swarm publish` wrote."
TicketArgument = Annotated[str, typer.Argument(metavar="TICKET", help=TICKET_HELP)]


@app.command()
def create(
    name: Annotated[str, typer.Argument(metavar="NAME", help="What people call the swarm.")],
    *,
    public: Annotated[bool, typer.Option("--open", help="Let anybody in, within quotas; for test swarms.")] = False,
    profile: ProfileOption = None,
    output: OutputOption = Form.HUMAN,
    json_form: JsonOption = False,
) -> None:
    """Found a swarm, a private one unless --open; this profile's user is its admin, this node its first member."""
    place = profile_of(profile)
    genesis = swarm.create(place, name, entropy(32), wall_ms(), "open" if public else "private")
    lines = [
        f"founded {one_line(genesis.name)} ({genesis.swarm_id.hex()[:16]})",
        *(open_swarm.MEANING if public else ()),
        "next: `masos up`, then `masos swarm publish FILE` for its public ticket (docs/test-swarm.md)"
        if public
        else "next: `masos up`, then `masos swarm invite` for each node that shall join",
    ]
    screen_of(output, json_form=json_form).result(_genesis(genesis), lines)


@app.command()
def invite(
    *,
    life: Annotated[str, typer.Option("--life", metavar="TIME", help="How long it can be used; under 7 days.")] = "24h",
    bootstrap: BootstrapOption = None,
    profile: ProfileOption = None,
    output: OutputOption = Form.HUMAN,
    json_form: JsonOption = False,
) -> None:
    """Make a ticket. Whoever holds it can join until it expires, so pass it on like a password."""
    place, screen = profile_of(profile), screen_of(output, json_form=json_form)
    ticket = _new_ticket(place, life, bootstrap)
    until_ms = ticket.invite.exp_ms
    value: Json = {"ticket": ticket.text(), "valid_until_ms": until_ms, "bootstrap": list(ticket.bootstrap)}
    screen.result(value, [ticket.text()])
    if screen.human:
        screen.note(f"valid until {_when(until_ms)}; names {_addresses(len(ticket.bootstrap))}; keep it secret")


def _new_ticket(place: Profile, life: str, bootstrap: list[str] | None) -> Ticket:
    life_ms = round(seconds_of(life, "--life") * 1000)
    swarm.load_secrets(place)
    addrs = tuple(bootstrap) if bootstrap else _own_addresses(place)
    return swarm.invite(place, entropy(SEED_BYTES), wall_ms(), swarm.Invitation(life_ms, addrs))


@app.command()
def publish(  # noqa: PLR0913 - one parameter per option
    file: Annotated[Path, typer.Argument(metavar="FILE", help="Where the ticket is written, readable by all.")],
    *,
    life: Annotated[str, typer.Option("--life", metavar="TIME", help="How long a ticket can be used.")] = "6d",
    once: Annotated[bool, typer.Option("--once", help="Write it and end, for a timer that comes back.")] = False,
    bootstrap: BootstrapOption = None,
    profile: ProfileOption = None,
    output: OutputOption = Form.HUMAN,
    json_form: JsonOption = False,
) -> None:
    """Keep a ticket of an open swarm in a file: written now, and anew at half its life, until Ctrl-C."""
    place, screen = profile_of(profile), screen_of(output, json_form=json_form)

    def write() -> int:
        ticket = _new_ticket(place, life, bootstrap)
        open_swarm.write_ticket(file, ticket)
        until_ms = ticket.invite.exp_ms
        value: Json = {"file": str(file), "valid_until_ms": until_ms, "bootstrap": list(ticket.bootstrap)}
        names = [one_line(addr, 200) for addr in ticket.bootstrap]
        screen.result(value, [f"{one_line(str(file), 200)}: valid until {_when(until_ms)}; names {', '.join(names)}"])
        return until_ms

    if once:
        write()
    else:
        trio.run(open_swarm.keep_published, write, wall_ms, screen.note)


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
    value = swarm.inspect(_word(ticket), wall_ms())
    screen_of(output, json_form=json_form).result(value, _seen(value))


def _seen(value: Json) -> list[str]:
    quota = as_object(value["quota"])
    bound = ", ".join(f"{name} {amount}" for name, amount in quota.items())
    rows = [
        ["swarm", f"{one_line(str(value['swarm']))} ({value['swarm_id']})"],
        ["mode", f"{value['mode']}, founded {_when(value['created_ms'])}"],
        ["admins", ", ".join(str(admin)[:16] for admin in as_list(value["admins"]))],
        ["encoder", one_line(str(value["encoder"]))],
        ["grants", f"member for {value['membership_days']} days"],
        *([["quota", f"{bound}, in each task"]] if bound else []),
        ["valid", f"{_when(value['valid_from_ms'])} to {_when(value['valid_until_ms'])}"],
        ["now", "it can be used" if value["valid_now"] else "it CANNOT be used: expired, or not valid yet"],
        *(["dials", one_line(str(addr), 200)] for addr in as_list(value["bootstrap"])),
    ]
    return [*columns(rows), *(open_swarm.MEANING if value["mode"] == "open" else ())]


@app.command()
def join(
    ticket: Annotated[str | None, typer.Argument(metavar="TICKET", help=TICKET_HELP)] = None,
    *,
    test: Annotated[bool, typer.Option("--test", help="Take the ticket from [swarm] in config.toml.")] = False,
    profile: ProfileOption = None,
    output: OutputOption = Form.HUMAN,
    json_form: JsonOption = False,
) -> None:
    """Enter the swarm of a ticket, or with --test the configured test swarm; the next `masos up` takes part in it."""
    place, screen, now_ms = profile_of(profile), screen_of(output, json_form=json_form), wall_ms()
    if (ticket is None) != test:
        raise UsageError("join takes either a ticket or --test", hint="masos swarm join TICKET, or --test alone")
    word = _word(ticket) if ticket is not None else _test_ticket(place, now_ms)
    seen = swarm.inspect(word, now_ms)
    if screen.human and seen["mode"] == "open":
        screen.lines([*_seen(seen), ""])  # strangers made it: say what it is before it is done
    genesis = swarm.join(place, word, now_ms)
    lines = [f"joined {one_line(genesis.name)} ({genesis.swarm_id.hex()[:16]})", "next: `masos up`"]
    screen.result({**_genesis(genesis), "bootstrap": seen["bootstrap"]}, lines)


def _word(ticket: str) -> str:
    """The ticket itself, where a file may be named that holds it.

    Raises:
        ConfigError: it is a file that cannot be read or holds no text.
    """
    try:
        named = not ticket.strip().startswith(TICKET_PREFIX) and Path(ticket).is_file()
    except OSError:  # too long for a name
        named = False
    return open_swarm.configured_ticket(None, ticket, Path()) if named else ticket


def _addresses(n: int) -> str:
    return "1 address" if n == 1 else f"{n} addresses"


def _test_ticket(place: Profile, now_ms: int) -> str:
    place.check()
    section = load_config(place, os.environ).swarm
    word = open_swarm.configured_ticket(section.test_ticket, section.test_ticket_file, place.path)
    open_swarm.check_public(Ticket.parse(word), now_ms)
    return word


@app.command()
def deny(
    peer: Annotated[str, typer.Argument(metavar="PEER", help="The whole peer id, from `masos peers`.")],
    *,
    profile: ProfileOption = None,
    output: OutputOption = Form.HUMAN,
    json_form: JsonOption = False,
) -> None:
    """Shut a node out of the swarm for good, as its admin and with the daemon stopped; all members refuse it then."""
    place, screen = profile_of(profile), screen_of(output, json_form=json_form)
    try:
        denied = parse_peer(peer)
    except DecodeError as exc:
        raise UsageError(exc.message, hint="give the whole peer id, as `masos peers` shows it") from exc
    swarm.deny(place, denied, entropy(SEED_BYTES), wall_ms())
    screen.result({"denied": peer}, [f"denied {peer}; this cannot be taken back", "next: `masos up` tells the members"])


def _genesis(genesis: Genesis) -> Json:
    return {
        "swarm": genesis.name,
        "swarm_id": genesis.swarm_id.hex(),
        "mode": genesis.mode,
        "creator": genesis.creator.hex(),
    }


def _when(ms: object) -> str:
    """A time in UTC; a ticket can name one that no calendar holds."""
    try:
        return datetime.fromtimestamp(int(str(ms)) / 1000, UTC).strftime("%Y-%m-%d %H:%M UTC")
    except (ValueError, OverflowError, OSError):
        return f"{ms} ms"
