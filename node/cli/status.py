"""`masos status`: what a running node says of itself, on one screen.

One line per thing that can be well or not; below it who is linked, and what last went wrong, each trouble once with
how often and how long ago. A line that says no good news says what to do. Everything else is in `--json`.
"""

from __future__ import annotations

from typing import Final

from node.cli.agents import counted, peer_end, span_text
from node.cli.options import JsonOption, OutputOption, ProfileOption, profile_of, screen_of
from node.cli.output import Form, Json, as_list, as_object, columns, one_line
from node.control.client import ControlClient
from node.control.credentials import read_address

LINKED_SHOWN: Final = 8
REFUSALS_SHOWN: Final = 5
TRIED_SHOWN: Final = 3
LOSSES: Final = {  # counters of the mesh that tell of messages lost or bad peers, and how a person reads them
    "mesh_drops": "frames found no room on a link",
    "mesh_unjudged_full": "messages found no room here",
    "mesh_unjudged_expired": "messages were never judged",
    "mesh_answers_cut": "answers were cut",
    "mesh_rejected": "messages were invalid",
    "mesh_graylisted": "frames of bad peers were ignored",
    "mesh_silent_pruned": "silent peers were pruned",
}
VERDICTS: Final = {
    "relay": "relay: nobody dials it directly, a relay passes links on",
    "outbound-only": "outbound-only: nobody can dial this node, it can only dial others",
    "unknown": "unknown: no peer has tried its addresses yet",
}
INDEX: Final = {
    "complete": "complete: the records of all agents are held here",
    "partial": "partial: not every agent has room here, `masos find` asks the DHT as well",
    "light": "light: no agents of others are held here, `masos find` asks the DHT",
}
REACH_HINT: Final = (
    "open its port and set [node] announce, or be reached through a member that relays: `masos up --relay client`"
)


def status(*, profile: ProfileOption = None, output: OutputOption = Form.HUMAN, json_form: JsonOption = False) -> None:
    """Show who this node is, who reaches it, whom it is linked to, what it can do, and what went wrong."""
    screen, place = screen_of(output, json_form=json_form), profile_of(profile)
    with ControlClient.for_profile(place) as client:
        value, ready = client.status(), client.ready()
    pid = read_address(place).pid
    value = {**value, "ready": ready["ready"], "reasons": ready["reasons"], "pid": pid}
    screen.result(value, _status_lines(value) if screen.human else ())


def _status_lines(value: Json) -> list[str]:
    rows = [
        ["node", f"{one_line(str(value['peer']))} (pid {value['pid']}, life {value['incarnation']})"],
        ["swarm", f"{one_line(str(value['swarm']))}, {value['mode']} ({str(value['swarm_id'])[:16]})"],
        ["ready", "yes" if value["ready"] else "; ".join(one_line(str(why)) for why in as_list(value["reasons"]))],
        ["engine", one_line(_engine_text(as_object(value["engine"])))],
        ["offers", one_line(_offer_text(value["offer"]))],
        ["tasks", f"{value['tasks']} in {counted(value['spaces'], 'space')}"],
        *(["listens", one_line(str(addr))] for addr in as_list(value["listen"])),
        *_reach_rows(as_object(value["reachability"])),
        *_members_rows(as_object(value["members"])),
        ["links", _links_text(value)],
        ["dht", _dht_text(as_object(value["dht"]))],
        ["index", INDEX.get(str(value["index"]), one_line(str(value["index"])))],
        *_mesh_rows(as_object(value["mesh"])),
    ]
    if value["unsure_spaces"]:
        rows.append(["waits", f"for a peer's word on {value['unsure_spaces']} spaces, after a crash"])
    if value["clock_warning"]:
        rows.append(["clock", f"off by {value['clock_offset_ms']} ms from the swarm's: set it"])
    return [*columns(rows), *_linked_lines(value), *_refusal_lines(value)]


# ---- how it is reached


def _reach_rows(reach: Json) -> list[list[str]]:
    """The verdict, from how many peers it was seen, and what to do about a bad one."""
    verdict, seen = str(reach["verdict"]), reach["seen_from"]
    if verdict == "direct":
        return [["reached", f"direct: {counted(seen, 'peer')} got through"]]
    rows = [["reached", VERDICTS.get(verdict, one_line(verdict))]]
    rows += [["", f"through …{one_line(str(reach['relay']))}"]] if reach["relay"] else []
    if verdict == "outbound-only":
        tried = as_list(reach["reasons"])
        rows += [["", one_line(f"tried by {why}", 160)] for why in tried[:TRIED_SHOWN]]
        rows.append(["", f"hint: {REACH_HINT}"])
    return rows


# ---- the swarm


