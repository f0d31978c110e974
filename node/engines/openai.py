"""One client for every OpenAI-compatible server: vLLM, llama.cpp, Ollama, hosted.

The model is looked up in `/v1/models` before the first call, because some servers answer any name
with whatever they have loaded (llama.cpp [measured]). An adapter is selected by `"model": name` and
by nothing else; a server that cannot do that is never asked to (masos-kernel.md A1), a 404 is an
error, and a reply that names other weights is thrown away.

Replies are always streamed: it costs nothing, partial output can be watched, and leaving the call
closes the connection, which stops the generation. Nothing is retried here; the kernel knows what
a retry may cost.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

import httpx
import trio

from kernel.engine import (
    SCORE_OPTIONS_MAX,
    Capabilities,
    Completion,
    EngineRefused,
    EngineTimeout,
    EngineTruncated,
    EngineUnavailable,
    Message,
    OnText,
    Quality,
    Request,
    Usage,
    check_request,
    check_window,
)
from kernel.json_schema import check_schema
from node.engines.http import Json, ServerHttp, open_client
from node.engines.reply import Reply
from node.engines.servers import Dialect, recognise
from node.engines.text import chat, defuse
from protocol.errors import ConfigError, EngineError

CONTEXT_TOKENS_DEFAULT: Final = 4096
"""Window of a server that tells none; Ollama's own default."""
PROBE_S: Final = 10.0
SCORE_PROBE_S: Final = 3.0
"""Ollama loads the model at the first request; that is no reason to call it silent."""
HEALTH_S: Final = 3.0
COUNT_S: Final = 10.0
SCORE_S: Final = 60.0
KEY_CHARS_MAX: Final = 4096
SPEED_WEIGHT: Final = 0.3
"""Weight of the newest reply in the measured speed; older ones fade over about five replies."""
SPEED_TOKENS_MIN: Final = 8


@dataclass(frozen=True, slots=True)
class OpenAIConfig:
    """A server and a model on it.

    Attributes:
        base_url: http(s) address, with or without `/v1`.
        model: a name that `/v1/models` lists.
        api_key_env: name of the environment variable that holds the key.
        api_key_file: file that holds the key; at most one of the two.
        context_tokens: the window, where the server does not tell it.
        quality: what answers of this model may be taken for.
        logprobs: ask for log-probabilities of every reply; rollouts need them.
    """

    base_url: str
    model: str
    api_key_env: str | None = None
    api_key_file: Path | None = None
    context_tokens: int | None = None
    quality: Quality = "standard"
    logprobs: bool = False


def server_root(base_url: str) -> str:
    """The address without `/v1` and without a slash at its end.

    Raises:
        ConfigError: it is not an http or https URL with a host, or it carries a password.
    """
    try:
        url = httpx.URL(base_url)
    except httpx.InvalidURL as exc:
        raise ConfigError(f"engine URL {base_url!r} is not a URL: {exc}") from exc
    if url.scheme not in {"http", "https"} or not url.host:
        raise ConfigError(f"engine URL {base_url!r} is not of the form http://host:port")
    if url.userinfo or url.query:
        raise ConfigError("the engine URL carries a password or a query", hint="name the key's variable or file")
    return base_url.rstrip("/").removesuffix("/v1").rstrip("/")


def read_api_key(config: OpenAIConfig, environ: Mapping[str, str]) -> str | None:
    """The key that the configuration points at; None if it points at none.

    Raises:
        ConfigError: it points at nothing readable, or at two places.
    """
    if config.api_key_env and config.api_key_file:
        raise ConfigError("the engine's key is named twice: by variable and by file")
    if config.api_key_env:
        key = environ.get(config.api_key_env, "")
        place = f"environment variable {config.api_key_env}"
    elif config.api_key_file:
        place = str(config.api_key_file)
        try:
            key = config.api_key_file.read_text(encoding="ascii")
        except (OSError, ValueError) as exc:
            raise ConfigError(f"cannot read the engine's key from {place}: {exc}") from exc
    else:
        return None
    key = key.strip()
    if not 0 < len(key) <= KEY_CHARS_MAX or not key.isprintable() or not key.isascii():
        raise ConfigError(f"{place} holds no usable key", hint="put the key there, or take it out of [engine]")
    return key


@dataclass(frozen=True, slots=True)
class _Connection:
    dialect: Dialect
    capabilities: Capabilities


