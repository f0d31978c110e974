"""Names of spaces: derived, so that every node finds the same space without asking (protocol.md §6)."""

from __future__ import annotations

from protocol.identity import digest
from protocol.op import SPACE_BYTES


def task_space(swarm_id: bytes, user: bytes, client_key: str) -> bytes:
    """The space of a user's task: the same client key is the same task on any node."""
    return digest("space", swarm_id, user, client_key.encode())[:SPACE_BYTES]


def swarm_space(swarm_id: bytes) -> bytes:
    """The swarm's own space: admissions and denials."""
    return digest("space", swarm_id)[:SPACE_BYTES]
