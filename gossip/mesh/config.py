"""Parameters of the mesh; units are in the names.

Where nothing else is said the value is that of go-libp2p-pubsub (gossipsub v1.1), or of replication.md §7 and §12.
Points are kept in thousandths, so that a run is made of integers and can be replayed.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class MeshConfig:
    """Defaults are for swarms of 2 to some thousand nodes. What has no source is a judgement."""

    # degrees of the mesh of one topic
    degree: int = 6
    degree_low: int = 5
    degree_high: int = 12
    degree_score: int = 4  # of a mesh that is cut back: the best so many stay, the others are drawn
    degree_lazy: int = 6  # peers outside the mesh that are offered ids, per heartbeat ...
    lazy_percent: int = 25  # ... or this share of them, where that is more
    # time
    heartbeat_us: int = 1_000_000
    flush_us: int = 50_000  # accepted messages wait so long at most for others, to share a frame (replication.md §8)
    backoff_us: int = 60_000_000  # after a Prune
    backoff_us_max: int = 3_600_000_000  # a peer that asks for more is not waited for longer
    graft_flood_us: int = 10_000_000  # a graft so soon after a prune counts twice
    history: int = 5  # heartbeats for which an accepted message can be pulled
    history_gossip: int = 3  # and for which it is offered
    seen_us: int = 120_000_000
    # lazy pull
    want_retry_us: int = 1_000_000  # then the next peer that offered it is asked
    promise_us: int = 10_000_000  # who offered, was asked and did not deliver by then; go: 3 s, which slow links need
    wants_max: int = 16_384  # ids that are asked for, of all peers
    want_others_max: int = 4  # further peers remembered per id
    ihave_frames_max: int = 10  # read per peer and heartbeat
    iwant_ids_max: int = 512  # that one peer owes at once
    answers_per_id_max: int = 3  # one message to one peer, by pull
    answer_ids_max: int = 1_024  # given to one peer per heartbeat
    answer_bytes_max: int = 2 << 20  # likewise
    dont_want_bytes_min: int = 1_024  # messages from this size on are announced before they are judged
    dont_want_max: int = 2_048  # ids remembered per peer
    # what one peer may bring of a topic: what is new here; copies are free
    bring_per_s: int = 100  # two tasks' quota; libp2p.md plans 20 per origin, and a relay carries many origins
    bring_burst: int = 2_048  # and the burst of one (protocol.md: 2,000)
    # what is held
    unjudged_max: int = 4_096
    unjudged_bytes_max: int = 16 << 20
    unjudged_per_peer_max: int = 1_024
    unjudged_per_peer_bytes_max: int = 2 << 20
    unjudged_us: int = 30_000_000  # a message that nobody judged is forgotten
    cache_max: int = 8_192
    cache_bytes_max: int = 16 << 20
    seen_max: int = 32_768
    rejected_max: int = 4_096  # apart from `seen`, so that rubbish does not push out what is good
    owed_max: int = 512  # ids per peer that a full queue refused
    backoffs_max: int = 1_024  # per topic; they outlive the link
    members_max: int = 4_096
    # peers that take and never give
    silent_ask_heartbeats: int = 2  # heartbeats with a miss, and every so many again: graft anew, a Graft may be lost
    silent_heartbeats: int = 10  # then it is pruned
    silent_witnesses: int = 2  # other mesh peers that must have had a message before anybody misses it
    silent_sample: int = 64  # messages per topic and heartbeat that are looked at for it, the newest
    echo_ids: int = 4  # of the newest that a peer brought
    echo_heartbeats: int = 2  # with something brought; then an echo goes out whatever was given. Five are due in time
    opportunistic_heartbeats: int = 10  # go: 60; a mesh of silent peers must not last a minute
    opportunistic_peers: int = 2
    opportunistic_milli: int = 1_000  # a median below that calls for it
    # scores, in thousandths of a point
    mesh_milli: int = 10  # per heartbeat in a mesh
    mesh_milli_max: int = 60_000
    first_milli: int = 1_000  # per message that it brought first
    first_milli_max: int = 50_000
    first_heartbeat_max: int = 2  # messages that count for it in one heartbeat: steadiness counts, not quantity
    first_decay_percent: int = 97  # per heartbeat, as all decays
    invalid_points: int = 20
    invalid_decay_percent: int = 99
    misbehaviour_points: int = 5
    misbehaviour_free: int = 6  # so many are an accident
    misbehaviour_decay_percent: int = 97
    silent_points: int = 20  # per prune for silence: back in the mesh after minutes, not after the back-off
    silent_decay_percent: int = 99
    faults_max: int = 100  # of one kind that are counted per peer; what is above is forgiven
    gossip_milli: int = -10_000  # below: no offers to it or from it
    publish_milli: int = -20_000  # below: own messages are not sent to it
    graylist_milli: int = -50_000  # below: it is not heard
    retained_max: int = 1_024  # bad scores, and allowances, that outlive their link
    retained_us: int = 3_600_000_000
