"""`masos peers`: the other nodes: who is linked, who lives elsewhere in the swarm, who is down, who is being dialled.

    linked     a link is open, and membership has nothing against the peer
    alive      a member that lives, without a link to this node (in swarms above 16 nodes nobody links to all)
    suspect    it does not answer; it gets no work until it does
    dead       it did not answer in time, or its link was lost and it does not come back
    left       it said goodbye
    dialling   an address of it is known, and nothing else yet

A node that is down is forgotten after a while; it is listed on as `dialling` as long as its address is known.
"""

from __future__ import annotations

from collections import Counter
from typing import Final

from node.cli.agents import span_text
from node.cli.options import JsonOption, OutputOption, ProfileOption, profile_of, screen_of
from node.cli.output import Form, Json, as_list, as_object, columns, one_line
from node.control.client import ControlClient

ADDRESSES_SHOWN: Final = 2
HEADER: Final = ("STATE", "SINCE", "ROUND TRIP", "SCORE", "OFFERS", "PEER", "ADDRESSES")
DOWN: Final = frozenset(("suspect", "dead", "left"))


def peers(*, profile: ProfileOption = None, output: OutputOption = Form.HUMAN, json_form: JsonOption = False) -> None:
    """List the other nodes: linked, alive, suspect, dead, left or dialled, how far, what they offer, and what is wrong.

    SCORE is what a peer is worth in the gossip mesh, in points: 0 is neutral, below it a peer is avoided.
    """
    screen = screen_of(output, json_form=json_form)
    with ControlClient.for_profile(profile_of(profile)) as client:
        found = client.peers()
    nobody = ["no peers: this node knows nobody (masos swarm join TICKET, or invite somebody)"]
    screen.results("peers", found, (_lines(found) if found else nobody) if screen.human else ())


def _lines(found: list[Json]) -> list[str]:
    header, *lines = columns([list(HEADER), *(_row(peer) for peer in found)])
    shown = [header]
    for line, peer in zip(lines, found, strict=True):
        shown.append(line)
        shown += [f"    {trouble}" for trouble in _troubles(peer)]
    states = Counter(one_line(str(peer["state"])) for peer in found)
    return [*shown, ", ".join(f"{count} {state}" for state, count in states.items())]


def _row(peer: Json) -> list[str]:
    since_s, rtt_ms, score = peer["since_s"], peer["rtt_ms"], peer["score"]
    own_end = f"/p2p/{peer['peer']}"
    # The id stands in its own column, and one address may be known with it and without.
    addrs = list(dict.fromkeys(_address(str(addr).removesuffix(own_end)) for addr in as_list(peer["addrs"])))
    more = f" +{len(addrs) - ADDRESSES_SHOWN}" if len(addrs) > ADDRESSES_SHOWN else ""
    return [
        one_line(str(peer["state"])),
        span_text(since_s * 1000) if isinstance(since_s, int) else "-",
        f"{rtt_ms:.1f} ms" if isinstance(rtt_ms, float) else "-",
        f"{score:.1f}" if isinstance(score, float) else "-",
        _offers(peer),
        one_line(str(peer["peer"])),
        " ".join(addrs[:ADDRESSES_SHOWN]) + more,
    ]


def _offers(peer: Json) -> str:
    """Its agents as far as this node knows, and whether it relays; who is down offers nothing, whatever was said."""
    if peer["state"] in DOWN:
        return "-"
    agents = [str(role) for role in as_list(as_object(peer["offer"]).get("roles"))]
    relay = ["relay"] if "relay" in as_list(peer["roles"]) else []
    return one_line(", ".join([*agents, *relay]), 36) or "-"


def _address(addr: str) -> str:
    """An address for a person; of one that goes through a relay, the relay."""
    way, circuit, _ = addr.partition("/p2p-circuit")
    if not circuit:
        return one_line(addr)
    base, _, relay = way.partition("/p2p/")
    return one_line(f"{base} (relay …{relay[-8:]})")


def _troubles(peer: Json) -> list[str]:
    """Why membership holds it for down, and why it could not be dialled."""
    why = [one_line(f"{peer['state']}: {peer['why']}")] if peer["why"] and peer["why"] != peer["state"] else []
    if not peer["reason"]:
        return why
    age_s = peer["reason_age_s"]
    ago = f" ({span_text(age_s * 1000)} ago)" if isinstance(age_s, int) else ""
    return [*why, f"{one_line(str(peer['code']), 40)}{ago}: {one_line(str(peer['reason']), 200)}"]
