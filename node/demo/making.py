"""Profiles of a swarm on one machine, made on its disk: no daemon runs and nothing is asked.

That works because every node's port is known before it starts, so a ticket can name it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final

from node import swarm
from node.config import Flags, config_file, config_text, load_config
from node.control.credentials import TOKEN_BYTES, make_token
from node.keystore import Keystore
from node.profile import Profile, write_private
from protocol.identity import SEED_BYTES

TICKET_MS: Final = 3_600_000

Entropy = Callable[[int], bytes]


def make_profile(profile: Profile, chosen: Flags, entropy: Entropy) -> None:
    """Keys, token and settings; `chosen` ones stand in the file.

    Raises:
        ConfigError: an impossible setting, or it cannot be made.
    """
    load_config(profile, {}, chosen)  # refuses impossible ones before anything is made
    profile.make()
    Keystore(profile).create(entropy(SEED_BYTES), entropy(SEED_BYTES))
    make_token(profile, entropy(TOKEN_BYTES))
    write_private(config_file(profile), config_text(chosen).encode())


def enter_swarm(profile: Profile, name: str, members: Sequence[Profile], entropy: Entropy, now_ms: int) -> None:
    """Found the swarm, or join that of the members by a ticket of the first that names all of them.

    Raises:
        ConfigError: the first is no admin, or none of them has a fixed port.
    """
    if not members:
        swarm.create(profile, name, entropy(32), now_ms)
        return
    bootstrap = tuple(addr for member in members for addr in own_addresses(member))
    ticket = swarm.invite(members[0], entropy(SEED_BYTES), now_ms, swarm.Invitation(TICKET_MS, bootstrap))
    swarm.join(profile, ticket.text(), now_ms)


def own_addresses(profile: Profile) -> tuple[str, ...]:
    """Where the profile's node can be dialled, as its settings fix it; empty with port 0."""
    section = load_config(profile, {}).node
    return swarm.own_addresses(section.announce or section.listen, Keystore(profile).node().public)
