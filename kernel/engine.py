"""The engine port: what the kernel asks of text generation, and in which words.

An engine lives outside the node's process (engine.md §1). The kernel sees only this file; the
products behind it are known under `node/engines/`, and the simulator brings a scripted one.
Rules every implementation keeps:

- Each call has a deadline and ends by it. Cancelling the call (trio cancellation) really stops
  generation in the engine, not only the waiting for it: an engine that goes on costs tokens nobody
  reads (conventions.md §8, complaint 6).
- An adapter is chosen by its name and by nothing else; an engine that does not have it refuses.
  There is no fall back to the base model, ever: the answer would come from the wrong weights
  (masos-kernel.md A1, case E1).
- The window is checked before anything is sent: prompt + max_new_tokens <= context_tokens, or
  `EngineRefused`.
- A reply cut by its token limit is `finish="length"`. Where a schema was given it is no answer at
  all: `EngineTruncated`, which carries the cut completion so that its tokens are still charged
  (case K2).
- A schema is judged by `kernel.json_schema.check_schema` before an engine sees it (case E2).
- Text is cleaned once, at the adapter, with `protocol.codec.clean_text` (case W4).

Engines differ; ask `capabilities()` once per connection instead of assuming.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final, Literal, Protocol

from protocol.errors import EngineError

Role = Literal["system", "user", "assistant"]
Finish = Literal["stop", "length", "cancelled", "error"]
Quality = Literal["demo", "standard"]
OnText = Callable[[str], None]

SCORE_OPTIONS_MAX: Final = 64
"""Options in one `score`; the scheduler has at most eleven labels (protocol.md §10)."""
MESSAGES_MAX: Final = 256
STOP_MAX: Final = 16


class EngineUnavailable(EngineError):
    """The engine does not run or does not answer; another peer's engine may."""

    code = "engine_unavailable"
    exit_code = 69
    default_hint = "see `masos status` for the state of the engine"


class EngineTimeout(EngineUnavailable):
    """The engine did not finish before the deadline of the call; generation was stopped."""

    code = "engine_timeout"
    exit_code = 75
    default_hint = "ask for fewer tokens or give the call more time"


class EngineRefused(EngineError):
    """The request itself cannot be served: too long, unknown model, bad schema. Do not retry it."""

    code = "engine_refused"


class EngineTruncated(EngineError):
    """Structure was asked for and the token limit cut it; `completion` is the cut reply."""

    code = "engine_truncated"
    default_hint = "retry with a shorter prompt or a larger limit"

    def __init__(self, completion: Completion) -> None:
        super().__init__(f"the JSON answer was cut after {completion.usage.completion_tokens} tokens")
        self.completion = completion


@dataclass(frozen=True, slots=True)
class Message:
    """One turn of a chat."""

    role: Role
    content: str


@dataclass(frozen=True, slots=True)
class Request:
    """What is asked of an engine.

    Attributes:
        messages: the chat; the engine applies its own template.
        max_new_tokens: limit of the reply.
        temperature: 0.0 is greedy and is what serving uses (masos-kernel.md §2).
        seed: sampling seed; without meaning at temperature 0.
        stop: texts that end the reply; they are not part of it.
        json_schema: the reply is one JSON value of this schema (subset in `kernel.json_schema`).
        adapter: a LoRA adapter's name with content hash, `scheduler-<12 hex>`; None is the base.
        deadline_s: wall seconds after which the call is stopped and raises `EngineTimeout`.
    """

    messages: tuple[Message, ...]
    max_new_tokens: int
    temperature: float = 0.0
    seed: int = 0
    stop: tuple[str, ...] = ()
    json_schema: dict[str, object] | None = None
    adapter: str | None = None
    deadline_s: float = 60.0


@dataclass(frozen=True, slots=True)
class Usage:
    """Tokens of one call as the engine counted them; add, never overwrite (masos-kernel.md H2)."""

    prompt_tokens: int = 0
    completion_tokens: int = 0

    @property
    def total(self) -> int:
        """Prompt plus completion, the figure that contracts charge."""
        return self.prompt_tokens + self.completion_tokens

    def __add__(self, other: Usage) -> Usage:
        return Usage(
            self.prompt_tokens + other.prompt_tokens,
            self.completion_tokens + other.completion_tokens,
        )


