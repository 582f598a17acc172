"""Files: what the guest says is checked and capped; what failed inside is the caller's OSError."""

from __future__ import annotations

import asyncio
import errno
from collections.abc import Callable
from typing import Any

import pytest

from kooi.contract.errors import InvalidRequest, SandboxClosed, SandboxLost
from kooi.engine import filesystem
from kooi.sandbox import AsyncSandbox
from tests.engine.fakes import FakeBackend

Run = Callable[..., Any]


def test_files_go_in_and_out_whole(fake: FakeBackend, run: Run) -> None:
    async def main() -> None:
        content = bytes(range(256)) * 20_000
        async with AsyncSandbox("fake", files={"first": "text \u00e4"}) as box:
            assert await box.files.read("first") == "text \u00e4"
            assert await box.files.write("x", content) == len(content)
            assert await box.files.read_bytes("x") == content
            assert await box.files.write("x", b"more", append=True) == 4
            assert len(await box.files.read_bytes("x")) == len(content) + 4
            (entry, *_) = await box.files.list(".")
            assert (entry.name, entry.type, entry.mtime, entry.exact) == (".", "file", 1.5, True)
            assert (await box.files.stat("x")).path == "x"
            await box.files.remove("x")
            with pytest.raises(FileNotFoundError):
                await box.files.read("x")

    run(main())


def test_a_file_larger_than_asked_for_is_refused_without_being_held(fake: FakeBackend, run: Run) -> None:
    async def main() -> None:
        async with AsyncSandbox("fake", files={"x": b"x" * 10_000_000}) as box:
            with pytest.raises(OSError) as caught:
                await box.files.read_bytes("x", max_bytes=1000)
            assert caught.value.errno == errno.EFBIG
            assert len(await box.files.read_bytes("x", max_bytes=10_000_000)) == 10_000_000

    run(main())


def test_an_endless_list_is_cut(fake: FakeBackend, run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(filesystem, "MAX_ENTRIES", 1000)

    async def main() -> None:
        async with AsyncSandbox("fake") as box:
            with pytest.raises(OSError, match="more than 1000 entries"):
                await box.files.list("endless")
            assert (await box.run("ok")).ok

    run(main())


def test_a_guest_that_never_answers_loses_its_box(fake: FakeBackend, run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    async def main() -> None:
        async with AsyncSandbox("fake") as box:
            held = await box._ready()
            with pytest.raises(SandboxLost, match="did not answer"):
                await filesystem._Exchange(held, "silent").do("file.stat", patience=0.05)
            with pytest.raises(SandboxLost):
                await box.run("ok")

    run(main())


def test_closing_under_a_transfer(fake: FakeBackend, run: Run) -> None:
    async def main() -> None:
        box = AsyncSandbox("fake")
        transfer = asyncio.ensure_future(box.files.read("silent"))
        await asyncio.sleep(0.05)
        await box.close()
        with pytest.raises(SandboxClosed):
            await transfer

    run(main())


def test_a_cancelled_transfer_is_given_up(fake: FakeBackend, run: Run) -> None:
    async def main() -> None:
        async with AsyncSandbox("fake") as box:
            transfer = asyncio.ensure_future(box.files.list("endless"))
            await asyncio.sleep(0.05)
            transfer.cancel()
            with pytest.raises(asyncio.CancelledError):
                await transfer
            assert (await box.run("out fine")).stdout == "fine"

    run(main())


def test_bad_paths_never_reach_the_guest(fake: FakeBackend, run: Run) -> None:
    async def main() -> None:
        async with AsyncSandbox("fake") as box:
            for bad in ("", "a\0b", "\udc80", 5, b"x"):
                with pytest.raises(InvalidRequest):
                    await box.files.read(bad)  # type: ignore[arg-type]

    run(main())
