"""Model clients over the official SDKs: Anthropic's Messages and OpenAI's Chat Completions (and compatible servers).

The SDKs are imported when a client is made (`pip install 'kooi[agent]'`). They retry rate limits, overload and broken
connections themselves, and honour the server's `Retry-After`. Keys and addresses are passed in; nothing here reads
the environment. What an endpoint answers is checked before it is used: a compatible server may send anything.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from kooi.agent.loop import ModelError, Reply, Step, Task, ToolCall

MAX_RETRIES = 4
MAX_TOKENS = 8192
_INSTALL = "pip install 'kooi[agent]'"


class AnthropicModel:
    """A model behind Anthropic's Messages interface."""

    def __init__(self, model: str, *, api_key: str, base_url: str | None = None, max_tokens: int = MAX_TOKENS) -> None:
        try:
            import anthropic
        except ImportError:
            raise ModelError("the package anthropic is not installed", fix=_INSTALL) from None
        self.name = f"anthropic:{model}"
        self._model = model
        self._max_tokens = max_tokens
        self._failures = (anthropic.AnthropicError, ValueError)
        self._client = anthropic.AsyncAnthropic(api_key=api_key, base_url=base_url, max_retries=MAX_RETRIES)

    async def reply(self, task: Task, steps: Sequence[Step]) -> Reply:
        """Return the next reply; raise `ModelError` when the endpoint gives none."""
        request: dict[str, Any] = {
            "model": self._model,
            "max_tokens": self._max_tokens,
            "system": task.system,
            "messages": anthropic_messages(task, steps),
            "tools": [task.tool.anthropic()],
        }
        try:
            raw = await self._client.messages.with_raw_response.create(**request)
        except self._failures as error:
            raise _failed(self.name, error) from error
        return anthropic_reply(self.name, _parsed(self.name, raw.http_response.content))

    async def close(self) -> None:
        """Close the connections."""
        await self._client.close()


class OpenAIModel:
    """A model behind OpenAI's Chat Completions interface, or a server that speaks it."""

    def __init__(self, model: str, *, api_key: str, base_url: str | None = None) -> None:
        try:
            import openai
        except ImportError:
            raise ModelError("the package openai is not installed", fix=_INSTALL) from None
        self.name = f"openai:{model}"
        self._model = model
        self._failures = (openai.OpenAIError, ValueError)
        self._client = openai.AsyncOpenAI(api_key=api_key, base_url=base_url, max_retries=MAX_RETRIES)

    async def reply(self, task: Task, steps: Sequence[Step]) -> Reply:
        """Return the next reply; raise `ModelError` when the endpoint gives none."""
        request: dict[str, Any] = {
            "model": self._model,
            "messages": openai_messages(task, steps),
            "tools": [task.tool.openai()],
        }
        try:
            raw = await self._client.chat.completions.with_raw_response.create(**request)
        except self._failures as error:
            raise _failed(self.name, error) from error
        return openai_reply(self.name, _parsed(self.name, raw.http_response.content))

    async def close(self) -> None:
        """Close the connections."""
        await self._client.close()


def anthropic_messages(task: Task, steps: Sequence[Step]) -> list[dict[str, object]]:
    """Return the conversation so far in the format of Anthropic's Messages interface."""
    messages: list[dict[str, object]] = [{"role": "user", "content": task.question}]
    for step in steps:
        pairs = zip(step.reply.calls, step.outcomes, strict=True)
        messages.append({"role": "assistant", "content": step.reply.native})
        messages.append({"role": "user", "content": [outcome.anthropic(call.id) for call, outcome in pairs]})
    return messages


def openai_messages(task: Task, steps: Sequence[Step]) -> list[object]:
    """Return the conversation so far in the format of OpenAI's Chat Completions interface."""
    messages: list[object] = [
        {"role": "system", "content": task.system},
        {"role": "user", "content": task.question},
    ]
    for step in steps:
        messages.append(step.reply.native)
        messages += [o.openai(call.id) for call, o in zip(step.reply.calls, step.outcomes, strict=True)]
    return messages


def anthropic_reply(name: str, message: Mapping[str, Any]) -> Reply:
    """Return what a message of Anthropic's Messages interface says."""
    blocks = message.get("content")
    if not isinstance(blocks, list) or not all(isinstance(block, dict) for block in blocks):
        raise ModelError(f"{name}: the reply has no content")
    calls = [block for block in blocks if block.get("type") == "tool_use"]
    stop = message.get("stop_reason")
    usage = _mapping(message.get("usage"))
    return Reply(
        text="\n".join(str(block.get("text", "")) for block in blocks if block.get("type") == "text"),
        calls=tuple(ToolCall(str(c.get("id")), str(c.get("name")), c.get("input")) for c in calls),
        stop=_CUT.get(str(stop), "calls" if calls else "done"),
        input_tokens=_count(usage.get("input_tokens")),
        output_tokens=_count(usage.get("output_tokens")),
        native=blocks,
    )


def openai_reply(name: str, completion: Mapping[str, Any]) -> Reply:
    """Return what a completion of OpenAI's Chat Completions interface says."""
    choices = completion.get("choices")
    choice = _mapping(choices[0]) if isinstance(choices, list) and choices else {}
    message = choice.get("message")
    if not isinstance(message, dict):
        raise ModelError(f"{name}: the reply has no message")
    calls = [call for call in message.get("tool_calls") or () if isinstance(call, dict)]
    refusal = message.get("refusal")
    usage = _mapping(completion.get("usage"))
    stop = "content_filter" if refusal else str(choice.get("finish_reason"))
    return Reply(
        text=str(refusal or message.get("content") or ""),
        calls=tuple(_openai_call(call) for call in calls),
        stop=_CUT.get(stop, "calls" if calls else "done"),
        input_tokens=_count(usage.get("prompt_tokens")),
        output_tokens=_count(usage.get("completion_tokens")),
        native=_openai_native(message, calls),
    )


def _openai_call(call: Mapping[str, Any]) -> ToolCall:
    function = _mapping(call.get("function"))
    return ToolCall(str(call.get("id")), str(function.get("name")), function.get("arguments"))


def _openai_native(message: Mapping[str, Any], calls: list[dict[str, Any]]) -> dict[str, object]:
    """Return `message` as it is sent back: only the fields that a request may carry."""
    native: dict[str, object] = {"role": "assistant", "content": message.get("content")}
    if calls:
        native["tool_calls"] = calls
    return native


_CUT: dict[str, Any] = {
    "max_tokens": "cut_short",
    "model_context_window_exceeded": "cut_short",
    "length": "cut_short",
    "refusal": "refused",
    "content_filter": "refused",
}


def _parsed(name: str, body: bytes) -> Mapping[str, Any]:
    """Return the JSON object a server sent. Parsed here, not by the SDK's lenient models, to send it back unchanged."""
    try:
        value = json.loads(body)
    except (ValueError, RecursionError):
        raise ModelError(f"{name}: the reply is not JSON") from None
    return _mapping(value)


def _mapping(value: object) -> Mapping[str, Any]:
    return value if isinstance(value, dict) else {}


def _count(value: object) -> int:
    return value if isinstance(value, int) and value >= 0 else 0


def _failed(name: str, error: Exception) -> ModelError:
    """Return the failure of an SDK as ours, with its HTTP status and the server's own words, cut to one line."""
    status = getattr(error, "status_code", None)
    words = " ".join(str(error).split())[:500]
    return ModelError(f"{name}: {'HTTP ' + str(status) + ': ' if status else ''}{words or type(error).__name__}")
