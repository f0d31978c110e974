"""What a person sees of a task: one plain structure for the API, the CLI and the demo.

Derived from the views of one node at one moment, so it may lag behind other nodes; `finality` says how far each
step can still be displaced. Ids are hex, peers are in libp2p text form.
"""

from __future__ import annotations

from kernel.task import Task
from kernel.turns.rank import current_claim, step_of_next
from protocol.contract import COMPONENTS, INT63_MAX, ZERO, Vector
from protocol.peer import peer_text
from protocol.records import Done, Unit

View = dict[str, object]


def task_line(task: Task) -> View:
    """Id, objective, state and answer."""
    opened = task.fold.open
    return {
        "task": task.space.hex(),
        "objective": opened.objective if opened is not None else "",
        "status": status_of(task),
        "steps": len(task.fold.chain),
        "answer": answer_of(task),
    }


def status_of(task: Task) -> str:
    """`unknown` before the open came, `running`, an end, `cancelled` or `settled`."""
    if task.fold.open is None:
        return "unknown"
    return "running" if task.fold.outcome == "open" else task.fold.outcome


def answer_of(task: Task) -> str | None:
    """The content of the unit of the answering done, once there is one."""
    done = task.fold.done(task.fold.chain[-1]) if task.fold.chain else None
    if done is None or done.outcome != "answer" or done.unit is None:
        return None
    unit = task.pool.unit(done.unit)
    return unit.content if unit is not None else None


def task_view(task: Task, me: bytes) -> View:
    """Everything: steps, the running turn, budget, summary, digests."""
    opened = task.fold.open
    if opened is None:
        return task_line(task)
    return {
        **task_line(task),
        "user": opened.by.hex(),
        "client_key": opened.client_key,
        "participants": [peer_text(peer) for peer in opened.participants],
        "deadline_ms": opened.deadline_ms,
        "budget": _vector(task.budget),
        "used": _vector(task.fold.spent(task.tip)),
        "summary": task.summary_text(),
        "turns": [_step(task, number, done) for number, done in enumerate(task.fold.chain, 1)],
        "running": _running(task, me),
        "reason": _reason(task),
        "ops": len(task.log),
        "digest": task.fold.state_digest().hex(),
    }


def _vector(vector: Vector) -> View:
    return {name: None if part == INT63_MAX else part for name, part in zip(COMPONENTS, vector, strict=True)}


def _step(task: Task, number: int, done_id: bytes) -> View:
    done = task.fold.done(done_id)
    assert done is not None
    claim = task.fold.claim(done.claim)
    unit = task.pool.unit(done.unit) if done.unit is not None else None
    body = task.log.record(done_id)
    used = body.used if isinstance(body, Done) else ZERO
    written = task.log.record(done.unit) if done.unit is not None else None
    view: View = {
        "step": number,
        "done": done_id.hex(),
        "outcome": done.outcome,
        "epoch": claim.e if claim is not None else None,
        "peer": peer_text(done.author),
        "role": unit.role if unit is not None else None,
        "agent": unit.agent if unit is not None else None,
        "summary": unit.summary if unit is not None else None,
        "content": unit.content if unit is not None else None,
        "verdict": unit.verdict if unit is not None else None,
        "model": written.model if isinstance(written, Unit) else None,
        "quality": written.quality if isinstance(written, Unit) else None,
        "tokens": used[0],
        "ms": used[2],
        "finality": task.fold.finality(done_id),
        "votes": task.fold.tally(done_id),
        "context": _receipt(task, done.unit),
    }
    if done.next is not None:
        view["next"] = {
            "role": done.next.role,
            "agent": done.next.agent,
            "peer": peer_text(done.next.peer) if done.next.peer is not None else None,
            "why": done.next.why,
            "rejected": list(done.next.rejected),
        }
    return view


def _receipt(task: Task, unit_id: bytes | None) -> list[View]:
    """Which memory the agent was given, with the tokens of each."""
    body = task.log.record(unit_id) if unit_id is not None else None
    rows: list[View] = []
    for given, tokens in body.context if isinstance(body, Unit) else ():
        source = task.pool.unit(given)
        rows.append(
            {
                "unit": given.hex(),
                "tokens": tokens,
                "role": source.role if source is not None else None,
                "summary": source.summary[:120] if source is not None else None,
            }
        )
    return rows


def _running(task: Task, me: bytes) -> View | None:
    """The turn in progress as this node knows it: its owner, epoch, what it may spend, partial output."""
    claim = current_claim(task)
    if task.fold.outcome != "open" or claim is None or task.fold.released(claim.id) is not None:
        return None
    tip = task.fold.done(task.tip)
    nxt = tip.next if tip is not None and tip.next is not None else task.open.next
    tokens, tail = 0, ""
    if task.run is not None and task.run.claim == claim.id:
        tokens, tail = task.run.tokens, task.run.tail
    elif task.remote is not None and task.remote.claim == claim.id:
        tokens, tail = task.remote.tokens, task.remote.tail
    return {
        "step": step_of_next(task),
        "claim": claim.id.hex(),
        "epoch": claim.e,
        "peer": peer_text(claim.author),
        "mine": claim.author == me,
        "stage": task.run.stage if task.run is not None and task.run.claim == claim.id else None,
        "role": nxt.role,
        "agent": nxt.agent,
        "renews": task.fold.renews(claim.id),
        "slice": _vector(claim.slice),
        "tokens": tokens,
        "partial": tail,
    }


def _reason(task: Task) -> str | None:
    body = task.log.record(task.fold.chain[-1]) if task.fold.chain else None
    return body.reason if isinstance(body, Done) and task.fold.ended else None
