"""The process that holds the model: llama.cpp's server on a Unix socket, alive while stdin is open.

    python -m node.engines.embedded_child MODEL.gguf FOLDER/engine.sock [--alias NAME] ...

It says one line of JSON on stdout, `{"op": "ready"}` or `{"op": "failed", "message": TEXT}`, and
nothing else ever: file descriptor 1 is taken away from llama.cpp, which prints there, before
llama.cpp is loaded. After that line all talk goes through the socket, so the model has no port.
The socket lies in a folder of its own that only this user can enter and that goes with the child.

It ends when its stdin closes, which the kernel does for a parent that dies by any signal. A thread
watches from the first moment on, so that a parent that dies while the model loads leaves nothing
behind either. This file imports nothing of the project: it starts fast and stands alone.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import signal
import sys
import threading
from pathlib import Path
from typing import Final, NoReturn

SOCKET_PATH_BYTES_MAX: Final = 100
"""sun_path holds 108 bytes on Linux and 104 on macOS."""
REMOVE_TRIES: Final = 3
BATCH_TOKENS: Final = 128
"""Prompt tokens per step: a cancelled call stops between steps, so ~0.5 s instead of a whole prompt."""


def main(argv: list[str]) -> NoReturn:
    """Loads, says so, and waits for the end of stdin."""
    protocol = _take_stdout()
    options = _parse(argv)
    folder = options.socket.parent
    signal.signal(signal.SIGTERM, lambda *_: _end(folder))
    watcher = threading.Thread(target=_end_with_stdin, args=(folder,), daemon=True)
    watcher.start()
    try:
        server = _serve(options)
    except Exception as exc:  # noqa: BLE001 - whatever the product raises is what the parent has to hear
        _say(protocol, {"op": "failed", "message": str(exc)[:500] or type(exc).__name__})
        _end(folder, 1)
    _say(protocol, {"op": "ready"})
    watcher.join()
    del server  # held until here: its threads answer the socket
    _end(folder)


def _take_stdout() -> int:
    """A private copy of stdout; descriptor 1 now leads to stderr."""
    protocol = os.dup(1)
    os.dup2(2, 1)
    return protocol


def _parse(argv: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="embedded_child", description="serves one GGUF model")
    parser.add_argument("model", type=Path)
    parser.add_argument("socket", type=Path, help="in a folder that this process may delete")
    parser.add_argument("--alias", default="model", help="the name that /v1/models lists")
    parser.add_argument("--context", type=int, default=2048, help="tokens per slot")
    parser.add_argument("--slots", type=int, default=2, help="requests that run at once")
    parser.add_argument("--threads", type=int, default=1)
    return parser.parse_args(argv)


def _serve(options: argparse.Namespace) -> object:
    """The running server; keep the object, its threads live as long.

    Raises:
        OSError, RuntimeError: no such model, not a model, no room for it, or no socket.
    """
    if not options.model.is_file():
        raise OSError(f"there is no model file {options.model}")
    if len(os.fsencode(options.socket)) > SOCKET_PATH_BYTES_MAX:
        raise OSError(f"the path {options.socket} is too long for a socket; set TMPDIR to a short one")
    import xllamacpp

    params = xllamacpp.CommonParams()
    params.model.path = str(options.model)
    params.model_alias = {options.alias}
    params.hostnames = [str(options.socket)]
    params.n_ctx = options.context * options.slots
    params.n_parallel = options.slots
    params.n_batch = params.n_ubatch = BATCH_TOKENS
    params.cpuparams.n_threads = params.cpuparams_batch.n_threads = options.threads
    params.cache_ram_mib = 0  # 8 GiB by default
    params.ui = False
    params.endpoint_slots = False
    params.verbosity = 2
    return xllamacpp.Server(params)


def _say(protocol: int, message: dict[str, str]) -> None:
    os.write(protocol, json.dumps(message).encode() + b"\n")


def _end_with_stdin(folder: Path) -> None:
    while os.read(0, 4096):
        pass
    _end(folder)


def _end(folder: Path, status: int = 0) -> NoReturn:
    """Ends at once: llama.cpp's own shutdown waits for running requests."""
    for _ in range(REMOVE_TRIES):  # the server may make its socket while we remove
        shutil.rmtree(folder, ignore_errors=True)
        if not folder.exists():
            break
    os._exit(status)


if __name__ == "__main__":
    main(sys.argv[1:])
