"""The one place where proofs touch the sandbox: open one, run once, and ask which levels there are.

The proofs need little of a sandbox (`BoxLike`), so a test can put a broken one in its place and see that no proof
takes it for a safe one.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from typing import Protocol

from kooi.contract.backend import Availability
from kooi.contract.result import Result
from kooi.contract.spec import Spec


class FilesLike(Protocol):
    """The part of the files API that proofs use."""

    async def read_bytes(self, path: str) -> bytes:
        """Return the content."""
        ...

    async def write(self, path: str, data: bytes) -> int:
        """Write the content; return its size."""
        ...


class BoxLike(Protocol):
    """The part of a sandbox that proofs use."""

    @property
    def files(self) -> FilesLike:
        """The files API."""
        ...

    async def run(self, code: str) -> Result:
        """Run code in the default context."""
        ...

    async def close(self) -> None:
        """End it."""
        ...


Opener = Callable[[Spec], Awaitable[BoxLike]]


async def open_box(spec: Spec) -> BoxLike:
    """Open one sandbox."""
    from kooi.sandbox import AsyncSandbox

    box = AsyncSandbox(spec=spec)
    await box.__aenter__()
    return box


async def run_once(spec: Spec, code: str) -> Result:
    """Run code in a sandbox of its own; nothing of it is left when this returns."""
    from kooi import sandbox

    return await sandbox.run(code, spec=spec)


async def probe_all() -> Mapping[str, Availability]:
    """Return every level that is built in or installed, and whether it runs here."""
    from kooi.engine import registry

    return await registry.probe_all()


async def close_all() -> None:
    """Close every helper that stays warm between sandboxes."""
    from kooi.engine import registry

    await registry.close_all()
