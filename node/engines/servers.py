"""What differs between engine servers, and how to tell them apart (engine.md §5).

The common core is `/v1/models`, `/v1/chat/completions` and `/v1/completions`. Around it each
product has its own way to say that it is healthy, to count tokens and to give log-probabilities;
each way is one `Dialect` here. Products are told apart by `owned_by` in `/v1/models`, which vLLM
and llama.cpp set, and by Ollama's own version page.

Scoring wants the log-probability of given tokens, for which there is no common call:
- llama.cpp returns the log-probability of a sampled token before any bias, so one token forced by
  a bias tells its own; the prompt cache makes this ~10 ms per option [measured].
- vLLM gives the top 20 of the next token, and echoes the log-probabilities of a whole prompt.
- Any other server may give the top tokens. Options that are not among them are refused, never
  guessed.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, Protocol

from kernel.engine import EngineRefused, EngineUnavailable
from node.engines.http import Json, ServerHttp
from node.engines.text import estimate_tokens

TOP_MAX: Final = 20
"""Next-token candidates that vLLM returns at most (its `--max-logprobs` default)."""
MESSAGE_TOKENS: Final = 8
"""Guess for templates that we cannot ask: `<|im_start|>role\\n … <|im_end|>\\n` is 5."""
FORCED_BIAS: Final = 1000.0
"""Above any difference of two logits, so that greedy sampling takes the token."""


class Dialect(Protocol):
    """How to speak to one product."""

    product: str
    health_path: str
    counts_exactly: bool
    has_adapters: bool
    gives_ids: bool

    def sampling(self) -> Json:
        """Fields that switch the server's own sampling defaults off."""
        ...

    async def context_tokens(self, http: ServerHttp, listed: Json) -> int | None:
        """The window per request, if the server tells."""
        ...

    async def count(self, http: ServerHttp, model: str, text: str) -> int:
        """Tokens of a plain text."""
        ...

    async def count_chat(self, http: ServerHttp, model: str, messages: Sequence[Json]) -> int:
        """Tokens of a chat with its template, or an upper estimate."""
        ...

    async def score(self, http: ServerHttp, model: str, prefix: str, options: tuple[str, ...]) -> tuple[float, ...]:
        """As in the port."""
        ...


class LlamaCpp:
    """llama.cpp's server, which is also the embedded engine. It ignores `model`: one model only."""

    product = "llama.cpp"
    health_path = "/health"
    counts_exactly = True
    has_adapters = False
    gives_ids = True

    def sampling(self) -> Json:
        """No truncation: what is sampled is the model's own distribution."""
        return {"top_k": 0, "min_p": 0.0, "cache_prompt": True}

    async def context_tokens(self, http: ServerHttp, listed: Json) -> int | None:  # noqa: ARG002 - the port's shape
        """As in `Dialect`."""
        settings = (await http.get("/props")).get("default_generation_settings")
        return _positive(settings, "n_ctx")

    async def count(self, http: ServerHttp, model: str, text: str) -> int:  # noqa: ARG002 - it has one model
        """As in `Dialect`."""
        return len(await self._tokens(http, text, special=False))

    async def count_chat(self, http: ServerHttp, model: str, messages: Sequence[Json]) -> int:  # noqa: ARG002 - it has one model
        """As in `Dialect`."""
        prompt = (await http.post("/apply-template", {"messages": list(messages)})).get("prompt")
        if not isinstance(prompt, str):
            raise EngineUnavailable("the engine server gave no prompt for a chat")
        return len(await self._tokens(http, prompt, special=True))

    async def score(
        self,
        http: ServerHttp,
        model: str,  # noqa: ARG002 - it has one model
        prefix: str,
        options: tuple[str, ...],
    ) -> tuple[float, ...]:
        """As in `Dialect`."""
        # Prefix and option are tokenised together, because a token may span the seam. The part
        # that all options share is context, the rest of each is what is scored.
        rows = [await self._tokens(http, prefix + option, special=False) for option in options]
        shared = _shared_length([await self._tokens(http, prefix, special=False), *rows])
        known: dict[tuple[int, ...], float] = {}
        for row in rows:
            for end in range(shared + 1, len(row) + 1):
                path = tuple(row[:end])
                if path not in known:
                    known[path] = await self._forced(http, path[:-1], path[-1])
        return tuple(sum(known[tuple(row[:end])] for end in range(shared + 1, len(row) + 1)) for row in rows)

    async def _tokens(self, http: ServerHttp, text: str, *, special: bool) -> list[int]:
        body: Json = {"content": text, "add_special": special, "parse_special": special}
        tokens = (await http.post("/tokenize", body)).get("tokens")
        if not isinstance(tokens, list) or not all(isinstance(t, int) for t in tokens):
            raise EngineUnavailable("the engine server gave no tokens for a text")
        return tokens

    async def _forced(self, http: ServerHttp, context: tuple[int, ...], token: int) -> float:
        body: Json = {
            "prompt": list(context),
            "n_predict": 1,
            "temperature": 0.0,
            "n_probs": 1,
            "logit_bias": [[token, FORCED_BIAS]],
            "cache_prompt": True,
        }
        rows = (await http.post("/completion", body)).get("completion_probabilities")
        row = rows[0] if isinstance(rows, list) and rows else None
        if not isinstance(row, dict) or row.get("id") != token:
            raise EngineUnavailable("the engine server did not score the token it was given")
        return _logprob(row.get("logprob"))


