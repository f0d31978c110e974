"""What the person who runs a bench chose."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

Tell = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class Options:
    """For all benches.

    Attributes:
        cache: where environments of baselines are kept.
        tell: gets a line per step that takes a while.
        install: make the environments that are missing; otherwise their baselines are skipped.
        large: also the sizes that take minutes.
        seed: of everything that is drawn.
    """

    cache: Path
    tell: Tell
    install: bool = True
    large: bool = False
    seed: int = 1


def silent(_text: str) -> None:
    """A `Tell` that tells nobody."""
