"""The command `masos` before any verb: what it sets for the process and for those that it starts."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from node.cli import main

VARIABLE = "OPENBLAS_NUM_THREADS"
LOADED = "import sys, node.cli; print('numpy' in sys.modules)"
THREADS = """
import os, sys
import node.cli
sys.argv = ["masos", "version"]
try:
    node.cli.main()
except SystemExit:
    import numpy
print(len(os.listdir("/proc/self/task")))
"""


def run(monkeypatch: pytest.MonkeyPatch) -> int:
    monkeypatch.setattr(sys, "argv", ["masos", "version"])
    with pytest.raises(SystemExit) as ended:
        main()
    assert isinstance(ended.value.code, int)
    return ended.value.code


def test_linear_algebra_stays_on_one_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(VARIABLE, "")  # so that what `main` sets is taken back after the test
    monkeypatch.delenv(VARIABLE)
    assert run(monkeypatch) == 0
    assert os.environ[VARIABLE] == "1"


def test_a_setting_of_the_user_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(VARIABLE, "3")
    assert run(monkeypatch) == 0
    assert os.environ[VARIABLE] == "3"


def test_numpy_is_not_loaded_before_it_is_told() -> None:
    done = subprocess.run([sys.executable, "-c", LOADED], capture_output=True, text=True, check=True, timeout=60)
    assert done.stdout.split() == ["False"]


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="threads are counted in /proc")
def test_numpy_starts_no_threads() -> None:
    environ = {name: value for name, value in os.environ.items() if name != VARIABLE}
    command = [sys.executable, "-c", THREADS]
    done = subprocess.run(command, env=environ, capture_output=True, text=True, check=True, timeout=60)
    assert done.stdout.split()[-1] == "1"
