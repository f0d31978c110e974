"""Parameters of links, records and replication; units are in the names (replication.md §12)."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class GossipConfig:
    """Defaults fit a private swarm on a LAN or the internet; `demo` and tests shorten the waits."""

    ping_every_us: int = 5_000_000  # a link on which nothing came for so long is pinged
    measure_every_us: int = 60_000_000  # and one whose round trip was not measured for so long
    silent_after_us: int = 15_000_000  # nothing heard for so long: hang up; three lost pings
    dial_backoff_min_us: int = 1_000_000  # libp2p.md §5: 1 s to 5 min, with jitter
    dial_backoff_max_us: int = 300_000_000
    dial_fresh_us: int = 60_000_000  # a new address of a peer is dialled without regard to failures once in so long
    links_full_max: int = 16  # up to so many known peers everybody links to everybody (replication.md §6)
    links_min: int = 12  # above that: links that a node opens by itself
    links_max: int = 32  # and how many it keeps, whoever opened them
    known_peers_max: int = 4_096
    refusals_max: int = 32  # newest reasons shown in `status`
    records_max: int = 20_000  # replication.md §8: above it the DHT path
    records_per_publisher_max: int = 32  # its addresses and its agents; one peer cannot fill the map (case S3)
    records_of_strangers_max: int = 256  # by keys whose admission is not known here; keys are free
    record_strangers_per_peer_max: int = 32  # of these, brought by one linked peer
    record_burst: int = 32  # changes of one publisher at once: as many as it may have, signed anew
    record_every_us: int = 5_000_000  # and after that one in so long
    record_junk_max: int = 32  # bad records that a linked peer may push in a minute
    record_refresh_us: int = 2 * 3_600_000_000  # a third of the life of a record
    record_members_max: int = 65_536  # keys whose admission is remembered; in an open swarm they are free too
    light_index: bool = False  # hold no agents of others (protocol.md §8: such a node finds through the DHT)
    records_light_max: int = 1_024  # and so many peer records of others
    record_sync_min_us: int = 2_000_000  # per peer between two exchanges of record digests; longer than a round trip
    records_push_max: int = 128  # frames of records per exchange: an eighth of a link's queue
    record_fresh_ms: int = 5_000  # signed so lately: what an exchange brought is news for the mesh too
    record_pass_ms: int = 600_000  # one that the full table of a node refuses passes through it while it is so young
    sync_every_us: int = 15_000_000  # ±50 %, against lock-step
    request_timeout_us: int = 10_000_000
    requests_per_peer_max: int = 64
    own_head_min_us: int = 2_000_000  # and how long at least, so that more than the nearest peer is heard
    own_head_wait_us: int = 10_000_000  # after an unclean stop: how long to wait for a peer that may know more
    spaces_max: int = 10_000
    spaces_per_author_max: int = 1_000  # kept spaces that one author may have begun
    spaces_unproved_max: int = 64  # spaces of which only waiting ops are here; the oldest goes first
    receipts_per_op_max: int = 8
    pending_bytes_per_peer_max: int = 1 << 20
