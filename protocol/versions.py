"""What this build speaks and derives."""

from typing import Final

WIRE_MIN: Final = 1
WIRE_MAX: Final = 1
DERIVE_VERSIONS: Final = (1,)  # of the fold, the edges and the summary view; roots compare only when equal
FEATURES: Final[tuple[str, ...]] = ()
