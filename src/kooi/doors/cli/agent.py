"""Let a model answer a question about your files, by running Python in a sandbox that it cannot leave.

With ANTHROPIC_API_KEY or OPENAI_API_KEY set (or ANTHROPIC_BASE_URL or OPENAI_BASE_URL, for a server of your own) a
real model is asked. Without, a script answers that needs neither: it can tell how a number differs between groups.

examples:
  kooi agent "Which month has the most rain?" --file weather.csv
  kooi agent "Plot the trend" --file sales.csv --model anthropic:NAME --level jail
"""

from __future__ import annotations

import argparse
import asyncio
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from kooi.agent.choose import KINDS, choose_model
from kooi.agent.loop import Agent, Model, Reply, Transcript, Watcher
from kooi.agent.tool import ToolOutcome, run_python_tool
from kooi.contract.spec import Spec
from kooi.doors.cli import choose, show
from kooi.doors.cli.main import FINE, OURS, THEIRS
from kooi.engine import registry
from kooi.settings import agent_keys

_SHOWN_CHARS = 4_000
_OUR_FAULT = ("model_error", "sandbox_error")


@dataclass(frozen=True)
class Budget:
    """How long a conversation may get."""

    steps: int = 12
    seconds: float = 300.0


def configure(parser: argparse.ArgumentParser) -> None:
    """Add the arguments."""
    parser.add_argument("question", help="what to find out")
    parser.add_argument("--file", action="append", default=[], type=Path, metavar="FILE", help="a file to work on")
    choose.add_arguments(parser)
    parser.add_argument("--model", help=f"{KINDS} (the first whose key or address is set, else scripted)")
    parser.add_argument("--max-steps", type=_positive, default=12, metavar="N", help="at most N replies (12)")
    parser.add_argument("--max-seconds", type=_positive, default=300, metavar="N", help="at most N seconds (300)")
    parser.add_argument("--json", action="store_true", help="print the whole conversation as JSON")


def run(args: argparse.Namespace) -> int:
    """Ask, and print the conversation as it goes."""
    spec = choose.spec_of(args)
    files = choose.files_of(args.file)
    model = choose_model(args.model, agent_keys())
    budget = Budget(args.max_steps, args.max_seconds)
    if not args.json:
        show.note(f"model {model.name}, level {spec.level}", "dim")
        if args.model is None and model.name == "scripted":
            show.note("(no key or address of a model is set: a script answers, see `kooi agent --help`)", "doubt")
    watch = None if args.json else show_event
    transcript = asyncio.run(converse(spec, model, args.question, files, budget, watch=watch))
    if args.json:
        show.print_json(transcript.as_dict())
    else:
        show_end(transcript)
    if transcript.ended == "answered":
        return FINE
    return OURS if transcript.ended in _OUR_FAULT else THEIRS


async def converse(
    spec: Spec,
    model: Model,
    question: str,
    files: Mapping[str, bytes],
    budget: Budget,
    *,
    watch: Watcher | None = None,
) -> Transcript:
    """Open a sandbox with `files` in its working directory, let `model` answer in it, close everything."""
    from kooi.sandbox import AsyncSandbox

    try:
        async with AsyncSandbox(spec=spec, files=files) as box:
            agent = Agent(
                model, run_python_tool(box, notes=_notes(files)), max_steps=budget.steps, max_seconds=budget.seconds
            )
            return await agent.ask(question, watch=watch)
    finally:
        await model.close()
        await registry.close_all()


def show_event(event: Reply | ToolOutcome) -> None:
    """Print one event of the conversation: what the model said and sent, or what the tool answered."""
    if isinstance(event, ToolOutcome):
        show.note(_shortened(event.text), "bad" if event.is_error else "dim")
        return
    if not event.calls:
        return  # the answer, shown at the end
    show.note()
    if event.text:
        show.note(event.text)
    for call in event.calls:
        arguments = call.arguments
        code = arguments.get("code") if isinstance(arguments, Mapping) else arguments
        show.note("\n".join(f"  | {line}" for line in _shortened(str(code)).splitlines()))


def show_end(transcript: Transcript) -> None:
    """Print the answer, or why there is none, and what it took."""
    show.note()
    if transcript.answer is not None:
        show.note(transcript.answer, "good")
    else:
        show.note(f"no answer ({transcript.ended}): {transcript.error}", "bad")
    tokens = transcript.input_tokens + transcript.output_tokens
    counted = f", {tokens} tokens" if tokens else ""
    show.note(f"{len(transcript.steps)} replies in {transcript.seconds:.1f} s{counted}", "dim")


def _notes(files: Mapping[str, bytes]) -> str:
    if not files:
        return ""
    return "Files in the working directory: " + ", ".join(f"{n} ({len(d)} bytes)" for n, d in files.items()) + "."


def _shortened(text: str) -> str:
    return (
        text
        if len(text) <= _SHOWN_CHARS
        else f"{text[:_SHOWN_CHARS]}\n[... {len(text) - _SHOWN_CHARS} characters more]"
    )


def _positive(text: str) -> int:
    number = int(text)
    if number < 1:
        raise ValueError(f"{text} is not positive")
    return number
