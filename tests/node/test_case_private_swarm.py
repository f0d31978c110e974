"""Complaint 24: a private swarm is one command to found, knows no public address, and lets no wrong key in.

Real daemons: a founder that is alone calls nobody, not even to look for others. Of three members one has another swarm
key, as after a damaged copy of a ticket: it gets no link, says which address it tried and stays up; the others notice
nothing; with the right key it is in.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from node.demo.making import own_addresses
from node.demo.nodes import DemoNode, wait_for
from node.profile import Profile, write_private
from node.swarm import load_secrets, secrets_file
from protocol.admission import Genesis
from protocol.transport import DIAL_TIMEOUT_S
from tests.node.real_swarm import BACKOFF_S, RealSwarm, free_port, open_files, real_swarm

pytestmark = [pytest.mark.slow, pytest.mark.libp2p]

JOIN_S = 15.0
QUIET_S = 4.0
LISTENING = "0A"  # the state of a listening socket in /proc/net/tcp


@pytest.fixture
def swarm(tmp_path: Path) -> Iterator[RealSwarm]:
    with real_swarm(tmp_path) as made:
        yield made


def remote_ends(pid: int) -> set[str]:
    """Where the TCP connections of a process go, loopback left out; proc(5)."""
    own = {name.removeprefix("socket:[").rstrip("]") for name in open_files(pid) if name.startswith("socket:")}
    found = set()
    for table, loopback in (("tcp", "0100007F"), ("tcp6", "0" * 24 + "01000000")):
        for line in Path(f"/proc/{pid}/net/{table}").read_text().splitlines()[1:]:
            fields = line.split()
            host = fields[2].partition(":")[0]
            if fields[9] in own and fields[3] != LISTENING and host not in (loopback, "0" * 16 + "FFFF00000100007F"):
                found.add(host)
    return found


def test_a_private_swarm_names_no_public_bootstrap_and_its_founder_calls_nobody(swarm: RealSwarm) -> None:
    profile = Profile(swarm.folder / "founder")
    founder = DemoNode("founder", profile, {}, unset=("MASOS_",))
    founder.masos("init", "--engine", "none", "--listen", "/ip4/127.0.0.1/tcp/0")
    founder.masos("swarm", "create", "quiet")
    secrets = load_secrets(profile)
    assert Genesis.from_wire(secrets.genesis).mode == "private"
    assert secrets.bootstrap == ()
    assert len(secrets.psk) == 32
    assert secrets_file(profile).stat().st_mode & 0o077 == 0
    swarm.nodes["founder"] = founder
    swarm.start("founder")
    assert founder.pid is not None
    end = time.monotonic() + QUIET_S
    while time.monotonic() < end:
        assert remote_ends(founder.pid) == set()
        time.sleep(0.05)
    status = founder.status()
    assert status is not None
    assert (status["known"], status["linked"], status["refusals"]) == ({}, [], [])


def refusals(node: DemoNode, of: DemoNode) -> list[str]:
    status = node.status()
    return [str(each["reason"]) for each in status["refusals"] if each["peer"] == of.peer] if status else []


def test_a_node_with_another_swarm_key_gets_no_link_is_told_and_harms_nobody(swarm: RealSwarm) -> None:
    first = swarm.add("first", port=free_port())
    swarm.add("second", "first", port=free_port())
    wrong = swarm.add("wrong", "first", "second")
    secrets = load_secrets(wrong.profile)
    damaged = secrets.model_copy(update={"psk": os.urandom(32)})
    write_private(secrets_file(wrong.profile), damaged.wire(), replace=True)
    swarm.start()
    (address,) = own_addresses(first.profile)
    limit_s = 2 * (DIAL_TIMEOUT_S + BACKOFF_S)
    wait_for("refusal that is told", lambda: bool(refusals(wrong, first)), limit_s, swarm.living)
    assert all(reason.startswith(f"{address.partition('/p2p/')[0]}: ") for reason in refusals(wrong, first))
    status = wrong.status()
    assert status is not None
    assert status["isolated"] is True
    assert swarm.exact({"first", "second"})

    wrong.stop()
    write_private(secrets_file(wrong.profile), secrets.wire(), replace=True)
    swarm.start("wrong")
    swarm.until_exact(JOIN_S)
