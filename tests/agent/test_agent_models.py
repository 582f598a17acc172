"""The real SDKs against a local endpoint that speaks the published formats."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from typing import Any

import pytest
from agent_endpoint import (
    Answer,
    Endpoint,
    anthropic_error,
    anthropic_message,
    endpoint,
    function_call,
    openai_completion,
    openai_error,
    tool_use,
)
from agent_fakes import FakeSandbox, a_result

from kooi.agent import Agent, AnthropicModel, OpenAIModel, Transcript, run_python_tool

pytest.importorskip("anthropic", reason="the agent extra is not installed")
pytest.importorskip("openai", reason="the agent extra is not installed")

Ask = Callable[[Endpoint], Transcript]


def asking(model_class: type[AnthropicModel] | type[OpenAIModel], url: str, key: str = "key-1") -> Transcript:
    async def ask() -> Transcript:
        model = model_class("test-model", api_key=key, base_url=url)
        try:
            box = FakeSandbox(lambda code: a_result("error" if "boom" in code else "ok", stdout=f"ran {code}".encode()))
            return await Agent(model, run_python_tool(box), max_seconds=20).ask("What is 6*7?")
        finally:
            await model.close()

    return asyncio.run(ask())


def ask_anthropic(at: Endpoint) -> Transcript:
    return asking(AnthropicModel, at.url)


def ask_openai(at: Endpoint) -> Transcript:
    return asking(OpenAIModel, at.url + "/v1")


def test_anthropic_over_several_steps() -> None:
    thinking = {"type": "thinking", "thinking": "hm", "signature": "c2ln"}
    first = anthropic_message(thinking, {"type": "text", "text": "I look."}, tool_use("t1", {"code": "6*7"}))
    second = anthropic_message(tool_use("t2", {"code": "boom"}), tool_use("t3", {"wrong": 1}))
    last = anthropic_message({"type": "text", "text": "It is 42."}, stop="end_turn")
    with endpoint(first, second, last) as at:
        transcript = ask_anthropic(at)
    assert (transcript.ended, transcript.answer) == ("answered", "It is 42.")
    assert (transcript.input_tokens, transcript.output_tokens) == (33, 21)
    assert at.paths == ["/v1/messages"] * 3
    sent = at.headers[0]
    assert "key-1" in (sent.get("x-api-key"), sent.get("authorization", "").removeprefix("Bearer "))
    assert at.requests[0]["tools"][0]["input_schema"]["required"] == ["code"]
    assert at.requests[0]["messages"] == [{"role": "user", "content": "What is 6*7?"}]
    messages = at.requests[2]["messages"]
    assert messages[1]["content"] == json.loads(json.dumps(first.body))["content"]
    assert [block["tool_use_id"] for block in messages[2]["content"] + messages[4]["content"]] == ["t1", "t2", "t3"]
    assert [block["is_error"] for block in messages[2]["content"] + messages[4]["content"]] == [False, True, True]
    assert "ran 6*7" in messages[2]["content"][0]["content"]


def test_openai_over_several_steps() -> None:
    first = openai_completion(None, function_call("c1", '{"code": "6*7"}'), stop="tool_calls")
    calls = function_call("c2", '{"code": "boom"}'), function_call("c3", "{not json")
    second = openai_completion("So.", *calls, stop="tool_calls")
    with endpoint(first, second, openai_completion("It is 42.")) as at:
        transcript = ask_openai(at)
    assert (transcript.ended, transcript.answer) == ("answered", "It is 42.")
    assert (transcript.input_tokens, transcript.output_tokens) == (39, 15)
    assert at.paths == ["/v1/chat/completions"] * 3 and at.headers[0]["authorization"] == "Bearer key-1"
    assert at.requests[0]["tools"][0]["function"]["name"] == "run_python"
    messages = at.requests[2]["messages"]
    assert [m["role"] for m in messages] == ["system", "user", "assistant", "tool", "assistant", "tool", "tool"]
    assert messages[2]["tool_calls"] == [function_call("c1", '{"code": "6*7"}')]
    assert [m["tool_call_id"] for m in messages if m["role"] == "tool"] == ["c1", "c2", "c3"]
    assert "ran 6*7" in messages[3]["content"] and "tool error" in messages[6]["content"]


ANSWERED: list[Any] = [
    (ask_anthropic, anthropic_error, anthropic_message({"type": "text", "text": "42"}, stop="end_turn")),
    (ask_openai, openai_error, openai_completion("42")),
]


@pytest.mark.parametrize(("ask", "error", "answer"), ANSWERED)
def test_a_rate_limit_and_an_overload_are_retried(ask: Ask, error: Callable[..., Answer], answer: Answer) -> None:
    limited = error(429, "rate_limit_error", "slow down", retry_after_ms="5")
    with endpoint(limited, error(529, "overloaded_error", "busy", retry_after_ms="5"), answer) as at:
        transcript = ask(at)
    assert (transcript.answer, len(at.requests)) == ("42", 3)


@pytest.mark.parametrize(("ask", "error", "answer"), ANSWERED)
def test_an_error_reply_ends_it_with_the_servers_words(ask: Ask, error: Callable[..., Answer], answer: Answer) -> None:
    with endpoint(error(401, "authentication_error", "invalid x-api-key")) as at:
        transcript = ask(at)
    assert (transcript.ended, transcript.answer, len(at.requests)) == ("model_error", None, 1)
    assert "HTTP 401" in str(transcript.error) and "invalid x-api-key" in str(transcript.error)
    assert "key-1" not in str(transcript.error)
    with endpoint(error(429, "rate_limit_error", "slow down", retry_after_ms="1")) as at:
        transcript = ask(at)
    assert transcript.ended == "model_error" and "HTTP 429" in str(transcript.error) and len(at.requests) == 5


@pytest.mark.parametrize("ask", [ask_anthropic, ask_openai])
@pytest.mark.parametrize(
    "answer",
    [
        Answer(b"<html>login</html>", type="text/html"),
        Answer(b"{half", type="application/json"),
        Answer([]),
        Answer({}),
        Answer({"content": None, "choices": []}),
        Answer({"content": [1], "choices": [1]}),
        Answer({"content": "text", "choices": [{"message": None}]}),
        Answer(b"null"),
    ],
)
def test_an_answer_that_is_none_is_a_model_error(ask: Ask, answer: Answer) -> None:
    with endpoint(answer) as at:
        transcript = ask(at)
    assert transcript.ended == "model_error" and transcript.error


@pytest.mark.parametrize(
    ("ask", "answer", "ended"),
    [
        (ask_anthropic, anthropic_message({"type": "text", "text": "It"}, stop="max_tokens"), "cut_short"),
        (ask_anthropic, anthropic_message({"type": "text", "text": "No."}, stop="refusal"), "refused"),
        (ask_openai, openai_completion("It", stop="length"), "cut_short"),
        (ask_openai, openai_completion(None, refusal="No."), "refused"),
        (ask_openai, openai_completion("", stop="content_filter"), "refused"),
    ],
)
def test_a_cut_or_refused_reply_is_told_apart(ask: Ask, answer: Answer, ended: str) -> None:
    with endpoint(answer) as at:
        transcript = ask(at)
    assert (transcript.ended, transcript.answer) == (ended, None)


@pytest.mark.parametrize("ask", [ask_anthropic, ask_openai])
def test_an_endpoint_that_is_not_there_is_a_model_error(ask: Ask, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("kooi.agent.models.MAX_RETRIES", 0)
    transcript = ask(Endpoint("http://127.0.0.1:9", []))
    assert transcript.ended == "model_error" and "onnect" in str(transcript.error)
