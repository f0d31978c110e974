"""A streamed chat reply, put together: text, finish reason, usage, token ids, log-probabilities."""

from __future__ import annotations

from typing import Final

from kernel.engine import Completion, EngineRefused, EngineUnavailable, Finish, OnText, Usage
from node.engines.http import Json
from node.engines.text import TextParts

_FINISH: Final[dict[str, Finish]] = {"stop": "stop", "length": "length"}


class Reply:
    """Takes the events of one `/v1/chat/completions` stream."""

    def __init__(self, on_text: OnText | None) -> None:
        self._on_text = on_text
        self._parts = TextParts()
        self._finish: str | None = None
        self._usage: Usage | None = None
        self._ids: list[int] = []
        self._logprobs: list[float] = []
        self.model: str | None = None
        self.pieces = 0

    def on_event(self, event: Json) -> None:
        """One chunk; unknown members are left alone."""
        if isinstance(event.get("model"), str):
            self.model = str(event["model"])
        if isinstance(usage := event.get("usage"), dict):
            self._usage = Usage(_count(usage, "prompt_tokens"), _count(usage, "completion_tokens"))
        choices = event.get("choices")
        if isinstance(choices, list) and choices and isinstance(choices[0], dict):
            self._on_choice(choices[0])

    def _on_choice(self, choice: Json) -> None:
        delta = choice.get("delta")
        content = delta.get("content") if isinstance(delta, dict) else None
        if isinstance(content, str) and content:
            self.pieces += 1
            self._show(self._parts.feed(content))
        if isinstance(choice.get("finish_reason"), str):
            self._finish = str(choice["finish_reason"])
        logprobs = choice.get("logprobs")
        rows = logprobs.get("content") if isinstance(logprobs, dict) else None
        for row in rows if isinstance(rows, list) else ():
            if isinstance(row, dict) and isinstance(row.get("logprob"), (int, float)):
                self._logprobs.append(float(row["logprob"]))
                if isinstance(row.get("id"), int):
                    self._ids.append(row["id"])
        ids = choice.get("token_ids")
        if isinstance(ids, list) and all(isinstance(i, int) for i in ids):
            self._ids.extend(ids)

    def _show(self, text: str) -> None:
        if text and self._on_text is not None:
            self._on_text(text)

    def completion(self, model: str, estimate: Usage) -> Completion:
        """The whole reply.

        Args:
            model: the name that was asked for.
            estimate: used where the server counts nothing.

        Raises:
            EngineRefused: the server filtered the content.
            EngineUnavailable: the stream ended without a finish reason that we know.
        """
        self._show(self._parts.finish())
        if self._finish == "content_filter":
            raise EngineRefused("the engine server filtered the reply")
        if self._finish not in _FINISH:
            raise EngineUnavailable(f"the reply ended with {self._finish!r}")
        usage = self._usage or estimate
        count = usage.completion_tokens
        return Completion(
            text=self._parts.text,
            finish=_FINISH[self._finish],
            usage=usage,
            model=model,
            token_ids=tuple(self._ids) if self._ids else None,
            logprobs=tuple(self._logprobs) if 0 < len(self._logprobs) <= max(count, 1) else None,
        )


def _count(usage: Json, key: str) -> int:
    value = usage.get(key, 0)
    return value if isinstance(value, int) and value >= 0 else 0
