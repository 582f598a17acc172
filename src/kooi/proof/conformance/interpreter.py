"""Checks of running code: state, endings, input and output."""

from __future__ import annotations

import asyncio
import hashlib
import os
import signal

from kooi.contract.errors import InvalidRequest, SandboxClosed
from kooi.contract.result import RunEvent
from kooi.proof.conformance.base import Check, box, ok, same, true
from kooi.sandbox import AsyncSandbox
from kooi.sandbox import run as run_once


async def state_is_kept(level: str) -> None:
    """Variables, functions and imports of one run are there in the next."""
    async with box(level) as it:
        ok(await it.run("import math\nx = 20\ndef twice(n): return 2 * n"), "")
        ok(await it.run("print(twice(x) + math.floor(2.5))"), "42\n")


async def boxes_share_nothing(level: str) -> None:
    """A variable and a file of one sandbox are not in another that is open at the same time."""
    async with box(level) as one, box(level) as two:
        ok(await one.run("secret = 1; open('note.txt', 'w').write('x')"))
        ok(await two.run("import os; print('secret' in globals(), os.path.exists('note.txt'))"), "False False\n")


async def one_shot(level: str) -> None:
    """`run` runs code in a sandbox of its own, and two of them share no state."""
    ok(await run_once("x = 1; print(x)", level=level, preload=()), "1\n")
    ok(await run_once("print('x' in globals())", level=level, preload=()), "False\n")


async def uncaught_exception(level: str) -> None:
    """An uncaught exception is status `error` with its name, text and traceback, and the state survives it."""
    async with box(level) as it:
        result = await it.run("kept = 7\nprint('before')\nraise ValueError('wrong: ü')")
        same(result.status, "error", "status")
        same(result.stdout, "before\n", "standard output")
        error = result.error
        true(error is not None and error.name.endswith("ValueError") and error.value == "wrong: ü", f"error is {error}")
        true(error is not None and "line 3" in error.traceback, "the traceback does not name line 3")
        ok(await it.run("print(kept)"), "7\n")


async def syntax_error(level: str) -> None:
    """Code that does not compile is status `error`, whatever bytes it is made of."""
    async with box(level) as it:
        for code in ("def", "print('\0')", b"\xff\xfe\xfa", "(" * 500, "x = '" + "\\ud800" + "'\nprint(x.encode())"):
            same((await it.run(code)).status, "error", f"status of {code[:10]!r}")
        ok(await it.run("print(1)"), "1\n")


async def exit_codes(level: str) -> None:
    """`sys.exit(0)` ends well, another code is status `error` with that code; the next run works."""
    async with box(level) as it:
        for code, status in ((0, "ok"), (3, "error"), (255, "error")):
            result = await it.run(f"import sys; print('x', flush=True); sys.exit({code})")
            same((result.status, result.exit_code, result.stdout), (status, code, "x\n"), f"the result of exit {code}")
            ok(await it.run("print(1)"), "1\n")


async def hard_exit(level: str) -> None:
    """`os._exit` ends the run with its code and what was written before."""
    async with box(level) as it:
        result = await it.run("import os; os.write(1, b'x'); os._exit(9)")
        same((result.status, result.exit_code, result.stdout), ("error", 9, "x"), "the result")
        true(result.decided_by != "code", "an exit code that the code itself tells proves nothing")
        ok(await it.run("print(1)"), "1\n")


async def signals(level: str) -> None:
    """A run that dies of a signal is status `signal` with its number; the next run works."""
    async with box(level) as it:
        for number in (signal.SIGSEGV, signal.SIGKILL, signal.SIGTERM):
            result = await it.run(
                f"import os, signal\nsignal.signal(15, signal.SIG_DFL)\nos.kill(os.getpid(), {number:d})"
            )
            same((result.status, result.signal), ("signal", int(number)), f"the result of {number.name}")
            ok(await it.run("print(1)"), "1\n")


