"""The settings of a node: `<profile>/config.toml`, the environment, and options of the command line.

    option  >  environment MASOS_SECTION_KEY  >  file  >  default

Rules of this file
- An unknown key, a wrong type or an impossible value refuses the start, and says where it stands, what was found and
  what is allowed (DESIGN.md §8). Nothing is ever guessed or silently dropped.
- A secret is named, never written: by the variable or the file that holds it. A literal one is refused, and its text
  is not repeated in the message.
- The file that `masos init` writes is made from the models below, so it cannot fall behind them.

Addresses: a node listens on all interfaces, because a swarm is private by its key already: who has not the key gets no
link (protocol.md §3). The control API is another matter; it is bound to loopback and that cannot be changed here.
Port 27420 is none that a neighbour of masos uses (conventions.md §3) and lies below the ephemeral range.
"""

from __future__ import annotations

import json
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Final, Literal, cast, get_origin

from pydantic import BaseModel, ConfigDict, Field, TypeAdapter, ValidationError

from gossip.config import GossipConfig
from gossip.reach import ReachConfig
from kernel.agents.roles import ROSTER
from kernel.agents.style import StyleName
from kernel.commands import Offer
from kernel.config import KernelConfig, TaskDefaults
from kernel.discovery import DataPolicy
from node.core import CoreConfig
from node.locality import stays_here
from node.open_swarm import bounds
from node.profile import Profile
from protocol.admission import Mode
from protocol.capability import DESCRIPTION_CHARS_MAX, LABELS_MAX, TAXONOMY_CHARS_MAX
from protocol.codec import clean_text
from protocol.errors import ConfigError
from protocol.records import NAME_CHARS_MAX

CONFIG_BYTES_MAX: Final = 64 * 1024
ADDRESSES_MAX: Final = 16
DEFAULT_LISTEN: Final = "/ip4/0.0.0.0/tcp/27420"
OFFER_BYTES_MAX: Final = 3_072  # of text; a record is at most 8 KiB, with its vector and what the engine says
ENV_PREFIX: Final = "MASOS_"

_GOSSIP: Final = GossipConfig()
_KERNEL: Final = KernelConfig()
_TASK: Final = TaskDefaults()
_SECRET_KEYS: Final = frozenset(("key", "api_key", "apikey", "token", "secret", "password", "bearer"))
_VARIABLE: Final = r"^[A-Za-z_][A-Za-z0-9_]*$"

Table = Mapping[str, object]
Flags = Mapping[str, Table]  # section -> key -> value, as given on the command line
Seconds = Annotated[float, Field(gt=0, le=86_400)]
LabelTexts = Annotated[tuple[Annotated[str, Field(max_length=NAME_CHARS_MAX)], ...], Field(max_length=LABELS_MAX)]
Addresses = Annotated[tuple[Annotated[str, Field(max_length=256)], ...], Field(max_length=ADDRESSES_MAX)]


class _Section(BaseModel):
    model_config = ConfigDict(strict=True, extra="forbid", frozen=True)


class NodeSection(_Section):
    """Where peers reach this node, and whether the library behind it is tested first."""

    listen: Addresses = Field(default=(DEFAULT_LISTEN,), description="multiaddrs to bind; port 0 takes a free one")
    announce: Addresses = Field(default=(), description="multiaddrs to tell others instead of the bound ones")
    self_test: bool = Field(default=True, description="at each start: does the network library keep what we rely on?")
    relay: Literal["off", "client", "serve"] = Field(
        default="off",
        description="client: be reached through a relay if nobody reaches this node; serve: be one for others",
    )
    mdns: bool = Field(default=False, description="look for nodes of this swarm on the local network")
    light: bool = Field(default=False, description="hold no index of the swarm's agents; find them through the DHT")


class ControlSection(_Section):
    """The API for this machine's user, always on 127.0.0.1."""

    port: int = Field(default=0, ge=0, le=65_535, description="0 takes a free port; the CLI finds it")


class EngineSection(_Section):
    """What writes text for this node's agents."""

    kind: Literal["embedded", "openai", "none"] = Field(
        default="embedded",
        description="embedded: llama.cpp with a small model; openai: any compatible server; none: no turns",
    )
    model: str = Field(
        default="smollm2", min_length=1, max_length=256, description="for openai: a name that the server lists"
    )
    base_url: str | None = Field(
        default=None, description="openai: where the server is", examples=["http://127.0.0.1:8000"]
    )
    key_env: str | None = Field(
        default=None,
        pattern=_VARIABLE,
        max_length=128,
        description="openai: the environment variable that holds the key",
        examples=["ENGINE_API_KEY"],
    )
    key_file: str | None = Field(
        default=None, description="openai: the file that holds the key", examples=["/path/to/a/file"]
    )
    context_tokens: int | None = Field(
        default=None, ge=256, le=4_000_000, description="use no more of the window than this", examples=[8192]
    )
    threads: int = Field(default=1, ge=1, le=256, description="embedded: CPU threads while it generates")
    roles: Annotated[tuple[str, ...], Field(max_length=16)] = Field(default=ROSTER.names, description="agents to offer")
    style: StyleName = Field(default="auto", description="how agents work: auto, extractive or generative")
    health_every_s: Seconds = Field(default=2.0, description="a dead engine is withdrawn within this time")