class OpenAICore:
    """What every compatible server has; counts are estimates, scores come from the top tokens."""

    product = "openai"
    health_path = "/v1/models"
    counts_exactly = False
    has_adapters = False
    gives_ids = False

    def sampling(self) -> Json:
        """No truncation: what is sampled is the model's own distribution."""
        return {}

    async def context_tokens(self, http: ServerHttp, listed: Json) -> int | None:  # noqa: ARG002 - the port's shape
        """As in `Dialect`."""
        return _positive(listed, "max_model_len")

    async def count(self, http: ServerHttp, model: str, text: str) -> int:  # noqa: ARG002 - nothing to ask
        """As in `Dialect`."""
        return estimate_tokens(text)

    async def count_chat(self, http: ServerHttp, model: str, messages: Sequence[Json]) -> int:
        """As in `Dialect`."""
        counts = [await self.count(http, model, str(message["content"])) for message in messages]
        return sum(counts) + MESSAGE_TOKENS * (len(counts) + 1)

    async def score(self, http: ServerHttp, model: str, prefix: str, options: tuple[str, ...]) -> tuple[float, ...]:
        """As in `Dialect`."""
        found = await self._next_tokens(http, model, prefix)
        if missing := [option for option in options if option not in found]:
            raise EngineRefused(
                f"the engine gives no log-probability for {missing[0]!r}",
                hint="choose among the options by constrained decoding",
            )
        return tuple(found[option] for option in options)

    async def _next_tokens(self, http: ServerHttp, model: str, prefix: str) -> dict[str, float]:
        body: Json = {
            "model": model,
            "prompt": prefix,
            "max_tokens": 1,
            "temperature": 0.0,
            "logprobs": TOP_MAX,
        }
        choices = (await http.post("/v1/completions", body)).get("choices")
        logprobs = _member(_first(choices), "logprobs")
        top = _first(_member(logprobs, "top_logprobs"))
        if not isinstance(top, dict):
            raise EngineRefused("the engine server gives no log-probabilities")
        return {text: _logprob(value) for text, value in top.items()}


class Ollama(OpenAICore):
    """Ollama: common core, own health page; a JSON schema may be ignored."""

    product = "ollama"
    health_path = "/api/version"


