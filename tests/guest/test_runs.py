"""Runs of code in a real agent: state, results, errors, ends, input, output, bad code, hostile code."""

from __future__ import annotations

import asyncio
import os
import signal
from pathlib import Path

import pytest

from kooi.guest import frames
from tests.guest.harness import Box, alive, drive, gone, until

MIB = 1 << 20


def test_state_is_kept_and_contexts_are_apart(tmp_path: Path) -> None:
    async def scenario(box: Box) -> None:
        hello = await box.client.hello()
        assert hello["protocol"] == 1 and hello["pid"] == box.process.pid
        first = await box.run("x = 40\nprint('hi')\nx + 2")
        assert (first.status, bytes(first.out), first.value) == ("ok", b"hi\n", "42")
        assert (await box.run("x")).value == "40"
        assert (await box.run("x", context="other")).error["name"] == "NameError"
        assert (await box.run("x = 'theirs'; x", context="other")).value == "'theirs'"
        assert (await box.run("x")).value == "40"
        assert not (await box.run("y = 1")).events
        assert not (await box.run("None")).events
        assert (await box.run("from __future__ import annotations\ndef f(a: nowhere): pass")).status == "ok"
        assert (await box.run("def g(a: nowhere): pass\ng.__annotations__")).value == "{'a': 'nowhere'}"

    drive(tmp_path, scenario)


def test_what_code_finds(tmp_path: Path) -> None:
    async def scenario(box: Box) -> None:
        run = await box.run(
            "import os, sys, signal, threading\n"
            "print(os.getcwd(), os.environ['KOOI'], os.environ['PATH'], len(os.environ))\n"
            "print(__name__, sys.argv, sys.modules['__main__'].__dict__ is globals(), sys.path[0] == '')\n"
            "print(os.path.basename(sys.executable).startswith('python'), os.getsid(0) == os.getpid())\n"
            "print(signal.getsignal(signal.SIGINT) is signal.default_int_handler, signal.getsignal(signal.SIGCHLD))\n"
            "print(signal.pthread_sigmask(signal.SIG_BLOCK, []), oct(os.umask(0o022)), threading.active_count())\n"
            "fds = sorted(int(name) for name in os.listdir('/proc/self/fd'))[:4]\n"
            "print(fds, open('/proc/self/oom_score_adj').read())\n"
            "print(sys.stdin.read() == '', os.access('/proc/self/environ', os.R_OK))\n"
        )
        assert run.out.decode().splitlines() == [
            f"{tmp_path} yes /usr/bin:/bin 3", "__main__ [''] True True", "True True", "True 0", "set() 0o22 1",
            "[0, 1, 2, 3] 1000", "", "True True",
        ], run.out  # fmt: skip

    drive(tmp_path, scenario)


def test_no_descriptor_of_the_agent_reaches_the_code(tmp_path: Path) -> None:
    code = (
        "import os\n"
        "for fd in os.listdir('/proc/self/fd'):\n"
        "    try: print(fd, os.readlink('/proc/self/fd/' + fd))\n"
        "    except OSError: pass\n"
    )

    async def scenario(box: Box) -> None:
        for context in ("", "second"):
            shown = (await box.run(code, context)).out.decode().splitlines()
            kinds = {int(line.split()[0]): line.split()[1] for line in shown}
            assert set(kinds) == {0, 1, 2, 61, 62, 63}, kinds
            assert kinds[0] == "/dev/null" and kinds[63].startswith("socket:")
        listed = box.command(["/bin/ls", "/proc/self/fd"])
        assert (await listed.ended()).out.split() == [b"0", b"1", b"2", b"3"]

    drive(tmp_path, scenario)


