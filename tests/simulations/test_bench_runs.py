"""The benches themselves, as small as they can be: no figure is judged, but everything runs end to end."""

from __future__ import annotations

import sys
from contextlib import ExitStack
from pathlib import Path

import pytest

from protocol.messages import LANE_OF, decode_frame, encode_frame
from protocol.transport import Lane
from simulations.bench import idle, rpc
from simulations.bench.children import Child
from simulations.bench.discover_real import real
from simulations.bench.discover_sim import AFTER_KILL, simulated
from simulations.bench.options import Options, silent
from simulations.bench.processes import Memory, memory_of
from simulations.bench.rpc_peer import answered, payload_of, request
from simulations.bench.seen import share


@pytest.mark.parametrize(("size", "lane"), [(0, Lane.CONTROL), (128, Lane.CONTROL), (65_536, Lane.BULK)])
def test_a_payload_comes_back_through_real_frames(size: int, lane: Lane) -> None:
    payload, frame = bytes(size), request(7, bytes(size))
    assert LANE_OF[type(frame)] is lane
    back = answered(decode_frame(encode_frame(frame), lane))
    assert payload_of(decode_frame(encode_frame(back), LANE_OF[type(back)])) == (7, payload)


@pytest.mark.slow
@pytest.mark.libp2p
@pytest.mark.parametrize("make", [rpc.APART["masos"], rpc.TOGETHER["masos"]])
def test_both_layouts_echo_over_real_transports(make: rpc.Maker, tmp_path: Path) -> None:
    with ExitStack() as stack:
        system = make(stack, Options(tmp_path, silent))
        system.round((rpc.Plan(128, 20, 200), rpc.Plan(64 * 1024, 5, 120)))
    assert {key[1] for key in system.best} == {1, rpc.IN_FLIGHT}
    assert all(0 < seen["p50_ms"] <= seen["p95_ms"] and seen["per_s"] > 0 for seen in system.best.values())


@pytest.mark.slow
def test_a_simulated_swarm_finds_who_joins_late_and_who_survives() -> None:
    seen = simulated(8, seed=3)
    assert (len(seen.joins), len(seen.late)) == (2, AFTER_KILL)
    assert share(seen.joins) == share(seen.finds) == share(seen.late) == 1.0
    assert simulated(8, seed=3) == seen


@pytest.mark.slow
@pytest.mark.libp2p
def test_real_daemons_find_who_joins_and_who_survives() -> None:
    seen = real(4, seed=3)
    assert len(seen.joins) == len(seen.ups) == 3
    assert share(seen.joins) == share(seen.finds) == 1.0


@pytest.mark.slow
def test_a_bare_interpreter_loads_what_a_daemon_loads() -> None:
    bare = idle.imports_alone()
    with Child([sys.executable, "-c", "print('{}', flush=True)\nimport sys; sys.stdin.read()"]) as empty:
        empty.read(20)
        nothing = memory_of(empty.pid)
    assert isinstance(bare, Memory)
    assert bare.resident > nothing.resident + 20
