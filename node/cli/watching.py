"""`masos task watch`: a live picture on a terminal, a line per change otherwise, JSON for programs.

human, terminal   redrawn in place: the running turn, tokens, partial output; the finished task stays
human, no terminal  one line when a turn begins, changes hands, makes progress or ends
jsonl             every view, one a line
json              the last view only
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, aclosing, contextmanager, nullcontext
from typing import Final

import trio
from rich.console import Console
from rich.live import Live
from rich.text import Text

from node.cli.output import Form, Json, Screen, as_list, as_object
from node.cli.task_text import answer_lines, budget_text, running_lines, turn_lines, view_lines
from node.control.client import watch
from node.profile import Profile
from protocol.errors import DaemonUnreachable, RequestTimeout

PROGRESS_TOKENS: Final = 32
"""Between two progress lines of one turn without a terminal."""
ANSWERED: Final = frozenset(("answer", "settled"))
EXIT_NO_ANSWER: Final = 1


def follow(place: Profile, task: str, screen: Screen, timeout_s: float | None) -> int:
    """Follow a task to its end; the exit status.

    Raises:
        RequestTimeout: it did not end in time; it goes on.
        SwarmError: what the node says, or none answers.
    """
    with _picture(screen) as draw:
        last = trio.run(_follow, place, task, screen.note, draw, timeout_s)
    if screen.form is Form.JSON:
        screen.record(last)
    elif screen.human:
        screen.lines(view_lines(last) if screen.out.isatty() else [f"ended: {last['status']}", *answer_lines(last)])
    return 0 if last["status"] in ANSWERED else EXIT_NO_ANSWER


async def _follow(
    place: Profile, task: str, note: Callable[[str], None], draw: Callable[[Json], None], timeout_s: float | None
) -> Json:
    last: Json | None = None
    with trio.move_on_after(timeout_s if timeout_s is not None else float("inf")) as wait:
        async with aclosing(watch(place, task, note)) as views:
            async for view in views:
                last = view
                draw(view)
    if wait.cancelled_caught:
        raise RequestTimeout(f"the task did not end within {timeout_s:g} s", hint="it goes on; watch it again")
    if last is None:
        raise DaemonUnreachable("the node showed nothing of the task")
    return last


def _picture(screen: Screen) -> AbstractContextManager[Callable[[Json], None]]:
    """How views are drawn."""
    if screen.form is Form.JSONL:
        return nullcontext(screen.record)
    if screen.form is Form.JSON:
        return nullcontext(lambda _view: None)
    return _live(screen) if screen.out.isatty() else nullcontext(Lines(screen).draw)


@contextmanager
def _live(screen: Screen) -> Iterator[Callable[[Json], None]]:
    """A picture that is redrawn in place and wiped at the end, when the whole task is printed."""
    console = Console(file=screen.out, markup=False, highlight=False, emoji=False)
    with Live(console=console, auto_refresh=False, transient=True) as live:

        def draw(view: Json) -> None:
            # A Text takes no markup, and what is in it is printable already.
            live.update(Text("\n".join(picture_lines(view))), refresh=True)

        yield draw


def picture_lines(view: Json) -> list[str]:
    """What a live picture shows: finished turns, the running one, the budget."""
    lines = [f"task {view['task']}: {view['status']}"]
    if "turns" not in view:
        return lines
    for turn in as_list(view["turns"]):
        lines += turn_lines(as_object(turn))[:2]
    lines += running_lines(view) if view["running"] else ["  nobody holds the turn"]
    return [*lines, f"  used {budget_text(view)}"]


class Lines:
    """What changed since the last view, a line each."""

    def __init__(self, screen: Screen) -> None:
        self._screen = screen
        self._done: list[object] = []
        self._claim: object = None
        self._tokens = 0

    def draw(self, view: Json) -> None:
        """Say what is new; a step that another done has displaced is said again."""
        turns = [as_object(turn) for turn in as_list(view.get("turns"))]
        for position, turn in enumerate(turns):
            if position >= len(self._done) or self._done[position] != turn["done"]:
                self._screen.lines(turn_lines(turn))
        self._done = [turn["done"] for turn in turns]
        running = as_object(view.get("running"))
        if not running:
            return
        tokens = int(str(running["tokens"]))
        if running["claim"] != self._claim or tokens - self._tokens >= PROGRESS_TOKENS:
            self._claim, self._tokens = running["claim"], tokens
            self._screen.lines(running_lines(view))
