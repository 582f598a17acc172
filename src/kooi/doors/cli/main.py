"""The command line: `kooi VERB ...`. A verb is a module of its own, imported only when it is named.

Exit codes: 0 fine, 1 the code that was run is at fault, 2 we are (a wrong argument, a level that cannot run, a failed
proof). A mistake of the user gets one line, never a traceback.
"""

from __future__ import annotations

import argparse
import contextlib
import importlib
import json
import os
import sys
import traceback
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NoReturn, Protocol

from kooi.contract.errors import InvalidRequest, KooiError
from kooi.contract.text import escape_terminal

FINE, THEIRS, OURS, INTERRUPTED = 0, 1, 2, 130


@dataclass(frozen=True, slots=True)
class Verb:
    """A verb: its module, and one line of help."""

    module: str
    help: str


VERBS: dict[str, Verb] = {
    "run": Verb("kooi.doors.cli.run", "run a program in a fresh sandbox"),
    "attack": Verb("kooi.doors.cli.attack", "run hostile programs and show what each level does with them"),
    "bench": Verb("kooi.doors.cli.bench", "measure this machine, beside a bare python3"),
    "doctor": Verb("kooi.doors.cli.doctor", "prove which levels work here, and say how to get the others"),
    "explain": Verb("kooi.doors.cli.explain", "print the compiled plan of a policy without running anything"),
    "levels": Verb("kooi.doors.cli.levels", "list the levels, or choose one for a purpose"),
    "image": Verb("kooi.doors.cli.image", "build, import, list, export and remove images"),
    "agent": Verb("kooi.doors.cli.agent", "let a model answer a question about your data with run_python"),
}

_EXAMPLES = """\
examples:
  kooi run script.py                      run a file in a jail
  kooi run -c 'print(1)' --json           the whole result, as JSON
  kooi doctor                             what works on this machine
  kooi attack --suite classic             six hostile programs at every level
  kooi bench                              how long print(1) takes at every level
  kooi levels --for secrets               which level to take

`kooi VERB --help` says more about one verb.
"""


class VerbModule(Protocol):
    """What a verb's module offers."""

    def configure(self, parser: argparse.ArgumentParser) -> None:
        """Add the verb's arguments."""
        ...

    def run(self, args: argparse.Namespace) -> int:
        """Do it; return the exit code."""
        ...


class Parser(argparse.ArgumentParser):
    """A parser whose errors are ours to show (as JSON when that was asked for)."""

    def error(self, message: str) -> NoReturn:
        """Raise instead of exiting."""
        raise InvalidRequest(message, fix=f"see `{self.prog} --help`")


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line; return the exit code."""
    words = list(sys.argv[1:] if argv is None else argv)
    try:
        code = _dispatch(words)
        # Here, where a reader that went away is expected, and not at the interpreter's exit.
        sys.stdout.flush()
        return code
    except KooiError as error:
        return _failed(error, as_json="--json" in words)
    except KeyboardInterrupt:
        print("kooi: interrupted", file=sys.stderr)
        return INTERRUPTED
    except BrokenPipeError:
        _forget_stdout()
        return FINE
    except OSError as error:
        return _failed(KooiError(_of_os(error)), as_json="--json" in words)
    except Exception:  # a mistake of ours: its traceback is wanted, but not the exit code that means the code's fault
        traceback.print_exc()
        return OURS


def _dispatch(words: list[str]) -> int:
    name = words[0] if words else "--help"
    if name in ("-h", "--help", "help"):
        print(usage(), end="")
        return FINE if words else OURS
    if name == "--version":
        print(f"kooi {_version()}")
        return FINE
    if name not in VERBS:
        raise InvalidRequest(f"no verb {name!r}", key="verb", fix=f"choose one of {', '.join(VERBS)}")
    verb: VerbModule = _load(name)
    parser = Parser(
        prog=f"kooi {name}",
        description=(verb.__doc__ or "").strip(),
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    verb.configure(parser)
    return verb.run(parser.parse_args(words[1:]))


def usage() -> str:
    """Return the general help."""
    width = max(map(len, VERBS))
    verbs = "\n".join(f"  {name:<{width}}  {verb.help}" for name, verb in VERBS.items())
    return f"usage: kooi VERB ...\n\nRun code nobody has read yet.\n\nverbs:\n{verbs}\n\n{_EXAMPLES}"


def _load(name: str) -> VerbModule:
    module: VerbModule = importlib.import_module(VERBS[name].module)
    return module


def _failed(error: KooiError, as_json: bool) -> int:
    if as_json:
        print(json.dumps({"error": {"code": error.code, "message": error.message, "key": error.key, "fix": error.fix}}))
    else:
        print(escape_terminal(f"kooi: {error.message}"), file=sys.stderr)
        if error.fix:
            print(escape_terminal(f"      {error.fix}"), file=sys.stderr)
    return OURS


def _of_os(error: OSError) -> str:
    where = f"{error.filename}: " if error.filename else ""
    return f"{where}{error.strerror or error}"


def _forget_stdout() -> None:
    """Whoever read our output is gone: keep the interpreter from complaining about it at exit."""
    with contextlib.suppress(OSError, ValueError):
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _version() -> str:
    from importlib.metadata import PackageNotFoundError, version

    try:
        return version("kooi")
    except PackageNotFoundError:
        return "(not installed)"


if __name__ == "__main__":
    sys.exit(main())
