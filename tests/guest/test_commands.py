"""Commands in a real agent."""

from __future__ import annotations

import asyncio
import signal
from pathlib import Path

import pytest

from kooi.guest import frames
from tests.guest.harness import Box, alive, drive, end_process, gone, until

MIB = 1 << 20


def test_ends(tmp_path: Path) -> None:
    async def scenario(box: Box) -> None:
        shell = await box.command("echo out; echo err >&2; exit 7").ended()
        assert (shell.status, shell.end["exit_code"]) == ("exit", 7)
        assert (bytes(shell.out), bytes(shell.err)) == (b"out\n", b"err\n")
        argv = await box.command(["printf", "%s|", "a b", "", "ü"]).ended()
        assert bytes(argv.out) == "a b||ü|".encode()
        assert (await box.command("exit 127").ended()).end["exit_code"] == 127
        killed = await box.command("kill -SEGV $$").ended()
        assert (killed.status, killed.end["signal"]) == ("signal", signal.SIGSEGV)

    drive(tmp_path, scenario)


def test_surroundings(tmp_path: Path) -> None:
    (tmp_path / "sub").mkdir()

    async def scenario(box: Box) -> None:
        found = await box.command("pwd; echo $KOOI $MORE", env={"MORE": "x y"}).ended()
        assert found.out.decode().splitlines() == [str(tmp_path), "yes x y"]
        relative = await box.command(["pwd"], cwd="sub", env={"KOOI": "no"}).ended()
        assert relative.out.decode().strip() == str(tmp_path / "sub")
        # What a program must find at its default, though Python ignores it: SIGPIPE, and no mask.
        status = await box.command(["grep", "^Sig[BI]", "/proc/self/status"]).ended()
        assert {line.split()[1] for line in status.out.decode().splitlines()} == {"0" * 16}
        assert bytes((await box.command("umask; ulimit -c; cat; echo end").ended()).out).endswith(b"end\n")
        assert (await box.command("yes | head -1").ended()).end["exit_code"] == 0
        assert (await box.command("cat /proc/self/oom_score_adj").ended()).out == b"1000\n"

    drive(tmp_path, scenario)


@pytest.mark.parametrize(
    ("argv", "cwd", "name"),
    [
        (["no-such-program"], None, "FileNotFoundError"),
        (["/etc/passwd"], None, "PermissionError"),
        (["/etc"], None, "PermissionError"),
        (["ls"], "no-such-folder", "FileNotFoundError"),
        (["./not-a-program"], None, "OSError"),
    ],
)
def test_what_cannot_start(tmp_path: Path, argv: list[str], cwd: str | None, name: str) -> None:
    (tmp_path / "not-a-program").write_bytes(b"\x7fELF rubbish")
    (tmp_path / "not-a-program").chmod(0o755)

    async def scenario(box: Box) -> None:
        command = await box.command(argv, cwd=cwd).ended()
        assert (command.status, command.error["name"]) == ("error", name)
        assert command.error["value"] and not command.out and not command.err

    drive(tmp_path, scenario)


def test_input_and_output(tmp_path: Path) -> None:
    async def scenario(box: Box) -> None:
        body = bytes(range(256)) * (12 * MIB // 256)
        copied = await box.command(["cat"], stdin=body).ended()
        assert bytes(copied.out) == body
        ignored = await box.command(["true"], stdin=body).ended()
        assert ignored.end["exit_code"] == 0
        empty = await box.command("wc -c", stdin=b"").ended()
        assert empty.out.split() == [b"0"]

    drive(tmp_path, scenario)


def test_back_pressure(tmp_path: Path) -> None:
    async def scenario(box: Box) -> None:
        kept = bytearray()

        def hold(data: bytes) -> bool:
            kept.extend(data)
            return False

        flood = box.command(["yes"], on_out=hold)
        await until(lambda: len(kept) >= frames.WINDOW)
        await asyncio.sleep(0.1)
        assert len(kept) == frames.WINDOW
        assert (await box.command("echo quick").ended()).out == b"quick\n"
        flood.call.signal(signal.SIGTERM)
        await asyncio.sleep(0.1)
        assert not flood.call.done.done(), "what it wrote before it died comes first"
        flood.call.grant()
        assert (await flood.ended()).end["signal"] == signal.SIGTERM

    drive(tmp_path, scenario)


def test_what_it_leaves_behind(tmp_path: Path) -> None:
    async def scenario(box: Box) -> None:
        command = await box.command("sleep 1000 & echo $!").ended()
        pid = int(command.out)
        assert (command.end["exit_code"], command.end["left"]) == (0, 1) and alive(pid)
        writer = await box.command("(sleep .3; echo late; echo late >&2; sleep 1000) & echo $!").ended()
        await asyncio.sleep(0.5)
        assert bytes(writer.out).count(b"\n") == 1 and alive(int(writer.out)), "nobody is killed by a closed pipe"
        for left in (pid, int(writer.out)):
            end_process(left)

    drive(tmp_path, scenario)


def test_kill(tmp_path: Path) -> None:
    async def scenario(box: Box) -> None:
        earlier = await box.command("setsid sleep 1000 & echo $!").ended()
        command = box.command("trap '' TERM INT; setsid sleep 1000 & sleep 1001 & echo $$ $!; wait; wait")
        while b"\n" not in command.out:
            await asyncio.sleep(0.01)
        shell, child = (int(word) for word in command.out.split())
        command.call.signal(signal.SIGTERM)
        await asyncio.sleep(0.1)
        assert alive(shell)
        command.call.signal(signal.SIGKILL)
        assert (await command.ended()).end["signal"] == signal.SIGKILL
        assert await gone(shell) and await gone(child)
        assert command.end["left"] == 1 and alive(int(earlier.out)), "what an earlier command left is not its business"

    drive(tmp_path, scenario)


def test_the_end_of_the_stream_ends_everything(tmp_path: Path) -> None:
    pids: list[int] = []

    async def scenario(box: Box) -> None:
        command = box.command(
            "setsid sh -c 'echo $$; sleep 1000 & exec sleep 1000' & (trap '' HUP TERM; sleep 1000) & echo $! $$; wait"
        )
        run = box.start("import os, time; print(os.getpid(), flush=True); time.sleep(1000)")
        while command.out.count(b"\n") < 2 or b"\n" not in run.out:
            await asyncio.sleep(0.01)
        pids.extend(int(word) for word in (command.out + run.out).split())

    drive(tmp_path, scenario)
    assert len(pids) == 4
    for pid in pids:
        assert asyncio.run(gone(pid))
    assert not [path for path in Path("/proc").glob("[0-9]*/cwd") if _leads_to(path, tmp_path)]


def _leads_to(link: Path, target: Path) -> bool:
    try:
        return link.readlink() == target
    except OSError:
        return False
