"""Compile a run so that the value of a last expression is kept. Imports nothing: see `interpreter`.

Theory of operation: a syntax tree tells the last statement apart for certain, but making the classes of trees costs a
bare interpreter 0.7 ms, a tenth of its life, and so does the first call of `compile`, which looks whether it was given
one. So the last line that starts a statement is looked for in the text: a line that does not begin with a blank
starts one if all before it compiles by itself. And an interpreter without those classes compiles by `exec` and `eval`,
stopped before the first instruction. Whatever is not that plain, errors above all, is left to the trees. No part is
compiled twice on the usual way, because the compiler may warn.
"""

import _imp
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from types import CodeType, FrameType
    from typing import Any, Callable, Dict, List, Optional, Tuple

    Parts = Tuple[List[CodeType], int]
    Make = Callable[[bytes, str, str, int], CodeType]

_FUTURES = 0x1FE0000
_ONLY_AST = 0x400
_LONG = 64 * 1024
_TRIES = 4


def compile_run(source: bytes, name: str, flags: int) -> "Parts":
    """Return code objects to evaluate one after the other, the last for its value; and the flags of later runs."""
    if b"\0" in source:
        raise SyntaxError("source code cannot contain null bytes")
    parts = None
    if len(source) <= _LONG and b"\r" not in source and b"\f" not in source and b"coding" not in source[:512]:
        bare = not flags and "_ast" not in sys.modules and "ast" not in sys.modules
        parts = _by_text(source, name, flags, _intercept if bare else _compile)
    return _by_tree(source, name, flags) if parts is None else parts


def _compile(source: bytes, name: str, mode: str, flags: int) -> "CodeType":
    code: "CodeType" = compile(source, name, mode, flags, True)
    return code


class _Caught(BaseException):
    def __init__(self, code: "CodeType") -> None:
        self.code = code


def _intercept(source: bytes, name: str, mode: str, flags: int) -> "CodeType":
    """Do what `_compile` does without `compile`: start to run the code, and catch it as it is about to begin."""
    space: "Dict[str, Any]" = {}
    before = sys.gettrace()

    def catch(frame: "FrameType", event: str, value: "Any") -> None:
        if frame.f_globals is space:  # and not what the compiler itself calls, to warn for example
            raise _Caught(frame.f_code)

    sys.settrace(catch)
    try:
        (eval if mode == "eval" else exec)(source, space)
    except _Caught as caught:
        code = caught.code
    finally:
        sys.settrace(before)
    _imp._fix_co_filename(code, name)  # type: ignore[attr-defined]
    return code


def _by_text(source: bytes, name: str, flags: int, make: "Make") -> "Optional[Parts]":
    end = len(source)
    for _ in range(_TRIES):
        at = end = _line_before(source, end)
        if at < 0:
            return None
        suffix = source[at:]
        if suffix[:1] == b"*" or b";" in suffix or b"global" in suffix or b"__future__" in suffix:
            return None  # what may join statements of a line, or depend on what comes before the last statement
        if suffix[:1] in b")]}" or source[:at].endswith(b"\\\n"):
            continue
        parts = []
        if at:
            try:
                parts.append(make(source[:at], name, "exec", flags))
            except SyntaxError:
                continue
            flags |= parts[0].co_flags & _FUTURES
        return _with_last(parts, b"\n" * source.count(b"\n", 0, at) + suffix, name, flags, _compile if flags else make)
    return None


def _line_before(source: bytes, end: int) -> int:
    """Return where the last line before `end` starts that begins with code; -1 when there is none."""
    while end > 0:
        start = source.rfind(b"\n", 0, end - 1) + 1
        if source[start : start + 1] not in (b" ", b"\t", b"\n", b"#", b""):
            return start
        end = start
    return -1


def _with_last(parts: "List[CodeType]", last: bytes, name: str, flags: int, make: "Make") -> "Optional[Parts]":
    """Add the last statement; return None when it is none by itself, such as an `else`."""
    for mode in ("eval", "exec"):
        try:
            parts.append(make(last, name, mode, flags))
        except SyntaxError:
            continue
        return parts, flags | (parts[-1].co_flags & _FUTURES)
    return None


def _by_tree(source: bytes, name: str, flags: int) -> "Parts":
    from _ast import Expr, Expression

    tree: "Any" = compile(source, name, "exec", flags | _ONLY_AST, True)
    last = None
    if tree.body and type(tree.body[-1]) is Expr:
        last = Expression(tree.body.pop().value)
    parts = [compile(tree, name, "exec", flags, True)]
    flags |= parts[0].co_flags & _FUTURES
    if last is not None:
        parts.append(compile(last, name, "eval", flags, True))
    return parts, flags
