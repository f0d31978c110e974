"""`masos memory verify`: with a running daemon by asking it, without one on the profile's own files.

Without a daemon the profile is held locked and the audit reads only; a database that is not whole is not opened for
anything else, so that it can be copied for rescue.
"""

from __future__ import annotations

import os
from contextlib import closing

import typer

from node.cli.options import JsonOption, OutputOption, ProfileOption, profile_of, screen_of, wall_ms
from node.cli.output import Form, Json, as_list, as_object, columns, one_line
from node.cli.verbs import new_app
from node.config import load_config
from node.control.client import ControlClient
from node.control.memory import report_of
from node.node import Digests, load_member, rebuilt_digests
from node.profile import Profile
from node.store import SqliteStore
from node.store_verify import verify_file
from protocol.errors import DaemonUnreachable, StoreError

app = new_app("Check the replicated memory.")


@app.callback()
def memory() -> None:
    """Check the replicated memory."""


@app.command()
def verify(*, profile: ProfileOption = None, output: OutputOption = Form.HUMAN, json_form: JsonOption = False) -> None:
    """Audit the database, and derive all digests anew; exit 74 if anything is wrong.

    Two nodes hold the same memory iff the digests of their tasks are equal.
    """
    screen, place = screen_of(output, json_form=json_form), profile_of(profile)
    try:
        with ControlClient.for_profile(place) as client:
            value: Json = {"daemon": True, **client.verify()}
    except DaemonUnreachable:
        value = {"daemon": False, **_verify_files(place)}
    screen.result(value, _lines(value) if screen.human else ())
    if not value["ok"]:
        raise typer.Exit(StoreError.exit_code)


def _verify_files(place: Profile) -> Json:
    with place.lock():
        report = verify_file(place.database)
        digests: Digests = []
        if report.ok:
            member, _ = load_member(place, wall_ms())
            with closing(SqliteStore(place.database)) as store:
                digests = rebuilt_digests(member, load_config(place, os.environ), store)
        return report_of(report, digests, [], [])


def _lines(value: Json) -> list[str]:
    asked = "as the running node holds it" if value["daemon"] else "on disk; no daemon runs"
    lines = [f"{value['ops']} ops in {value['spaces']} spaces, {value['redacted']} redacted; {asked}"]
    rows = [as_object(row) for row in as_list(value["digests"])]
    lines += columns([[f"  {row['space']}", f"{row['ops']} ops", f"state {str(row['state'])[:16]}"] for row in rows])
    lines += [f"  problem: {one_line(str(problem), 300)}" for problem in as_list(value["problems"])]
    lines += [f"  differs from what is shown: {space}" for space in as_list(value["differing"])]
    lines += [f"  still changing, not compared: {space}" for space in as_list(value["changing"])]
    lines.append("whole" if value["ok"] else f"NOT whole: {value['problem_count']} problems")
    return lines
