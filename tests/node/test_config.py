"""Settings: what is unknown or impossible refuses the start and is named; a secret is never repeated."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from hypothesis import given, strategies as st

from gossip.config import GossipConfig
from kernel.commands import Offer
from kernel.config import KernelConfig
from node.config import DEFAULT_LISTEN, Config, config_file, config_text, load_config
from node.profile import Profile
from protocol.errors import ConfigError

TAKEN = {8000, 4001, 5001, 8080, *range(9094, 9098), 8888, 8889, 8999, 9090, 52413, 52414, 52415, 3001, 3002, 50051}
TAKEN |= {41241, 5555, 6900, 9000, 9001, 8570, 6379, 8265, 10001, 11434, 7946}  # conventions.md §3


@pytest.fixture
def profile(tmp_path: Path) -> Profile:
    return Profile(tmp_path)


def _refusal(profile: Profile, text: str = "", environ: dict[str, str] | None = None) -> ConfigError:
    config_file(profile).write_text(text)
    with pytest.raises(ConfigError) as caught:
        load_config(profile, environ or {})
    return caught.value


def test_a_profile_without_the_file_has_the_defaults_of_the_machines(profile: Profile) -> None:
    core = load_config(profile, {}).core()
    assert core.gossip == GossipConfig()
    assert core.kernel == KernelConfig()


def test_the_default_port_is_nobody_elses_and_below_the_ephemeral_range() -> None:
    port = int(DEFAULT_LISTEN.rpartition("/")[2])
    assert port not in TAKEN
    assert 1024 < port < 32_768


def test_flag_beats_environment_beats_file_beats_default(profile: Profile) -> None:
    environ = {"MASOS_TIMING_TAU_S": "3"}
    assert load_config(profile, {}).timing.tau_s == 2.0
    config_file(profile).write_text("[timing]\ntau_s = 4.5\n")
    assert load_config(profile, {}).timing.tau_s == 4.5
    assert load_config(profile, environ).timing.tau_s == 3.0
    assert load_config(profile, environ, {"timing": {"tau_s": 5.0}}).timing.tau_s == 5.0
    assert load_config(profile, environ, {"timing": {"tau_s": 5.0}}).core().kernel.tau_us == 5_000_000


def test_lists_and_sections_of_the_environment_are_read(profile: Profile) -> None:
    environ = {
        "MASOS_NODE_LISTEN": "/ip4/127.0.0.1/tcp/1, /ip4/127.0.0.1/tcp/2",
        "MASOS_ENGINE_KIND": "none",
        "MASOS_CONTROL_PORT": "5000",
        "MASOS_PROFILE": "elsewhere",
        "MASOS_MODELS": "elsewhere",
        "OTHER_NODE_LISTEN": "x",
    }
    config = load_config(profile, environ)
    assert config.node.listen == ("/ip4/127.0.0.1/tcp/1", "/ip4/127.0.0.1/tcp/2")
    assert (config.engine.kind, config.control.port) == ("none", 5000)


@pytest.mark.parametrize(
    ("text", "named", "allowed"),
    [
        ("[nod]\n", "[nod]", "node, control, engine"),
        ("node = 3\n", "node", "[node]"),
        ("[node]\nlsiten = []\n", "'lsiten'", "listen, announce"),
        ("[engine]\nkind = 'magic'\n", "kind = 'magic'", "'embedded', 'openai' or 'none'"),
        ("[engine]\nthreads = '2'\n", "threads = '2'", "integer"),
        ("[engine]\nthreads = 0\n", "threads = 0", "greater than or equal to 1"),
        ("[engine]\nroles = ['poet']\n", "'poet'", "reasoning, critic, concluder"),
        ("[timing]\nsync_every_s = -1\n", "sync_every_s = -1", "greater than 0"),
        ("[timing]\nsync_every_s = nan\n", "sync_every_s = nan", ""),
        ("[engine]\nkind = 'openai'\n", "base_url", "http://"),
        ("[engine]\nbase_url = 'http://127.0.0.1:1'\n", "base_url", "kind"),
        ("[engine]\nkey_env = 'A'\nkey_file = 'b'\n", "twice", "not both"),
        ("=\n", "TOML", ""),
        ("[offer]\nskills = ['law', ' ']\n", "skills", "once"),
        ("[offer]\ntags = ['law', 'law']\n", "tags", "once"),
        ("[offer]\nprice_micro_money = -1\n", "price_micro_money = -1", "0"),
        ("[offer]\ndata_policy = 'mars'\n", "data_policy = 'mars'", "'auto', 'local' or 'external'"),
        (
            "[offer]\ndescription = '"
            + "é" * 900
            + "'\nskills = ['"
            + "é" * 128
            + "', '"
            + "ü" * 128
            + "', '"
            + "ö" * 128
            + "', '"
            + "ä" * 128
            + "', '"
            + "à" * 128
            + "']\n",
            "3080 bytes",
            "3072",
        ),
        ("[node]\nlisten = '/ip4/127.0.0.1/tcp/1'\n", "listen", "tuple"),
    ],
)
def test_what_cannot_be_is_named_with_what_can(profile: Profile, text: str, named: str, allowed: str) -> None:
    error = _refusal(profile, text)
    assert named in error.message
    assert allowed in error.hint


@pytest.mark.parametrize("text", ["[node]\nlsiten = []\n", "[engine]\nkind = 'x'\n", "[a]\n", "="])
def test_a_refusal_names_the_file(profile: Profile, text: str) -> None:
    assert str(config_file(profile)) in _refusal(profile, text).message


@pytest.mark.parametrize(
    "environ",
    [{"MASOS_ENGINE_KINDD": "none"}, {"MASOS_ENGINE_THREADS": "many"}, {"MASOS_ENGINE_KIND": "magic"}],
)
def test_the_environment_is_held_to_the_same_rules(profile: Profile, environ: dict[str, str]) -> None:
    assert next(iter(environ)) in _refusal(profile, environ=environ).message


@pytest.mark.parametrize(
    "line",
    ["api_key = 'sk-very-secret'", "key = 'sk-very-secret'", "token = 'sk-very-secret'", "key_env = 'sk-very-secret'"],
)
def test_a_literal_secret_is_refused_and_not_repeated(profile: Profile, line: str) -> None:
    error = _refusal(profile, f"[engine]\n{line}\n")
    assert "very-secret" not in f"{error.message} {error.hint} {error.__cause__}"
    assert "key_env" in error.hint


def test_a_huge_file_is_refused_unread(profile: Profile) -> None:
    assert "bytes" in _refusal(profile, "#" * 100_000).message


def test_the_written_file_is_the_defaults_and_what_was_chosen(profile: Profile) -> None:
    config_file(profile).write_text(config_text())
    assert load_config(profile, {}) == Config()
    config_file(profile).write_text(config_text({"node": {"listen": ("/ip4/127.0.0.1/tcp/0",)}}))
    assert load_config(profile, {}).node.listen == ("/ip4/127.0.0.1/tcp/0",)


def test_every_key_of_the_written_file_can_be_uncommented(profile: Profile) -> None:
    text = re.sub(r"(?m)^# (\w+ = )", r"\1", config_text())
    one_key_place = re.sub(r"(?m)^key_file = .*\n", "", text)
    config_file(profile).write_text(one_key_place.replace('kind = "embedded"', 'kind = "openai"'))
    assert load_config(profile, {}).timing == Config().timing
    for section in Config.model_fields:
        keys = type(getattr(Config(), section)).model_fields
        assert all(f"MASOS_{section.upper()}_{key.upper()}" in text for key in keys)


@given(st.text(max_size=60))
def test_no_text_in_a_file_does_anything_but_load_or_refuse(text: str) -> None:
    profile = Profile(Path("/nonexistent"))
    try:
        load_config(profile, {"MASOS_ENGINE_KIND": text, "MASOS_NODE_LISTEN": text, "MASOS_TIMING_TAU_S": text})
    except ConfigError:
        return


@pytest.mark.parametrize(
    ("engine", "policy"),
    [
        ("kind = 'none'", "local"),
        ("kind = 'openai'\nbase_url = 'http://127.0.0.1:8000'", "local"),
        ("kind = 'openai'\nbase_url = 'http://127.9.9.9:8000/v1'", "local"),
        ("kind = 'openai'\nbase_url = 'http://[::1]:8000'", "local"),
        ("kind = 'openai'\nbase_url = 'http://[::ffff:127.0.0.1]:8000'", "local"),
        ("kind = 'openai'\nbase_url = 'http://LocalHost.:8000'", "local"),
        ("kind = 'openai'\nbase_url = 'http://llm.localhost'", "local"),
        ("kind = 'openai'\nbase_url = 'https://api.example.org/v1'", "external"),
        ("kind = 'openai'\nbase_url = 'http://192.168.1.4:8000'", "external"),
        ("kind = 'openai'\nbase_url = 'http://127.0.0.1.example.org'", "external"),
        ("kind = 'openai'\nbase_url = 'http://127.0.0.1@example.org'", "external"),
        ("kind = 'openai'\nbase_url = 'http://localhost.example.org'", "external"),
        ("kind = 'openai'\nbase_url = 'http://[::1'", "external"),
        ("kind = 'openai'\nbase_url = '127.0.0.1:8000'", "external"),
        ("kind = 'openai'\nbase_url = 'http://0.0.0.0:8000'", "external"),
    ],
)
def test_prompts_count_as_leaving_unless_the_address_says_otherwise(profile: Profile, engine: str, policy: str) -> None:
    config_file(profile).write_text(f"[engine]\n{engine}\n")
    assert load_config(profile, {}).capability().data_policy == policy
    for said in ("local", "external"):
        flags = {"offer": {"data_policy": said}}
        assert load_config(profile, {}, flags).capability().data_policy == said


def test_the_offer_is_what_the_operator_said(profile: Profile) -> None:
    config_file(profile).write_text(
        "[offer]\ndescription = ' Reads leases. '\nskills = ['law']\ntags = ['a', 'b']\ntaxonomy = '/law/tax/'\n"
        "price_micro_money = 7\n"
    )
    assert load_config(profile, {"MASOS_OFFER_TAGS": "c, d"}).capability() == Offer(
        description="Reads leases.", skills=("law",), tags=("c", "d"), taxonomy="law/tax", price_micro_money=7
    )
