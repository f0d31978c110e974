"""Parameters of the DHT; units are in the names. The library's constants are parameters here (libp2p.md §7)."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class DhtConfig:
    """Defaults of libp2p.md §8 and replication.md §7, §8, §12; what has no source there is a judgement.

    `server` False is client mode, for a node that others cannot reach: it asks and publishes, but serves nobody and
    holds nothing (complaint 15).
    """

    server: bool = True
    # look-ups
    k: int = 20  # bucket size, and how many closest nodes hold a record
    alpha: int = 10  # requests in flight per look-up: 3 to 4 rounds instead of 7 to 8 (replication.md §7)
    paths: int = 1  # disjoint paths per look-up; 4 in an open swarm (replication.md §9)
    rpcs_max: int = 200
    rounds_max: int = 20
    queries_max: int = 32  # look-ups at once; further ones wait
    waiting_max: int = 512  # and this many wait at most
    # requests
    slow_us: int = 1_000_000  # no answer for so long: a look-up goes on with others, and still takes it
    rpc_timeout_us: int = 3_000_000
    dial_timeout_us: int = 6_000_000  # above the transport's own deadline of 5 s for one address
    calls_max: int = 2_048  # requests without an answer yet
    calls_per_peer_max: int = 64
    busy_retries_max: int = 2
    busy_wait_max_us: int = 2_000_000  # a peer that is busy for longer is passed over
    shun_us: int = 30_000_000  # a peer that just failed is asked by no look-up for so long, unless it speaks
    shunned_max: int = 1_024
    # serving
    rpcs_per_peer_s: int = 200  # replication.md §9
    rpcs_per_s: int = 2_000  # all peers together
    # routing table
    buckets_max: int = 200  # of k contacts each; 2,000 nodes fill 37 (libp2p.md §8)
    replacements_per_bucket: int = 1  # times k
    contacts_per_subnet_max: int = 2  # public ones, per bucket and /24 or /48; 0 switches it off, for labs
    refresh_every_us: int = 600_000_000  # self-look-up and lonely buckets
    lonely_after_us: int = 3_600_000_000
    lonely_per_refresh_max: int = 4
    join_delay_us: int = 200_000  # from the first contact to the self-look-up
    join_again_us: int = 15_000_000  # a second one, for nodes that started together
    # records held for others
    records_max: int = 16_384
    records_bytes_max: int = 24 * 1024 * 1024
    records_per_key_max: int = 4_096  # centroid buckets reach 2,233 at 1e5 nodes (replication.md §8)
    records_per_key_bytes_max: int = 6 * 1024 * 1024
    records_per_publisher_max: int = 64
    records_per_source_max: int = 2_048  # the peer that brought them: one that invents publishers fills no store
    records_of_strangers_max: int = 1_024  # by keys whose admission is not known here; keys are free
    records_of_strangers_per_source_max: int = 64
    close_factor: int = 2  # a node refuses keys to which it knows this times k closer nodes
    # own records, and who holds them
    own_records_max: int = 64
    republish_us: int = 2 * 3_600_000_000  # a third of the life of a record
    settle_us: int = 10_000_000  # from a change of membership, or a failed put, to putting again
    settle_jitter_us: int = 5_000_000  # added by chance, against lock-step
    changes_max: int = 1_024  # contacts that came or went, remembered until then
    handoff_rank: int = 2  # the so many closest holders of a key hand its records to newcomers
    handoff_keys_max: int = 128  # keys looked at per step
    handoff_sends_max: int = 48  # records sent per step of a hand-over, below calls_per_peer_max
    handoff_every_us: int = 1_000_000  # between two steps
    cache_records_max: int = 4_096  # verified records, so that no signature is checked twice
    # capability directory
    centroid_replicas: int = 8
    centroid_quorum: int = 4  # holders that a search asks per centroid
    centroids_per_record: int = 2  # m
    probes: int = 2  # nprobe
    probes_wide: int = 4  # when the best score is low, results are few or the codebook is old
    low_score_ppm: int = 500_000
    codebook_old_ms: int = 30 * 86_400_000

    @property
    def quorum(self) -> int:
        """How many of the k closest a read asks: with a majority that confirmed the write, one has the newest."""
        return self.k // 2 + 1
