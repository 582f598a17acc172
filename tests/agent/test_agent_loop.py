"""The loop keeps its budgets, answers every call once, and ends honestly; the scripted model really reacts."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Sequence
from pathlib import Path

import pytest
from agent_fakes import FakeAsyncSandbox, FakeSandbox, SubprocessSandbox, a_result

from kooi.agent import Agent, ModelError, Reply, ScriptedModel, Step, Task, ToolCall, ToolOutcome, run_python_tool
from kooi.agent.loop import MAX_CALLS, Model, Transcript
from kooi.contract.errors import SandboxLost
from kooi.contract.result import Result


class Lines:
    """A model that says the given replies, one after another, and remembers what it was shown."""

    name = "lines"

    def __init__(self, *replies: Reply | Exception) -> None:
        self.replies = list(replies)
        self.shown: list[Sequence[Step]] = []

    async def reply(self, task: Task, steps: Sequence[Step]) -> Reply:
        self.shown.append(steps)
        said = self.replies.pop(0) if len(self.replies) > 1 else self.replies[0]
        if isinstance(said, Exception):
            raise said
        return said

    async def close(self) -> None:
        pass


def a_call(code: str, name: str = "run_python") -> ToolCall:
    return ToolCall("c1", name, {"code": code})


def calling(*calls: ToolCall) -> Reply:
    return Reply("", calls, "calls", input_tokens=10, output_tokens=2)


DONE = Reply("It is 2.", (), "done", input_tokens=20, output_tokens=3)


def ask(model: Model, box: FakeSandbox, **budgets: float) -> Transcript:
    return asyncio.run(Agent(model, run_python_tool(box), **budgets).ask("What is 1+1?"))  # type: ignore[arg-type]


def echo(code: str) -> Result:
    return a_result(stdout=code.encode())


def test_a_call_is_run_shown_to_the_model_and_kept() -> None:
    model = Lines(calling(a_call("1+1"), a_call("2+2")), DONE)
    seen: list[Reply | ToolOutcome] = []
    agent = Agent(model, run_python_tool(FakeAsyncSandbox(echo)))
    transcript = asyncio.run(agent.ask("What is 1+1?", watch=seen.append))
    assert (transcript.ended, transcript.answer, transcript.error) == ("answered", "It is 2.", None)
    assert [len(steps) for steps in model.shown] == [0, 1]
    assert [o.result.stdout for o in model.shown[1][0].outcomes if o.result] == ["1+1", "2+2"]
    assert [type(x) for x in seen] == [Reply, ToolOutcome, ToolOutcome, Reply]
    assert (transcript.input_tokens, transcript.output_tokens) == (30, 5)
    stored = json.loads(json.dumps(transcript.as_dict()))
    assert stored["steps"][0]["calls"][1]["arguments"] == {"code": "2+2"}
    assert stored["steps"][0]["outcomes"][0]["status"] == "ok"


def test_the_steps_budget_ends_it() -> None:
    box = FakeSandbox(echo)
    transcript = ask(Lines(calling(a_call("1"))), box, max_steps=3)
    assert (transcript.ended, transcript.answer, len(transcript.steps)) == ("max_steps", None, 3)
    assert len(box.codes) == 3


def test_the_seconds_budget_ends_it_in_the_middle_of_a_run() -> None:
    class Slow(FakeSandbox):
        async def run(self, code: str) -> Result:  # type: ignore[override]
            await asyncio.sleep(60)
            raise AssertionError("not reached")

    transcript = ask(Lines(calling(a_call("1"))), Slow(echo), max_seconds=0.05)
    assert (transcript.ended, len(transcript.steps)) == ("max_seconds", 1)
    assert transcript.steps[0].outcomes == () and "0.05 seconds" in str(transcript.error)


def test_unknown_tools_bad_arguments_and_too_many_calls_are_answered_not_run() -> None:
    box = FakeSandbox(echo)
    many = calling(a_call("1", "rm"), ToolCall("c2", "run_python", '{"code": 5}'), *[a_call("1")] * MAX_CALLS)
    transcript = ask(Lines(many, DONE), box)
    outcomes = transcript.steps[0].outcomes
    assert len(outcomes) == MAX_CALLS + 2 and len(box.codes) == MAX_CALLS - 2
    assert [o.is_error for o in outcomes[:2]] == [True, True] and [o.is_error for o in outcomes[-2:]] == [True, True]


@pytest.mark.parametrize(
    ("said", "ended"),
    [
        (Reply("half an ans", (), "cut_short"), "cut_short"),
        (Reply("I will not.", (), "refused"), "refused"),
        (ModelError("HTTP 401"), "model_error"),
    ],
)
def test_a_reply_that_is_no_answer_ends_it_without_one(said: Reply | Exception, ended: str) -> None:
    transcript = ask(Lines(calling(a_call("1")), said), FakeSandbox(echo))
    assert (transcript.ended, transcript.answer) == (ended, None)
    assert transcript.error and len(transcript.steps[0].outcomes) == 1


def test_a_dead_sandbox_ends_it() -> None:
    def die(code: str) -> Result:
        raise SandboxLost("the sandbox died")

    transcript = ask(Lines(calling(a_call("1"))), FakeSandbox(die))
    assert (transcript.ended, transcript.error) == ("sandbox_error", "the sandbox died")


WEATHER = "date,rain,kind\n" + "".join(
    f"2020/{month:02d}/{day:02d},{month * day % 7},{'wet' if day % 2 else 'dry'}\n"
    for month in range(1, 13)
    for day in range(1, 29)
)


def scripted(question: str, folder: Path) -> tuple[Transcript, SubprocessSandbox]:
    box = SubprocessSandbox(folder)
    agent = Agent(ScriptedModel(), run_python_tool(box))
    return asyncio.run(agent.ask(question)), box


def expected(how: str) -> dict[int, float]:
    days = {month: [month * day % 7 for day in range(1, 29)] for month in range(1, 13)}
    return {month: sum(values) / (len(values) if how == "mean" else 1) for month, values in days.items()}


@pytest.mark.parametrize(("word", "how"), [("average", "mean"), ("total", "sum")])
def test_the_scripted_model_looks_computes_checks_and_reports(tmp_path: Path, word: str, how: str) -> None:
    (tmp_path / "weather.csv").write_text(WEATHER)
    transcript, box = scripted(f"Which month has the highest {word} rain?", tmp_path)
    assert transcript.ended == "answered" and len(box.codes) == 3
    values = expected(how)
    assert "336 rows of weather.csv" in str(transcript.answer)
    assert f"({max(values.values()):.4g}) and lowest for" in str(transcript.answer)
    assert "agree on all 12 groups" in str(transcript.answer)


def test_it_groups_by_the_column_that_was_asked_for(tmp_path: Path) -> None:
    (tmp_path / "weather.csv").write_text(WEATHER)
    transcript, _ = scripted("How does rain differ by kind?", tmp_path)
    assert "average rain by kind is highest for" in str(transcript.answer)
    assert "all 2 groups" in str(transcript.answer)


def test_it_falls_back_when_pandas_fails(tmp_path: Path) -> None:
    (tmp_path / "weather.csv").write_text(WEATHER)
    (tmp_path / "pandas.py").write_text("raise ImportError('broken')")
    transcript, box = scripted("Which month has the most rain?", tmp_path)
    assert transcript.ended == "answered" and len(box.codes) == 4
    assert transcript.steps[1].outcomes[0].is_error and not transcript.steps[2].outcomes[0].is_error
    assert "agree on all 12 groups" in str(transcript.answer)


def test_it_says_so_when_it_cannot(tmp_path: Path) -> None:
    transcript, _ = scripted("Which month has the most rain?", tmp_path)
    assert transcript.ended == "refused" and transcript.answer is None
    assert "could not finish" in str(transcript.error) and "status: error" in str(transcript.error)
    (tmp_path / "names.csv").write_text("name\nann\nbob\n")
    transcript, _ = scripted("Which month has the most rain?", tmp_path)
    assert "no column of numbers" in str(transcript.answer)


@pytest.mark.parametrize(
    "line",
    [
        "{", "[1]", '{"look": 1}', '{"look": {"file": "a", "rows": 1, "columns": {"a": 1}}}', "[" * 5000,
        '{"compute": {"a": NaN}}', '{"look": {"file": 3}}', '{"compute": {"a": ' + "9" * 5000 + "}}",
    ],
)  # fmt: skip
def test_it_survives_facts_that_the_code_forged(line: str) -> None:
    transcript = ask(ScriptedModel(), FakeSandbox(lambda _: a_result(stdout=b"FACTS " + line.encode())))
    assert transcript.ended == "refused" and "could not finish" in str(transcript.error)


def test_it_does_not_trust_figures_that_disagree() -> None:
    look = '{"look": {"file": "a.csv", "rows": 2, "columns": {"x": {"kind": "number"}}, "pandas": false}}'
    lines = iter([look, '{"compute": {"all": 1.0}}', '{"check": {"all": 1.5}}'])
    transcript = ask(ScriptedModel(), FakeSandbox(lambda _: a_result(stdout=b"FACTS " + next(lines).encode())))
    assert "disagree" in str(transcript.answer)
