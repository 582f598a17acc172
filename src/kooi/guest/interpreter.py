"""One context: an interpreter whose state is kept between runs.

Theory of operation: the agent starts this either in a fork of itself (warm: everything is imported) or in an
interpreter that was just executed (fresh), where every import costs time: so nothing is imported here but what a bare
interpreter holds already, and the traceback machinery only once there is something to trace. The agent talks to it over
a private socket at descriptor `CONTROL`, trusted and binary: a header, a configuration, the code. What it answers is a
claim, for code that it runs can write to the same socket: the agent checks it. Code may also raise from a signal
handler at any moment, close or replace any descriptor, and fork: so the streams are put right before each run, a fork
that comes back from the code leaves at once, and an interpreter that cannot answer any more ends as a script would.
"""

import builtins
import posix
import sys
from io import BufferedWriter, FileIO, TextIOWrapper

from kooi.guest.code import compile_run
from kooi.guest.intake import EXECUTE, HEADER_BYTES, Body, Gone, execute, receive
from kooi.guest.streams import CONTROL, SPARE_ERR, SPARE_OUT, Streams, receive_input

TYPE_CHECKING = False
if TYPE_CHECKING:
    from types import ModuleType, TracebackType
    from typing import Any, Dict, List, NoReturn, Optional, Sequence, Tuple

#: in place of a run's header: take the page faults of a first run
WARM_UP = b"W" + bytes(HEADER_BYTES - 1)
#: kinds of answers: a value to display, done, failed with an exception, warmed up
RESULT, DONE, FAILED, WARM = b"R", b"D", b"E", b"W"
TEXT_LIMIT = 64 * 1024

_STUBBORN = 8
_SOURCES_LIMIT = 4 * 1024 * 1024
_WARMING = b"def f(x):\n    return [str(x)]\nprint(f(1))\n{}['warm']\n"
_WARMING_RUN = b"print(end='')"


def request(number: int, config: bytes, code_bytes: int, fed: int) -> bytes:
    """Return the header of a run, which is followed by config and code.

    `fed`: 0 for no input, 1 for input whose descriptor comes with one byte right after the header, 2 for input that is
    planted already.
    """
    numbers = number.to_bytes(4, "big") + len(config).to_bytes(4, "big") + code_bytes.to_bytes(8, "big")
    return b"R" + bytes((fed,)) + numbers


def answer(kind: bytes, number: int, *texts: str) -> bytes:
    """Return an answer to the agent."""
    parts = [number.to_bytes(4, "big")]
    for text in texts:
        raw = clip("".join((text,)))  # a plain str, whatever subclass the code's repr() returned
        parts += [len(raw).to_bytes(4, "big"), raw]
    body = b"".join(parts)
    return kind + len(body).to_bytes(4, "big") + body


