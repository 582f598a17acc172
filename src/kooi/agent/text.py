"""What a model is told about a run: plain words, clipped output, and a fence round everything the code wrote.

The output of a sandbox is hostile input for the model that reads it. It is put between two lines that carry a random
mark, so that the code cannot write the closing line itself, and characters that a reader does not see (escape
sequences, bidirectional overrides, zero-width and tag characters) are shown as escapes.
"""

from __future__ import annotations

import secrets
from collections.abc import Iterable

from kooi.contract.result import ErrorInfo, Result, RichItem
from kooi.contract.text import escape_terminal

STATUS_WORDS = {
    "ok": "the code ran to its end",
    "error": "the code ended with an error",
    "signal": "the code was ended by a signal",
    "timeout": "the code ran longer than its time limit and was stopped",
    "cpu_limit": "the code used more CPU time than its limit and was stopped",
    "oom": "the code needed more memory than its limit and was stopped",
    "pids_limit": "the code needed more processes than its limit",
    "disk_limit": "the code wrote more to disk than its limit",
    "output_limit": "the code printed more than its limit and was stopped",
    "denied": "the policy of the sandbox does not allow this",
    "killed": "the run was stopped by the caller",
    "lost": "the sandbox ended under the run",
    "sandbox_error": "the sandbox failed; this is not the fault of the code",
}
# How a run ends that took its interpreter with it; `decided_by` "agent" says the same of an exit.
_INTERPRETER_GONE = frozenset(("timeout", "cpu_limit", "oom", "output_limit", "signal", "killed"))
_SANDBOX_GONE = frozenset(("lost", "sandbox_error"))
_MAX_ITEMS = 20
_MAX_EVENTS = 20
_SMALL = 500


def clip(text: str, max_chars: int) -> str:
    """Return `text` in at most about `max_chars` characters: its head and its tail, and how many bytes lie between."""
    if len(text) <= max_chars:
        return text
    head = max_chars * 2 // 3
    tail = max_chars - head
    end = len(text) - tail
    cut = len(text[head:end].encode("utf-8", "replace"))
    return f"{text[:head]}\n[... {cut} bytes left out here ...]\n{text[end:]}"


def fence(label: str, body: str) -> str:
    """Return `body` between two lines that say it is untrusted and carry a mark the code cannot guess."""
    mark = secrets.token_hex(4)
    return f"<<<{label}, untrusted output of the sandbox, {mark}\n{body}\n{mark}>>>"


def describe(result: Result, max_chars: int) -> str:
    """Return what the model is told about `result`."""
    parts = [_verdict(result), *_lost(result)]
    parts += [f"note: {escape_terminal(clip(event, _SMALL))}" for event in result.events[:_MAX_EVENTS]]
    parts += _stream("stdout", result.stdout, len(result.stdout_bytes), result.stdout_total_bytes, max_chars)
    parts += _items(result.results, max_chars // 2)
    stderr = "" if _is_traceback(result) else result.stderr
    parts += _stream("stderr", stderr, len(result.stderr_bytes), result.stderr_total_bytes, max_chars // 2)
    if result.error is not None:
        parts.append(fence("error", escape_terminal(clip(_error_text(result.error), max_chars // 2))))
    if result.ok and not (result.stdout_bytes or result.stderr_bytes or result.results):
        parts.append("It printed nothing and its last line has no value. Use print() to see values.")
    return "\n".join(parts)


def _verdict(result: Result) -> str:
    words = f"status: {result.status} ({STATUS_WORDS.get(result.status, 'unknown status')})"
    if result.exit_code not in (None, 0):
        words += f", exit code {result.exit_code}"
    if result.signal is not None:
        words += f", signal {result.signal}"
    return words


def _lost(result: Result) -> list[str]:
    if result.status in _SANDBOX_GONE:
        return ["The sandbox is gone, with all its files and variables."]
    if result.status in _INTERPRETER_GONE or result.decided_by == "agent":
        return ["The interpreter ended: variables and imports are gone, files are still there."]
    return []


def _stream(label: str, text: str, kept: int, total: int, max_chars: int) -> list[str]:
    if not text:
        return []
    size = f"{total} bytes" if kept >= total else f"the first {kept} of {total} bytes"
    return [fence(f"{label}, {size}", escape_terminal(clip(text.removesuffix("\n"), max_chars)))]


def _items(items: Iterable[RichItem], max_chars: int) -> list[str]:
    shown = list(items)[-_MAX_ITEMS:]
    return [fence("value", _item(item, max_chars // max(1, len(shown)))) for item in shown]


def _item(item: RichItem, max_chars: int) -> str:
    lines = [escape_terminal(clip(item.text, max_chars))] if item.text is not None else []
    for kind, data in list(item.data.items())[:_MAX_ITEMS]:
        if kind != "text/plain":
            lines.append(f"[{escape_terminal(clip(kind, 80))}, {len(data)} characters, not shown here]")
    return "\n".join(lines)


def _error_text(error: ErrorInfo) -> str:
    return error.traceback or f"{error.name}: {error.value}"


def _is_traceback(result: Result) -> bool:
    """Whether standard error holds just the traceback that `error` holds too."""
    return result.error is not None and result.stderr.strip() == result.error.traceback.strip()