class OfferSection(_Section):
    """What this node's agents are found by, and on what terms they work."""

    description: str = Field(
        default="",
        max_length=DESCRIPTION_CHARS_MAX,
        description="what they are good at, in a sentence; without one they are found by their roles",
        examples=["Reads contracts and says what they oblige each party to."],
    )
    skills: LabelTexts = Field(default=(), description="short names of skills, or ids of A2A or OASF")
    tags: LabelTexts = Field(default=(), description="labels for `masos find --skill`")
    taxonomy: str = Field(
        default="", max_length=TAXONOMY_CHARS_MAX, description="a path from the general to the special, such as law/tax"
    )
    price_micro_money: int = Field(default=0, ge=0, le=2**53, description="for 1,000 tokens")
    data_policy: Literal["auto", "local", "external"] = Field(
        default="auto", description="do prompts leave this machine? auto: external if base_url is not loopback"
    )


class TaskSection(_Section):
    """What a task gets where its user says nothing."""

    deadline_s: Seconds = Field(default=_TASK.deadline_ms / 1e3, description="the whole task")
    max_steps: int = Field(default=_TASK.max_steps, ge=1, le=1_000, description="turns at most")
    lease_s: Annotated[float, Field(ge=0.1, le=3_600)] = Field(
        default=_TASK.lease_ms / 1e3, description="a dead node holds a turn so long"
    )
    eps_s: Annotated[float, Field(ge=0, le=600)] = Field(
        default=_TASK.eps_ms / 1e3, description="and this long more, for clocks that differ"
    )


class TimingSection(_Section):
    """Waits of the machines; the defaults fit a LAN and the internet."""

    ping_every_s: Seconds = Field(default=_GOSSIP.ping_every_us / 1e6, description="between pings of a peer")
    silent_after_s: Seconds = Field(
        default=_GOSSIP.silent_after_us / 1e6, description="hang up on a peer that said nothing"
    )
    dial_backoff_max_s: Seconds = Field(
        default=_GOSSIP.dial_backoff_max_us / 1e6, description="between tries of a dead peer"
    )
    sync_every_s: Seconds = Field(
        default=_GOSSIP.sync_every_us / 1e6, description="between comparisons of memory, ±50 %"
    )
    own_head_wait_s: Seconds = Field(
        default=_GOSSIP.own_head_wait_us / 1e6, description="after a crash: wait for a peer that may know more of us"
    )
    tau_s: Seconds = Field(
        default=_KERNEL.tau_us / 1e6, description="before the next candidate takes a turn; below 2 risky"
    )
    decide_s: Seconds = Field(default=_KERNEL.decide_us / 1e6, description="for choosing the next step")
    ack_wait_s: Seconds = Field(default=_KERNEL.ack_wait_us / 1e6, description="for the acknowledgement of a submit")


class SwarmSection(_Section):
    """The test swarm that `masos swarm join --test` enters; there is none unless you name it."""

    test_ticket: str | None = Field(
        default=None, description="its ticket, which is public", examples=["masos1-what-its-host-published"]
    )
    test_ticket_file: str | None = Field(
        default=None,
        description="or the file that holds it; a relative path begins at this folder",
        examples=["test-swarm.ticket"],
    )