def _members_rows(members: Json) -> list[list[str]]:
    """How the others are; a line more where that is less sure than usual."""
    counts = [f"{members[state]} {state}" for state in ("alive", "suspect", "dead")]
    counts += [f"{members['left']} left"] if members["left"] else []
    rows = [["members", f"{', '.join(counts)}, beside this node"]]
    if members["standing_down"]:
        rows.append(["", "too many to track them all: only links count"])
    health = members["health"]
    if isinstance(health, int) and health > 1:
        rows.append(["", f"probes of this node failed: it waits {health} times longer before it doubts others"])
    return rows


def _links_text(value: Json) -> str:
    linked, known = len(as_list(value["linked"])), len(as_object(value["known"]))
    if linked:
        return f"{linked} of {counted(known, 'known peer')}"
    if known:
        return f"none: this node is ALONE; it dials {counted(known, 'known peer')} again and again (masos peers)"
    return "none, and no peer is known: `masos swarm invite` makes a ticket for others"


def _dht_text(dht: Json) -> str:
    joined = "joined" if dht["joined"] else "not joined"
    held = f", {counted(dht['held_records'], 'record')} held" if dht["mode"] == "server" else ", holds nothing"
    return f"{one_line(str(dht['mode']))}, {joined}, {counted(dht['contacts'], 'contact')}{held}"


def _mesh_rows(mesh: Json) -> list[list[str]]:
    """Per topic the mesh peers of the subscribers; a line more for what was lost."""
    topics = {name: as_object(topic) for name, topic in as_object(mesh["topics"]).items()}
    degrees = ", ".join(f"{one_line(name)} {topic['mesh']}/{topic['subscribers']}" for name, topic in topics.items())
    counters = as_object(mesh["counters"])
    lost = [f"{counters[name]} {words}" for name, words in LOSSES.items() if counters.get(name)]
    return [["mesh", f"{degrees} (peers in the mesh / subscribed)"], *([["", "; ".join(lost)]] if lost else [])]


# ---- what is listed


def _linked_lines(value: Json) -> list[str]:
    """The first of them, with what they offer; a light node holds no word of that."""
    linked, light = [as_object(peer) for peer in as_list(value["linked"])], value["index"] == "light"
    rows = [
        [f"  {one_line(str(peer['peer']))}", "" if light else one_line(_offer_text(peer["offer"]))]
        for peer in linked[:LINKED_SHOWN]
    ]
    more = [f"  and {len(linked) - LINKED_SHOWN} more (masos peers)"] if len(linked) > LINKED_SHOWN else []
    return [*(["linked:"] if linked else []), *columns(rows), *more]


def _refusal_lines(value: Json) -> list[str]:
    """The last refusal of each kind by each peer; a dial of a peer that failed and is linked by now is passed over."""
    linked = {as_object(peer)["peer"] for peer in as_list(value["linked"])}
    groups: dict[tuple[str, str], list[Json]] = {}
    for each in reversed([as_object(refusal) for refusal in as_list(value["refusals"])]):
        if each["code"] != "unreachable" or each["peer"] not in linked:
            groups.setdefault((str(each["peer"]), str(each["code"])), []).append(each)
    kept = list(groups.values())
    lines = [line for same in kept[:REFUSALS_SHOWN] for line in _refusal(same[0], len(same))]
    more = [f"  and {len(kept) - REFUSALS_SHOWN} more (masos status --json)"] if len(kept) > REFUSALS_SHOWN else []
    return [*(["refusals:"] if kept else []), *lines, *more]


def _refusal(last: Json, times: int) -> list[str]:
    """One line, and one more for each further address that was dialled."""
    ago = span_text(_ms(last["age_s"])) + (f" ago, {times} times" if times > 1 else " ago")
    first, *rest = str(last["reason"]).split("; ")
    head = f"  {peer_end(last)} {one_line(str(last['code']), 40)} ({ago}): {one_line(first, 160)}"
    return [head, *(f"    {one_line(each, 160)}" for each in rest[: TRIED_SHOWN - 1])]


def _ms(age_s: object) -> int:
    return age_s * 1000 if isinstance(age_s, int) else 0


def _engine_text(engine: Json) -> str:
    if engine["kind"] == "none":
        return "none"
    reason = f": {engine['reason']}" if engine["reason"] else ""
    model = f", {engine['model']} ({engine['quality']})" if engine["model"] else ""
    return f"{engine['kind']}, {engine['state']}{model}{reason}"


def _offer_text(offer: object) -> str:
    if not isinstance(offer, dict):
        return "no agents"
    roles = ", ".join(str(role) for role in offer["roles"])
    return f"{roles} on {offer['model']} ({offer['quality']}, {offer['tokens_per_s'] or '?'} tokens/s)"