@dataclass(frozen=True, slots=True)
class Completion:
    """What an engine answered.

    Attributes:
        text: the reply, cleaned, without the stop text.
        finish: why it ended; `cancelled` and `error` only in records, a live call raises instead.
        usage: tokens of this call.
        model: the name that really served it (base or adapter).
        token_ids: ids of the reply where the engine gives them.
        logprobs: natural log-probability of each of these tokens where the engine gives them.
    """

    text: str
    finish: Finish
    usage: Usage
    model: str
    token_ids: tuple[int, ...] | None = None
    logprobs: tuple[float, ...] | None = None


@dataclass(frozen=True, slots=True)
class Capabilities:
    """What this engine with this model can do; it goes into the capability record.

    Attributes:
        model: name of the model as the engine knows it.
        context_tokens: prompt + reply.
        quality: `demo` must be shown wherever an answer is shown (engine.md §2).
        json_schema: replies can be constrained while they are made.
        logprobs: completions carry log-probabilities.
        score: `score` works.
        adapters: LoRA adapters can be named.
        tokens_per_s: measured decode speed, None while unmeasured.
        backend: product and version, for people.
        counts_exactly: `count_tokens` asks the model's own tokenizer; else it is an upper estimate.
        message_tokens: what the chat template adds per message, at most.
    """

    model: str
    context_tokens: int
    quality: Quality
    json_schema: bool
    logprobs: bool
    score: bool
    adapters: bool
    tokens_per_s: int | None
    backend: str
    counts_exactly: bool = True
    message_tokens: int = 8


class Engine(Protocol):
    """One model behind one door. All methods raise only `EngineError` and its subclasses."""

    async def generate(self, request: Request, on_text: OnText | None = None) -> Completion:
        """The reply; `on_text` gets its parts as they are made, which together are the text.

        Raises:
            EngineRefused: the request cannot be served as it is.
            EngineTimeout: `deadline_s` passed.
            EngineTruncated: a schema was given and the limit cut the reply.
            EngineUnavailable: the engine is down or went down; nothing is retried here.
        """
        ...

    async def score(self, prefix: str, options: tuple[str, ...]) -> tuple[float, ...]:
        """Natural log-probability of each option as the continuation of `prefix`.

        Both are raw text: no chat template. An option of several tokens gets the sum.

        Raises:
            EngineRefused: this engine cannot score these options.
            EngineUnavailable: the engine is down.
        """
        ...

    async def count_tokens(self, text: str) -> int:
        """Tokens of a plain text, without template and special tokens."""
        ...

    async def health(self) -> bool:
        """Whether a call made now is expected to be served; never raises."""
        ...

    async def capabilities(self) -> Capabilities:
        """What the engine can do; probed once, then cached."""
        ...

    async def aclose(self) -> None:
        """Ends the engine or leaves the server; calls in flight fail with `EngineUnavailable`."""
        ...


async def count_prompt(engine: Engine, messages: Sequence[Message]) -> int:
    """Tokens of a chat as a prompt, template included; exact or above, never below (case K4)."""
    capabilities = await engine.capabilities()
    total = capabilities.message_tokens  # the opening of the reply
    for message in messages:
        total += capabilities.message_tokens + await engine.count_tokens(message.content)
    return total


def check_request(request: Request) -> None:
    """Refuses what no engine can serve.

    Raises:
        EngineRefused: no messages, or a limit, temperature, deadline or stop text out of range.
    """
    if not 0 < len(request.messages) <= MESSAGES_MAX:
        raise EngineRefused(f"{len(request.messages)} messages are outside 1..{MESSAGES_MAX}")
    if request.max_new_tokens < 1:
        raise EngineRefused(f"max_new_tokens is {request.max_new_tokens}; at least 1 is needed")
    if not 0.0 <= request.temperature <= 2.0:
        raise EngineRefused(f"temperature {request.temperature} is outside 0..2")
    if not request.deadline_s > 0:
        raise EngineRefused(f"deadline_s is {request.deadline_s}; it must be positive")
    if len(request.stop) > STOP_MAX or not all(request.stop):
        raise EngineRefused(f"at most {STOP_MAX} stop texts, none of them empty")


def check_window(prompt_tokens: int, max_new_tokens: int, context_tokens: int) -> None:
    """Refuses a call that cannot fit the window.

    Raises:
        EngineRefused: prompt + reply would exceed `context_tokens`.
    """
    if prompt_tokens + max_new_tokens > context_tokens:
        raise EngineRefused(
            f"{prompt_tokens} prompt + {max_new_tokens} new tokens exceed {context_tokens}",
            hint="allocate less context or ask for a shorter reply",
        )