def test_errors_show_the_users_lines_and_nothing_of_ours(tmp_path: Path) -> None:
    async def scenario(box: Box) -> None:
        await box.run("def f(x):\n    return 1 / x\n")
        error = (await box.run("# second\nf(0)")).error
        assert (error["name"], error["value"]) == ("ZeroDivisionError", "division by zero")
        assert 'File "<run 2>", line 2, in <module>\n    f(0)' in error["traceback"]
        assert 'File "<run 1>", line 2, in f\n    return 1 / x' in error["traceback"]
        assert error["traceback"].count("File ") == 2 and "kooi" not in error["traceback"]
        chained = (await box.run("try:\n    f(0)\nexcept Exception as e:\n    raise KeyError('x') from e")).error
        assert "The above exception was the direct cause" in chained["traceback"]
        assert "kooi" not in chained["traceback"]
        shown = await box.run("import traceback\ntry: f(0)\nexcept Exception: traceback.print_exc()")
        assert b"return 1 / x" in shown.err and b"kooi" not in shown.err
        syntax = (await box.run("def f(:\n    pass")).error
        assert syntax["name"] == "SyntaxError" and "def f(:" in syntax["traceback"]
        assert syntax["traceback"].startswith('  File "<run 5>", line 1')

    drive(tmp_path, scenario)


@pytest.mark.parametrize(
    ("code", "name"),
    [
        ("raise KeyboardInterrupt", "KeyboardInterrupt"),
        ("raise GeneratorExit", "GeneratorExit"),
        ("def f(): f()\nf()", "RecursionError"),
        ("class E(Exception):\n    def __str__(self): raise ValueError\nraise E", "E"),
        ("class R:\n    def __repr__(self): raise LookupError('no')\nR()", "LookupError"),
        ("class M(type):\n    __name__ = property(lambda s: 1/0)\nclass E(Exception, metaclass=M): pass\nraise E", "E"),
        ("x = bytearray(1 << 60)", "MemoryError"),
        ("raise BaseException('\\ud800')", "BaseException"),
        ("import sys; sys.modules.pop('linecache', 0); sys.modules['traceback'] = None; 1/0", "ZeroDivisionError"),
    ],
)
def test_every_exception_is_an_error_and_the_interpreter_goes_on(tmp_path: Path, code: str, name: str) -> None:
    async def scenario(box: Box) -> None:
        run = await box.run("kept = 7\n" + code)
        assert run.status == "error" and run.error["name"] == name
        assert (await box.run("kept")).value == "7"

    drive(tmp_path, scenario)


@pytest.mark.parametrize(
    ("code", "names"),
    [
        (b"x = '\0'", {"SyntaxError"}),
        (b"x = '\xff\xfe'", {"SyntaxError"}),
        (b"# coding: no-such-codec\nx", {"SyntaxError"}),
        ("x = '\ud800'".encode("utf-8", "surrogatepass"), {"SyntaxError"}),
        (b"(" * 10_000 + b")" * 10_000, {"SyntaxError", "MemoryError", "RecursionError"}),
        (b"-" * 100_000 + b"1", {"MemoryError", "RecursionError", "SyntaxError"}),
        (b"+".join([b"1"] * 100_000), {"MemoryError", "RecursionError"}),
        (b"\n".join(b" " * depth + b"if 1:" for depth in range(150)) + b"\n" + b" " * 150 + b"x", {"IndentationError"}),
        (b"x = \\", {"SyntaxError"}),
        (b"'''", {"SyntaxError"}),
        (b"\x0c\x1a\x00", {"SyntaxError"}),
    ],
)
def test_bad_code_is_an_error(tmp_path: Path, code: bytes, names: set[str]) -> None:
    async def scenario(box: Box) -> None:
        run = await box.run(code)
        if (
            run.status == "signal"
        ):  # a parser that runs out of stack takes the process with it; the next run has a new one
            assert run.end["signal"] == signal.SIGSEGV and code[:1] in (b"(", b"-", b"1")
        else:
            assert run.status == "error" and run.error["name"] in names, run.end
        assert (await box.run("1 + 1")).value == "2"

    drive(tmp_path, scenario)


def test_code_in_other_encodings(tmp_path: Path) -> None:
    async def scenario(box: Box) -> None:
        assert (await box.run("# coding: latin-1\nx = 'ü'; len(x)".encode("latin-1"))).value == "1"
        assert (await box.run(b"\xef\xbb\xbfx = '\xc3\xbc'; x")).value == "'ü'"
        assert (await box.run(b"1\r\n2\r3\n4")).value == "4"
        error = (await box.run("# coding: latin-1\nraise ValueError('ü')".encode("latin-1"))).error
        assert "raise ValueError('ü')" in error["traceback"]
        assert (await box.run(b"")).status == "ok"

    drive(tmp_path, scenario)


