"""Open swarms: what the word means, the tighter bounds of their nodes, and the public ticket.

A swarm founded as open is for people who do not know each other, a test swarm above all. Its ticket is published, so
its swarm key is no secret and everybody certifies himself: anybody can be any number of members. That is tolerated,
not prevented (replication.md §9). What bounds one key:

  the quota in the invite's certificate     judged alike on every node (protocol.admission, gossip.acceptance)
  `bounds`                                  what one node keeps for one key; it refuses or delays here, and says
                                            nothing about what others keep

A published ticket lives at most seven days, so its host writes it anew at half its life: who fetched it just before
still has half a life to use it. The file is replaced in one step, readable by all; a web server can hand it out.

Nothing here knows any public address: a ticket comes from the settings of the profile, or there is none.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Final

import trio

from node.core import CoreConfig
from protocol.admission import OPEN_QUOTA, TICKET_PREFIX, Mode, Ticket
from protocol.errors import ConfigError, SwarmError

_BURST: Final = f"{OPEN_QUOTA.ops_per_s} ops a second, {OPEN_QUOTA.burst}"
_MEGABYTES: Final = OPEN_QUOTA.bytes_max // 1_000_000
MEANING: Final = (
    "open: whoever has the ticket can join, under as many keys as he likes; that is tolerated, not prevented",
    "open: every member holds every task in plain text, documents and answers included; put nothing private into it",
    f"open: in each task a member may write {_BURST} at once, and {_MEGABYTES} MB in all",
)
"""Said to whoever founds or joins one."""

SPACES_PER_AUTHOR_MAX: Final = 64
RECORDS_PER_PUBLISHER_MAX: Final = 16
RECORDS_OF_STRANGERS_MAX: Final = 64
LOOKUP_PATHS: Final = 4
"""Disjoint paths of a look-up of the DHT: strangers may lie on each of them (replication.md §9)."""

TICKET_CHARS_MAX: Final = 32 * 1024  # of a file that should hold one
RENEW_LOOK_S: Final = 60.0
"""Between looks at the wall clock: a machine that slept, or whose clock was set, is late by no more than this."""

_HOW_TO_HOST: Final = "how to host one: docs/test-swarm.md"


def bounds(core: CoreConfig, mode: Mode) -> CoreConfig:
    """The parameters of a node in a swarm of this mode; in an open one a single key gets less of it."""
    if mode == "private":
        return core
    gossip = replace(
        core.gossip,
        spaces_per_author_max=min(core.gossip.spaces_per_author_max, SPACES_PER_AUTHOR_MAX),
        records_per_publisher_max=min(core.gossip.records_per_publisher_max, RECORDS_PER_PUBLISHER_MAX),
        records_of_strangers_max=min(core.gossip.records_of_strangers_max, RECORDS_OF_STRANGERS_MAX),
    )
    defaults = replace(core.kernel.defaults, quota=OPEN_QUOTA)
    dht = replace(core.dht, paths=max(core.dht.paths, LOOKUP_PATHS))
    return replace(core, gossip=gossip, dht=dht, kernel=replace(core.kernel, defaults=defaults))


# ---- the ticket that somebody else published


def configured_ticket(text: str | None, file: str | None, folder: Path) -> str:
    """The ticket that the settings name, as text or as a file; a relative path begins at `folder`.

    Raises:
        ConfigError: none is named, both are, or the file cannot be read.
    """
    if text and file:
        raise ConfigError(
            "the settings name the test swarm's ticket twice",
            hint="leave out [swarm] test_ticket or [swarm] test_ticket_file, in config.toml or the environment",
        )
    if text:
        return text
    if not file:
        raise ConfigError(
            "no test swarm is configured",
            hint="put the ticket of one into [swarm] test_ticket or test_ticket_file of config.toml, or into "
            f"MASOS_SWARM_TEST_TICKET; {_HOW_TO_HOST}",
        )
    path = folder / Path(file).expanduser()
    try:
        with path.open(encoding="ascii") as stream:
            word = stream.read(TICKET_CHARS_MAX + 1)
    except OSError as exc:
        raise ConfigError(
            f"cannot read the ticket {path}: {exc.strerror}", hint="fetch it again, or correct [swarm] test_ticket_file"
        ) from exc
    except UnicodeDecodeError as exc:
        raise ConfigError(f"{path} holds no ticket", hint="fetch it again from the host of the swarm") from exc
    if len(word) > TICKET_CHARS_MAX:
        raise ConfigError(f"{path} is over {TICKET_CHARS_MAX} characters: no ticket", hint="name the right file")
    return word


def check_public(ticket: Ticket, now_ms: int) -> None:
    """Whether a ticket is of the kind that is published, and can be used now.

    Raises:
        ConfigError: it opens a private swarm, or has expired.
    """
    if ticket.genesis.mode != "open":
        raise ConfigError(
            "the configured ticket is of a private swarm, and a test swarm is an open one",
            hint="look at it with `masos swarm inspect TICKET`; if you mean it, `masos swarm join TICKET`",
        )
    if now_ms > ticket.invite.exp_ms:
        raise ConfigError(
            "the configured ticket has expired: its host renews it, so the copy here is old or the host is gone",
            hint="fetch the ticket again from where you got it; check your clock",
        )


# ---- the ticket of the own swarm


def write_ticket(path: Path, ticket: Ticket) -> None:
    """Put a public ticket in place, in one step and readable by all; what holds something else stays.

    Raises:
        ConfigError: a private swarm's ticket, a file that is no ticket, or the disk.
    """
    if ticket.genesis.mode != "open":
        raise ConfigError(
            "this swarm is private: whoever could read the file could join",
            hint="hand single tickets out with `masos swarm invite`; an open swarm is made by `swarm create --open`",
        )
    try:
        with suppress(FileNotFoundError), path.open("rb") as held:
            if held.read(len(TICKET_PREFIX)) not in (b"", TICKET_PREFIX.encode()):
                raise ConfigError(f"{path} holds something that is no ticket", hint="choose another file")
        _replace(path, f"{ticket.text()}\n".encode())
    except OSError as exc:
        raise ConfigError(f"cannot write {path}: {exc.strerror}", hint="choose another file") from exc


def _replace(path: Path, data: bytes) -> None:
    descriptor, name = tempfile.mkstemp(prefix=f".{path.name}.", dir=path.parent)
    try:
        with os.fdopen(descriptor, "wb") as file:
            os.fchmod(file.fileno(), 0o644)
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        os.replace(name, path)
    finally:
        with suppress(FileNotFoundError):
            os.unlink(name)


async def keep_published(publish: Callable[[], int], now_ms: Callable[[], int], note: Callable[[str], None]) -> None:
    """Publish now, and again whenever half of the ticket's life is over, until cancelled.

    `publish` writes a ticket and gives back its end in wall milliseconds. A renewal that fails is noted and tried
    again at the next look: the ticket in place is good for a while.

    Raises:
        SwarmError: the first publication failed.
    """
    due_ms = _half_way(now_ms(), publish())
    while True:
        await trio.sleep(RENEW_LOOK_S)
        if now_ms() < due_ms:
            continue
        try:
            due_ms = _half_way(now_ms(), publish())
        except SwarmError as exc:
            note(f"the ticket was not renewed, and is tried again: {exc.message}")


def _half_way(now_ms: int, end_ms: int) -> int:
    return now_ms + (end_ms - now_ms) // 2
