"""Founding an open swarm, publishing its ticket, joining the test swarm that the settings name; no daemon runs."""

from __future__ import annotations

import json
import os
import re
import stat
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import trio
from trio.testing import MockClock

from kernel.agents.roles import ROSTER
from node import open_swarm, swarm
from node.cli import run
from node.config import Config, config_file, load_config
from node.core import CoreConfig
from node.keystore import Keystore
from node.node import load_member
from node.profile import Profile
from protocol.admission import DAY_MS, OPEN_QUOTA, Ticket
from protocol.errors import StoreError
from protocol.peer import PeerID, peer_text
from tests.gossip_world import World, op_by
from tests.strategies import keypair

ADDRESS = "/ip4/192.0.2.7/tcp/27420/p2p/" + peer_text(bytes([9]) * 32)
PUBLIC = ("--bootstrap", ADDRESS)
LONG_AGO_MS = 1_700_000_000_000


class Cli:
    """Verbs on profiles below one folder."""

    def __init__(self, folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
        self.folder = folder
        self._capsys = capsys

    def profile(self, name: str) -> Profile:
        return Profile(self.folder / name)

    def raw(self, name: str, *args: str) -> tuple[int, str, str]:
        self._capsys.readouterr()
        code = run([*args, "--profile", str(self.folder / name)])
        seen = self._capsys.readouterr()
        return code, seen.out, seen.err

    def json(self, name: str, *args: str) -> tuple[int, Any]:
        code, out, err = self.raw(name, *args, "--json")
        assert not err, err
        return code, json.loads(out)

    def made(self, name: str) -> Profile:
        assert self.json(name, "init")[0] == 0
        return self.profile(name)

    def host(self, *flags: str) -> Profile:
        self.made("host")
        assert self.json("host", "swarm", "create", "commons", *flags)[0] == 0
        return self.profile("host")

    def published(self, *args: str) -> Path:
        file = self.folder / "commons.ticket"
        code, value = self.json("host", "swarm", "publish", str(file), "--once", *PUBLIC, *args)
        assert code == 0, value
        return file

    def refused(self, name: str, *args: str, status: int = 78) -> dict[str, Any]:
        code, error = self.json(name, *args)
        assert code == status, error
        assert error["hint"], error
        return dict(error)


@pytest.fixture
def cli(tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Cli:
    for name in [name for name in os.environ if name.startswith("MASOS_")]:
        monkeypatch.delenv(name)
    return Cli(tmp_path, capsys)


def settings(profile: Profile, *lines: str) -> None:
    config_file(profile).write_text("\n".join(("[swarm]", *lines)))


# ---- founding


def test_create_says_plainly_what_open_means(cli: Cli) -> None:
    cli.made("one")
    code, out, _ = cli.raw("one", "swarm", "create", "commons", "--open")
    assert code == 0
    for word in ("whoever has the ticket can join", "tolerated, not prevented", "plain text", "2 ops a second", "256"):
        assert word in out
    cli.made("two")
    code, out, _ = cli.raw("two", "swarm", "create", "home")
    assert code == 0
    assert "open" not in out
    assert "publish" not in out


def test_create_tells_programs_the_mode(cli: Cli) -> None:
    for name, flags, mode in (("one", ("--open",), "open"), ("two", (), "private")):
        cli.made(name)
        code, value = cli.json(name, "swarm", "create", "x", *flags)
        assert (code, value["mode"]) == (0, mode)
        assert load_member(cli.profile(name), 0)[0].genesis.mode == mode


def test_two_swarms_have_two_keys_and_nothing_to_dial(cli: Cli) -> None:
    """Complaint 24: `init` and `create` yield a key, and no address that the user did not name."""
    keys = []
    for name in ("one", "two"):
        profile = cli.made(name)
        cli.json(name, "swarm", "create", "x")
        secrets = swarm.load_secrets(profile)
        assert secrets.bootstrap == ()
        keys.append(secrets.psk)
        fresh = load_config(profile, {})
        assert fresh == Config()
        assert (fresh.swarm.test_ticket, fresh.swarm.test_ticket_file) == (None, None)
        assert all("/0.0.0.0/" in text for text in fresh.node.listen)
    assert len(set(keys)) == 2
    assert all(len(key) == 32 and any(key) for key in keys)


# ---- bounds of a node


def test_an_open_swarm_gives_a_single_key_less_of_a_node() -> None:
    private, public = Config().core(), Config().core("open")
    assert private == CoreConfig()
    assert public.kernel.defaults.quota == OPEN_QUOTA
    for name in ("spaces_per_author_max", "records_per_publisher_max", "records_of_strangers_max"):
        assert 0 < getattr(public.gossip, name) < getattr(private.gossip, name)
    assert public.gossip.records_per_publisher_max > len(ROSTER.names)  # its agents, and its addresses
    assert (private.dht.paths, public.dht.paths) == (1, 4)
    assert open_swarm.bounds(public, "open") == public


def test_one_author_cannot_fill_the_table_of_spaces_of_an_open_node() -> None:
    """Case S3: of the spaces that a node keeps, few were begun by one key; other authors go on."""
    world = World(config=Config().core("open").gossip)
    node = world.add("a")
    for author, count in (("mallory", 200), ("friend", 1)):
        for number in range(count):
            space = number.to_bytes(2) + author.encode()[:1] * 14
            join = op_by(keypair(author), 0, None, space=space)
            node.replication.ingest(PeerID(keypair(author).public), (join.wire(),), world.now_us)
    kept = node.replication.spaces()
    assert len(kept) == open_swarm.SPACES_PER_AUTHOR_MAX + 1
    assert bytes(2) + b"f" * 14 in kept


# ---- publishing


def test_a_published_ticket_can_be_read_by_all_and_joins(cli: Cli) -> None:
    cli.host("--open")
    file = cli.published()
    assert stat.S_IMODE(file.stat().st_mode) == 0o644
    ticket = Ticket.parse(file.read_text())
    assert ticket.bootstrap == (ADDRESS,)
    assert [path.name for path in cli.folder.glob(".commons*")] == []
    guest = cli.made("guest")
    swarm.join(guest, file.read_text(), ticket.invite.nbf_ms + 20 * 60_000)
    assert swarm.load_secrets(guest).bootstrap == (ADDRESS,)


def test_publishing_again_replaces_the_ticket(cli: Cli) -> None:
    cli.host("--open")
    first = cli.published().read_text()
    second = cli.published("--life", "1d").read_text()
    assert first != second
    assert Ticket.parse(second).invite.exp_ms < Ticket.parse(first).invite.exp_ms


@pytest.mark.parametrize(
    ("args", "named", "status"),
    [
        (("--life", "8d", *PUBLIC), "seven days", 78),
        (("--life", "soon", *PUBLIC), "no duration", 64),
        ((), "no address that can be dialled", 78),
        (("--bootstrap", "here"), "bootstrap address", 78),
    ],
)
def test_what_cannot_be_published_is_said(cli: Cli, args: tuple[str, ...], named: str, status: int) -> None:
    cli.host("--open")
    file = cli.folder / "t"
    error = cli.refused("host", "swarm", "publish", str(file), "--once", *args, status=status)
    assert named in error["message"]
    assert not file.exists()


def test_the_ticket_of_a_private_swarm_is_never_published(cli: Cli) -> None:
    cli.host()
    file = cli.folder / "t"
    error = cli.refused("host", "swarm", "publish", str(file), "--once", *PUBLIC)
    assert "private" in error["message"]
    assert "swarm invite" in error["hint"]
    assert not file.exists()


def test_only_an_admin_publishes(cli: Cli) -> None:
    cli.host("--open")
    word = cli.published().read_text().strip()
    cli.made("guest")
    assert cli.json("guest", "swarm", "join", word)[0] == 0
    assert "no admin" in cli.refused("guest", "swarm", "publish", str(cli.folder / "t"), "--once", *PUBLIC)["message"]


def test_a_file_that_holds_something_else_is_not_overwritten(cli: Cli) -> None:
    cli.host("--open")
    file = cli.folder / "notes"
    file.write_text("mine")
    for target in (file, cli.folder, cli.folder / "nowhere" / "t"):
        cli.refused("host", "swarm", "publish", str(target), "--once", *PUBLIC)
    assert file.read_text() == "mine"


class Renewals:
    """A publisher in virtual time whose tickets live for `life_ms`; it fails while `broken`."""

    def __init__(self, life_ms: int) -> None:
        self.life_ms = life_ms
        self.at_ms: list[int] = []
        self.notes: list[str] = []
        self.broken = False

    def now_ms(self) -> int:
        return round(trio.current_time() * 1000)

    def publish(self) -> int:
        if self.broken:
            raise StoreError("the disk is full")
        self.at_ms.append(self.now_ms())
        return self.now_ms() + self.life_ms

    async def run(self, for_ms: int) -> None:
        with trio.move_on_after(for_ms / 1000):
            await open_swarm.keep_published(self.publish, self.now_ms, self.notes.append)


async def test_a_ticket_is_renewed_at_half_its_life(autojump_clock: MockClock) -> None:
    renewals = Renewals(6 * DAY_MS)
    await renewals.run(10 * DAY_MS)
    waits = [after - before for before, after in zip(renewals.at_ms, renewals.at_ms[1:], strict=False)]
    assert len(renewals.at_ms) == 4
    assert all(3 * DAY_MS <= wait <= 3 * DAY_MS + 2 * open_swarm.RENEW_LOOK_S * 1000 for wait in waits)


async def test_a_renewal_that_fails_is_told_and_made_up_for(autojump_clock: MockClock) -> None:
    renewals = Renewals(2 * 3_600_000)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(renewals.run, 5 * 3_600_000)
        await trio.sleep(10)
        renewals.broken = True
        await trio.sleep(1.5 * 3600)
        assert len(renewals.at_ms) == 1
        assert renewals.notes
        assert all("disk is full" in note for note in renewals.notes)
        renewals.broken = False
        await trio.sleep(open_swarm.RENEW_LOOK_S + 1)
        assert len(renewals.at_ms) == 2


async def test_a_first_publication_that_fails_is_an_error(autojump_clock: MockClock) -> None:
    renewals = Renewals(1000)
    renewals.broken = True
    with pytest.raises(StoreError):
        await renewals.run(10)


async def test_after_a_sleep_of_the_machine_the_ticket_is_renewed_at_the_next_look(
    autojump_clock: MockClock,
) -> None:
    """The waits run on a clock that stands still while a machine sleeps; the ticket does not."""
    renewals = Renewals(6 * DAY_MS)
    offset = 0

    def wall_ms() -> int:
        return renewals.now_ms() + offset

    with trio.move_on_after(600):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(open_swarm.keep_published, renewals.publish, wall_ms, renewals.notes.append)
            await trio.sleep(100)
            offset = 4 * DAY_MS
            await trio.sleep(open_swarm.RENEW_LOOK_S + 1)
            assert len(renewals.at_ms) == 2
            nursery.cancel_scope.cancel()


# ---- joining


def by_text(profile: Profile, word: str, _patch: pytest.MonkeyPatch) -> None:
    settings(profile, f'test_ticket = "{word.strip()}"')


def by_file(profile: Profile, word: str, _patch: pytest.MonkeyPatch) -> None:
    (profile.path / "t.txt").write_text(word)
    settings(profile, 'test_ticket_file = "t.txt"')


def by_absolute_file(profile: Profile, word: str, _patch: pytest.MonkeyPatch) -> None:
    file = profile.path.parent / "elsewhere"
    file.write_text(word)
    settings(profile, f'test_ticket_file = "{file}"')


def by_variable(_profile: Profile, word: str, patch: pytest.MonkeyPatch) -> None:
    patch.setenv("MASOS_SWARM_TEST_TICKET", word)


@pytest.mark.parametrize("name_it", [by_text, by_file, by_absolute_file, by_variable])
def test_the_configured_test_swarm_is_joined_in_each_way_it_can_be_named(
    cli: Cli, monkeypatch: pytest.MonkeyPatch, name_it: Callable[[Profile, str, pytest.MonkeyPatch], None]
) -> None:
    host = cli.host("--open")
    word = cli.published().read_text()
    guest = cli.made("guest")
    name_it(guest, word, monkeypatch)
    code, value = cli.json("guest", "swarm", "join", "--test")
    assert code == 0, value
    assert (value["swarm"], value["mode"], value["bootstrap"]) == ("commons", "open", [ADDRESS])
    assert swarm.load_secrets(guest).genesis == swarm.load_secrets(host).genesis


def test_what_is_joined_is_shown_before_it_is_done(cli: Cli) -> None:
    cli.host("--open")
    guest = cli.made("guest")
    (guest.path / "t.txt").write_text(cli.published().read_text())
    settings(guest, 'test_ticket_file = "t.txt"')
    code, out, _ = cli.raw("guest", "swarm", "join", "--test")
    assert code == 0
    shown = [out.index(text) for text in ("commons (", ADDRESS, "ops_per_s 2", "plain text", "joined commons")]
    assert shown[-1] == max(shown)


def test_no_test_swarm_is_configured_by_default_and_the_remedy_is_told(cli: Cli) -> None:
    cli.made("guest")
    error = cli.refused("guest", "swarm", "join", "--test")
    assert error["message"] == "no test swarm is configured"
    for word in ("test_ticket", "MASOS_SWARM_TEST_TICKET", "docs/test-swarm.md"):
        assert word in error["hint"]
    code, out, err = cli.raw("guest", "swarm", "join", "--test")
    assert (code, out) == (78, "")
    assert "hint: " in err


def test_a_ticket_and_test_exclude_each_other_and_one_is_needed(cli: Cli) -> None:
    cli.made("guest")
    for args in (("masos1-x", "--test"), ()):
        assert "--test" in cli.refused("guest", "swarm", "join", *args, status=64)["hint"]


def test_a_ticket_that_is_named_twice_is_not_chosen_by_chance(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    guest = cli.made("guest")
    settings(guest, 'test_ticket_file = "t.txt"')
    monkeypatch.setenv("MASOS_SWARM_TEST_TICKET", "masos1-x")
    assert "twice" in cli.refused("guest", "swarm", "join", "--test")["message"]


def test_a_private_ticket_is_no_test_swarm(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    cli.host()
    word = cli.json("host", "swarm", "invite", *PUBLIC)[1]["ticket"]
    guest = cli.made("guest")
    monkeypatch.setenv("MASOS_SWARM_TEST_TICKET", word)
    error = cli.refused("guest", "swarm", "join", "--test")
    assert "private" in error["message"]
    assert not swarm.secrets_file(guest).exists()
    assert word not in json.dumps(error)
    assert cli.json("guest", "swarm", "join", word)[0] == 0  # meant, it works


def test_an_expired_ticket_names_the_remedy(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    host = cli.host("--open")
    ticket = swarm.invite(host, bytes(32), LONG_AGO_MS, swarm.Invitation(DAY_MS, (ADDRESS,)))
    guest = cli.made("guest")
    monkeypatch.setenv("MASOS_SWARM_TEST_TICKET", ticket.text())
    error = cli.refused("guest", "swarm", "join", "--test")
    assert "expired" in error["message"]
    assert "fetch" in error["hint"]
    assert not swarm.secrets_file(guest).exists()


def missing(_folder: Path) -> None:
    """Nothing is there."""


def a_folder(path: Path) -> None:
    path.mkdir()


def a_picture(path: Path) -> None:
    path.write_bytes(b"\xff\xd8\xff\xe0")


def endless(path: Path) -> None:
    path.write_text("masos1-" + "A" * 200_000)


def a_page(path: Path) -> None:
    path.write_text("<html>not found</html>")


def cut(path: Path) -> None:
    path.write_text("masos1-AAAA")


@pytest.mark.parametrize("spoil", [missing, a_folder, a_picture, endless, a_page, cut])
def test_a_file_that_holds_no_ticket_is_refused_with_a_remedy(cli: Cli, spoil: Callable[[Path], None]) -> None:
    guest = cli.made("guest")
    spoil(guest.path / "t.txt")
    settings(guest, 'test_ticket_file = "t.txt"')
    cli.refused("guest", "swarm", "join", "--test")
    assert not swarm.secrets_file(guest).exists()


def test_without_a_profile_the_remedy_is_init(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MASOS_SWARM_TEST_TICKET", "masos1-x")
    assert "masos init" in cli.refused("nobody", "swarm", "join", "--test")["hint"]


def test_wrong_settings_are_named(cli: Cli) -> None:
    guest = cli.made("guest")
    settings(guest, "ticket = 'x'")
    error = cli.refused("guest", "swarm", "join", "--test")
    assert "[swarm]" in error["message"]
    assert "test_ticket" in error["hint"]


def test_inspect_shows_the_quota_and_the_meaning_of_an_open_swarm(cli: Cli, capsys: pytest.CaptureFixture[str]) -> None:
    cli.host("--open")
    word = cli.published().read_text().strip()
    assert run(["swarm", "inspect", word]) == 0
    out = capsys.readouterr().out
    assert "ops_per_s 2, burst 256" in out
    assert "as many keys as he likes" in out
    assert run(["swarm", "inspect", word, "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["quota"] == OPEN_QUOTA.model_dump()


# ---- the page for hosts


def test_the_page_for_hosts_names_verbs_that_exist_and_bounds_that_hold(capsys: pytest.CaptureFixture[str]) -> None:
    page = (Path(__file__).resolve().parents[2] / "docs" / "test-swarm.md").read_text()
    verbs = {tuple(found.split()) for found in re.findall(r"masos ((?:swarm [a-z]+)|[a-z]+)", page)}
    assert {("swarm", "publish"), ("swarm", "deny"), ("init",), ("up",)} <= verbs
    for verb in sorted(verbs):
        assert run([*verb, "--help"]) == 0, verb
    for flag in set(re.findall(r"(?<=swarm )(?:join|publish|create)[^\n`#]*? (--[a-z]+)", page)):
        helps = [
            capsys.readouterr().out for verb in ("join", "publish", "create") if run(["swarm", verb, "--help"]) == 0
        ]
        assert any(flag in text for text in helps), flag
    table = dict(re.findall(r"^\| ([^|]+) \| ([^|]+) \|", page, re.MULTILINE))
    quota = OPEN_QUOTA
    assert table["ops of one key in one task"] == f"{quota.burst} at once, then {quota.ops_per_s} a second"
    assert table["bytes of one key in one task"] == f"{quota.bytes_max // 1_000_000} MB"
    assert table["tasks begun by one key that a node keeps"] == str(open_swarm.SPACES_PER_AUTHOR_MAX)
    assert table["signed records of one key"] == str(open_swarm.RECORDS_PER_PUBLISHER_MAX)
    assert table["records of keys not known to be members"] == str(open_swarm.RECORDS_OF_STRANGERS_MAX)


# ---- denying


def test_a_node_is_denied_by_its_whole_peer_id(cli: Cli) -> None:
    cli.host("--open")
    peer = ADDRESS.rpartition("/")[2]
    assert cli.json("host", "swarm", "deny", peer) == (0, {"denied": peer})
    code, out, _ = cli.raw("host", "swarm", "deny", peer)
    assert code == 0
    assert "masos up" in out
    for wrong in (peer[-8:], "nobody", ""):
        assert "masos peers" in cli.refused("host", "swarm", "deny", wrong, status=64)["hint"]
    own = peer_text(Keystore(cli.profile("host")).node().public)
    assert "own node" in cli.refused("host", "swarm", "deny", own)["message"]
    cli.made("guest")
    assert "in no swarm" in cli.refused("guest", "swarm", "deny", peer)["message"]
