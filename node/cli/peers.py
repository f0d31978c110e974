"""`masos peers`: whom this node is linked to, and whom it tries to reach."""

from __future__ import annotations

from node.cli.agents import span_text
from node.cli.options import JsonOption, OutputOption, ProfileOption, profile_of, screen_of
from node.cli.output import Form, Json, as_list, as_object, columns, one_line
from node.control.client import ControlClient

ADDRESSES_SHOWN = 2


def peers(*, profile: ProfileOption = None, output: OutputOption = Form.HUMAN, json_form: JsonOption = False) -> None:
    """List the peers: linked or dialled, since when, how far, what they offer, and what is wrong."""
    screen = screen_of(output, json_form=json_form)
    with ControlClient.for_profile(profile_of(profile)) as client:
        found = client.peers()
    nobody = ["no peers: this node knows nobody (masos swarm join TICKET, or invite somebody)"]
    screen.results("peers", found, (_lines(found) if found else nobody) if screen.human else ())


def _lines(found: list[Json]) -> list[str]:
    rows = [["STATE", "SINCE", "ROUND TRIP", "AGENTS", "PEER", "ADDRESSES"], *(_row(peer) for peer in found)]
    header, *lines = columns(rows)
    shown = [header]
    for line, peer in zip(lines, found, strict=True):
        shown.append(line)
        if peer["reason"]:
            shown.append(f"    {one_line(str(peer['code']), 40)}: {one_line(str(peer['reason']), 200)}")
    return shown


def _row(peer: Json) -> list[str]:
    offer, since_s, rtt_ms = as_object(peer["offer"]), peer["since_s"], peer["rtt_ms"]
    # The id stands in its own column, and one address may be known with it and without.
    addrs = list(dict.fromkeys(one_line(str(addr).partition("/p2p/")[0]) for addr in as_list(peer["addrs"])))
    more = f" +{len(addrs) - ADDRESSES_SHOWN}" if len(addrs) > ADDRESSES_SHOWN else ""
    return [
        one_line(str(peer["state"])),
        span_text(since_s * 1000) if isinstance(since_s, int) else "-",
        f"{rtt_ms:.1f} ms" if isinstance(rtt_ms, float) else "-",
        one_line(", ".join(str(role) for role in as_list(offer.get("roles"))), 36) or "none",
        one_line(str(peer["peer"])),
        " ".join(addrs[:ADDRESSES_SHOWN]) + more,
    ]
