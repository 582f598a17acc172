"""A container engine behind its unix socket: Docker, or Podman by the interface that it shares with Docker.

Images are loaded once for each digest, from the store's own tree, and named by the id that the engine gave. Containers
carry a label that says whose they are; those of an owner that is dead are removed when the next one comes.
"""

from __future__ import annotations

import asyncio
import os
import socket
import tarfile
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from kooi.contract.backend import HostFacts
from kooi.contract.errors import KooiError, LevelUnavailable, SetupFailed
from kooi.contract.spec import Spec
from kooi.images import export
from kooi.images.host import View
from kooi.images.store import Store
from kooi.images.view import OWN, Images
from kooi.linux import seccomp
from kooi.oci import bundle, engine_config, program, runtimes, unixhttp
from kooi.oci.engine_box import EngineBox
from kooi.oci.unixhttp import EngineError
from kooi.settings import load_settings, private_dir
from kooi.spawn import datasets, journal
from kooi.spawn.ids import IdPairs
from kooi.spawn.leases import Lease, Leases

# With a number that says how it was written.
REPOSITORY = "localhost/kooi-image-1"
UID_BLOCK = 4096
_SECONDS = 10.0


class Engine:
    """The containers of one engine."""

    #: where it is told what a container is
    creation = "/containers/create"

    def __init__(self, name: str, path: str, fix: str) -> None:
        self.name = name
        self.path = path
        self.about = ""
        self.remapped = False
        self._fix = fix
        self._images = Images()
        self._ids: dict[str, str] = {}
        self._loading: dict[tuple[asyncio.AbstractEventLoop, str], asyncio.Task[str]] = {}
        self._lease: Lease | None = None
        self._pairs: IdPairs | None = None
        self._boxes: set[EngineBox] = set()
        self._pid = os.getpid()

    async def connect(self) -> None:
        """Find out what the engine is, and remove what dead owners left. Raises `LevelUnavailable`."""
        version = await self._asked("GET", "/version")
        info = await self._asked("GET", "/info")
        options = [str(each) for each in info.get("SecurityOptions") or []]
        self.remapped = any("name=userns" in each or "name=rootless" in each for each in options)
        self.about = _about(version, self.remapped)
        await self._remove_orphans()

    def plan(self, spec: Spec, facts: HostFacts, image: str, *, uid: int, name: str = "") -> dict[str, Any]:
        """Return the body of the request that would create the container."""
        view = self._images.view(self._images.pin(image), spec.preload)
        return self.body(spec, facts, view, program.command(view.python, 0), image=name or image, uid=uid)

    def body(
        self, spec: Spec, facts: HostFacts, view: View, command: list[str], *, image: str, uid: int
    ) -> dict[str, Any]:
        """Return the same, in the words of this engine."""
        profile = engine_config.profile_text(os.uname().machine)
        return engine_config.config(
            spec, facts, view, command, image=image, uid=uid, owner=owner_label(), profile=profile
        )  # fmt: skip

    def explain(self, spec: Spec, facts: HostFacts, image: str) -> Mapping[str, Any]:
        """Return the same, of an example: the id is another for each box."""
        return self.plan(spec, facts, image, uid=bundle.CODE_ID)

    async def open(self, spec: Spec, facts: HostFacts, image: str) -> EngineBox:
        """Ask for a container; it is not there yet when this returns."""
        digest = self._images.pin(image)
        if spec.policy.datasets:
            datasets.check(spec.policy.datasets, own_ids=True)
        view = self._images.view(digest, spec.preload)
        told = program.settings(
            bundle.guest(view), bundle.warm(spec, view), seccomp.program(*bundle.restrictions(spec, facts)).code,
            fresh_interpreters=spec.fresh, gate=False, folders=engine_config.FOLDERS,
        )  # fmt: skip
        uid, free = self._take_uid()
        calls = _Calls(self, spec, facts, digest, uid)
        made: list[EngineBox] = []

        def freed() -> None:
            free()
            self._boxes.discard(made[0])

        made.append(EngineBox(calls, program.encode(told), freed))
        self._boxes.add(made[0])
        return made[0]

    async def close(self) -> None:
        """Kill every container; safe twice."""
        if self._pid != os.getpid():
            return
        for box in list(self._boxes):
            await box.kill()
            box.stream.close()
        if self._lease is not None:
            self._lease.release()
            self._lease = self._pairs = None
        self._images.release()

    async def image(self, digest: str) -> str:
        """Return the engine's id of an image of the store; it is loaded where the engine does not have it."""
        known = self._ids.get(digest)
        if known is not None:
            return known
        loop = asyncio.get_running_loop()
        task = self._loading.get((loop, digest))
        if task is None or task.done():
            task = self._loading[loop, digest] = loop.create_task(self._load(digest))
        self._ids[digest] = await asyncio.shield(task)
        return self._ids[digest]

    def forget_image(self, digest: str) -> None:
        """Look for an image again the next time: somebody has removed it."""
        self._ids.pop(digest, None)

    async def _load(self, digest: str) -> str:
        # In the name and not the tag, which Podman does not take.
        name = f"{REPOSITORY}-{digest}"
        try:
            return str((await unixhttp.call(self.path, "GET", f"/images/{name}/json"))["Id"])
        except EngineError as error:
            if error.status != 404:
                raise
        store = Store.of_user()
        with tempfile.TemporaryDirectory(prefix=".kooi-load-", dir=store.folder) as folder:
            path = Path(folder) / "image.tar"
            await asyncio.to_thread(_write_tar, store, digest, path)
            with open(path, "rb") as file:
                await unixhttp.upload(self.path, "/images/create", file, fromSrc="-", repo=name, tag="latest")
        return str((await unixhttp.call(self.path, "GET", f"/images/{name}/json"))["Id"])

    async def _remove_orphans(self) -> None:
        """Remove the containers of owners that are dead. They have ended already, for their input did."""
        filters = '{"label":["' + engine_config.LABEL + '"]}'
        for each in await unixhttp.call(self.path, "GET", "/containers/json", all="true", filters=filters):
            if not _lives(str((each.get("Labels") or {}).get(engine_config.LABEL))):
                try:
                    await unixhttp.call(self.path, "DELETE", f"/containers/{each['Id']}", force="true", v="true")
                except EngineError as error:
                    if error.status not in (404, 409):
                        raise

    async def _asked(self, method: str, target: str) -> Any:
        try:
            return await asyncio.wait_for(unixhttp.call(self.path, method, target), _SECONDS)
        except (asyncio.TimeoutError, OSError) as error:
            why = getattr(error, "strerror", None) or f"no answer within {_SECONDS:g} s"
            raise LevelUnavailable(
                f"{self.name} does not answer at {self.path}: {why}", key="level", fix=self._fix
            ) from error

    def _take_uid(self) -> tuple[int, Any]:
        if self.remapped:
            # Any id is one of the engine's own subordinate ids on the host.
            return bundle.CODE_ID, lambda: None
        if self._pairs is None:
            settings = load_settings()
            leases = Leases(str(private_dir(settings.run_dir)), settings.uid_base, settings.uid_count, block=UID_BLOCK)
            self._lease = leases.take()
            leases.close()
            self._pairs = IdPairs(self._lease.count)
        pair = self._pairs.take()
        if pair is None or self._lease is None:
            raise SetupFailed("all ids of the leased block are in use", fix="close sandboxes")
        pairs = self._pairs
        return self._lease.base + pair[0] - 1, lambda: pairs.give_back(pair)