async def standard_input(level: str) -> None:
    """Standard input arrives to the last byte and then ends; without any it is empty at once."""
    data = bytes(range(256)) * 4096
    async with box(level) as it:
        code = "import sys, hashlib; print(hashlib.sha256(sys.stdin.buffer.read()).hexdigest())"
        ok(await it.run(code, stdin=data), hashlib.sha256(data).hexdigest() + "\n")
        ok(await it.run("print(input(), input())", stdin="a\nb\n"), "a b\n")
        ok(await it.run("import sys; print(repr(sys.stdin.read()))"), "''\n")


async def separate_streams(level: str) -> None:
    """Standard output and standard error are kept apart, from Python and from below it."""
    code = """
import os, sys
print('o1')
print('e1', file=sys.stderr)
sys.stdout.flush()
os.write(1, b'o2')
os.write(2, b'e2')
"""
    async with box(level) as it:
        result = ok(await it.run(code))
        same((result.stdout, result.stderr), ("o1\no2", "e1\ne2"), "the output")


async def binary_output(level: str) -> None:
    """Every byte value comes out as it went in."""
    async with box(level) as it:
        result = ok(await it.run("import sys; sys.stdout.buffer.write(bytes(range(256)) * 300)"))
        same(result.stdout_bytes, bytes(range(256)) * 300, "standard output")


async def big_output(level: str) -> None:
    """Eight megabytes come out whole and in order when the cap allows it, in pieces or at once."""
    wanted = b"".join(b"%07d\n" % n for n in range(1 << 20))
    async with box(level, output_bytes=16 << 20) as it:
        result = ok(await it.run("import sys\nfor n in range(1 << 20): sys.stdout.write('%07d\\n' % n)"))
        true(
            result.stdout_bytes == wanted, f"{len(result.stdout_bytes)} bytes came, of {len(wanted)}, or another order"
        )
        result = ok(await it.run("import os\ndata = b'x' * (8 << 20)\nwhile data: data = data[os.write(1, data):]"))
        true(result.stdout_bytes == b"x" * (8 << 20), f"{len(result.stdout_bytes)} bytes came, of {8 << 20}")


async def events_come_live(level: str) -> None:
    """Output arrives while the code still runs, in order, and the stream ends with the result."""
    async with box(level) as it:
        seen: list[RunEvent] = []
        code = "import time\nprint('first', flush=True)\ntime.sleep(0.5)\nprint('second', flush=True)"
        stream = it.stream(code)
        loop = asyncio.get_running_loop()
        arrivals = []
        async for event in stream:
            seen.append(event)
            arrivals.append(loop.time())
        text = b"".join(event.data for event in seen if event.kind == "stdout")
        same(text, b"first\nsecond\n", "the events' output")
        ok(stream.result, "first\nsecond\n")
        true(arrivals[-1] - arrivals[0] > 0.3, "both pieces came together, at the end")


async def cancellation(level: str) -> None:
    """A cancelled run is dead when the call returns, and the sandbox closes cleanly."""
    async with box(level) as it:
        ok(await it.run("print(1)"))
        task = asyncio.ensure_future(it.run("import time\nwhile True: time.sleep(0.01)"))
        await asyncio.sleep(0.3)
        task.cancel()
        done, _ = await asyncio.wait({task}, timeout=10)
        true(done and task.cancelled(), "the cancelled call did not come back within 10 s")


async def kill_by_the_caller(level: str) -> None:
    """`kill` ends a run in flight with status `killed`; later calls raise `SandboxClosed`."""
    async with box(level) as it:
        ok(await it.run("print(1)"))
        task = asyncio.ensure_future(it.run("import time\nprint('on', flush=True)\ntime.sleep(60)"))
        await asyncio.sleep(0.3)
        await it.kill()
        result = await asyncio.wait_for(task, 10)
        same((result.status, result.decided_by), ("killed", "host"), "the result")
        await _closed(it)


