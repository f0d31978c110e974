"""`masos version`; it loads next to nothing."""

from __future__ import annotations

import importlib.metadata

from node.cli.options import JsonOption, OutputOption, screen_of
from node.cli.output import Form, Json
from protocol.versions import DERIVE_VERSIONS, WIRE_MAX, WIRE_MIN


def version(*, output: OutputOption = Form.HUMAN, json_form: JsonOption = False) -> None:
    """Show the version of masos and of its protocol."""
    screen = screen_of(output, json_form=json_form)
    number = importlib.metadata.version("masos")
    wire = f"{WIRE_MIN}..{WIRE_MAX}"
    value: Json = {"version": number, "wire": wire, "derive": list(DERIVE_VERSIONS)}
    screen.result(value, [f"masos {number} (wire {wire}, derivation {DERIVE_VERSIONS[-1]})"])