def clip(text: str) -> bytes:
    """Return at most `TEXT_LIMIT` bytes of UTF-8; a long text loses its middle."""
    if len(text) <= TEXT_LIMIT:
        raw = text.encode("utf-8", "backslashreplace")
        if len(raw) <= TEXT_LIMIT:
            return raw
    head = text[:TEXT_LIMIT].encode("utf-8", "backslashreplace")[: TEXT_LIMIT * 3 // 4 - 32]
    tail = text[-TEXT_LIMIT // 4 :].encode("utf-8", "backslashreplace")[-TEXT_LIMIT // 4 :]
    return head.decode("utf-8", "ignore").encode() + b"\n... cut ...\n" + tail.decode("utf-8", "ignore").encode()


class Interpreter:
    """The namespace, the streams and the loop of one context. `serve` never returns."""

    def __init__(self, argv: "Sequence[str]", sys_path: "Sequence[str]", streams: "Optional[Streams]" = None) -> None:
        self._pid = posix.getpid()
        self._futures = 0
        self._heads: "List[bytes]" = []
        self._bodies: "Tuple[Body, ...]" = ()
        self._first: "Optional[Tuple[int, bytes, bool]]" = None
        self._unanswered = 0
        self._sources = _Sources()
        self._streams = streams or Streams()
        self._streams.install()
        sys.argv = [""]
        if argv:
            sys.executable = argv[0]
            if hasattr(sys, "orig_argv"):
                sys.orig_argv = [argv[0]]
        found = [path for path in sys.path if path]
        sys.path[:] = ["", *found, *[path for path in sys_path if path not in found]]
        self._namespace = _main_module()

    def serve(self, first: "Optional[Tuple[int, bytes, bool]]" = None) -> "NoReturn":
        """Run `first` (number, code, whether it has input) if it came along, then what the agent sends.

        A signal handler of the code may raise between any two bytecodes of ours. What it raises while a run is not
        answered yet is that run's error, else nobody's.
        """
        self._first = first
        try:
            self._go_on(_STUBBORN)
        finally:
            posix._exit(70)

    def _go_on(self, levels: int) -> None:
        """Do runs for ever. A loop's jump back is not within its own `try`, so there are loops around the loop."""
        while True:
            try:
                if levels:
                    self._go_on(levels - 1)
                else:
                    self._turn()
            except BaseException:
                pass

    def _turn(self) -> None:
        """Do one run."""
        try:
            if self._unanswered:
                self._bodies = ()
                self._heads.clear()
                raise RuntimeError("a signal handler raised while the end of the run was told")
            first, self._first = self._first, None
            self._run(*(first or self._next()))
        except Gone:
            posix._exit(0)
        except SystemExit as error:
            self._leave(_exit_code(error.code))
        except BaseException as error:
            if self._unanswered:
                self._say(answer(FAILED, self._unanswered, *self._describe(error)))
                self._unanswered = 0

    def _warm(self) -> None:
        """Take the page faults of a first run: do one that says nothing, then fail and print into the void."""
        self._run(0, _WARMING_RUN, False)
        out, sys.stdout = sys.stdout, TextIOWrapper(BufferedWriter(FileIO("/dev/null", "w")), "utf-8")
        try:
            self._execute(_WARMING, "<warm>")
        except KeyError as error:
            if "traceback" in sys.modules:
                answer(FAILED, 0, *self._describe(error))
        finally:
            sys.stdout = out
            self._namespace = _main_module()
        self._say(answer(WARM, 0))

    def _next(self) -> "Tuple[int, Optional[bytes], bool]":
        """Wait for a run; return its number, its code and whether it has input. Raises `Gone` without an agent.

        Reading bytes and keeping them are one call, and the header stays until all is read, so that what a signal
        handler raises loses nothing: the next call goes on where this one was.
        """
        heads = self._heads
        while not heads:
            receive(heads, HEADER_BYTES)
        head = heads[0]
        if len(head) != HEADER_BYTES:
            raise Gone
        if head[:1] == EXECUTE:
            execute(head)
        if head[1] == 1 and not self._bodies:
            receive_input()
        if not self._bodies:
            sizes = int.from_bytes(head[6:10], "big"), int.from_bytes(head[10:18], "big")
            self._bodies = tuple(map(Body, sizes)) if sizes[0] else (Body(sizes[1]),)
        for body in self._bodies:
            body.fill()
        code = self._bodies[-1].value()
        if len(self._bodies) > 1 and (config := self._bodies[0].value()):
            _configure(config)
        number = self._unanswered = int.from_bytes(head[2:6], "big")
        self._bodies = ()
        heads.clear()
        if head[:1] == b"W":
            self._warm()
            return self._next()
        return number, code, head[1] > 0

    def _run(self, number: int, code: "Optional[bytes]", stdin: bool) -> None:
        """Run code and answer; leave the process when the code ends it, or when this is a fork that came back."""
        self._unanswered = number
        self._streams.ready(stdin)
        try:
            if code is None:
                raise MemoryError("the code does not fit in memory")
            name = "<run %d>" % number
            self._sources.add(name, code)
            value = self._execute(code, name)
            said = answer(DONE, number)
            if value is not None:
                said = answer(RESULT, number, "text/plain", repr(value)) + said
        except SystemExit as error:
            self._leave(_exit_code(error.code))
        except BaseException as error:
            if posix.getpid() != self._pid:
                sys.__excepthook__(type(error), error.with_traceback(_own(error.__traceback__)), None)
                self._leave(1)
            said = answer(FAILED, number, *self._describe(error))
        if posix.getpid() != self._pid:
            self._leave(0)
        self._streams.flush()
        if number:
            self._say(said)
        self._unanswered = 0

    def _execute(self, source: bytes, name: str) -> "Any":
        """Execute source in the namespace; return the value of its last statement if that is an expression."""
        parts, self._futures = compile_run(source, name, self._futures)
        value = None
        for part in parts:
            value = eval(part, self._namespace)
        return value

    def _describe(self, error: BaseException) -> "Tuple[str, str, str]":
        """Return name, value and traceback of an exception of the code, without frames of ours. Never raises."""
        name: str = type.__dict__["__name__"].__get__(type(error))
        try:
            value = str(error)
        except BaseException as worse:
            value = "<str() of it raised %s>" % type(worse).__name__
        try:
            import traceback

            text = "".join(traceback.format_exception(type(error), error, _own(error.__traceback__)))
        except BaseException as worse:
            text = "%s: %s\n<no traceback: %s>\n" % (name, value, type(worse).__name__)
        return name, value, text

    def _say(self, data: bytes) -> None:
        """Send an answer; when the code closed the socket, end as a script that ran to its end."""
        try:
            while data:
                data = data[posix.write(CONTROL, data) :]
        except OSError as error:
            if error.errno is None:
                raise  # not the socket's: a signal handler of the code raised it
            self._leave(0)

    def _leave(self, code: int) -> "NoReturn":
        """End this process the way Python does: threads, exit handlers, streams."""
        try:
            threading = sys.modules.get("threading")
            if threading is not None:
                threading._shutdown()
            import atexit

            atexit._run_exitfuncs()
        except BaseException:
            code = code or 1
        finally:
            self._streams.flush()
            posix._exit(code & 0xFF)


def begin(cwd: str, argv: "Sequence[str]", sys_path: "Sequence[str]") -> "NoReturn":
    """Be the interpreter of a process that was just executed, and do what its agent left to it."""
    for fd in (CONTROL, SPARE_OUT, SPARE_ERR):
        posix.set_inheritable(fd, False)
    try:
        fd = posix.open("/proc/self/oom_score_adj", posix.O_WRONLY)
        posix.write(fd, b"1000")
        posix.close(fd)
    except OSError:
        pass
    posix.umask(0o022)
    try:
        posix.chdir(cwd)
    except OSError:
        posix.chdir("/")
    Interpreter(argv, sys_path).serve()


class _Sources:
    """The code of the runs, for tracebacks: `linecache`, once somebody has imported it, asks here for what it lacks."""

    def __init__(self) -> None:
        self._kept: "Dict[str, bytes]" = {}
        self._total = 0
        if "linecache" in sys.modules:
            self._serve(sys.modules["linecache"])
        else:
            sys.meta_path.insert(0, self)

    def add(self, name: str, source: bytes) -> None:
        """Keep a run's code, unless it is huge; forget the oldest when they are too many."""
        if len(source) > _SOURCES_LIMIT // 4:
            return
        self._kept[name] = source
        self._total += len(source)
        while self._total > _SOURCES_LIMIT or len(self._kept) > 1000:
            oldest = next(iter(self._kept))
            self._total -= len(self._kept.pop(oldest))
            if "linecache" in sys.modules:
                sys.modules["linecache"].cache.pop(oldest, None)

    def _serve(self, linecache: "Any") -> None:
        update = linecache.updatecache

        def updatecache(filename: str, module_globals: "Any" = None) -> "List[str]":
            source = self._kept.get(filename)
            if source is None:
                found: "List[str]" = update(filename, module_globals)
                return found
            text = _decode(source)
            lines = [line + "\n" for line in text.split("\n")]
            # No time of change: an entry that is checked against no file.
            linecache.cache[filename] = (len(text), None, lines, filename)
            return lines

        linecache.updatecache = updatecache

    def find_spec(self, name: str, path: "Any" = None, target: "Any" = None) -> "Any":
        """As a meta path finder: wait for the import of `linecache`, then be none any more."""
        if name != "linecache":
            return None
        sys.meta_path.remove(self)
        specs = (finder.find_spec(name, path, target) for finder in sys.meta_path)
        spec = next((each for each in specs if each is not None and each.loader is not None), None)
        if spec is not None:
            loader: "Any" = spec.loader
            execute = loader.exec_module

            def exec_module(module: "ModuleType") -> None:
                execute(module)
                self._serve(module)

            loader.exec_module = exec_module
        return spec


def _main_module() -> "Dict[str, Any]":
    module = type(sys)("__main__")
    module.__dict__["__builtins__"] = builtins
    sys.modules["__main__"] = module
    return module.__dict__


def _configure(config: bytes) -> None:
    """Set working directory and environment: texts that end with a NUL, the directory first."""
    cwd, *pairs = config[:-1].split(b"\0")
    variables = dict(pair.split(b"=", 1) for pair in pairs)
    try:
        posix.chdir(cwd)
    except OSError:
        posix.chdir("/")
    if "os" in sys.modules:
        import os

        os.environb.clear()
        os.environb.update(variables)
        return
    for key in posix.environ:
        if key not in variables:
            posix.unsetenv(key)
    for key, value in variables.items():
        posix.putenv(key, value)
    posix.environ.clear()
    posix.environ.update(variables)


def _exit_code(code: "Any") -> int:
    """Return what a script that raised `SystemExit(code)` would end with."""
    if code is None:
        return 0
    if isinstance(code, int):
        return code
    try:
        sys.stderr.write("%s\n" % (code,))
    except BaseException:
        pass
    return 1


def _own(trace: "Optional[TracebackType]") -> "Optional[TracebackType]":
    """Return a traceback without our frames at its head."""
    ours = (globals(), compile_run.__globals__)
    while trace is not None and any(trace.tb_frame.f_globals is each for each in ours):
        trace = trace.tb_next
    return trace


def _decode(source: bytes) -> str:
    if b"coding" in source[:512]:
        try:
            from importlib.util import decode_source

            return decode_source(source)
        except (SyntaxError, UnicodeDecodeError, LookupError):
            pass
    if source[:3] == b"\xef\xbb\xbf":
        source = source[3:]
    return source.decode("utf-8", "replace").replace("\r\n", "\n").replace("\r", "\n")