class Config(_Section):
    """All settings of a node."""

    node: NodeSection = NodeSection()
    control: ControlSection = ControlSection()
    engine: EngineSection = EngineSection()
    offer: OfferSection = OfferSection()
    task: TaskSection = TaskSection()
    timing: TimingSection = TimingSection()
    swarm: SwarmSection = SwarmSection()

    def core(self, mode: Mode = "private") -> CoreConfig:
        """The part that the machines take, in their integers, within the bounds of the swarm's mode."""
        timing, task = self.timing, self.task
        gossip = GossipConfig(
            ping_every_us=_us(timing.ping_every_s),
            silent_after_us=_us(timing.silent_after_s),
            dial_backoff_min_us=min(_GOSSIP.dial_backoff_min_us, _us(timing.dial_backoff_max_s)),
            dial_backoff_max_us=_us(timing.dial_backoff_max_s),
            sync_every_us=_us(timing.sync_every_s),
            own_head_wait_us=_us(timing.own_head_wait_s),
            light_index=self.node.light,
        )
        defaults = TaskDefaults(
            deadline_ms=_us(task.deadline_s) // 1000,
            lease_ms=_us(task.lease_s) // 1000,
            eps_ms=_us(task.eps_s) // 1000,
            max_steps=task.max_steps,
        )
        kernel = KernelConfig(
            tau_us=_us(timing.tau_s),
            decide_us=_us(timing.decide_s),
            ack_wait_us=_us(timing.ack_wait_s),
            defaults=defaults,
        )
        return bounds(CoreConfig(gossip=gossip, kernel=kernel, reach=ReachConfig(relay=self.node.relay)), mode)

    def capability(self) -> Offer:
        """What the capability record says beside what the engine says of itself."""
        offer, engine = self.offer, self.engine
        policy: DataPolicy
        if offer.data_policy != "auto":
            policy = offer.data_policy
        else:
            leaves = engine.kind == "openai" and not stays_here(engine.base_url or "")
            policy = "external" if leaves else "local"
        return Offer(
            description=clean_text(offer.description.strip()),
            skills=tuple(clean_text(skill) for skill in offer.skills),
            tags=tuple(clean_text(tag) for tag in offer.tags),
            taxonomy=clean_text(offer.taxonomy.strip("/")),
            price_micro_money=offer.price_micro_money,
            data_policy=policy,
        )


def _us(seconds: float) -> int:
    return round(seconds * 1e6)


_SECTIONS: Final[dict[str, type[_Section]]] = {
    name: cast(type[_Section], field.annotation) for name, field in Config.model_fields.items()
}


def config_file(profile: Profile) -> Path:
    """Where the settings of a profile are."""
    return profile.path / "config.toml"


# ---- reading


def load_config(profile: Profile, environ: Mapping[str, str], flags: Flags | None = None) -> Config:
    """The settings in force; a profile without the file has the defaults.

    Raises:
        ConfigError: an unreadable file, an unknown key or an impossible value; it says where, what, and what may be.
    """
    file = config_file(profile)
    layers: tuple[tuple[str, Flags], ...] = (
        (f"{file}: [{{0}}] {{1}}", _from_file(file)),
        ("{2}", _from_environ(environ)),
        ("option for [{0}] {1}", flags or {}),
    )
    merged: dict[str, dict[str, object]] = {name: {} for name in _SECTIONS}
    places: dict[tuple[str, str], str] = {}
    for form, layer in layers:
        for section, table in layer.items():
            for key, value in table.items():
                merged[section][key] = _frozen(value)
                places[section, key] = form.format(section, key, _variable(section, key))
    try:
        config = Config.model_validate(merged)
    except ValidationError as exc:
        raise _refusal(exc, places) from None  # the chain would show the values, and one may be a secret
    _check_engine(config.engine, places)
    _check_offer(config.offer, places)
    return config


def _from_file(file: Path) -> Flags:
    try:
        with file.open("rb") as stream:
            raw = stream.read(CONFIG_BYTES_MAX + 1)
    except FileNotFoundError:
        return {}
    except OSError as exc:
        raise ConfigError(f"cannot read {file}: {exc.strerror}") from exc
    if len(raw) > CONFIG_BYTES_MAX:
        raise ConfigError(f"{file} is over {CONFIG_BYTES_MAX} bytes")
    try:
        tables = tomllib.loads(raw.decode())
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as exc:
        raise ConfigError(f"{file} is not TOML: {exc}") from exc
    for section, table in tables.items():
        if section not in _SECTIONS:
            raise ConfigError(f"{file}: there is no section [{section}]", hint=f"allowed: {', '.join(_SECTIONS)}")
        if not isinstance(table, dict):
            raise ConfigError(f"{file}: {section} is a section", hint=f"write [{section}], and its keys below it")
        for key in table:
            _check_key(f"{file}: [{section}]", section, key)
    return tables


def _from_environ(environ: Mapping[str, str]) -> Flags:
    """MASOS_SECTION_KEY of our sections; other variables, such as MASOS_PROFILE, are none of ours."""
    tables: dict[str, dict[str, object]] = {}
    for name in sorted(environ):
        section, _, key = name.removeprefix(ENV_PREFIX).lower().partition("_")
        if not name.startswith(ENV_PREFIX) or section not in _SECTIONS or not key:
            continue
        _check_key(f"environment variable {name}", section, key)
        tables.setdefault(section, {})[key] = _from_text(name, section, key, environ[name])
    return tables


def _from_text(place: str, section: str, key: str, text: str) -> object:
    """A value as its key wants it; lists are separated by commas."""
    kind = _SECTIONS[section].model_fields[key].annotation
    if get_origin(kind) is tuple:
        return tuple(part.strip() for part in text.split(",") if part.strip())
    try:
        return TypeAdapter(cast(type[object], kind)).validate_strings(text)
    except ValidationError as exc:
        first = exc.errors(include_url=False, include_input=False)[0]
        raise ConfigError(f"environment variable {place}: {text[:80]!r}", hint=_allowed(first["msg"])) from None


