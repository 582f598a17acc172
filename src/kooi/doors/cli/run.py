"""Run a program in a fresh sandbox and pass on what it writes.

On a terminal what the program writes is shown with control characters made visible; into a pipe or file it goes as it
is. The exit code is 0 when the program ended well, 1 when it did not, 2 when we failed.

examples:
  kooi run script.py
  kooi run -c 'print(1)' --level process
  echo 'print(1)' | kooi run -
  kooi run analyse.py --file sales.csv --limit memory_bytes=1GiB --limit wall_seconds=60
  kooi run script.py --stdin input.txt --json
"""

from __future__ import annotations

import argparse
import asyncio
import codecs
import os
import sys
from pathlib import Path
from typing import BinaryIO

from kooi.contract import wire
from kooi.contract.errors import InvalidRequest
from kooi.contract.result import Result
from kooi.contract.text import escape_terminal
from kooi.doors.cli import choose, show
from kooi.doors.cli.main import FINE, OURS, THEIRS
from kooi.engine import registry
from kooi.sandbox import AsyncSandbox


def configure(parser: argparse.ArgumentParser) -> None:
    """Add the arguments."""
    parser.add_argument("program", nargs="?", metavar="FILE", help="a file with the program, or - for standard input")
    parser.add_argument("-c", dest="code", metavar="CODE", help="the program itself")
    parser.add_argument("--stdin", metavar="FILE", help="what the program reads, or - for standard input (nothing)")
    parser.add_argument("--file", dest="files", action="append", default=[], metavar="PATH", help="put a file inside")
    parser.add_argument("--env", action="append", default=[], metavar="NAME=VALUE", help="set a variable inside")
    parser.add_argument("--fresh", action="store_true", help="start a new interpreter instead of forking a warm one")
    parser.add_argument("--json", action="store_true", help="print the whole result as JSON, nothing else")
    choose.add_arguments(parser)


def run(args: argparse.Namespace) -> int:
    """Run it."""
    spec = choose.spec_of(args)
    box = AsyncSandbox(spec=spec, env=dict(_variable(text) for text in args.env), files=choose.files_of(args.files))
    code, stdin = _program(args), _stdin(args)
    result = asyncio.run(_run(box, code, stdin, quiet=args.json))
    if args.json:
        show.print_json(wire.to_json(result))
    else:
        _say(result)
    return exit_code(result)


def exit_code(result: Result) -> int:
    """Return 0 for a run that ended well, 1 where the code is at fault, 2 where we are."""
    if result.ok:
        return FINE
    return OURS if result.status in ("sandbox_error", "lost") else THEIRS


async def _run(box: AsyncSandbox, code: bytes, stdin: bytes | None, quiet: bool) -> Result:
    outputs = {"stdout": Output(sys.stdout.buffer, sys.stdout.isatty()),
               "stderr": Output(sys.stderr.buffer, sys.stderr.isatty())}  # fmt: skip
    try:
        async with box, box.stream(code, stdin=stdin) as events:
            async for event in events:
                if not quiet and event.kind in outputs:
                    outputs[event.kind].write(event.data)
        return events.result
    finally:
        await registry.close_all()


class Output:
    """Passes on what the program writes: escaped on a terminal, as it is elsewhere."""

    def __init__(self, stream: BinaryIO, terminal: bool) -> None:
        self._stream = stream
        self._terminal = terminal
        # A character may be split between two pieces of output.
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")

    def write(self, data: bytes) -> None:
        """Write a piece of output at once."""
        self._stream.write(escape_terminal(self._decoder.decode(data)).encode() if self._terminal else data)
        self._stream.flush()


def _say(result: Result) -> None:
    """Say on standard error what the program's own output does not tell."""
    if result.error is not None and not result.stderr_bytes:
        Output(sys.stderr.buffer, sys.stderr.isatty()).write(result.error.traceback.encode("utf-8", "replace"))
    notes = [f"status {result.status}, decided by the {result.decided_by}"] if not result.ok else []
    if result.truncated:
        kept = len(result.stdout_bytes) + len(result.stderr_bytes)
        notes.append(f"{kept} of {result.stdout_total_bytes + result.stderr_total_bytes} bytes of output were kept")
    for line in notes:
        print(f"kooi: {line}", file=sys.stderr)


def _program(args: argparse.Namespace) -> bytes:
    if (args.code is None) == (args.program is None):
        raise InvalidRequest("give one program: FILE, - or -c CODE", key="program", fix="see `kooi run --help`")
    if args.code is not None:
        return os.fsencode(args.code)
    if args.program == "-":
        if args.stdin == "-":
            raise InvalidRequest("standard input cannot be both program and input", key="stdin")
        return sys.stdin.buffer.read()
    return Path(args.program).read_bytes()


def _stdin(args: argparse.Namespace) -> bytes | None:
    if args.stdin is None:
        return None
    return sys.stdin.buffer.read() if args.stdin == "-" else Path(args.stdin).read_bytes()


def _variable(text: str) -> tuple[str, str]:
    name, equals, value = text.partition("=")
    if not equals:
        raise InvalidRequest(f"variable {text!r} has no value", key="env", fix="write NAME=VALUE")
    return name, value
