"""Baselines: other systems, each in a virtual environment of its own, driven by a script of ours.

Their dependencies do not fit ours (protobuf, grpcio, pydantic), so they never come into the environment of masos. An
environment is made on demand in the cache folder, under the digest of what it holds, and is there in full or not at
all: it is built under another name and renamed. Who has one already can put it there.

What cannot be installed raises `Missing`, whose text is the reason that a bench shows beside the figure it skips.
"""

from __future__ import annotations

import hashlib
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from simulations.bench.children import Child
from simulations.bench.options import Options

SCRIPTS: Final = Path(__file__).parent / "baselines"
INSTALL_S: Final = 600.0  # hivemind brings torch
VENV_S: Final = 60.0
REASON_CHARS_MAX: Final = 200


class Missing(Exception):
    """A baseline cannot run here; the message says why. Not an error of masos."""


@dataclass(frozen=True, slots=True)
class Foreign:
    """Another system: its name, what pip installs, and the script beside this file that drives it."""

    name: str
    requirements: tuple[str, ...]
    script: str

    def folder(self, cache: Path) -> Path:
        """Where its environment is, if it is there: another set of requirements is another folder."""
        digest = hashlib.sha256("\n".join((sys.version, *self.requirements)).encode()).hexdigest()
        return cache / f"{self.name}-{digest[:12]}"

    def command(self, options: Options, *args: str) -> list[str]:
        """A command line of the script in its environment, which is made if need be.

        Raises:
            Missing: it is not there and is not to be made, or cannot be.
        """
        folder = self.folder(options.cache)
        if not _python(folder).exists():
            if not options.install:
                raise Missing(f"{self.name} is not installed in {folder}")
            options.tell(f"installing {' '.join(self.requirements)} (once, into {folder})")
            _make(folder, self.requirements)
        return [str(_python(folder)), str(SCRIPTS / self.script), *args]

    def child(self, options: Options, *args: str) -> Child:
        """The script as a running child.

        Raises:
            Missing: as `command`.
        """
        return Child(self.command(options, *args))


AUTOGEN: Final = Foreign("autogen", ("autogen-core==0.7.5", "autogen-ext[grpc]==0.7.5"), "autogen_rpc.py")
LATTICA: Final = Foreign("lattica", ("lattica==1.0.21",), "lattica_rpc.py")
HIVEMIND: Final = Foreign("hivemind", ("hivemind==1.1.12",), "hivemind_find.py")
KADEMLIA: Final = Foreign("kademlia", ("kademlia==2.2.3",), "kademlia_find.py")


def _python(folder: Path) -> Path:
    return folder / "bin" / "python"


def _make(folder: Path, requirements: tuple[str, ...]) -> None:
    """Build an environment, in full or not at all. A venv may be renamed: only its scripts hold its path."""
    building = folder.with_name(folder.name + ".building")
    shutil.rmtree(building, ignore_errors=True)
    try:
        building.parent.mkdir(parents=True, exist_ok=True)
        _run([sys.executable, "-m", "venv", str(building)], VENV_S)
        _run([str(_python(building)), "-m", "pip", "install", "--quiet", *requirements], INSTALL_S)
        building.rename(folder)
    except OSError as exc:
        raise Missing(f"cannot make {folder}: {exc.strerror}") from exc
    finally:
        shutil.rmtree(building, ignore_errors=True)


def _run(command: list[str], limit_s: float) -> None:
    try:
        done = subprocess.run(  # noqa: S603 - the interpreter at hand, arguments of ours
            command, stdin=subprocess.DEVNULL, capture_output=True, check=False, timeout=limit_s
        )
    except subprocess.TimeoutExpired as exc:
        raise Missing(f"not installed within {limit_s:.0f} s") from exc
    if done.returncode:
        raise Missing(reason_of(done.stderr.decode(errors="replace")))


def reason_of(text: str) -> str:
    """The line of pip's complaint that says most, cut to a length."""
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    errors = [line for line in lines if line.startswith("ERROR:")]
    chosen = errors[-1] if errors else lines[-1] if lines else "it failed without a word"
    return f"pip: {chosen.removeprefix('ERROR: ')}"[:REASON_CHARS_MAX]
