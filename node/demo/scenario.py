"""The demo's story, told through a callback: swarm, question, kill, takeover, return, equal memory.

Everything that happens is done by the daemons. This file only starts them, asks the question, picks the node that
holds a turn, kills it, starts it again, and reads from all three what they think.
"""

from __future__ import annotations

import hashlib
import importlib.metadata
import json
import signal
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType
from typing import Final, NoReturn

from node.demo.nodes import DemoNode, View, wait_for
from node.profile import Profile
from protocol.errors import LocalError

NAMES: Final = ("alba", "bruno", "carla")
BOOT_S: Final = 90.0
LINK_S: Final = 60.0
TASK_S: Final = 240.0
EQUAL_S: Final = 60.0
LEASE_S: Final = 8  # protocol.md §6: the demo's lease and eps, so that a takeover is seen within seconds
EPS_S: Final = 2
KILL_FROM_STEP: Final = 2
MIDDLE_S: Final = 0.3  # a turn has run so long, or has given output, before its node is killed
TIMING: Final = {
    "MASOS_TASK_LEASE_S": str(LEASE_S),
    "MASOS_TASK_EPS_S": str(EPS_S),
    "MASOS_TIMING_SYNC_EVERY_S": "2",
    "MASOS_TIMING_OWN_HEAD_WAIT_S": "5",
    "MASOS_TIMING_DIAL_BACKOFF_MAX_S": "2",
    "MASOS_NODE_LISTEN": "/ip4/127.0.0.1/tcp/0",
}

ENDINGS: Final = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
"""What ends a demo early: Ctrl-C, a supervisor, a terminal that is closed."""

Tell = Callable[[str], None]


@dataclass(slots=True)
class Story:
    """What happened; `as_dict` is the object that `masos demo --json` prints.

    Attributes:
        nodes: `{name, peer, lives: [{pid, listen, control}]}`; the killed node has two lives.
    """

    question: str
    status: str = "unfinished"
    task: str = ""
    answer: str | None = None
    model: str = ""
    nodes: list[View] = field(default_factory=list)
    killed: View | None = None
    takeover: View | None = None
    turns: list[View] = field(default_factory=list)
    digests: dict[str, str] = field(default_factory=dict)
    elapsed_s: float = 0.0

    def as_dict(self) -> View:
        """Plain data."""
        return {
            "status": self.status,
            "answers": [{"task": self.task, "question": self.question, "answer": self.answer, "model": self.model}],
            "nodes": self.nodes,
            "killed": self.killed,
            "takeover": self.takeover,
            "turns": self.turns,
            "digests": self.digests,
            "elapsed_s": round(self.elapsed_s, 1),
        }


