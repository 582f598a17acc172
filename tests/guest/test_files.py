"""Files of a real agent: exact bytes, exact names, every refusal an errno, nothing followed, nothing waited for."""

from __future__ import annotations

import asyncio
import errno
import os
import signal
import socket
import stat
from pathlib import Path
from typing import Any

import pytest

from kooi.guest import frames, shapes
from tests.guest.harness import Box, Spoken, drive, until

MIB = 1 << 20


async def write(box: Box, path: str, body: bytes, append: bool = False, mode: int | None = None) -> Any:
    return (await box.file("write", body, path=path, append=append, mode=mode)).end


async def entries(box: Box, path: str, recursive: bool = False) -> list[dict[str, Any]]:
    listing = await box.file("list", path=path, recursive=recursive)
    found = [entry for page in listing.events for entry in page["entries"]]
    assert listing.end == {"count": len(found)}, listing.end
    return found


@pytest.mark.parametrize("size", [0, 1, 4096, frames.CHUNK, frames.CHUNK + 1, MIB, 30 * MIB + 7])
def test_what_is_written_is_read(tmp_path: Path, size: int) -> None:
    body = os.urandom(min(size, MIB)) * (size // MIB + 1)

    async def scenario(box: Box) -> None:
        assert await write(box, "f", body[:size]) == {"size": size}
        assert (tmp_path / "f").read_bytes() == body[:size]
        read = await box.file("read", path="f")
        assert read.end == {"size": size} and bytes(read.data) == body[:size]
        assert await write(box, "f", b"tail", append=True) == {"size": 4}
        assert (tmp_path / "f").stat().st_size == size + 4
        assert await write(box, str(tmp_path / "f"), b"new", mode=0o640) == {"size": 3}
        assert (tmp_path / "f").read_bytes() == b"new"
        assert stat.S_IMODE((tmp_path / "f").stat().st_mode) == 0o640

    drive(tmp_path, scenario)


def test_refusals(tmp_path: Path) -> None:
    (tmp_path / "dir").mkdir()
    (tmp_path / "target").write_text("kept")
    (tmp_path / "link").symlink_to("target")
    (tmp_path / "dangling").symlink_to("nowhere")
    (tmp_path / "loop").symlink_to("loop")
    os.mkfifo(tmp_path / "fifo")
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(str(tmp_path / "socket"))

    async def scenario(box: Box) -> None:
        for path, number in [
            ("nowhere", errno.ENOENT), ("dir", errno.EISDIR), ("fifo", errno.EINVAL), ("loop", errno.ELOOP),
            ("socket", errno.ENXIO), ("/dev/null", errno.EINVAL), ("target/x", errno.ENOTDIR), ("", errno.ENOENT),
            ("x" * 300, errno.ENAMETOOLONG), ("x/" * 3000, errno.ENAMETOOLONG), ("dangling", errno.ENOENT),
        ]:  # fmt: skip
            end = (await box.file("read", path=path)).end
            assert end["errno"] == number and end["message"], (path, end)
        for path, number in [
            ("dir", errno.EISDIR), ("fifo", errno.ENXIO), ("link", errno.ELOOP), ("dangling", errno.ELOOP),
            ("no/where", errno.ENOENT), ("/dev/null", errno.EINVAL), ("socket", errno.ENXIO),
            ("/proc/self/oom_score_adj", errno.EACCES), ("/proc/self/comm", errno.EACCES),
        ]:  # fmt: skip
            end = await write(box, path, b"x" * 300_000)
            assert end["errno"] == number and end["message"], (path, end)
        assert (tmp_path / "target").read_text() == "kept" and not (tmp_path / "nowhere").exists()
        assert bytes((await box.file("read", path="link")).data) == b"kept"
        assert bytes((await box.file("read", path="/proc/self/comm")).data).strip()
        for op, fields, number in [
            ("stat", {"path": "nowhere"}, errno.ENOENT),
            ("list", {"path": "target", "recursive": False}, errno.ENOTDIR),
            ("list", {"path": "nowhere", "recursive": True}, errno.ENOENT),
            ("mkdir", {"path": "dir", "parents": False}, errno.EEXIST),
            ("mkdir", {"path": "a/b", "parents": False}, errno.ENOENT),
            ("mkdir", {"path": "target/b", "parents": True}, errno.ENOTDIR),
            ("mkdir", {"path": "target", "parents": True}, errno.EEXIST),
            ("remove", {"path": "nowhere", "recursive": True}, errno.ENOENT),
        ]:  # fmt: skip
            end = (await box.file(op, **fields)).end
            assert end.get("errno") == number, (op, fields, end)

    drive(tmp_path, scenario)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can make a full file system")
def test_a_full_disk_is_an_errno_and_the_channel_ends(tmp_path: Path) -> None:
    async def scenario(box: Box) -> None:
        mounted = await box.command(["mount", "-t", "tmpfs", "-o", "size=1m", "none", str(tmp_path)]).ended()
        if mounted.end["exit_code"] != 0:
            pytest.skip("no mount here")
        try:
            end = await write(box, str(tmp_path / "f"), b"x" * 5 * MIB)
            assert end["errno"] == errno.ENOSPC and end["message"] == "No space left on device"
            assert await write(box, str(tmp_path / "f"), b"ok") == {"size": 2}
        finally:
            assert (await box.command(["umount", str(tmp_path)]).ended()).end["exit_code"] == 0

    drive(Path("/"), scenario)


def test_directories(tmp_path: Path) -> None:
    async def scenario(box: Box) -> None:
        assert (await box.file("mkdir", path="a", parents=False)).end == {}
        assert (await box.file("mkdir", path="a/b/c/d", parents=True)).end == {}
        assert (await box.file("mkdir", path="a/b/c/d/", parents=True)).end == {}
        assert stat.S_IMODE((tmp_path / "a/b").stat().st_mode) == 0o755
        await write(box, "a/b/f", b"xyz", mode=0o600)
        (tmp_path / "a/link").symlink_to("/etc")
        assert [entry["path"] for entry in await entries(box, "a", recursive=True)] == [
            "a/b", "a/link", "a/b/c", "a/b/f", "a/b/c/d",
        ]  # fmt: skip
        found = {entry["name"]: entry for entry in await entries(box, "a/b")}
        assert found["f"].items() >= {"path": "a/b/f", "type": "file", "size": 3, "mode": 0o600, "target": None}.items()
        assert found["c"]["type"] == "dir"
        link = (await box.file("stat", path="a/link")).end["entry"]
        assert (link["type"], link["target"], link["name"]) == ("link", "/etc", "link")
        assert [entry["name"] for entry in await entries(box, ".")] == ["a"]
        assert [entry["path"] for entry in await entries(box, ".")] == ["a"]
        assert (await entries(box, str(tmp_path)))[0]["path"] == str(tmp_path / "a")
        assert (await box.file("remove", path="a", recursive=False)).end["errno"] == errno.ENOTEMPTY
        assert (await box.file("remove", path="a/b/f", recursive=False)).end == {}
        assert (await box.file("remove", path="a", recursive=True)).end == {}
        assert not (tmp_path / "a").exists() and Path("/etc/passwd").exists()

    drive(tmp_path, scenario)


def test_names_that_are_not_text(tmp_path: Path) -> None:
    names = [b"caf\xe9", b"\xff\xfe", "ü😀".encode(), b"new\nline", b"back\\xe9slash", b"quote\"'", b"\x01\x7f"]
    for name in names:
        (tmp_path / os.fsdecode(name)).write_bytes(b"")
    os.symlink(b"to\xff", os.fsencode(tmp_path) + b"/link")

    async def scenario(box: Box) -> None:
        found = {entry["name"]: entry for entry in await entries(box, ".")}
        assert set(found) == {name.decode("utf-8", "backslashreplace") for name in names} | {"link"}
        assert found["caf\\xe9"]["exact"] is False and found["link"]["exact"] is False
        assert "exact" not in found["back\\xe9slash"] and "exact" not in found["ü😀"]
        assert bytes((await box.file("read", path="ü😀")).data) == b""
        end = (await box.file("read", path="gone\udcff".encode("utf-8", "replace").decode())).end
        assert end["errno"] == errno.ENOENT

    drive(tmp_path, scenario)


def test_a_large_directory_comes_in_pages_as_the_host_takes_them(tmp_path: Path) -> None:
    for index in range(8_000):
        (tmp_path / f"{index:05d}-{'x' * 60}").touch()

    async def scenario(box: Box) -> None:
        pages: list[int] = []

        def hold(page: Any) -> bool:
            pages.append(len(page["entries"]))
            return False

        fields = {"path": ".", "recursive": False}
        listing = Spoken(box.client, "file.list", fields, b"", on_event=hold)
        await until(lambda: bool(pages))
        await asyncio.sleep(0.3)
        assert 0 < sum(pages) < 8_000 and max(pages) <= shapes.PAGE
        assert await write(box, "meanwhile", b"x") == {"size": 1}
        while not listing.call.done.done():
            listing.call.grant()
            await asyncio.sleep(0.001)
        assert sum(pages) == (await listing.ended()).end["count"] == 8_000
        abandoned = Spoken(box.client, "file.list", fields, b"", on_event=lambda page: False)
        await asyncio.sleep(0.2)
        abandoned.call.signal(signal.SIGKILL)
        assert (await abandoned.ended()).end["errno"] == errno.ECANCELED
        assert (await box.file("remove", path=str(tmp_path), recursive=True)).end == {}

    drive(tmp_path, scenario)


@pytest.mark.parametrize(("depth", "listed"), [(2_500, True), (10_000, False)])
def test_a_deep_tree(tmp_path: Path, depth: int, listed: bool) -> None:
    back = os.open(".", os.O_RDONLY)
    try:
        os.chdir(tmp_path)
        for _ in range(depth):
            os.mkdir("d")
            os.chdir("d")
    finally:
        os.fchdir(back)
        os.close(back)

    async def scenario(box: Box) -> None:
        deepest: list[str] = []
        fields = {"path": ".", "recursive": True}
        if listed:
            last = lambda page: deepest.append(page["entries"][-1]["path"])  # noqa: E731
            listing = Spoken(box.client, "file.list", fields, b"", on_event=last)
            assert (await listing.ended()).end == {"count": depth}
            assert deepest[-1] == "/".join(["d"] * depth)
        assert (await box.file("remove", path="d", recursive=True)).end == {}

    drive(tmp_path, scenario)
    assert not (tmp_path / "d").exists()


def test_a_file_that_changes_under_the_reader(tmp_path: Path) -> None:
    async def scenario(box: Box) -> None:
        (tmp_path / "f").write_bytes(b"x" * 20 * MIB)
        sizes: list[int] = []

        def shrink(data: bytes) -> None:
            if not sizes:
                os.truncate(tmp_path / "f", 2 * MIB)
            sizes.append(len(data))

        read = await Spoken(box.client, "file.read", {"path": "f"}, b"", on_data=shrink).ended()
        assert 2 * MIB <= read.end["size"] == sum(sizes) <= 20 * MIB

    drive(tmp_path, scenario)


def test_the_helper_may_die(tmp_path: Path) -> None:
    async def scenario(box: Box) -> None:
        await write(box, "f", b"x")
        interpreter = (await box.run("import os; os.getpid()")).value
        children = Path(f"/proc/{box.process.pid}/task/{box.process.pid}/children").read_text().split()
        (helper,) = (int(pid) for pid in children if pid != interpreter)
        os.kill(helper, signal.SIGSTOP)
        waiting = [asyncio.create_task(box.file("stat", path="f")) for _ in range(100)]
        writing = asyncio.create_task(write(box, "g", b"y" * MIB))
        await asyncio.sleep(0.2)
        assert not any(task.done() for task in waiting)
        assert (await box.run("1")).value == "1"
        os.kill(helper, signal.SIGKILL)
        for task in waiting:
            assert (await task).end["errno"] == errno.EIO
        assert (await writing)["errno"] == errno.EIO
        assert await write(box, "f", b"again") == {"size": 5}

    drive(tmp_path, scenario)


def test_transfers_can_be_given_up(tmp_path: Path) -> None:
    async def scenario(box: Box) -> None:
        (tmp_path / "f").write_bytes(b"x" * 20 * MIB)
        reading = Spoken(box.client, "file.read", {"path": "f"}, b"", on_data=lambda data: False)
        await asyncio.sleep(0.1)
        reading.call.signal(signal.SIGKILL)
        assert (await reading.ended()).end["errno"] == errno.ECANCELED
        fields = {"path": "g", "append": False, "mode": None}
        call = box.client.open("file.write", fields, body=b"part", end_input=False)
        await until(lambda: (tmp_path / "g").exists() and (tmp_path / "g").read_bytes() == b"part")
        call.signal(signal.SIGKILL)
        assert (await call.done)["errno"] == errno.ECANCELED
        assert (tmp_path / "g").read_bytes() == b"part"

    drive(tmp_path, scenario)


def test_many_at_once(tmp_path: Path) -> None:
    async def scenario(box: Box) -> None:
        ends = await asyncio.gather(*(write(box, f"f{index}", b"%d" % index * 50_000) for index in range(200)))
        assert all("size" in end for end in ends)
        reads = await asyncio.gather(*(box.file("read", path=f"f{index}") for index in range(200)))
        assert all(bytes(read.data) == b"%d" % index * 50_000 for index, read in enumerate(reads))

    drive(tmp_path, scenario)
