"""Whom a node's relay serves: members that are not denied, and nobody else."""

from __future__ import annotations

from pathlib import Path

import pytest

from gossip.replication import Replication
from node import swarm
from node.clock import BootClock
from node.keystore import Keystore
from node.profile import Profile
from protocol.peer import PeerID
from tests.node.test_control_api_node import running


async def test_a_member_is_admitted_until_it_is_denied_and_a_stranger_never(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    place, clock = Profile(tmp_path), BootClock()
    place.make()
    Keystore(place).create(bytes([1]) * 32, bytes([2]) * 32)
    swarm.create(place, "lab", bytes(32), (clock.now_us() + clock.wall_offset_us()) // 1000)
    me = PeerID(Keystore(place).node().public)
    async with running(place, None) as node:
        assert node.admits(me)
        assert not node.admits(PeerID(bytes([9]) * 32))
        monkeypatch.setattr(Replication, "denied", frozenset((me,)))
        assert not node.admits(me)