class Demo:
    """One run, in the main thread. `tell` gets one line per thing that a person should see."""

    def __init__(self, document: str, question: str, tell: Tell, extra_env: dict[str, str] | None = None) -> None:
        self._document = document
        self._tell = tell
        self._env = {**TIMING, **(extra_env or {})}
        self._nodes: list[DemoNode] = []
        self._seen_running: dict[str, float] = {}
        self.story = Story(question)

    def run(self) -> Story:
        """The whole story; no process and no file is left behind, however it ends.

        Raises:
            SwarmError: a part did not happen in time; the message says which, with the daemons' logs.
            KeyboardInterrupt: one of `ENDINGS` came.
        """
        begun = time.monotonic()
        with _ended_by_signals() as undisturbed, tempfile.TemporaryDirectory(prefix="masos-demo-") as folder:
            try:
                self._play(Path(folder))
            finally:
                undisturbed()
                for node in self._nodes:
                    with suppress(OSError):
                        node.stop()
        self.story.elapsed_s = time.monotonic() - begun
        return self.story

    def _play(self, folder: Path) -> None:
        self._raise_swarm(folder)
        self._submit(folder)
        victim = self._kill_in_the_middle()
        self._await_end()
        self._bring_back(victim)
        self._compare()

    # ---- the swarm

    def _raise_swarm(self, folder: Path) -> None:
        for name in NAMES:
            node = DemoNode(name, Profile(folder / name), self._env)
            self._nodes.append(node)
            node.masos("init")
            if len(self._nodes) == 1:
                node.masos("swarm", "create", "demo")
            else:
                ticket = self._nodes[0].masos("swarm", "invite")["ticket"]
                node.masos("swarm", "join", str(ticket))
            node.start()
            wait_for(f"answer of {name}", lambda node=node: self._meet(node), BOOT_S, [node])  # type: ignore[misc]
            self.story.nodes.append({"name": name, "peer": node.peer, "lives": [self._life(node)]})
            self._tell(f"{name} is up: peer {node.peer}, pid {node.pid}")
        linked_s = wait_for("full set of links and engines", self._all_ready, LINK_S + BOOT_S, self._nodes)
        self._tell(f"all three are linked and offer agents ({linked_s:.1f} s); no one of them is in charge")

    def _meet(self, node: DemoNode) -> bool:
        status = node.status()
        if status is None or not status["listen"]:
            return False
        node.peer, node.addrs = str(status["peer"]), list(status["listen"])
        return True

    def _life(self, node: DemoNode) -> View:
        """Process and ports of a node that answers; what must be gone in the end."""
        return {"pid": node.pid, "listen": node.addrs, "control": node.control()}

    def _all_ready(self) -> bool:
        for node in self._nodes:
            status = node.status()
            if status is None or status["offer"] is None or len(status["linked"]) < len(NAMES) - 1:
                return False
            if any(peer["offer"] is None for peer in status["linked"]):
                return False
            self.story.model = str(status["offer"]["model"])
        return True

    # ---- the task

    def _submit(self, folder: Path) -> None:
        file = folder / "document.txt"
        file.write_text(self._document)
        first = self._nodes[0]
        reply = first.masos(
            *("task", "submit", self.story.question, "--document", str(file)),
            *("--key", "demo-question", "--ack", "w1", "--tokens", "60000", "--calls", "400"),
        )
        self.story.task = str(reply["task"])
        self._tell(f"{first.name} submitted task {self.story.task[:8]}; another node has it on disk ({reply['ack']})")

    def _kill_in_the_middle(self) -> DemoNode:
        victim: list[tuple[DemoNode, View]] = []

        def caught() -> bool:
            for node in self._nodes:
                view = node.task(self.story.task)
                if view is None:
                    continue
                if view["status"] != "running":
                    raise LocalError(
                        f"the task ended ({view['status']}: {view.get('reason')}) before a node was killed"
                    )
                if self._in_the_middle(view.get("running")):
                    victim.append((node, view["running"]))
                    return True
            return False

        wait_for("turn in the middle", caught, TASK_S, self._nodes)
        node, turn = victim[0]
        pid = node.pid
        node.kill()
        self.story.killed = {
            "name": node.name,
            "peer": node.peer,
            "pid": pid,
            "step": turn["step"],
            "role": turn["role"],
            "epoch": turn["epoch"],
            "partial_tokens": turn["tokens"],
        }
        self._killed_at = time.monotonic()
        self._tell(f"KILLED {node.name} (pid {pid}, SIGKILL) in the middle of step {turn['step']}, {turn['role']}")
        return node

    def _in_the_middle(self, running: View | None) -> bool:
        """The owner's own view of a turn that has run for a moment."""
        if not running or not running["mine"] or running["stage"] != "running" or running["step"] < KILL_FROM_STEP:
            return False
        since = self._seen_running.setdefault(str(running["claim"]), time.monotonic())
        return bool(running["tokens"]) or time.monotonic() - since >= MIDDLE_S

    def _await_end(self) -> None:
        living = [node for node in self._nodes if node.running]
        killed = self.story.killed
        assert killed is not None

        def ended() -> bool:
            view = living[0].task(self.story.task)
            if view is None:
                return False
            self._note_takeover(view, killed)
            self.story.status = str(view["status"])
            return bool(view["status"] != "running")

        wait_for("end of the task", ended, TASK_S, living)
        self._tell(f"the task ended without {killed['name']}: {self.story.status}")

    def _note_takeover(self, view: View, killed: View) -> None:
        if self.story.takeover is not None:
            return
        step = killed["step"]
        done = view["turns"][step - 1] if len(view["turns"]) >= step else view.get("running")
        if not done or done["peer"] == killed["peer"] or not done["epoch"]:
            return
        taker = next(node for node in self._nodes if node.peer == done["peer"])
        after_s = time.monotonic() - self._killed_at
        self.story.takeover = {
            "step": step,
            "epoch": done["epoch"],
            "from": killed["peer"],
            "to": taker.peer,
            "name": taker.name,
            "after_s": round(after_s, 1),
        }
        self._tell(f"{taker.name} took step {step} over as epoch {done['epoch']}, {after_s:.1f} s after the kill")

    # ---- the return

    def _bring_back(self, victim: DemoNode) -> None:
        victim.start()
        wait_for(f"answer of {victim.name}", lambda: self._meet(victim), BOOT_S, [victim])
        told = next(node for node in self.story.nodes if node["peer"] == victim.peer)
        told["lives"].append(self._life(victim))
        self._tell(f"{victim.name} is back (pid {victim.pid}) and asks the others what it missed")

    def _compare(self) -> None:
        wait_for("equal memory on all three", self._equal, EQUAL_S, self._nodes)
        view = self._nodes[0].task(self.story.task)
        assert view is not None
        self.story.status, self.story.answer = str(view["status"]), view["answer"]
        self.story.turns = [
            {
                "task": self.story.task,
                "step": turn["step"],
                "epoch": turn["epoch"],
                "agent": turn["agent"],
                "peer": turn["peer"],
                "tokens": turn["tokens"],
                "ms": turn["ms"],
            }
            for turn in view["turns"]
        ]
        if self.story.takeover is None:
            raise LocalError("the task ended, but nobody took the killed turn over")
        if self.story.status != "answer":
            raise LocalError(f"the task ended as {self.story.status}: {view['reason']}")

    def _equal(self) -> bool:
        """Same ops, same derived state, on all three, and every node sees the end."""
        found: dict[str, str] = {}
        for node in self._nodes:
            digests, view = node.digests(), node.task(self.story.task)
            if digests is None or view is None or view["status"] == "running":
                return False
            found[node.peer] = hashlib.sha256(json.dumps(digests, sort_keys=True).encode()).hexdigest()
        self.story.digests = found
        return len(set(found.values())) == 1


@contextmanager
def _ended_by_signals() -> Iterator[Callable[[], None]]:
    """Within, one of `ENDINGS` raises KeyboardInterrupt; after it, or after the yielded call, none disturbs any more.

    A signal that this process was started to pass over (`nohup`) stays passed over.
    """
    before = {number: signal.getsignal(number) for number in ENDINGS}
    heard = [number for number in ENDINGS if before[number] is not signal.SIG_IGN]

    def undisturbed() -> None:
        for number in heard:
            signal.signal(number, signal.SIG_IGN)

    def end(_number: int, _frame: FrameType | None) -> NoReturn:
        undisturbed()
        raise KeyboardInterrupt

    for number in heard:
        signal.signal(number, end)
    try:
        yield undisturbed
    finally:
        for number in heard:
            signal.signal(number, before[number])


def default_document() -> str:
    """A real document that every installation has: the licence of masos.

    Raises:
        LocalError: the installation is incomplete.
    """
    for found in importlib.metadata.distributions(name="masos"):  # a source tree's own metadata may come first
        text = found.read_text("licenses/LICENSE")
        if text:
            return text
    raise LocalError("the licence text is not installed", hint="install masos again, or give --document FILE")


DEFAULT_QUESTION: Final = "What must modified files carry?"
