"""A local HTTP endpoint that answers with prepared bodies, as a model server would, and keeps the requests."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any


@dataclass
class Answer:
    body: object
    status: int = 200
    headers: dict[str, str] = field(default_factory=dict)
    type: str = "application/json"


@dataclass
class Endpoint:
    url: str
    answers: list[Answer]
    requests: list[dict[str, Any]] = field(default_factory=list)
    headers: list[dict[str, str]] = field(default_factory=list)
    paths: list[str] = field(default_factory=list)


@contextmanager
def endpoint(*answers: Answer) -> Iterator[Endpoint]:
    """Serve `answers` one after another on the loopback; the last one again and again."""
    state = Endpoint("", list(answers))

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"]))
            state.requests.append(json.loads(body))
            state.headers.append({name.lower(): value for name, value in self.headers.items()})
            state.paths.append(self.path)
            answer = state.answers.pop(0) if len(state.answers) > 1 else state.answers[0]
            data = answer.body if isinstance(answer.body, bytes) else json.dumps(answer.body).encode()
            self.send_response(answer.status)
            for name, value in {"Content-Type": answer.type, **answer.headers}.items():
                self.send_header(name, value)
            self.send_header("Content-Length", str(len(data)))
            self.end_headers()
            self.wfile.write(data)

        def log_message(self, format: str, *args: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    state.url = f"http://127.0.0.1:{server.server_address[1]}"
    try:
        yield state
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def anthropic_message(*content: dict[str, Any], stop: str = "tool_use") -> Answer:
    return Answer(
        {
            "id": "msg_1",
            "type": "message",
            "role": "assistant",
            "model": "claude-test",
            "content": list(content),
            "stop_reason": stop,
            "stop_sequence": None,
            "usage": {"input_tokens": 11, "output_tokens": 7},
        }
    )


def tool_use(id: str, code: object) -> dict[str, Any]:
    return {"type": "tool_use", "id": id, "name": "run_python", "input": code}


def openai_completion(content: str | None = None, *calls: dict[str, Any], stop: str = "stop", **extra: Any) -> Answer:
    message: dict[str, Any] = {"role": "assistant", "content": content, "refusal": None, **extra}
    if calls:
        message["tool_calls"] = list(calls)
    return Answer(
        {
            "id": "chatcmpl-1",
            "object": "chat.completion",
            "created": 1700000000,
            "model": "gpt-test",
            "choices": [{"index": 0, "message": message, "finish_reason": stop, "logprobs": None}],
            "usage": {"prompt_tokens": 13, "completion_tokens": 5, "total_tokens": 18},
        }
    )


def function_call(id: str, arguments: str) -> dict[str, Any]:
    return {"id": id, "type": "function", "function": {"name": "run_python", "arguments": arguments}}


def anthropic_error(status: int, kind: str, message: str, **headers: str) -> Answer:
    error = {"type": "error", "error": {"type": kind, "message": message}, "request_id": "req_1"}
    return Answer(error, status, {name.replace("_", "-"): value for name, value in headers.items()})


def openai_error(status: int, kind: str, message: str, **headers: str) -> Answer:
    error = {"error": {"message": message, "type": kind, "param": None, "code": None}}
    return Answer(error, status, {name.replace("_", "-"): value for name, value in headers.items()})
