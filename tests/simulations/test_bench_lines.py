"""Lines of `masos bench`: what is a figure, what is skipped and why, what readers of /proc and of sockets take."""

from __future__ import annotations

import json
import os
import socket
import struct
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from node.cli import run
from protocol.errors import LocalError
from simulations.bench import cli, discover, idle, rpc
from simulations.bench.children import Child, ChildFailed, last_words
from simulations.bench.figure import Beside, Figure, Line, Skipped, held, quantile, told
from simulations.bench.foreign import AUTOGEN, HIVEMIND, Foreign, Missing, reason_of
from simulations.bench.options import Options, silent
from simulations.bench.processes import Memory, cpu_of, memory_of, parse_rollup, parse_stat
from simulations.bench.seen import Seen, met, seen_of, share
from simulations.bench.sockets import parse, sent_by


def options(cache: Path, *, install: bool = False) -> Options:
    return Options(cache, silent, install=install)


# ---- figures


def test_a_figure_carries_the_ratio_to_its_baseline_and_the_verdict_of_its_target() -> None:
    figure = held("rpc", "echo", (1234.56, "calls/s"), Beside(1000.0, "other"), ">= other's", ok=True)
    assert (figure.value, figure.baseline, figure.ratio) == (1235.0, 1000.0, 1.23)
    assert set(figure.as_dict()) == {
        "bench", "figure", "value", "unit", "baseline", "baseline_is", "ratio", "target", "ok"
    }  # fmt: skip
    assert "ok" in figure.line()
    missed = held("rpc", "echo", (0.5, "ms"), None, "<= 0.1", ok=False)
    assert (missed.baseline, missed.ratio) == (None, None)
    assert "MISSED" in missed.line()


def test_a_figure_without_a_target_gives_no_verdict_and_a_zero_baseline_no_ratio() -> None:
    plain = told("idle", "sent", 12.0, "B/min", Beside(0.0, "nothing"))
    assert plain.ratio is None
    assert plain.ok
    assert "ok" not in plain.line()


def test_quantiles_are_values_that_were_seen() -> None:
    values = [5.0, 1.0, 3.0, 2.0, 4.0]
    assert [quantile(values, q) for q in (0.0, 0.5, 0.95, 1.0)] == [1.0, 3.0, 5.0, 5.0]
    assert quantile([7.0], 0.95) == 7.0


# ---- baselines that are missing


def test_a_baseline_that_is_not_there_and_not_to_be_installed_is_missing_by_name(tmp_path: Path) -> None:
    with pytest.raises(Missing, match="autogen is not installed"):
        AUTOGEN.command(options(tmp_path))


@pytest.mark.slow
def test_a_baseline_that_cannot_be_installed_leaves_nothing_and_says_what_pip_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_DISABLE_PIP_VERSION_CHECK", "1")
    foreign = Foreign("none", ("no-such-package-anywhere==1",), "none.py")
    with pytest.raises(Missing, match=r"pip: .*no-such-package-anywhere"):
        foreign.command(options(tmp_path, install=True))
    assert list(tmp_path.iterdir()) == []


def test_other_requirements_are_another_environment(tmp_path: Path) -> None:
    folders = {Foreign("a", pins, "a.py").folder(tmp_path) for pins in (("x==1",), ("x==2",), ("x==1", "y==1"))}
    assert len(folders) == 3


def test_the_reason_is_pips_last_error() -> None:
    assert reason_of("WARNING: a\nERROR: one\nERROR: two\nnoise\n") == "pip: two"
    assert reason_of("only this\n\n") == "pip: only this"
    assert len(reason_of("ERROR: " + "x" * 1000)) <= 200
    assert reason_of("")


def test_rpc_goes_on_without_baselines() -> None:
    best = {(plan.size, n): {"p50_ms": 1.0, "p95_ms": 2.0, "per_s": 100.0} for plan in rpc.PLANS for n in (1, 100)}
    lines = list(rpc.figures("apart", {"masos": best}))
    assert all(isinstance(line, Figure) and line.baseline is None for line in lines)
    assert len(lines) == 4 * len(rpc.PLANS)


def test_rpc_holds_the_rate_against_autogen_and_only_tells_lattica() -> None:
    def best(per_s: float) -> rpc.Best:
        return {(p.size, n): {"p50_ms": 1.0, "p95_ms": 2.0, "per_s": per_s} for p in rpc.PLANS for n in (1, 100)}

    seen = {"masos": best(100.0), "autogen": best(120.0), "lattica": best(500.0)}
    lines = [line for line in rpc.figures("apart", seen) if isinstance(line, Figure)]
    assert {line.baseline_is for line in lines if not line.ok} == {"AutoGen gRPC"}
    assert {line.target for line in lines if line.baseline_is == "lattica"} == {""}