def test_code_of_100_megabytes(tmp_path: Path) -> None:
    async def scenario(box: Box) -> None:
        run = await box.run(b"x = len('''" + b"y" * 100 * MIB + b"''')\nx")
        assert run.value == str(100 * MIB)
        assert (await box.run("x")).value == str(100 * MIB)
        comment = await box.run(b"#" * 20 * MIB, context="new")
        assert comment.status == "ok"
        assert (await box.run(b"")).status == "ok", "what was held up before holds nothing up now"
        assert (await box.run("input()", stdin=b"fed")).value == "'fed'"

    drive(tmp_path, scenario)


def test_results_are_capped(tmp_path: Path) -> None:
    async def scenario(box: Box) -> None:
        long = (await box.run("'x' * 10_000_000")).value
        assert 60_000 < len(long) <= 65_536 and "... cut ..." in long
        escapes = (await box.run("class R:\n    def __repr__(self): return '\\x01' * 1_000_000\nR()")).value
        assert escapes.startswith("\x01" * 1000)
        wide = (await box.run("class R:\n    def __repr__(self): return '😀' * 1_000_000\nR()")).value
        assert wide.startswith("😀" * 1000)
        surrogates = (await box.run("class R:\n    def __repr__(self): return '\\ud800!'\nR()")).value
        assert surrogates == "\\ud800!"
        odd = (
            await box.run("class S(str):\n    encode = None\nclass R:\n    def __repr__(self): return S('s')\nR()")
        ).value
        assert odd == "s"
        big = await box.run("raise ValueError('\\x01' * 10_000_000)")
        assert big.error["value"].startswith("\x01" * 1000)
        assert len(frames.dumps(big.end)) <= frames.MAX_JSON

    drive(tmp_path, scenario)


@pytest.mark.parametrize(
    ("code", "expected", "said"),
    [
        ("import sys; sys.exit()", 0, b""),
        ("import sys; print('bye', end=''); sys.exit(3)", 3, b""),
        ("raise SystemExit('what')", 1, b"what\n"),
        ("raise SystemExit(True)", 1, b""),
        ("raise SystemExit(-1)", 255, b""),
        ("raise SystemExit(256 + 7)", 7, b""),
        ("import atexit, sys; atexit.register(lambda: sys.stderr.write('last'))\nraise SystemExit", 0, b"last"),
        ("import os; os._exit(9)", 9, b""),
        (
            "import threading, time\nthreading.Thread(target=time.sleep, args=(.2,)).start()\nraise SystemExit(4)",
            4,
            b"",
        ),
    ],
)
def test_exits(tmp_path: Path, code: str, expected: int, said: bytes) -> None:
    async def scenario(box: Box) -> None:
        await box.run("kept = 1")
        run = await box.run(code)
        assert (run.status, run.end["exit_code"], bytes(run.err)) == ("exit", expected, said)
        assert (await box.run("kept")).error["name"] == "NameError", "the next run has a new interpreter"

    drive(tmp_path, scenario)


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGSEGV, signal.SIGABRT, signal.SIGTERM])
def test_ends_by_signal(tmp_path: Path, number: int) -> None:
    async def scenario(box: Box) -> None:
        run = await box.run(f"import os; print('before', flush=True); os.kill(os.getpid(), {number})")
        assert (run.status, run.end["signal"], bytes(run.out)) == ("signal", number, b"before\n")
        assert (await box.run("2")).value == "2"

    drive(tmp_path, scenario)


def test_input(tmp_path: Path) -> None:
    async def scenario(box: Box) -> None:
        assert (await box.run("[input(), input()]", stdin="ü\nzwei\n".encode())).value == "['ü', 'zwei']"
        assert (await box.run("input()", stdin=b"")).error["name"] == "EOFError"
        assert (await box.run("input()")).error["name"] == "EOFError"
        assert (await box.run("import sys; len(sys.stdin.buffer.read())", stdin=b"\xff" * 3 * MIB)).value == str(
            3 * MIB
        )
        assert (await box.run("input()", context="fed first", stdin=b"first")).value == "'first'"
        unread = await box.run("1", stdin=b"x" * 5 * MIB)
        assert unread.value == "1", "input that nobody reads holds nothing up"
        assert (await box.run("input()", stdin=b"again")).value == "'again'"

    drive(tmp_path, scenario)


