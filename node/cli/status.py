"""`masos status`: what a running node says of itself."""

from __future__ import annotations

from node.cli.options import JsonOption, OutputOption, ProfileOption, profile_of, screen_of
from node.cli.output import Form, Json, as_list, as_object, columns, one_line
from node.control.client import ControlClient
from node.control.credentials import read_address


def status(*, profile: ProfileOption = None, output: OutputOption = Form.HUMAN, json_form: JsonOption = False) -> None:
    """Show who this node is, whom it is linked to, what it can do, and what went wrong."""
    screen, place = screen_of(output, json_form=json_form), profile_of(profile)
    with ControlClient.for_profile(place) as client:
        value, ready = client.status(), client.ready()
    pid = read_address(place).pid
    value = {**value, "ready": ready["ready"], "reasons": ready["reasons"], "pid": pid}
    screen.result(value, _status_lines(value) if screen.human else ())


def _status_lines(value: Json) -> list[str]:
    engine, offer = as_object(value["engine"]), value["offer"]
    rows = [
        ["node", f"{value['peer']} (pid {value['pid']}, life {value['incarnation']})"],
        ["swarm", f"{one_line(str(value['swarm']))} ({str(value['swarm_id'])[:16]})"],
        ["ready", "yes" if value["ready"] else "; ".join(one_line(str(why)) for why in as_list(value["reasons"]))],
        ["engine", one_line(_engine_text(engine))],
        ["offers", one_line(_offer_text(offer))],
        ["tasks", f"{value['tasks']} in {value['spaces']} spaces"],
        *(["listens", one_line(str(addr))] for addr in as_list(value["listen"])),
    ]
    if value["unsure_spaces"]:
        rows.append(["waits", f"for a peer's word on {value['unsure_spaces']} spaces, after a crash"])
    if value["clock_warning"]:
        rows.append(["clock", f"off by {value['clock_offset_ms']} ms from the swarm's: set it"])
    lines = columns(rows)
    linked = [as_object(peer) for peer in as_list(value["linked"])]
    lines.append(f"linked to {len(linked)} of {len(as_object(value['known']))} known peers")
    lines += columns([["  " + one_line(str(peer["peer"])), one_line(_offer_text(peer["offer"]))] for peer in linked])
    refusals = [as_object(refusal) for refusal in as_list(value["refusals"])][-5:]
    for refusal in refusals:
        lines.append(
            f"refused: …{str(refusal['peer'])[-8:]} {one_line(str(refusal['code']))}: "
            f"{one_line(str(refusal['reason']), 200)}"
        )
    return lines


def _engine_text(engine: Json) -> str:
    reason = f": {engine['reason']}" if engine["reason"] else ""
    model = f", {engine['model']} ({engine['quality']})" if engine["model"] else ""
    return f"{engine['kind']}, {engine['state']}{model}{reason}"


def _offer_text(offer: object) -> str:
    if not isinstance(offer, dict):
        return "no agents"
    roles = ", ".join(str(role) for role in offer["roles"])
    return f"{roles} on {offer['model']} ({offer['quality']}, {offer['tokens_per_s']} tokens/s)"
