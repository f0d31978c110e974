"""The second, deterministic step of scheduling: from a role to (agent, peer, model) (masos-kernel.md §6).

A candidate is capable if it offers the role and its window holds the task. Among the capable the order is: linked now,
quality of the engine, fewer turns done in this task, faster, then H64(claim, peer), so that equal nodes share the work
differently from step to step and yet every node would choose the same. Trust joins the key when there are outcomes to
learn from. A capable node that is not linked is still named if there is no other: ranks take over after it.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from typing import Final

from kernel.jobs import Candidate

REJECTED_MAX: Final = 16  # protocol.records.Next.rejected
_QUALITY: Final = {"standard": 0, "demo": 1}


@dataclass(frozen=True, slots=True)
class Assignment:
    """Who runs the next turn, why, and why not the others ("<peer>: <reason>", at most 16)."""

    candidate: Candidate
    why: str
    rejected: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class NoCapable:
    """Nobody offers the role with a window large enough."""

    rejected: tuple[str, ...]


def assign(role: str, candidates: tuple[Candidate, ...], claim: bytes, tokens_min: int) -> Assignment | NoCapable:
    """The best candidate for a role. `tokens_min`: the smallest window that holds the task and a reply."""
    capable: list[Candidate] = []
    rejected: list[str] = []
    for candidate in sorted(candidates, key=lambda item: item.peer):
        reason = _unfit(role, candidate, tokens_min)
        if reason is None:
            capable.append(candidate)
        else:
            rejected.append(f"{short(candidate.peer)}: {reason}")
    if not capable:
        return NoCapable(tuple(rejected[:REJECTED_MAX]))
    best, *rest = sorted(capable, key=lambda item: _key(item, claim))
    rejected += [f"{short(item.peer)}: {_compared(best, item)}" for item in rest]
    return Assignment(best, _reasons(best, len(capable)), tuple(rejected[:REJECTED_MAX]))


def short(peer: bytes) -> str:
    """The first eight hex digits of a node key, for people."""
    return peer.hex()[:8]


def _unfit(role: str, candidate: Candidate, tokens_min: int) -> str | None:
    if role not in candidate.agents:
        return f"does not offer {role}"[:180]
    if candidate.context_tokens < tokens_min:
        return f"window of {candidate.context_tokens} tokens is below {tokens_min}"
    return None


def _key(candidate: Candidate, claim: bytes) -> tuple[bool, int, int, int, bytes]:
    return (
        not candidate.alive,
        _QUALITY.get(candidate.quality, 2),
        candidate.turns_done,
        -candidate.tokens_per_s,
        hashlib.sha256(claim + candidate.peer).digest(),
    )


def _compared(best: Candidate, other: Candidate) -> str:
    if best.alive != other.alive:
        return "not linked now"
    if best.quality != other.quality:
        return f"engine quality {other.quality[:40]}"
    if best.turns_done != other.turns_done:
        return f"has done {other.turns_done} turns"
    return "slower" if best.tokens_per_s != other.tokens_per_s else "equal, lost the draw"


def _reasons(best: Candidate, capable: int) -> str:
    link = "linked" if best.alive else "not linked now"
    speed = f"{best.turns_done} turns done, {best.tokens_per_s} tok/s"
    return f"best of {capable} capable: {link}, {best.quality[:40]}, {speed}"