class _Calls:
    """What one box asks of its engine."""

    def __init__(self, engine: Engine, spec: Spec, facts: HostFacts, digest: str, uid: int) -> None:
        self.name = engine.name
        self._engine = engine
        self._spec, self._facts, self._digest, self._uid = spec, facts, digest, uid
        self._oom = False

    async def create(self) -> str:
        try:
            return await self._create()
        except EngineError as error:
            if error.status != 404:
                raise _plain(error)
            # Somebody has removed the image under us: the store has it still.
            self._engine.forget_image(self._digest)
            return await self._create()

    async def _create(self) -> str:
        engine = self._engine
        name = await engine.image(self._digest)
        body = engine.plan(self._spec, self._facts, self._digest, uid=self._uid, name=name)
        return str((await unixhttp.call(engine.path, "POST", engine.creation, body))["Id"])

    async def attach(self, ident: str) -> tuple[socket.socket, bytes]:
        query = {"stream": "1", "stdin": "1", "stdout": "1", "stderr": "1"}
        return await unixhttp.hijack(self._engine.path, f"/containers/{ident}/attach", **query)

    async def start(self, ident: str) -> int:
        path = self._engine.path
        try:
            await unixhttp.call(path, "POST", f"/containers/{ident}/start")
            state = (await unixhttp.call(path, "GET", f"/containers/{ident}/json"))["State"]
        except EngineError as error:
            raise _plain(error)
        pid = int(state.get("Pid") or 0)
        return pid if pid and _is_ours(pid, ident) else 0

    async def kill(self, ident: str) -> None:
        try:
            await unixhttp.call(self._engine.path, "DELETE", f"/containers/{ident}", force="true", v="true")
        except EngineError as error:
            if error.status not in (404, 409):
                raise

    async def gone(self, ident: str) -> bool:
        try:
            state = (await unixhttp.call(self._engine.path, "GET", f"/containers/{ident}/json"))["State"]
            self._oom = self._oom or bool(state.get("OOMKilled"))
        except EngineError as error:
            return error.status == 404
        return False

    async def pause(self, ident: str, on: bool) -> None:
        await unixhttp.call(self._engine.path, "POST", f"/containers/{ident}/{'pause' if on else 'unpause'}")

    async def killed_for_memory(self, ident: str) -> bool:
        return self._oom