def test_input_in_pieces(tmp_path: Path) -> None:
    async def scenario(box: Box) -> None:
        code = b"for line in __import__('sys').stdin: print(line.upper(), end='')"
        fields = {"context": "", "code_bytes": len(code), "stdin": True, "limits": {}}
        heard = bytearray()
        call = box.client.open("run", fields, body=code, end_input=False, on_out=heard.extend)
        for word in (b"one\n", b"two\n"):
            await call.write(word)
            while not heard.endswith(word.upper()):
                await asyncio.sleep(0.01)
        call.end_input()
        assert (await call.done)["status"] == "ok"
        await call.done

    drive(tmp_path, scenario)


def test_output_is_complete_and_in_order(tmp_path: Path) -> None:
    async def scenario(box: Box) -> None:
        total = 20 * MIB
        run = await box.run(f"import sys\nfor i in range({total // 16}): sys.stdout.write('%15d\\n' % i)\n")
        assert len(run.out) == total
        assert bytes(run.out[-16:]) == b"%15d\n" % (total // 16 - 1)
        binary = await box.run("import os\nfor _ in range(300): os.write(1, bytes(range(256)) * 10); os.write(2, b'e')")
        assert bytes(binary.out) == bytes(range(256)) * 3000 and bytes(binary.err) == b"e" * 300
        unterminated = await box.run("print('no newline', end=''); 5")
        assert bytes(unterminated.out) == b"no newline"
        lone = await box.run("print('\\ud800')")
        assert bytes(lone.out) == b"\\ud800\n"

    drive(tmp_path, scenario)


def test_back_pressure_stops_the_code_and_nothing_else(tmp_path: Path) -> None:
    async def scenario(box: Box) -> None:
        kept = bytearray()

        def hold(data: bytes) -> bool:
            kept.extend(data)
            return False

        flood = box.start("import os\nfor _ in range(3000): os.write(1, b'x' * 1000)", on_out=hold)
        while len(kept) < frames.WINDOW:
            await asyncio.sleep(0.01)
        await asyncio.sleep(0.1)
        assert len(kept) == frames.WINDOW, "what is not granted is not sent"
        assert (await box.run("'free'", context="other")).value == "'free'"
        assert (await box.file("write", b"x" * 3 * MIB, path="f", append=False, mode=None)).end == {"size": 3 * MIB}
        assert not flood.call.done.done()
        while not flood.call.done.done():
            flood.call.grant()
            await asyncio.sleep(0.001)
        assert len(kept) == 3_000_000 and (await flood.ended()).status == "ok"

    drive(tmp_path, scenario)


def test_kill_reaches_the_whole_tree_and_leaves_the_rest(tmp_path: Path) -> None:
    code = (
        "import os, signal, subprocess, time\n"
        "for number in range(1, 32):\n"
        "    try: signal.signal(number, signal.SIG_IGN)\n"
        "    except (OSError, ValueError): pass\n"
        "pids = [subprocess.Popen(['sleep', '1000'], start_new_session=new).pid for new in (False, True)]\n"
        "child = os.fork()\n"
        "if child == 0:\n"
        "    os.setsid()\n"
        "    pids.append(subprocess.Popen(['sleep', '1000'], start_new_session=True).pid)\n"
        "    pids.append(os.getpid())\n"
        "    print(*pids, flush=True)\n"
        "    time.sleep(1000)\n"
        "while True: os.waitpid(-1, os.WNOHANG)\n"
    )

    async def scenario(box: Box) -> None:
        await box.run("kept = 3", context="other")
        bystander = box.start("import time; time.sleep(1000)", context="third")
        run = box.start(code)
        while run.out.count(b"\n") < 1:
            await asyncio.sleep(0.01)
        pids = [int(word) for word in run.out.split()]
        assert len(pids) == 4 and all(map(alive, pids))
        run.call.signal(signal.SIGKILL)
        await run.ended()
        assert (run.status, run.end["signal"], run.end["left"]) == ("signal", signal.SIGKILL, 0)
        assert not any(map(alive, pids))
        assert (await box.run("kept", context="other")).value == "3"
        assert (await box.run("'new'")).value == "'new'"
        assert not bystander.call.done.done()
        bystander.call.signal(signal.SIGKILL)
        assert (await bystander.ended()).end["signal"] == signal.SIGKILL

    drive(tmp_path, scenario)


def test_kill_does_not_wait_for_credit(tmp_path: Path) -> None:
    async def scenario(box: Box) -> None:
        flood = box.start("while True: print('x' * 1000)", on_out=lambda data: False)
        await asyncio.sleep(0.3)
        flood.call.signal(signal.SIGKILL)
        assert (await flood.ended()).end["signal"] == signal.SIGKILL
        stopped = box.start("import os, signal; os.kill(os.getpid(), signal.SIGSTOP)")
        await asyncio.sleep(0.1)
        stopped.call.signal(signal.SIGKILL)
        assert (await stopped.ended()).end["signal"] == signal.SIGKILL

    drive(tmp_path, scenario)


def test_other_signals(tmp_path: Path) -> None:
    async def scenario(box: Box) -> None:
        run = box.start("kept = 5\nprint('go', flush=True)\nimport time\ntime.sleep(1000)")
        while not run.out:
            await asyncio.sleep(0.01)
        run.call.signal(signal.SIGINT)
        assert (await run.ended()).error["name"] == "KeyboardInterrupt"
        assert (await box.run("kept")).value == "5"
        run.call.signal(signal.SIGINT)  # after END: nothing
        handled = box.start(
            "import signal, time\nsignal.signal(signal.SIGUSR1, lambda *a: print('usr1', flush=True))\n"
            "print('go', flush=True)\ntime.sleep(.5)"
        )
        while not handled.out:
            await asyncio.sleep(0.01)
        handled.call.signal(signal.SIGUSR1)
        assert bytes((await handled.ended()).out) == b"go\nusr1\n"

    drive(tmp_path, scenario)


def test_signals_between_runs_do_not_break_the_interpreter(tmp_path: Path) -> None:
    async def scenario(box: Box) -> None:
        pid = int((await box.run("import os; os.getpid()")).value)
        await box.run(
            "import signal\nclass Late(Exception): pass\n"
            "def late(*a): raise TimeoutError if a[0] == signal.SIGALRM else Late\n"
            "for number in (signal.SIGALRM, signal.SIGUSR1, signal.SIGUSR2): signal.signal(number, late)\n"
            "signal.setitimer(signal.ITIMER_REAL, .005, .005)\n"
        )
        for _ in range(200):
            await asyncio.sleep(0.001)
            for number in (signal.SIGINT, signal.SIGUSR1, signal.SIGUSR2):
                os.kill(pid, number)
        assert (await box.run("1")).status in ("ok", "error")
        while (await box.run("signal.setitimer(signal.ITIMER_REAL, 0)")).status != "ok":
            pass  # the alarm met this run
        assert (await box.run("os.getpid()")).value == str(pid)

    drive(tmp_path, scenario)


@pytest.mark.parametrize(
    "code",
    [
        "import sys; sys.stdout.close(); sys.stderr.close(); sys.stdin.close()",
        "import os\nfor fd in range(3): os.close(fd)",
        "import sys; sys.stdout = sys.stderr = None",
        "import sys, io; sys.stdout = io.StringIO(); print('lost')",
        "import os; fd = os.open('/dev/null', os.O_RDWR)\nfor to in range(3): os.dup2(fd, to)",
        "import sys; del sys.stdout, sys.stderr, sys.stdin",
        "import sys; sys.stdout.detach()",
    ],
)
def test_code_that_does_away_with_its_streams(tmp_path: Path, code: str) -> None:
    async def scenario(box: Box) -> None:
        assert (await box.run("kept = 1\n" + code)).status == "ok"
        after = await box.run("import sys; print('back'); print('too', file=sys.stderr); kept")
        assert (after.value, bytes(after.out), bytes(after.err)) == ("1", b"back\n", b"too\n")
        assert (await box.run("input()")).error["name"] == "EOFError"

    drive(tmp_path, scenario)


def test_code_that_closes_every_descriptor(tmp_path: Path) -> None:
    async def scenario(box: Box) -> None:
        run = await box.run("import os; os.closerange(0, 4096)")
        assert (run.status, run.end["exit_code"]) == ("exit", 0)
        assert (await box.run("1")).value == "1"

    drive(tmp_path, scenario)


@pytest.mark.parametrize(
    "forged",
    [
        "os.write(63, b'D' + (4).to_bytes(4, 'big') + (1).to_bytes(4, 'big'))",
        "os.write(63, b'D' + (4).to_bytes(4, 'big') + (2).to_bytes(4, 'big'))",
        "os.write(63, b'E' + (4).to_bytes(4, 'big') + (1).to_bytes(4, 'big'))",
        "os.write(63, b'R' + (8).to_bytes(4, 'big') + (1).to_bytes(4, 'big') + b'\\xff' * 4)",
        "os.write(63, b'X' * 500)",
        "os.write(63, b'\\xff' * 500)",
        "os.write(63, b'')",
        "os.read(63, 1)",
        "os.dup2(1, 63)",
    ],
)
def test_code_that_talks_to_the_agent_itself(tmp_path: Path, forged: str) -> None:
    """It may lie about its own run, or lose its interpreter; the agent and the other contexts go on."""

    async def scenario(box: Box) -> None:
        await box.run("kept = 1", context="other")
        run = box.start(f"import os\n{forged}\n")
        await asyncio.sleep(0.2)
        run.call.signal(signal.SIGKILL)
        assert (await run.ended()).status in ("ok", "error", "signal", "exit")
        assert (await box.run("kept", context="other")).value == "1"
        await box.run("0")
        assert (await box.run("2 + 2")).status in ("ok", "exit", "signal")
        assert (await box.client.open("ping", {}).done) == {}

    drive(tmp_path, scenario)


def test_an_interpreter_that_stops_listening_in_the_middle_of_its_code_is_lost_alone(tmp_path: Path) -> None:
    deaf = (
        "import select, socket, threading\n"
        "def listen():\n"
        "    control = socket.socket(fileno=63)\n"
        "    select.select([control], [], [])\n"
        "    control.shutdown(socket.SHUT_RD)\n"
        "threading.Thread(target=listen, daemon=True).start()\n"
    )

    async def scenario(box: Box) -> None:
        assert (await box.run(deaf)).status == "ok"
        large = await box.run(b"#" * 3_000_000 + b"\n1")
        assert large.status in ("error", "exit", "signal"), large.end
        assert (await box.run("2 + 2", context="other")).value == "4"
        assert (await box.client.open("ping", {}).done) == {}

    drive(tmp_path, scenario)


def test_a_flood_of_results_is_held_back(tmp_path: Path) -> None:
    code = (
        "import os\n"
        "text = b'text/plain'; value = b'v' * 60000\n"
        "body = (1).to_bytes(4, 'big') + len(text).to_bytes(4, 'big') + text + len(value).to_bytes(4, 'big') + value\n"
        "message = b'R' + len(body).to_bytes(4, 'big') + body\n"
        "for _ in range(200):\n"
        "    left = message\n"
        "    while left: left = left[os.write(63, left):]\n"
    )

    async def scenario(box: Box) -> None:
        seen: list[int] = []

        def hold(event: object) -> bool:
            seen.append(1)
            return False

        run = box.start(code, on_event=hold)
        await until(lambda: bool(seen))
        await asyncio.sleep(0.3)
        assert 0 < len(seen) <= frames.WINDOW // 60_000 + 1
        assert (await box.run("1", context="other")).value == "1"
        while not run.call.done.done():
            run.call.grant()
            await asyncio.sleep(0.001)
        assert len(seen) == 200

    drive(tmp_path, scenario)


def test_fork_in_code(tmp_path: Path) -> None:
    async def scenario(box: Box) -> None:
        run = await box.run(
            "import os\npid = os.fork()\nprint('both', pid == 0, flush=True)\nif pid: os.waitpid(pid, 0)"
        )
        assert sorted(run.out.splitlines()) == [b"both False", b"both True"]
        assert (await box.run("pid > 0")).value == "True"
        failing = await box.run("pid = os.fork()\nif pid == 0: 1 / 0\nos.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])")
        assert failing.value == "1" and b"ZeroDivisionError" in failing.err and b"kooi" not in failing.err
        exiting = await box.run(
            "pid = os.fork()\nif pid == 0: raise SystemExit(6)\nos.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])"
        )
        assert exiting.value == "6"

    drive(tmp_path, scenario)


def test_what_stays_behind_is_counted_and_its_late_output_dropped(tmp_path: Path) -> None:
    async def scenario(box: Box) -> None:
        run = await box.run(
            "import subprocess\np = subprocess.Popen('echo early; sleep .4; echo late; sleep 1000', shell=True)\n"
            "import time; time.sleep(.2); p.pid"
        )
        assert (bytes(run.out), run.end["left"]) == (b"early\n", 2)
        pid = int(run.value)
        await asyncio.sleep(0.5)
        later = await box.run("print('mine')")
        assert (bytes(later.out), later.end["left"]) == (b"mine\n", 1 + 1)
        after = await box.run(
            "p.kill(); p.wait(); subprocess.run(['pkill', '-P', '1', '-s', str(os.getpid())]) if 0 else None"
        )
        assert after.end["left"] is not None
        assert await gone(pid)

    drive(tmp_path, scenario)


def test_all_that_stay_behind_are_counted_and_a_kill_finds_what_is_its_own_among_them(tmp_path: Path) -> None:
    leave = (
        "import os, time\n"
        "if os.fork() == 0:\n"
        "    os.setsid()\n"
        "    for _ in range(1000):\n"
        "        if os.fork() == 0:\n"
        "            os.closerange(0, 64)\n"
        "            time.sleep(60)\n"
        "    os._exit(0)\n"
        "os.wait()\n"
    )
    hold = "import os, time\nif os.fork() == 0:\n    os.setsid()\n    print(os.getpid(), flush=True)\ntime.sleep(60)\n"

    async def scenario(box: Box) -> None:
        assert (await box.run(leave)).end["left"] == 1000, "the kernel lists about 600 in a page"
        run = box.start(hold, context="other")
        while not run.out.endswith(b"\n"):
            await asyncio.sleep(0.01)
        run.call.signal(signal.SIGKILL)
        assert (await run.ended()).end["left"] == 1000
        assert not alive(int(run.out))

    drive(tmp_path, scenario)


def test_a_grandchild_that_keeps_writing_does_not_hold_up_the_end(tmp_path: Path) -> None:
    async def scenario(box: Box) -> None:
        run = box.start("import subprocess; p = subprocess.Popen(['yes']); 'done'")
        await run.ended()
        assert run.value == "'done'" and run.end["left"] == 1
        assert (await box.run("p.kill(); p.wait(); 1")).end["left"] == 0

    drive(tmp_path, scenario)


def test_threads_alive_at_the_end(tmp_path: Path) -> None:
    async def scenario(box: Box) -> None:
        run = await box.run(
            "import threading, time\nstop = False\n"
            "def work():\n    while not stop: time.sleep(.01)\n    print('stopped', flush=True)\n"
            "t = threading.Thread(target=work); t.start()"
        )
        assert run.status == "ok"
        after = await box.run("stop = True; t.join(); t.is_alive()")
        assert (after.value, bytes(after.out)) == ("False", b"stopped\n")

    drive(tmp_path, scenario)


def test_orphans_are_reaped(tmp_path: Path) -> None:
    code = (
        "import os\n"
        "for _ in range(20):\n"
        "    if os.fork() == 0:\n"
        "        if os.fork() == 0: os._exit(0)\n"
        "        os._exit(0)\n"
        "    os.wait()\n"
    )

    async def scenario(box: Box) -> None:
        assert (await box.run(code)).status == "ok"
        children = Path(f"/proc/{box.process.pid}/task/{box.process.pid}/children")
        await until(lambda: len(children.read_text().split()) == 1)  # only the interpreter

    drive(tmp_path, scenario)


def test_contexts_run_at_the_same_time_and_runs_of_one_in_order(tmp_path: Path) -> None:
    async def scenario(box: Box) -> None:
        slow = [box.start("import time; time.sleep(.5); 'slow'", context=name) for name in ("a", "b")]
        queued = [
            box.start(f"order = globals().get('order', []) + [{number}]; order", context="a") for number in range(3)
        ]
        cancelled = box.start("'never'", context="a")
        cancelled.call.signal(signal.SIGKILL)
        started = asyncio.get_running_loop().time()
        await asyncio.gather(*(run.ended() for run in slow))
        assert asyncio.get_running_loop().time() - started < 0.95
        for run in queued:
            await run.ended()
        assert [run.value for run in queued] == ["[0]", "[0, 1]", "[0, 1, 2]"]
        assert (await cancelled.ended()).end["signal"] == signal.SIGKILL and not cancelled.events

    drive(tmp_path, scenario)


@pytest.mark.parametrize(
    "code",
    [
        "import asyncio\nasync def main():\n    await asyncio.sleep(0)\n    return 7\nasyncio.run(main())",
        "import subprocess\nint(subprocess.run(['echo', '7'], capture_output=True).stdout)",
        "import multiprocessing as m\nm.set_start_method('fork')\ndef f(q): q.put(7)\n"
        "q = m.Queue(); p = m.Process(target=f, args=(q,)); p.start(); r = q.get(); p.join(); r",
        "import multiprocessing as m\nwith m.get_context('spawn').Pool(1) as p: r = p.apply(abs, (-7,))\nr",
        "import multiprocessing as m\nwith m.get_context('forkserver').Pool(1) as p: r = p.apply(abs, (-7,))\nr",
        "from concurrent.futures import ThreadPoolExecutor as T\nwith T(2) as t: r = list(t.map(abs, [-7]))[0]\nr",
        "import pickle\nclass A: pass\npickle.loads(pickle.dumps(A())).__class__ is A and 7",
        "import inspect\ndef f(): return 7\neval(inspect.getsource(f).split()[-1])",
        "open('m.py', 'w').write('x = 7'); import m; m.x",
    ],
)
def test_libraries_find_what_they_expect(tmp_path: Path, code: str) -> None:
    async def scenario(box: Box) -> None:
        run = await box.run(code)
        assert run.status == "ok" and run.value == "7", (run.end, run.err)

    drive(tmp_path, scenario, python_argv=["/usr/bin/python3"])


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can change ids")
def test_code_runs_as_another_user(open_home: Path) -> None:
    async def scenario(box: Box) -> None:
        shown = await box.run(
            "import os\n(os.getresuid(), os.getresgid(), os.getgroups(), os.access('/proc/self/environ', os.R_OK))"
        )
        assert shown.value == "((65534, 65534, 65534), (65533, 65533, 65533), [], True)"
        assert (await box.command("id -u; id -g; id -G").ended()).out.split() == [b"65534", b"65533", b"65533"]
        await box.file("write", b"x", path="f", append=False, mode=None)
        assert ((open_home / "f").stat().st_uid, (open_home / "f").stat().st_gid) == (65534, 65533)
        denied = await box.run(f"os.kill({box.process.pid}, 0)")
        assert denied.error["name"] == "PermissionError"
        assert (await box.file("write", b"x", path="/etc/kooi-test", append=False, mode=None)).end["errno"] == 13
        run = box.start(
            "import subprocess, time; print(subprocess.Popen(['sleep', '100']).pid, flush=True); time.sleep(100)"
        )
        while not run.out:
            await asyncio.sleep(0.01)
        run.call.signal(signal.SIGKILL)
        assert (await run.ended()).end["signal"] == signal.SIGKILL
        assert not alive(int(run.out))

    drive(open_home, scenario, code_uid=65534, code_gid=65533)