async def closing(level: str) -> None:
    """A closed sandbox refuses calls, and closing twice is fine."""
    it = AsyncSandbox(level, preload=())
    await it.run("print(1)")
    await it.close()
    await it.close()
    await _closed(it)


async def _closed(it: AsyncSandbox) -> None:
    try:
        await it.run("print(1)")
    except SandboxClosed:
        return
    raise AssertionError("a closed sandbox still runs code")


async def bad_arguments(level: str) -> None:
    """A timeout of zero, below zero or not a number, and input that is no text are refused by name."""
    async with box(level) as it:
        for timeout in (0, -1, float("nan"), float("inf"), "5"):
            await _refused(it, "timeout", timeout=timeout)
        await _refused(it, "stdin", stdin=5)
        ok(await it.run("print(1)"), "1\n")


async def _refused(it: AsyncSandbox, key: str, **arguments: object) -> None:
    try:
        await it.run("print(1)", **arguments)  # type: ignore[arg-type]
    except InvalidRequest as error:
        same(error.key, key, "the named argument")
        return
    raise AssertionError(f"{key}={arguments[key]!r} was accepted")


async def rich_results(level: str) -> None:
    """The value of the last line comes as a result of its own."""
    async with box(level) as it:
        result = ok(await it.run("x = 6\nx * 7"), "")
        same([item.text for item in result.results], ["42"], "the results")


async def the_result_says_what_held(level: str) -> None:
    """Every result names its level, strength, enforcement, policy digest, and who decided the status."""
    async with box(level) as it:
        result = ok(await it.run("print(1)"))
        same((result.level, result.enforcement.level), (level, level), "the level")
        same(result.strength, result.enforcement.strength, "the strength")
        same(result.policy_digest, it.spec.digest(), "the digest")
        clauses = {clause.name for clause in result.enforcement.clauses}
        missing = {"wall_seconds", "memory_bytes", "processes", "network", "files"} - clauses
        true(not missing, f"the enforcement does not mention {', '.join(sorted(missing))}")
        open_ones = {c.name for c in result.enforcement.clauses if c.grade == "none"}
        true(open_ones <= set(result.waivers), "a clause that nothing holds is not among the waivers")


async def randomness(level: str) -> None:
    """Two sandboxes draw different random numbers and ids."""
    code = "import random, uuid, os, ssl; print(random.random(), uuid.uuid4(), ssl.RAND_bytes(8).hex())"
    async with box(level) as one, box(level) as two:
        first, second = ok(await one.run(code)).stdout.split(), ok(await two.run(code)).stdout.split()
        alike = [a for a, b in zip(first, second, strict=True) if a == b]
        true(len(first) == 3 and not alike, f"both drew {alike}")


async def side_by_side(level: str) -> None:
    """Sixteen sandboxes at once each answer with their own output."""

    async def one(number: int) -> str:
        result = await run_once(f"print({number} * 1001)", level=level, preload=())
        return ok(result).stdout

    answers = await asyncio.gather(*(one(n) for n in range(16)))
    same(answers, [f"{n * 1001}\n" for n in range(16)], "the answers")


async def terminal_tricks(level: str) -> None:
    """Escape sequences, lone surrogates and lines without an end come out as bytes and do no harm on the way."""
    wanted = b"\x1b]0;title\x07\x1b[2J\xed\xa0\x80\x00" + os.urandom(1 << 16)
    async with box(level) as it:
        result = ok(await it.run(f"import os\ndata = {wanted!r}\nwhile data: data = data[os.write(1, data):]"))
        same(result.stdout_bytes, wanted, "standard output")


CHECKS: dict[str, Check] = {
    check.__name__: check
    for check in (
        state_is_kept, boxes_share_nothing, one_shot, uncaught_exception, syntax_error, exit_codes, hard_exit, signals,
        standard_input, separate_streams, binary_output, big_output, events_come_live, cancellation,
        kill_by_the_caller, closing, bad_arguments, rich_results, the_result_says_what_held, randomness, side_by_side,
        terminal_tricks,
    )
}  # fmt: skip
