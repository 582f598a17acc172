"""The demo: an agent solves a task on real data at every level that works here, the attacks, and the latencies.

Run by `scripts/demo`; `python -m kooi.doors.cli.demo --model anthropic:NAME` takes a real model.
"""

from __future__ import annotations

import argparse
import asyncio
import importlib.util
import platform
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

from kooi.agent.choose import KINDS, choose_model
from kooi.agent.loop import Reply, Transcript
from kooi.agent.tool import ToolOutcome
from kooi.contract.backend import Availability
from kooi.contract.errors import KooiError
from kooi.contract.spec import Spec
from kooi.doors.cli import agent, main, show
from kooi.engine import registry
from kooi.settings import agent_keys

PACKAGE, DATA = "vega_datasets", "_data/seattle-weather.csv"
QUESTION = "Which month has the highest average precipitation in Seattle, and which the lowest?"
_LINES, _WIDTH = 14, 110


def run(argv: Sequence[str] | None = None) -> int:
    """Run the demo and return the exit code: 0 when every part of it went well."""
    parser = argparse.ArgumentParser(prog="demo", description=(__doc__ or "").strip())
    parser.add_argument("--model", default="scripted", help=f"{KINDS} (scripted)")
    args = parser.parse_args(argv)
    started = time.monotonic()
    show.note(f"kooi on {platform.platform()}, Python {platform.python_version()}", "dim")
    working = _levels()
    if not working:
        show.note("No level works on this machine; `kooi doctor` says why.", "bad")
        return main.OURS
    _head(2, "An agent that answers a question about real data, running its Python code in a sandbox")
    data = _data()
    show.note(f"  question: {QUESTION}")
    show.note(f"  data: {data.name} from the package {PACKAGE}, {data.stat().st_size} bytes")
    solved = [_solve(level, args.model, data) for level in working]
    _head(3, "The classic attacks: six hostile programs at every level")
    attacked = _kooi("attack", "--suite", "classic")
    _head(4, "How long print(1) takes, at every level")
    measured = _kooi("bench")
    show.note()
    show.note(f"Done in {time.monotonic() - started:.0f} s. Next: `kooi --help`, `kooi doctor`, README.md.", "good")
    return main.FINE if all(solved) and attacked == measured == main.FINE else main.OURS


def _kooi(*words: str) -> int:
    """Run a verb as a user would, in a process of its own, and return its exit code."""
    show.note(f"  $ kooi {' '.join(words)}", "dim")
    sys.stdout.flush()
    return subprocess.run([sys.executable, "-m", "kooi.doors.cli.main", *words], check=False).returncode


def _levels() -> list[str]:
    """Show which levels there are and return those that work here."""
    _head(1, "The levels on this machine, each proved by starting one")
    found = asyncio.run(_probe())
    for name, state in found.items():
        if state.ok:
            show.note(f"  {name}: works", "good")
        elif name not in registry.NOT_BUILT:
            show.note(f"  {name}: no: {state.reason}" + (f" ({state.fix})" if state.fix else ""), "doubt")
    show.note(f"  not in this version: {', '.join(n for n in found if n in registry.NOT_BUILT)}", "dim")
    return [name for name, state in found.items() if state.ok]


async def _probe() -> Mapping[str, Availability]:
    try:
        return await registry.probe_all()
    finally:
        await registry.close_all()


def _solve(level: str, model_name: str, data: Path) -> bool:
    """Let the agent answer the question at one level."""
    show.note()
    show.note(f"  at level {level}:", "good")
    try:
        transcript = asyncio.run(_ask(level, model_name, data))
    except KooiError as error:
        show.note(f"  {error}", "bad")
        return False
    show.note(f"  answer: {transcript.answer or transcript.error}", "good" if transcript.answer else "bad")
    show.note(f"  {len(transcript.steps)} replies of the {transcript.model} model in {transcript.seconds:.2f} s", "dim")
    outcomes = [outcome for step in transcript.steps for outcome in step.outcomes]
    return transcript.ended == "answered" and not any(outcome.is_error for outcome in outcomes)


async def _ask(level: str, model_name: str, data: Path) -> Transcript:
    model = choose_model(model_name, agent_keys())
    files = {data.name: data.read_bytes()}
    return await agent.converse(Spec(level=level), model, QUESTION, files, agent.Budget(), watch=_show)


def _show(event: Reply | ToolOutcome) -> None:
    if isinstance(event, ToolOutcome):
        lines = [line for line in event.text.splitlines() if len(line) <= _WIDTH]
        for line in lines[:_LINES]:
            show.note(f"    > {line}", "bad" if event.is_error else "dim")
        if len(lines) > _LINES:
            show.note(f"    > ... {len(lines) - _LINES} more lines", "dim")
        return
    for call in event.calls:
        code = call.arguments.get("code") if isinstance(call.arguments, Mapping) else ""
        show.note(f"  model: {event.text} [{call.name}, {len(str(code).splitlines())} lines]")


def _data() -> Path:
    """Return the data set's file, without importing the package that ships it."""
    spec = importlib.util.find_spec(PACKAGE)
    for folder in (spec.submodule_search_locations or ()) if spec else ():
        path = Path(folder) / DATA
        if path.is_file():
            return path
    raise KooiError(f"the package {PACKAGE} is not installed", fix="pip install 'kooi[demo]'")


def _head(number: int, title: str) -> None:
    show.note()
    show.note(f"{number}. {title}", "good")
    sys.stdout.flush()


if __name__ == "__main__":
    try:
        sys.exit(run())
    except KooiError as failure:
        print(f"demo: {failure}", file=sys.stderr)
        sys.exit(main.OURS)
