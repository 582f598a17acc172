"""The verb `agent` through the command line, with a sandbox in its place that runs trusted programs."""

from __future__ import annotations

import json
import sys
import types
from pathlib import Path
from typing import Any

import pytest
from agent_endpoint import anthropic_error, anthropic_message, endpoint, tool_use
from agent_fakes import SubprocessSandbox

from kooi.contract.result import Result
from kooi.contract.spec import Spec
from kooi.doors.cli.main import main

TABLE = "city,rain\n" + "".join(f"{'Riga' if n % 2 else 'Oslo'},{n}\n" for n in range(10))
KEYS = ("ANTHROPIC_API_KEY", "OPENAI_API_KEY", "ANTHROPIC_BASE_URL", "OPENAI_BASE_URL")


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder that the sandbox's files go to; the real sandbox is replaced."""
    inside = tmp_path / "inside"
    inside.mkdir()
    plain = SubprocessSandbox(inside)

    class AsyncSandbox:
        def __init__(self, *, spec: Spec, files: dict[str, bytes]) -> None:
            for name, data in files.items():
                (inside / name).write_bytes(data)

        async def __aenter__(self) -> AsyncSandbox:
            return self

        async def __aexit__(self, *_: object) -> None:
            pass

        async def run(self, code: str) -> Result:
            return plain.run(code)

    module: Any = types.ModuleType("kooi.sandbox")
    module.AsyncSandbox = AsyncSandbox
    monkeypatch.setitem(sys.modules, "kooi.sandbox", module)
    for key in KEYS:
        monkeypatch.delenv(key, raising=False)
    (tmp_path / "rain.csv").write_text(TABLE)
    return tmp_path


def test_without_a_key_the_script_answers_and_says_so(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["agent", "How does rain differ by city?", "--file", str(folder / "rain.csv")]) == 0
    out = capsys.readouterr().out
    assert "a script answers" in out and "highest for Riga (5) and lowest for Oslo (4)" in out
    assert "untrusted" in out


def test_json_is_one_document(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["agent", "rain by city", "--file", str(folder / "rain.csv"), "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert (document["model"], document["ended"], len(document["steps"])) == ("scripted", "answered", 4)


def test_with_an_address_a_real_client_is_used(
    folder: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("anthropic", reason="the agent extra is not installed")
    first = anthropic_message(tool_use("t1", {"code": "print(open('rain.csv').read()[:4] + '\\x1b[2J')"}))
    with endpoint(first, anthropic_message({"type": "text", "text": "4.\x1b[2J"}, stop="end_turn")) as at:
        monkeypatch.setenv("ANTHROPIC_BASE_URL", at.url)
        words = ["agent", "How much?", "--file", str(folder / "rain.csv"), "--model", "anthropic:m"]
        assert main(words) == 0
        assert "rain.csv" in at.requests[0]["tools"][0]["description"]
        assert "city\\x1b[2J" in json.dumps(at.requests[1]).replace("\\\\", "\\")
    out = capsys.readouterr().out
    assert "\x1b" not in out and "4.\\x1b[2J" in out and "36 tokens" in out


def test_exit_codes_tell_whose_fault_it_is(
    folder: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert main(["agent", "rain?", "--file", str(folder / "rain.csv"), "--max-steps", "1"]) == 1
    assert "max_steps" in capsys.readouterr().out
    pytest.importorskip("anthropic", reason="the agent extra is not installed")
    with endpoint(anthropic_error(401, "authentication_error", "invalid key")) as at:
        monkeypatch.setenv("ANTHROPIC_BASE_URL", at.url)
        assert main(["agent", "rain?", "--model", "anthropic:m"]) == 2
    assert "invalid key" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--model", "gpt"], "anthropic:NAME"),
        (["--model", "openai"], "OPENAI_API_KEY"),
        (["--max-steps", "0"], "max-steps"),
        (["--file", "/no/such/file.csv"], "/no/such/file.csv"),
        (["--file", "rain.csv", "--file", "./rain.csv"], "two files"),
    ],
)
def test_a_mistake_gets_one_line(
    folder: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, words: list[str], message: str
) -> None:
    monkeypatch.chdir(folder)
    assert main(["agent", "rain?", *words]) == 2
    assert message in capsys.readouterr().err