class Vllm(OpenAICore):
    """vLLM: adapters by name, exact counts, log-probabilities of whole prompts."""

    product = "vllm"
    health_path = "/health"
    counts_exactly = True
    has_adapters = True
    gives_ids = True

    def sampling(self) -> Json:
        """No truncation: what is sampled is the model's own distribution."""
        return {"top_k": 0, "min_p": 0.0, "return_token_ids": True}

    async def count(self, http: ServerHttp, model: str, text: str) -> int:
        """As in `Dialect`."""
        return await self._tokenize(http, {"model": model, "prompt": text, "add_special_tokens": False})

    async def count_chat(self, http: ServerHttp, model: str, messages: Sequence[Json]) -> int:
        """As in `Dialect`."""
        return await self._tokenize(http, {"model": model, "messages": list(messages), "add_generation_prompt": True})

    async def _tokenize(self, http: ServerHttp, body: Json) -> int:
        answer = await http.post("/tokenize", body)
        if (count := _positive(answer, "count")) is None:
            raise EngineUnavailable("the engine server gave no token count")
        return count

    async def score(self, http: ServerHttp, model: str, prefix: str, options: tuple[str, ...]) -> tuple[float, ...]:
        """As in `Dialect`."""
        found = await self._next_tokens(http, model, prefix)
        if all(option in found for option in options):
            return tuple(found[option] for option in options)
        return await self._echoed(http, model, prefix, options)

    async def _echoed(self, http: ServerHttp, model: str, prefix: str, options: tuple[str, ...]) -> tuple[float, ...]:
        body: Json = {
            "model": model,
            "prompt": [prefix + option for option in options],
            "echo": True,
            "max_tokens": 1,
            "temperature": 0.0,
            "logprobs": 1,
        }
        choices = (await http.post("/v1/completions", body)).get("choices")
        if not isinstance(choices, list) or len(choices) != len(options):
            raise EngineUnavailable("the engine server did not score every option")
        return tuple(
            _echo_sum(choice, len(prefix), len(prefix) + len(option))
            for choice, option in zip(choices, options, strict=True)
        )


_BY_OWNER: Final[dict[str, type[LlamaCpp | OpenAICore]]] = {"vllm": Vllm, "llamacpp": LlamaCpp}


async def recognise(http: ServerHttp, listed: Json) -> Dialect:
    """The dialect of a server, from its entry in `/v1/models`."""
    if (kind := _BY_OWNER.get(str(listed.get("owned_by")))) is not None:
        return kind()
    return Ollama() if await http.is_ok(Ollama.health_path) else OpenAICore()


def _shared_length(rows: Sequence[Sequence[int]]) -> int:
    """Length of the common start; at least one token of each scored row stays outside."""
    limit = min(len(rows[0]), min(map(len, rows[1:])) - 1)
    length = 0
    while length < limit and len({row[length] for row in rows}) == 1:
        length += 1
    return length


def _echo_sum(choice: object, start: int, end: int) -> float:
    """Sum over the tokens of an echoed prompt that reach into characters start..end."""
    logprobs = _member(choice, "logprobs")
    values, offsets = _member(logprobs, "token_logprobs"), _member(logprobs, "text_offset")
    tokens = _member(logprobs, "tokens")
    if not (isinstance(values, list) and isinstance(offsets, list) and isinstance(tokens, list)):
        raise EngineUnavailable("the engine server echoed no log-probabilities")
    spans = zip(values, offsets, tokens, strict=True)
    scored = [v for v, at, token in spans if at < end and at + len(str(token)) > start]
    if not scored:
        raise EngineUnavailable("the engine server scored nothing of an option")
    return sum(_logprob(value) for value in scored)


def _first(value: object) -> object:
    return value[0] if isinstance(value, list) and value else None


def _member(value: object, key: str) -> object:
    return value.get(key) if isinstance(value, dict) else None


def _positive(value: object, key: str) -> int | None:
    found = _member(value, key)
    return found if isinstance(found, int) and found > 0 else None


def _logprob(value: object) -> float:
    if not isinstance(value, (int, float)):
        raise EngineUnavailable("the engine server gave no log-probability")
    return float(value)
