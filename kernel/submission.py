"""Opening a task: the user-signed `open`, the document as memory units, and the same client key twice.

The space is derived from user and client key, so a repeated submit, on this node or another, finds the task that
exists (case: complaint 8). What the user gave is compared; what nodes chose (participants, first `next`, times) is
not, because two nodes may choose differently for one request.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass

from kernel.bounds import TEXT_BYTES_MAX, check_size, fits_bytes, model_bounds
from kernel.commands import Submit
from kernel.config import TaskDefaults
from kernel.decide import decide, missing_role as role_missing
from kernel.jobs import Candidate, Decide, Embedded
from protocol.contract import limits_to_vector, quarter
from protocol.errors import EngineError, Refused, UsageError
from protocol.identity import KeyPair, h64
from protocol.records import PARTICIPANTS_MAX, Open, Unit, sign_body

DOCUMENT_ROLE = "document"
CHUNKS_MAX = 128


@dataclass(frozen=True, slots=True)
class Swarm:
    """What opening a task needs to know of the swarm now."""

    offers: dict[bytes, Candidate]
    alive: tuple[bytes, ...]  # this node and every linked member, sorted
    encoder: str
    now_ms: int
    note: str = ""  # why more is not known of who offers what


def attachment_ids(document: tuple[str, ...]) -> tuple[bytes, ...]:
    """Hashes of the chunks, in order: the `attachments` of the task."""
    return tuple(hashlib.sha256(chunk.encode()).digest() for chunk in document)


def check(command: Submit) -> None:
    """Bounds that do not need the swarm.

    Raises:
        UsageError: empty or too long.
    """
    if not command.objective.strip():
        raise UsageError("the objective is empty", hint="say what the task is")
    if not fits_bytes(command.objective, TEXT_BYTES_MAX):
        raise UsageError(f"the objective is over {TEXT_BYTES_MAX} bytes", hint="give long material as a document")
    if len(command.document) > CHUNKS_MAX:
        raise UsageError(f"the document has {len(command.document)} chunks, at most {CHUNKS_MAX} fit a task")
    if not all(fits_bytes(chunk, TEXT_BYTES_MAX) for chunk in command.document):
        raise UsageError(f"a chunk of the document is over {TEXT_BYTES_MAX} bytes", hint="cut it in smaller parts")


def same_request(task: Open, command: Submit) -> bool:
    """True iff the fields that the user gave are those of an existing task."""
    return (
        task.objective == command.objective
        and task.attachments == attachment_ids(command.document)
        and task.contract == command.contract
        and (command.max_steps is None or task.max_steps == command.max_steps)
    )


def build_open(user: KeyPair, space: bytes, command: Submit, swarm: Swarm, defaults: TaskDefaults) -> Open:
    """The signed body of the task.

    Raises:
        Refused: no node of the swarm offers an agent for the first step.
        UsageError: a figure that no task can have, or too much for one op.
    """
    participants = choose_participants(swarm)
    first = decide(_before_first(space, command, swarm, participants))
    if first.next is None:
        raise Refused(
            "; ".join(["no node can begin the task: " + (first.reason or first.outcome), *filter(None, [swarm.note])]),
            hint="start a node with an engine, or see `masos status`",
        )
    with model_bounds("the task"):
        draft = Open(
            client_key=command.client_key,
            by=user.public,
            objective=command.objective,
            attachments=attachment_ids(command.document),
            contract=command.contract,
            deadline_ms=swarm.now_ms + (command.deadline_ms or defaults.deadline_ms),
            lease_ms=command.lease_ms or defaults.lease_ms,
            eps_ms=defaults.eps_ms if command.eps_ms is None else command.eps_ms,
            renew_max=defaults.renew_max,
            max_steps=command.max_steps or defaults.max_steps,
            slice_max=quarter(limits_to_vector(command.contract)),
            f=defaults.f,
            participants=participants,
            holders=swarm.alive[:64],
            ack=command.ack,
            quota=defaults.quota,
            encoder=swarm.encoder,
            next=first.next,
            sig=bytes(64),
        )
    check_size(draft, "the task")
    return sign_body(user, space, draft)


def choose_participants(swarm: Swarm) -> tuple[bytes, ...]:
    """Up to five voters: nodes with an agent first, then by PeerID; all while there are at most five."""
    ranked = sorted(swarm.alive, key=lambda peer: (peer not in swarm.offers, peer))
    return tuple(sorted(ranked[:PARTICIPANTS_MAX]))


def missing_role(space: bytes, command: Submit, swarm: Swarm) -> str:
    """The role that the first step needs and nobody known runs; empty where somebody does."""
    return role_missing(_before_first(space, command, swarm, choose_participants(swarm)))


def _before_first(space: bytes, command: Submit, swarm: Swarm, participants: tuple[bytes, ...]) -> Decide:
    budget = limits_to_vector(command.contract)
    nobody = Candidate(b"", (), "", "", 0, 0, alive=True, turns_done=0)
    offers = [swarm.offers.get(peer, nobody) for peer in participants]
    return Decide(
        space=space,
        claim=space,
        step=0,
        max_steps=command.max_steps or 12,
        objective=command.objective,
        summary="",
        role="",
        roles_so_far=(),
        answer=False,
        pool=(),
        candidates=tuple(offer for offer in offers if offer.peer),
        left=budget,
        slice_max=quarter(budget),
        seed=h64(space) >> 32,
    )


def document_units(command: Submit, embedded: Embedded) -> list[Unit]:
    """The document as memory, one unit a chunk; quoted data of the user, of no claim.

    Raises:
        EngineError: the encoder did not answer for every chunk.
        UsageError: a chunk does not fit an op.
    """
    if not len(command.document) == len(embedded.vectors) == len(embedded.tokens):
        raise EngineError(f"{len(command.document)} chunks, but {len(embedded.vectors)} vectors from the encoder")
    return [_document_unit(command, embedded, number) for number in range(len(command.document))]


def _document_unit(command: Submit, embedded: Embedded, number: int) -> Unit:
    chunk, what = command.document[number], f"chunk {number + 1} of {len(command.document)}"
    with model_bounds(what):
        unit = Unit(
            agent="user",
            role=DOCUMENT_ROLE,
            action=what,
            content=chunk,
            summary=chunk.strip().partition("\n")[0][:200],
            tokens=embedded.tokens[number],
            emb=embedded.vectors[number],
            encoder=embedded.encoder,
        )
    check_size(unit, what)
    return unit