def _check_key(place: str, section: str, key: str) -> None:
    """Before anything of the value is looked at, because a wrong key may hold a secret."""
    known = _SECTIONS[section].model_fields
    if key in known:
        return
    if key.lower() in _SECRET_KEYS:
        raise ConfigError(
            f"{place}: {key!r} would put a secret into the settings",
            hint="name the variable that holds it with key_env, or the file with key_file",
        )
    raise ConfigError(f"{place}: there is no key {key!r}", hint=f"allowed: {', '.join(known)}")


def _frozen(value: object) -> object:
    """TOML lists as the tuples that strict models take."""
    return tuple(_frozen(part) for part in value) if isinstance(value, list) else value


def _refusal(error: ValidationError, places: Mapping[tuple[str, str], str]) -> ConfigError:
    first = error.errors(include_url=False)[0]
    section, key = (str(part) for part in first["loc"][:2])
    place = places.get((section, key), f"[{section}] {key}")
    if key in ("key_env", "key_file"):  # people paste the secret itself there
        return ConfigError(f"{place} does not name where the key is", hint="key_env takes the name of a variable")
    return ConfigError(f"{place} = {first['input']!r}", hint=_allowed(first["msg"]))


def _allowed(message: str) -> str:
    return f"allowed: {message.removeprefix('Input should be ')}"


def _check_engine(engine: EngineSection, places: Mapping[tuple[str, str], str]) -> None:
    """What no single key says."""
    for role in engine.roles:
        if ROSTER.get(role) is None:
            place = places.get(("engine", "roles"), "[engine] roles")
            raise ConfigError(f"{place}: there is no agent {role!r}", hint=f"allowed: {', '.join(ROSTER.names)}")
    if engine.key_env and engine.key_file:
        raise ConfigError("[engine] names the key twice", hint="give key_env or key_file, not both")
    if engine.kind == "openai" and not engine.base_url:
        raise ConfigError(
            "[engine] kind openai needs base_url", hint='such as base_url = "http://127.0.0.1:8000", and model'
        )
    if engine.kind != "openai" and engine.base_url:
        raise ConfigError(
            f"[engine] kind {engine.kind} takes no base_url", hint='set kind = "openai", or leave base_url out'
        )


def _check_offer(offer: OfferSection, places: Mapping[tuple[str, str], str]) -> None:
    """A record has a bound in bytes, and a label is something."""
    for key, labels in (("skills", offer.skills), ("tags", offer.tags)):
        if any(not label.strip() for label in labels) or len(set(labels)) < len(labels):
            place = places.get(("offer", key), f"[offer] {key}")
            raise ConfigError(f"{place}: an empty or repeated one", hint="give each once")
    parts = (offer.description, offer.taxonomy, *offer.skills, *offer.tags)
    size = sum(len(part.encode("utf-8", "replace")) for part in parts)
    if size > OFFER_BYTES_MAX:
        raise ConfigError(f"[offer] holds {size} bytes of text", hint=f"allowed: {OFFER_BYTES_MAX} in all")


def _variable(section: str, key: str) -> str:
    return f"environment variable {ENV_PREFIX}{section.upper()}_{key.upper()}"


# ---- writing


def config_text(chosen: Flags | None = None) -> str:
    """The commented file of a new profile: every key with its meaning and default; `chosen` ones are in force."""
    lines = [
        "# Settings of this node. Lines that start with '#' show the defaults, and examples where there is none.",
        "",
    ]
    for name, model in _SECTIONS.items():
        lines += [f"[{name}]  # {_first_line(model)}"]
        given = (chosen or {}).get(name, {})
        for key, field in model.model_fields.items():
            lines.append(f"# {field.description} (or {ENV_PREFIX}{name.upper()}_{key.upper()})")
            if key in given:
                lines.append(f"{key} = {_toml(given[key])}")
            else:
                shown = field.examples[0] if field.examples else field.default
                lines.append(f"# {key} = {_toml(shown)}")
        lines.append("")
    return "\n".join(lines)


def _first_line(model: type[BaseModel]) -> str:
    return (model.__doc__ or "").strip().splitlines()[0]


def _toml(value: object) -> str:
    """A value of one of the models above in TOML."""
    match value:
        case bool():
            return json.dumps(value)
        case tuple() | list():
            return f"[{', '.join(_toml(part) for part in value)}]"
        case str():
            return json.dumps(value, ensure_ascii=False)
        case _:
            return f"{value:g}" if isinstance(value, float) else str(value)
