"""The masos command: parse, run one verb, show what came of it, exit with the status of its class.

    0   it is done                                 73  the client key names another task (conflict)
    1   a watched task ended without an answer     74  the database or its disk
    64  usage                                      75  not in time
    66  no such task or peer                       76  the engine
    69  no daemon, peer or engine answers          77  refused by policy, permission or a bound
    70  a bug of masos                             78  settings, ticket or profile
                                                   130 interrupted

Nothing asks questions, so nothing hangs without a terminal.
"""

from __future__ import annotations

import os
import sys
import traceback
from typing import Final

import typer

from node.cli.output import Screen, wanted_form
from node.cli.verbs import VerbGroup
from protocol.errors import SwarmError, UsageError

EXIT_BUG: Final = 70
EXIT_INTERRUPTED: Final = 130
ABOUT: Final = "A node of a decentralized multi-agent operating system: no orchestrator, replicated memory."
EPILOG: Final = "\b\nExit status:\n" + (__doc__ or "").split("\n\n")[1]


def main() -> None:
    """The entry point `masos`.

    Before any verb loads numpy, its OpenBLAS is told to stay on one thread, here and in the processes that this one
    starts; a setting that is there stays. By itself it takes all cores for every product of matrices, however small,
    and its threads spin while they wait for each other. One text of 221 characters costs the encoder 99 ms of CPU that
    way and 5 ms with one thread; where a thread waits for a core beside other load, 540 ms pass and not 23. Lost are
    2 ms of the largest product of a node, 20 000 vectors of 768: 2.0 ms become 3.6 on two idle cores. Beside other load
    one thread is the faster there too. [measured, 2 cores]
    """
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
    sys.exit(run(sys.argv[1:]))


def run(argv: list[str]) -> int:
    """Run one command line; the exit status. Errors are shown, never raised."""
    screen = Screen(wanted_form(argv))
    try:
        root = VerbGroup(name="masos", help=ABOUT, epilog=EPILOG, rich_markup_mode=None)
        status = root.main(args=argv or ["--help"], prog_name="masos", standalone_mode=False)
        return status if isinstance(status, int) else 0
    except SwarmError as exc:
        screen.error(exc)
        return exc.exit_code
    except typer.TyperException as exc:
        message = " ".join(exc.format_message().split())
        screen.error(UsageError(message.rstrip("."), hint="see --help"))
        return UsageError.exit_code
    except (KeyboardInterrupt, typer.Abort):
        return EXIT_INTERRUPTED
    except Exception:  # noqa: BLE001 - the guard of the command: a bug is shown in full, told apart by its status
        traceback.print_exc()
        return EXIT_BUG
