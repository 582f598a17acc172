"""Containers of a runtime without a daemon: one warden per event loop, bundles and programs kept by spec."""

from __future__ import annotations

import asyncio
import dataclasses
import hashlib
import marshal
import os
from collections.abc import Mapping
from typing import Any, NamedTuple

from kooi.contract.backend import HostFacts
from kooi.contract.errors import SetupFailed
from kooi.contract.spec import Spec
from kooi.images.host import HOME
from kooi.images.view import Images
from kooi.linux import libc, seccomp
from kooi.oci import bundle, program
from kooi.oci.inside import PROGRAM_FD
from kooi.oci.runtimes import Runtime
from kooi.settings import Settings, load_settings, private_dir
from kooi.spawn import datasets
from kooi.spawn.handle import SpawnedBox, SpawnerHandle
from kooi.spawn.handles import Handles

UID_BLOCK = 4096
_KEPT = 64
_MFD_CLOEXEC, _MFD_ALLOW_SEALING = 1, 2


class WardenHandle(SpawnerHandle):
    """One warden process, and which kinds of containers it knows."""

    module = "kooi.oci.warden"

    def __init__(self, loop: asyncio.AbstractEventLoop, config: Mapping[str, Any]) -> None:
        super().__init__(loop, config)
        self.has: set[str] = set()

    def start(self, runtime: Runtime, compiled: Compiled) -> SpawnedBox:
        """Ask for a container."""
        made, kind = compiled.bundle, compiled.kind
        head: dict[str, Any] = {"memory": made.memory_bytes, "processes": made.processes, "kind": kind}
        if kind in self.has:
            return self.ask(head, b"", HOME)
        if len(self.has) >= _KEPT:
            self.send({"op": "forget"})
            self.has.clear()
        fd = _in_memory(program.encode(compiled.told))
        try:
            box = self.ask({**head, "argv": runtime.argv(bundle.BUNDLE)}, compiled.bundle.encode(), HOME, (fd,))
        finally:
            os.close(fd)
        self.has.add(kind)
        return box


class Compiled(NamedTuple):
    """A bundle, what its process 1 is told, and a digest of both: containers of one kind are interchangeable."""

    bundle: bundle.Bundle
    told: Mapping[str, Any]
    kind: str


class Service:
    """The containers that one runtime starts."""

    def __init__(self, runtime: Runtime) -> None:
        self.runtime = runtime
        self.name = runtime.name
        self._settings: Settings | None = None
        self._handles = Handles(WardenHandle, self._config)
        self._images = Images()
        self._compiled: dict[tuple[Spec, str], Compiled] = {}
        self._pid = os.getpid()

    @property
    def about(self) -> str:
        """What is to be known about the runtime."""
        said = f"version {self.runtime.version} starts one, in a user namespace of its own"
        known = ", ".join(self.runtime.breakouts)
        return said + (f"; by its number it has {known}: see that your distribution has fixed them" if known else "")

    async def connect(self) -> None:
        """There is nobody to connect to."""

    def explain(self, spec: Spec, facts: HostFacts, image: str) -> Mapping[str, Any]:
        """Return the bundle of a spec."""
        return dataclasses.asdict(self.plan(spec, facts, image).bundle)

    def plan(self, spec: Spec, facts: HostFacts, image: str) -> Compiled:
        """Return the bundle of a spec; kept. Raises `InvalidPolicy` with the key `image` for one that is not there."""
        digest = self._images.pin(image)
        known = self._compiled.get((spec, digest))
        if known is None:
            if len(self._compiled) >= _KEPT:
                self._compiled.clear()
            known = self._compiled[spec, digest] = self._compile(spec, facts, digest)
        return known

    async def open(self, spec: Spec, facts: HostFacts, image: str) -> SpawnedBox:
        """Ask for a container; it may not be there yet when this returns. Raises `SetupFailed`."""
        compiled = self.plan(spec, facts, image)
        if spec.policy.datasets:
            datasets.check(spec.policy.datasets, own_ids=True)
        handle = self.handle()
        found = await handle.started()
        if facts.cgroup_writable and handle.reader is None:
            why = found.get("reason", "no reason given")
            raise SetupFailed(f"control groups were there and the warden has none: {why}", fix="see `kooi doctor`")
        return handle.start(self.runtime, compiled)

    def handle(self) -> WardenHandle:
        """Return the warden of the running loop, starting one if there is none."""
        return self._handles.mine()

    async def close(self) -> None:
        """End every warden of this process; safe twice."""
        if self._pid != os.getpid():
            return
        await self._handles.close()
        self._compiled.clear()
        self._images.release()

    def _compile(self, spec: Spec, facts: HostFacts, digest: str) -> Compiled:
        view = self._images.view(digest, spec.preload)
        machine = os.uname().machine
        made = bundle.bundle(spec, facts, view, program.command(view.python, PROGRAM_FD), machine, self.runtime.name)
        told = program.settings(
            bundle.guest(view), bundle.warm(spec, view), seccomp.program(*bundle.restrictions(spec, facts)).code,
            fresh_interpreters=spec.fresh, gate=True,
        )  # fmt: skip
        return Compiled(made, told, hashlib.sha256(made.encode() + marshal.dumps(told)).hexdigest())

    def _config(self) -> Mapping[str, Any]:
        if self._settings is None:
            self._settings = load_settings()
        settings = self._settings
        return {
            "owner": os.getpid(),
            "run_dir": str(private_dir(settings.run_dir)),
            "uid_base": settings.uid_base,
            "uid_count": settings.uid_count,
            "uid_block": UID_BLOCK,
            "ahead": min(settings.blanks_ready, 2),
            "groups": self.runtime.groups,
        }


def _in_memory(data: bytes) -> int:
    """Return a descriptor of a file that is nowhere and holds `data`."""
    fd: int = libc.syscall(libc.nr("memfd_create"), b"kooi", _MFD_CLOEXEC | _MFD_ALLOW_SEALING)
    view = memoryview(data)
    while view:
        view = view[os.write(fd, view) :]
    return fd
