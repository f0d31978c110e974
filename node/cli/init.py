"""`masos init`: a profile with its keys, its token and its settings; an interrupted one is completed."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from node.addresses import ListenAddresses
from node.cli.options import (
    EngineOption,
    JsonOption,
    ListenOption,
    OutputOption,
    ProfileOption,
    RelayOption,
    entropy,
    flags_of,
    profile_of,
    screen_of,
)
from node.cli.output import Form, Json, columns, one_line
from node.config import config_file, config_text, load_config
from node.control.credentials import TOKEN_BYTES, make_token
from node.keystore import Keystore, read_key
from node.profile import Profile, write_private
from protocol.errors import ConfigError
from protocol.identity import SEED_BYTES, KeyPair
from protocol.peer import peer_text


def init(  # noqa: PLR0913 - one argument per option
    *,
    listen: ListenOption = None,
    engine: EngineOption = None,
    relay: RelayOption = None,
    user_key: Annotated[
        Path | None,
        typer.Option("--user-key", metavar="FILE", help="identity/user.key of another profile of yours."),
    ] = None,
    profile: ProfileOption = None,
    output: OutputOption = Form.HUMAN,
    json_form: JsonOption = False,
) -> None:
    """Make a profile: keys of node and user, the token of the control API, commented settings."""
    screen, place = screen_of(output, json_form=json_form), profile_of(profile)
    chosen = flags_of(listen, engine, relay)
    section = load_config(place, {}, chosen).node  # impossible ones are refused before anything is made, as is
    ListenAddresses(section.listen, section.announce)  # an address that is none, and a file that is no key
    user = read_key(user_key) if user_key is not None else None
    place.make()
    keys = Keystore(place)
    fresh = not keys.complete
    if fresh:
        keys.create(entropy(SEED_BYTES), user.seed() if user is not None else entropy(SEED_BYTES))
    _check_user(keys, user)
    fresh |= make_token(place, entropy(TOKEN_BYTES))
    fresh |= _write_settings(place, config_text(chosen))
    if not fresh:
        raise ConfigError(f"{place.path} is a profile already", hint="choose another folder with --profile PATH")
    peer = peer_text(keys.node().public)
    value: Json = {
        "profile": str(place.path),
        "peer": peer,
        "user": keys.user().public.hex(),
        "config": str(config_file(place)),
    }
    lines = columns([[name, one_line(str(text), 200)] for name, text in value.items()])
    lines.append("next: `masos swarm create NAME` or `masos swarm join TICKET`, then `masos up`")
    screen.result(value, lines)


def _check_user(keys: Keystore, wanted: KeyPair | None) -> None:
    """An interrupted init may have made a key of its own, which is never replaced.

    Raises:
        ConfigError: the profile belongs to another user.
    """
    if wanted is not None and keys.user().public != wanted.public:
        raise ConfigError(
            f"{keys.user_file} is the key of another user already", hint="choose another folder with --profile PATH"
        )


def _write_settings(place: Profile, text: str) -> bool:
    try:
        write_private(config_file(place), text.encode(), replace=False)
    except FileExistsError:
        return False
    except OSError as exc:
        raise ConfigError(f"cannot write {config_file(place)}: {exc.strerror}") from exc
    return True