class Dead:
    """A system that answers once and then no more."""

    def __init__(self, plans: int) -> None:
        self.left = plans

    def ask(self, _question: object, _limit_s: float) -> dict[str, float]:
        self.left -= 1
        if self.left < 0:
            raise ChildFailed("it ended")
        return {"p50_ms": 1.0, "p95_ms": 1.0, "per_s": 1.0}


def test_rpc_drops_a_baseline_that_dies_on_the_way_and_stops_when_ours_does(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    makers = {
        "masos": lambda _stack, _options: rpc.System(Dead(10**6)),  # type: ignore[arg-type]
        "autogen": lambda _stack, _options: rpc.System(Dead(3)),  # type: ignore[arg-type]
    }
    monkeypatch.setattr(rpc, "APART", makers)
    monkeypatch.setattr(rpc, "TOGETHER", makers)
    lines = list(rpc.run(options(tmp_path)))
    assert [line.skipped for line in lines if isinstance(line, Skipped)] == ["it ended"] * 2
    monkeypatch.setattr(rpc, "APART", {"masos": lambda _stack, _options: rpc.System(Dead(3))})  # type: ignore[arg-type]
    with pytest.raises(LocalError, match="echo between two nodes"):
        list(rpc.run(options(tmp_path)))


def test_the_better_of_two_rounds_is_taken_figure_by_figure() -> None:
    first, second = {"p50_ms": 1.0, "per_s": 10.0}, {"p50_ms": 2.0, "per_s": 20.0}
    assert rpc.better(None, first) == first
    assert rpc.better(first, second) == {"p50_ms": 1.0, "per_s": 20.0}


def test_discover_skips_a_baseline_with_its_reason(tmp_path: Path) -> None:
    (line,) = discover.baseline(HIVEMIND, (8,), options(tmp_path))
    assert isinstance(line, Skipped)
    assert "hivemind is not installed" in line.line()


# ---- what was seen


def test_what_was_never_found_lowers_the_share_and_is_no_time() -> None:
    times = (0.5, None, 1.5, 2.0)
    assert share(times) == 0.75
    assert met(times) == [0.5, 1.5, 2.0]
    assert share(()) == 1.0


def test_a_line_of_a_baseline_is_read_or_refused() -> None:
    assert seen_of({"n": 8, "joins_s": [1, None], "finds_s": []}) == Seen(8, (1.0, None), ())
    wrongs: list[dict[str, Any]] = [
        {},
        {"n": 8, "joins_s": None, "finds_s": []},
        {"n": "x", "joins_s": [], "finds_s": []},
    ]
    for wrong in wrongs:
        with pytest.raises(ValueError, match=r"not what was asked for|invalid literal"):
            seen_of(wrong)


def test_discover_holds_shares_and_stands_beside_each_baseline_that_found_anything() -> None:
    seen = Seen(8, (1.0, None), (0.1, 0.1))
    others = {"one": Seen(8, (2.0,), (0.2,)), "none": Seen(8, (None,), (None,))}
    lines = [line for line in discover.figures("real", seen, others, "s") if isinstance(line, Figure)]
    by_name = {line.figure: line for line in lines}
    assert not by_name["real, N=8: joined and found (of 2)"].ok
    assert by_name["real, N=8: survivors found with 30 % killed (of 2)"].ok
    assert by_name["real, N=8: join to found, p50, beside one"].ratio == 0.5
    assert not any("beside none" in name for name in by_name)


def test_idle_is_held_to_its_worst_memory_and_its_middle_cpu() -> None:
    costs = [idle.Cost(Memory(mb, 50.0), cpu, None) for mb, cpu in ((100.0, 0.2), (160.0, 0.3), (110.0, 9.0))]
    lines = list(idle.figures("there", costs, Memory(80.0, 40.0)))
    held_lines = {line.figure: line for line in lines if isinstance(line, Figure)}
    assert not held_lines["there: memory"].ok
    assert held_lines["there: memory"].ratio == 2.0
    assert held_lines["there: CPU"].value == 0.3
    assert held_lines["there: CPU"].ok
    assert [type(line) for line in lines if "sent" in line.figure] == [Skipped]


# ---- readers


def test_rollup_counts_resident_and_private_pages() -> None:
    text = "5-7 ---p 0 0 [rollup]\nRss: 1000 kB\nPss: 500 kB\nPrivate_Clean: 100 kB\nPrivate_Dirty: 200 kB\n"
    memory = parse_rollup(text)
    assert memory.resident == pytest.approx(1.024)
    assert memory.private == pytest.approx(0.3072)


def test_stat_survives_a_process_name_with_brackets() -> None:
    rest = " ".join(["S", *["0"] * 10, "30", "12", *["0"] * 30])
    assert parse_stat(f"1 (a) b) {rest}") == 42


def test_own_process_is_read() -> None:
    assert memory_of(os.getpid()).resident > memory_of(os.getpid()).private > 1
    assert cpu_of(os.getpid()) > 0


def _answer(inode: int, attributes: bytes) -> bytes:
    return bytes(68) + struct.pack("=I", inode) + attributes


def test_socket_answers_without_a_count_count_nothing() -> None:
    info = bytes(200) + struct.pack("=Q", 77)
    whole = struct.pack("=HH", 4 + len(info), 2) + info
    other = struct.pack("=HH", 5, 8) + b"x\0\0\0"  # another attribute, padded to four bytes
    assert parse(_answer(9, other + whole)) == (9, 77)
    assert parse(_answer(9, struct.pack("=HH", 104, 2) + bytes(100))) == (9, 0)
    assert parse(_answer(9, b"")) == (9, 0)
    assert parse(_answer(9, struct.pack("=HH", 0, 2))) == (9, 0)


def test_the_kernel_counts_what_a_socket_sends() -> None:
    pid = os.getpid()
    with (
        socket.create_server(("127.0.0.1", 0)) as listener,
        socket.create_connection(listener.getsockname()) as near,
        listener.accept()[0] as far,
    ):
        try:
            before = sent_by([pid])[pid]
        except OSError as exc:
            pytest.skip(f"no socket diagnostics here: {exc}")
        near.sendall(bytes(5000))
        far.sendall(bytes(70))
        assert sent_by([pid])[pid] - before == 5070


# ---- children


ECHO = "import sys\nprint('a banner', flush=True)\nfor line in sys.stdin: print(line, end='', flush=True)"


def test_a_child_answers_line_by_line_past_other_words() -> None:
    with Child([sys.executable, "-c", ECHO]) as child:
        assert child.ask({"n": 1}, 20) == {"n": 1}
        assert child.ask({"n": 2}, 20) == {"n": 2}


def test_a_child_that_dies_tells_its_last_words() -> None:
    program = "raise ValueError('no such thing')"
    with (
        Child([sys.executable, "-c", program]) as child,
        pytest.raises(ChildFailed, match="ValueError: no such thing"),
    ):
        child.read(20)


def test_a_silent_child_costs_its_time_limit() -> None:
    program = "import sys; sys.stdin.read()"
    with Child([sys.executable, "-c", program]) as child, pytest.raises(ChildFailed, match="no answer within"):
        child.read(0.2)


def test_last_words_name_the_error_inside_a_group() -> None:
    text = "  | ExceptionGroup: tasks (1 sub-exception)\n  +-+--- 1 ---\n    | OSError: [Errno 5] gone\n    +----\n"
    assert last_words(text) == ["OSError: [Errno 5] gone"]
    assert last_words("") == []


# ---- the verb


@pytest.fixture
def planted(monkeypatch: pytest.MonkeyPatch) -> None:
    def lines(_options: Options) -> Iterator[Line]:
        yield told("codec", "one", 1.0, "s")
        yield Skipped("codec", "beside other", "not here")

    monkeypatch.setattr(cli, "run_of", lambda _name: lines)


def test_the_verb_prints_one_object_per_line_and_progress_elsewhere(
    planted: None, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["bench", "codec", "--json"]) == 0
    out, err = capsys.readouterr()
    figure, skipped = map(json.loads, out.splitlines())
    assert figure["value"] == 1.0
    assert skipped == {"bench": "codec", "figure": "beside other", "skipped": "not here"}
    assert "load" in err


def test_an_unknown_bench_is_named_with_those_that_are(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["bench", "nothing"]) == 64
    assert "discover" in capsys.readouterr().err


def test_each_bench_is_a_module_that_runs() -> None:
    assert all(callable(cli.run_of(name)) for name in cli.BENCHES)


def test_the_command_line_loads_no_bench_before_it_is_asked() -> None:
    program = "import json, sys, simulations.bench.cli\nprint(json.dumps({'loaded': list(sys.modules)}))"
    with Child([sys.executable, "-c", program]) as child:
        loaded = child.read(30)["loaded"]
    ours = {name for name in loaded if name.startswith("simulations.bench.")}
    assert ours == {f"simulations.bench.{name}" for name in ("cli", "figure", "options")}
    assert "numpy" not in loaded
    assert not any(name.startswith("node.") for name in loaded)
