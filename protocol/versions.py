"""What this build speaks and derives."""

from typing import Final

WIRE_MIN: Final = 1
WIRE_MAX: Final = 1
DERIVE_VERSIONS: Final = (1,)  # of the fold, the edges and the summary view; roots compare only when equal
# Frame kinds that came later; nothing of a kind is sent to a peer that does not name its feature.
DHT: Final = "dht"  # kinds 17 to 24
MESH: Final = "mesh"  # 25 to 31
MEMBERS: Final = "members"  # 32 and 33
RECORD_SYNC: Final = "record-sync"  # 34
DIAL_BACK: Final = "dial-back"  # 35 and 36
FEATURES: Final[tuple[str, ...]] = (DHT, MESH, MEMBERS, RECORD_SYNC, DIAL_BACK)