class OpenAIEngine:
    """An `Engine` on a server that somebody else runs. Needs no nursery; any task may call it."""

    def __init__(
        self,
        config: OpenAIConfig,
        environ: Mapping[str, str],
        *,
        client: httpx.AsyncClient | None = None,
    ) -> None:
        """Opens nothing yet.

        Args:
            config: where and what.
            environ: where `api_key_env` is looked up.
            client: another way to the server than its URL, for instance a Unix socket.

        Raises:
            ConfigError: the URL or the key is unusable.
        """
        self._config = config
        key = read_api_key(config, environ)
        root = server_root(config.base_url)
        self._client = client if client is not None else open_client(root, api_key=key)
        self._http = ServerHttp(self._client)
        self._connection: _Connection | None = None
        self._connecting = trio.Lock()
        self._speed: float | None = None
        self._closed = False

    async def generate(self, request: Request, on_text: OnText | None = None) -> Completion:
        """As in the port."""
        check_request(request)
        if request.json_schema is not None:
            check_schema(request.json_schema)
        with trio.move_on_after(request.deadline_s):
            return await self._generate(request, on_text)
        raise EngineTimeout(f"the engine did not finish within {request.deadline_s:g} s")

    async def _generate(self, request: Request, on_text: OnText | None) -> Completion:
        connection = await self._connect()
        dialect, able = connection.dialect, connection.capabilities
        model = self._model_of(request.adapter, dialect)
        prompt_tokens = await self._prompt_tokens(dialect, model, request.messages)
        check_window(prompt_tokens, request.max_new_tokens, able.context_tokens)
        reply = Reply(on_text)
        arrivals: list[float] = []

        def on_event(event: Json) -> None:
            arrivals.append(trio.current_time())
            reply.on_event(event)

        body = self._body(request, model, dialect)
        await self._http.events("/v1/chat/completions", body, on_event)
        if request.adapter is not None and reply.model != request.adapter:
            raise EngineUnavailable(f"{reply.model!r} answered where adapter {request.adapter!r} was asked for")
        completion = reply.completion(model, Usage(prompt_tokens, reply.pieces))
        self._note_speed(completion.usage.completion_tokens, arrivals[-1] - arrivals[0])
        if request.json_schema is not None and completion.finish == "length":
            raise EngineTruncated(completion)
        return completion

    def _model_of(self, adapter: str | None, dialect: Dialect) -> str:
        if adapter is None:
            return self._config.model
        if not dialect.has_adapters:
            raise EngineRefused(
                f"{dialect.product} cannot choose adapter {adapter!r} by name",
                hint="serve the adapter with vLLM, or set the adapter to none",
            )
        return adapter

    def _body(self, request: Request, model: str, dialect: Dialect) -> Json:
        body: Json = {
            "model": model,
            "messages": chat(request.messages),
            "max_tokens": request.max_new_tokens,
            "temperature": request.temperature,
            "top_p": 1.0,
            "seed": request.seed,
            "stream": True,
            "stream_options": {"include_usage": True},
            **dialect.sampling(),
        }
        if request.stop:
            body["stop"] = list(request.stop)
        if self._config.logprobs:
            body["logprobs"] = True
        if request.json_schema is not None:
            form = {"name": "answer", "strict": True, "schema": request.json_schema}
            body["response_format"] = {"type": "json_schema", "json_schema": form}
        return body

    async def score(self, prefix: str, options: tuple[str, ...]) -> tuple[float, ...]:
        """As in the port."""
        if not 0 < len(options) <= SCORE_OPTIONS_MAX or not all(options):
            raise EngineRefused(f"score takes 1..{SCORE_OPTIONS_MAX} options, none of them empty")
        if not prefix:
            raise EngineRefused("score needs a prefix: nothing precedes the first token")
        with trio.move_on_after(SCORE_S):
            connection = await self._connect()
            http, model = self._http, self._config.model
            longest = max(options, key=len)
            tokens = await connection.dialect.count(http, model, defuse(prefix) + longest)
            check_window(tokens, 1, connection.capabilities.context_tokens)
            return await connection.dialect.score(http, model, defuse(prefix), options)
        raise EngineTimeout(f"the engine did not score within {SCORE_S:g} s")

    async def count_tokens(self, text: str) -> int:
        """As in the port; an upper estimate where `capabilities().counts_exactly` is false."""
        if not text:
            return 0
        with trio.move_on_after(COUNT_S):
            dialect = (await self._connect()).dialect
            return await dialect.count(self._http, self._config.model, defuse(text))
        raise EngineTimeout(f"the engine did not count within {COUNT_S:g} s")

    async def health(self) -> bool:
        """As in the port."""
        healthy = False
        with trio.move_on_after(HEALTH_S):
            try:
                dialect = (await self._connect()).dialect
                healthy = await self._http.is_ok(dialect.health_path)
            except EngineError:
                return False
        return healthy

    async def capabilities(self) -> Capabilities:
        """As in the port; the speed is the only figure that changes."""
        able = (await self._connect()).capabilities
        return replace(able, tokens_per_s=None if self._speed is None else round(self._speed))

    async def aclose(self) -> None:
        """Leaves the server; it goes on."""
        self._closed = True
        await self._client.aclose()

    def _note_speed(self, tokens: int, seconds: float) -> None:
        """The first token came with the first event, so it took none of the time in between."""
        if tokens < SPEED_TOKENS_MIN or seconds <= 0:
            return
        newest = (tokens - 1) / seconds
        before = newest if self._speed is None else self._speed
        self._speed = before + SPEED_WEIGHT * (newest - before)

    async def _prompt_tokens(self, dialect: Dialect, model: str, messages: tuple[Message, ...]) -> int:
        return await dialect.count_chat(self._http, model, chat(messages))

    async def _connect(self) -> _Connection:
        """What is known about the server; asked once, again only after a failure."""
        if self._closed:
            raise EngineUnavailable("the engine is closed")
        async with self._connecting:
            if self._connection is None:
                with trio.move_on_after(PROBE_S):
                    self._connection = await self._probe()
                if self._connection is None:
                    raise EngineUnavailable(f"the engine server is silent for {PROBE_S:g} s")
            return self._connection

    async def _probe(self) -> _Connection:
        listed = await self._listed()
        dialect = await recognise(self._http, listed)
        window = await dialect.context_tokens(self._http, listed)
        window = window or self._config.context_tokens or CONTEXT_TOKENS_DEFAULT
        if self._config.context_tokens is not None:
            window = min(window, self._config.context_tokens)
        capabilities = Capabilities(
            model=self._config.model,
            context_tokens=window,
            quality=self._config.quality,
            json_schema=dialect.product != "ollama",
            logprobs=self._config.logprobs and dialect.gives_ids,
            score=await self._can_score(dialect),
            adapters=dialect.has_adapters,
            tokens_per_s=None,
            backend=dialect.product,
            counts_exactly=dialect.counts_exactly,
            message_tokens=await self._template_tokens(dialect),
        )
        return _Connection(dialect, capabilities)

    async def _listed(self) -> Json:
        """Our model's entry in `/v1/models`."""
        rows = (await self._http.get("/v1/models")).get("data")
        entries = [row for row in rows if isinstance(row, dict)] if isinstance(rows, list) else []
        for row in entries:
            if row.get("id") == self._config.model:
                return row
        names = ", ".join(sorted(str(row.get("id")) for row in entries)[:8]) or "none"
        raise EngineRefused(
            f"the engine server has no model {self._config.model!r}",
            hint=f"it lists: {names}",
        )

    async def _can_score(self, dialect: Dialect) -> bool:
        """Whether scoring works; asked of a server only where its product does not say."""
        if dialect.counts_exactly:
            return True
        can = False
        with trio.move_on_after(SCORE_PROBE_S):
            try:
                await dialect.score(self._http, self._config.model, "1, 2, 3,", (" 4",))
                can = True
            except EngineError:
                return False
        return can

    async def _template_tokens(self, dialect: Dialect) -> int:
        """What a message costs beside its content, so that `count_prompt` stays above the truth."""
        model = self._config.model

        async def frame(*roles: Json) -> int:
            content = await dialect.count(self._http, model, "x")
            return await dialect.count_chat(self._http, model, roles) - content * len(roles)

        user: Json = {"role": "user", "content": "x"}
        other: Json = {"role": "assistant", "content": "x"}
        one, three = await frame(user), await frame(user, other, user)
        # count_prompt charges n + 1 times this figure for n messages.
        return max(-(-one // 2), -(-three // 4), -(-(three - one) // 2), 1)
