"""What code in a box can make its agent and the host hold, or say, by what it lets them read."""

from __future__ import annotations

import asyncio
import errno
from collections.abc import Iterator

import pytest

from kooi import AsyncSandbox, Limits, Result
from kooi.engine import filesystem, registry
from tests.levels import need

DEEP = """
import os
for _ in range(40):
    os.mkdir("d" * 250)
    os.chdir("d" * 250)
for number in range(400):
    os.close(os.open(str(number), os.O_CREAT | os.O_WRONLY))
"""
FORGED = """
import os
def text(data):
    return len(data).to_bytes(4, "big") + data
body = (1).to_bytes(4, "big") + b"".join(text(kind) + text(b"v") for kind in {kinds})
os.write(63, b"R" + len(body).to_bytes(4, "big") + body)
"""


@pytest.fixture(autouse=True)
def jail() -> Iterator[None]:
    """Need the level."""
    need("jail")
    yield


def drive(code: str, *, then: str = "", limits: Limits | None = None) -> Result:
    """Run `code` in a jail, then list the folder `then`."""

    async def main() -> Result:
        try:
            async with AsyncSandbox("jail", limits=limits) as box:
                result = await box.run(code)
                if then:
                    await box.files.list(then, recursive=True)
                return result
        finally:
            await registry.close_all()

    return asyncio.run(main())


def test_long_paths_do_not_fill_the_host(monkeypatch: pytest.MonkeyPatch) -> None:
    assert drive(DEEP, then=".").ok
    monkeypatch.setattr(filesystem, "MAX_LIST_CHARACTERS", 1 << 20)
    with pytest.raises(OSError) as caught:
        drive(DEEP, then=".")
    assert caught.value.errno == errno.EFBIG


@pytest.mark.parametrize("kinds", ["[b'']", "[b'%d' % n for n in range(70)]", "[bytes(60000)]"])
def test_a_forged_result_is_the_end_of_its_interpreter_not_of_the_sandbox(kinds: str) -> None:
    result = drive(FORGED.format(kinds=kinds), limits=Limits(wall_seconds=5))
    assert (result.status, result.signal) == ("signal", 9), result.status
