"""The tool and the loop over real sandboxes, at every level; the loop is the same code for each."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from tests.levels import BUILT_IN, need

import kooi
from kooi.agent import Agent, ScriptedModel, run_python_tool
from kooi.contract.errors import SandboxClosed

ROWS = "date,rain,kind\n" + "".join(f"2020/{1 + n % 12:02d}/01,{n % 12},{'ab'[n % 2]}\n" for n in range(120))


@pytest.fixture(params=BUILT_IN)
def level(request: pytest.FixtureRequest) -> str:
    need(str(request.param))
    return str(request.param)


def test_an_agent_answers_over_an_async_sandbox(level: str) -> None:
    async def ask() -> kooi.agent.Transcript:
        async with kooi.AsyncSandbox(level, files={"rain.csv": ROWS}) as box:
            return await Agent(ScriptedModel(), run_python_tool(box)).ask("Which month has the most rain?")

    transcript = asyncio.run(ask())
    assert transcript.ended == "answered" and len(transcript.steps) == 4
    assert "highest for December (11) and lowest for January (0)" in str(transcript.answer)
    assert "agree on all 12 groups" in str(transcript.answer)


def test_the_tool_keeps_state_and_tells_what_happens(level: str) -> None:
    with kooi.Sandbox(level, limits={"wall_seconds": 20}) as box:
        tool = run_python_tool(box)
        assert "status: ok" in tool.handler({"code": "x = 41\nopen('f', 'w').write('kept')"}).text
        assert "\n42\n" in tool.handler({"code": "x + 1"}).text
        broken = tool.handler({"code": "1/0"})
        assert broken.is_error and broken.text.count("ZeroDivisionError: division by zero") == 1
        gone = tool.handler({"code": "import os; os._exit(3)"})
        assert gone.is_error and "exit code 3" in gone.text and "interpreter ended" in gone.text
        assert "NameError" in tool.handler({"code": "x"}).text
        assert "kept" in tool.handler({"code": "print(open('f').read())"}).text
        assert "not valid" in tool.handler({"code": "\ud800"}).text


def test_a_timeout_a_flood_and_hidden_characters_are_told(level: str) -> None:
    with kooi.Sandbox(level, limits={"wall_seconds": 1, "output_bytes": 100_000}) as box:
        tool = run_python_tool(box, max_chars=2000)
        late = tool.handler({"code": "print('before', flush=True)\nwhile True: pass"})
        assert "status: timeout" in late.text and "before" in late.text and "interpreter ended" in late.text
        flood = tool.handler({"code": "while True: print('y' * 1000)"})
        assert "status: output_limit" in flood.text and "the first 100000 of" in flood.text and len(flood.text) < 6000
        hidden = tool.handler({"code": "print('\\x1b[2Ja\\u202eb')"})
        assert "\\x1b[2Ja\\u202eb" in hidden.text


def test_a_closed_sandbox_is_ours_to_raise(level: str, tmp_path: Path) -> None:
    box = kooi.Sandbox(level)
    tool = run_python_tool(box)
    tool.handler({"code": "1"})
    box.close()
    with pytest.raises(SandboxClosed):
        tool.handler({"code": "1"})