def _plain(error: EngineError) -> KooiError:
    """Return an engine's error with what would help."""
    if "no space left" in error.message.lower():
        return SetupFailed(f"the engine's disk is full: {error.message}", fix="free space in the engine's data folder")
    return error


def _about(version: Mapping[str, Any], remapped: bool) -> str:
    said = f"version {version.get('Version')} starts one"
    for each in version.get("Components") or ():
        name = str(each.get("Name", "")).lower()
        number = runtimes.number(str(each.get("Version", "")))
        if name in runtimes.RUNTIMES and number is not None:
            known = runtimes.breakouts(name, number)
            said += f", with {name} {each.get('Version')}"
            said += (
                f" (by its number it has {', '.join(known)}: see that your distribution has fixed them)"
                if known
                else ""
            )
    own = (
        "in a user namespace" if remapped else "without a user namespace: the engine has none (userns-remap, rootless)"
    )
    return f"{said}, {own}"


def owner_label() -> str:
    """Return whose containers those of this process are: a process that can be told from all others."""
    pid = os.getpid()
    return f"{pid}:{journal.start_time(pid)}:{journal.pid_namespace()}:{journal.boot_id()}"


def _lives(owner: str) -> bool:
    """Say whether the process that a label names is still there, as far as it can be seen from here."""
    try:
        pid, started, namespace, boot = owner.split(":")
        if boot != journal.boot_id():
            return False
        # In another pid namespace the number means somebody else, or nobody.
        return int(namespace) != journal.pid_namespace() or journal.start_time(int(pid)) == int(started)
    except ValueError:
        return True


def _is_ours(pid: int, ident: str) -> bool:
    """Say whether a pid that the engine gives is that container's here too, and not one of another machine."""
    try:
        with open(f"/proc/{pid}/cgroup", "rb") as file:
            return ident.encode() in file.read()
    except OSError:
        return False


def _write_tar(store: Store, digest: str, path: Path) -> None:
    """Write an image as an engine loads it: its /tmp is a link into the one tmpfs that a container has."""
    entries = [each for each in store.manifest(digest) if each.path.split("/")[0] not in OWN]
    export.export(store.tree(digest), entries, store.meta(digest), "kooi", path, "tar", lambda _: None)
    with tarfile.open(path, "a") as tar:
        for name in sorted({*OWN} - {name for name, _ in engine_config.LINKS}):
            member = tarfile.TarInfo(name)
            # A runtime gives a tmpfs the mode of the folder that it is mounted on.
            member.type, member.mode = tarfile.DIRTYPE, 0o1777 if name == "home" else 0o755
            tar.addfile(member)
        for name, target in engine_config.LINKS:
            member = tarfile.TarInfo(name)
            member.type, member.linkname, member.mode = tarfile.SYMTYPE, target, 0o777
            tar.addfile(member)
