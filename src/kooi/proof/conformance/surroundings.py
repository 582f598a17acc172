"""Checks of what code finds around it: files, environment, descriptors, programs."""

from __future__ import annotations

import os
import secrets
import tempfile
from dataclasses import replace
from pathlib import Path

from kooi.contract.errors import KooiError
from kooi.contract.policy import Dataset, Policy
from kooi.proof.conformance.base import Check, NotAtThisLevel, box, ok, same, spec_of, true
from kooi.sandbox import AsyncSandbox


async def files_round_trip(level: str) -> None:
    """A file goes in and comes out unchanged, text and bytes, and the code sees it too."""
    data = bytes(range(256)) * 5000
    async with box(level) as it:
        same(await it.files.write("a.bin", data), len(data), "the size written")
        ok(await it.run("d = open('a.bin', 'rb').read(); print(len(d)); open('b.bin', 'wb').write(d[::-1])"))
        true(await it.files.read_bytes("b.bin") == data[::-1], "the file that came out differs")
        await it.files.write("text.txt", "ü\n")
        await it.files.write("text.txt", "more", append=True)
        same(await it.files.read("text.txt"), "ü\nmore", "the text")
        await it.files.write("empty", b"")
        same(await it.files.read_bytes("empty"), b"", "the empty file")


async def folders(level: str) -> None:
    """Folders can be made, listed, described and removed."""
    async with box(level) as it:
        await it.files.mkdir("a/b", parents=True)
        await it.files.write("a/b/c.txt", b"12345")
        found = {
            entry.path.rstrip("/").rpartition("a/")[2]: entry for entry in await it.files.list("a", recursive=True)
        }
        true(any(e.type == "dir" and e.name == "b" for e in found.values()), f"no folder b in {sorted(found)}")
        true(any(e.type == "file" and e.size == 5 for e in found.values()), f"no file of 5 bytes in {sorted(found)}")
        same((await it.files.stat("a/b/c.txt")).size, 5, "the size")
        await it.files.remove("a", recursive=True)
        same([e.name for e in await it.files.list(".") if e.name == "a"], [], "what is left")


async def missing_files(level: str) -> None:
    """What is not there is the same `OSError` as anywhere else."""
    async with box(level) as it:
        await _raises(FileNotFoundError, it.files.read_bytes("nothing"))
        await _raises(FileNotFoundError, it.files.list("nothing"))
        await it.files.mkdir("folder")
        await _raises(IsADirectoryError, it.files.read_bytes("folder"))
        await it.files.write("folder/x", b"")
        await _raises(OSError, it.files.remove("folder"))


async def _raises(kind: type[BaseException], work: object) -> None:
    try:
        await work  # type: ignore[misc]
    except kind:
        return
    raise AssertionError(f"no {kind.__name__}")


async def planted_links(level: str) -> None:
    """A link that the code plants does not make the host read or write a file of its own."""
    with tempfile.TemporaryDirectory(prefix="kooi-conformance-") as folder:
        secret = Path(folder) / "secret.txt"
        secret.write_text("host secret")
        secret.chmod(0o600)
        async with box(level) as it:
            ok(await it.run(f"import os\nos.symlink({str(secret)!r}, 'link')\nos.symlink('/etc/hostname', 'name')"))
            if level == "process":
                raise NotAtThisLevel("files of the host are open at this level, and its report says so")
            await _raises(OSError, it.files.read_bytes("link"))
            await _raises(OSError, it.files.write("link", b"changed"))
        same(secret.read_text(), "host secret", "the host's file")


async def files_before_the_first_run(level: str) -> None:
    """Files that are given with the sandbox are there for the first run, folders made for them."""
    async with AsyncSandbox(level, preload=(), files={"in/a.txt": "one", "b.bin": b"\x00"}) as it:
        ok(await it.run("print(open('in/a.txt').read(), open('b.bin', 'rb').read())"), "one b'\\x00'\n")


# Not every level shows /proc.
_ENVIRONMENT = """
import os
print(sorted(os.environ.items()))
try:
    print(open('/proc/self/environ').read())
except OSError:
    pass
"""


async def environment(level: str) -> None:
    """The code sees the variables of its policy and call, and none of the host's own."""
    name, value = f"KOOI_CHECK_{secrets.token_hex(4)}", secrets.token_hex(16)
    os.environ[name] = value
    try:
        async with AsyncSandbox(level, preload=(), policy=Policy(env={"GIVEN": "1"}), env={"ADDED": "ü"}) as it:
            result = ok(await it.run(_ENVIRONMENT))
            true("('GIVEN', '1')" in result.stdout and "('ADDED', 'ü')" in result.stdout, "a given variable is missing")
            true(name not in result.stdout and value not in result.stdout, "a variable of the host is visible inside")
    finally:
        del os.environ[name]


async def descriptors(level: str) -> None:
    """No descriptor of the host is open inside, not even an inheritable one."""
    with tempfile.NamedTemporaryFile(prefix="kooi-conformance-") as file:
        os.set_inheritable(file.fileno(), True)
        seen = os.fstat(file.fileno())
        mine = (seen.st_dev, seen.st_ino)
        code = f"""
import os
found = []
for fd in range(1024):
    try:
        s = os.fstat(fd)
    except OSError:
        continue
    found.append((s.st_dev, s.st_ino))
print({mine!r} in found, len(found))
"""
        async with box(level) as it:
            inside, count = ok(await it.run(code)).stdout.split()
        same(inside, "False", "whether a host file is open inside")
        true(int(count) <= 16, f"{count} descriptors are open")


async def home(level: str) -> None:
    """The working directory is the home, it is empty and can be written, and temporary files work."""
    code = """
import os, tempfile
print(os.path.realpath(os.environ['HOME']) == os.path.realpath(os.getcwd()), os.listdir())
with tempfile.NamedTemporaryFile() as f:
    f.write(b'x')
open('x', 'w').close()
print(os.path.exists(os.path.join(os.environ['HOME'], 'x')))
"""
    async with box(level) as it:
        ok(await it.run(code), "True []\nTrue\n")


async def programs(level: str) -> None:
    """Commands run, in a shell or by an argument vector, with input, environment and exit code."""
    async with box(level) as it:
        ok(await it.commands.run("echo $WORD; pwd >/dev/null", env={"WORD": "a b"}), "a b\n")
        ok(await it.commands.run(["/bin/sh", "-c", 'printf %s "$1"', "x", "it's * $HOME"]), "it's * $HOME")
        ok(await it.commands.run("cat", stdin=b"\x00\xff"))
        result = await it.commands.run("echo out; echo err >&2; exit 7")
        same(
            (result.status, result.exit_code, result.stdout, result.stderr),
            ("error", 7, "out\n", "err\n"),
            "the result",
        )
        same((await it.commands.run(["/no/such/program"])).status, "error", "the status of a missing program")


async def shared_files(level: str) -> None:
    """Code, commands and the files API see the same files."""
    async with box(level) as it:
        ok(await it.run("open('x.txt', 'w').write('from code')"))
        ok(await it.commands.run("cat x.txt"), "from code")
        ok(await it.commands.run("printf shell > y.txt"))
        same(await it.files.read("y.txt"), "shell", "the file")


async def children(level: str) -> None:
    """Subprocesses, threads and asyncio work inside."""
    code = """
import asyncio, subprocess, sys, threading
print(subprocess.run([sys.executable, '-c', 'print(2)'], capture_output=True, text=True, check=True).stdout.strip())
t = threading.Thread(target=lambda: print(3)); t.start(); t.join()
async def main():
    p = await asyncio.create_subprocess_exec(sys.executable, '-c', 'print(4)', stdout=-1)
    print((await p.communicate())[0].decode().strip())
asyncio.run(main())
"""
    async with box(level) as it:
        ok(await it.run(code), "2\n3\n4\n")


async def pools(level: str) -> None:
    """Pools of processes (multiprocessing) work inside."""
    if level == "confined":
        raise NotAtThisLevel("their locks are files in /dev/shm, which is the host's")
    code = """
import multiprocessing
def work(n): return n + 1
with multiprocessing.get_context('fork').Pool(2) as pool:
    print(pool.map(work, [4]))
"""
    async with box(level) as it:
        ok(await it.run(code), "[5]\n")


async def datasets(level: str) -> None:
    """A dataset of the policy can be read inside and not changed."""
    with tempfile.TemporaryDirectory(prefix="kooi-conformance-") as folder:
        os.chmod(folder, 0o755)
        source = Path(folder) / "data.csv"
        source.write_text("a,b\n1,2\n")
        source.chmod(0o644)
        policy = Policy(datasets=(Dataset("numbers", folder),))
        code = """
import os
root = os.environ.get('KOOI_DATA', '/data')
print(open(root + '/numbers/data.csv').read().split()[1])
try:
    open(root + '/numbers/data.csv', 'a').write('x')
    print('changed')
except OSError:
    print('refused')
"""
        async with box(level, policy) as it:
            first, second = ok(await it.run(code)).stdout.split()
        same(first, "1,2", "the dataset")
        if second == "changed" and level == "process":
            raise NotAtThisLevel("datasets are readable; that they cannot be written is not a promise of this level")
        same((second, source.read_text()), ("refused", "a,b\n1,2\n"), "writing to a dataset")


async def images(level: str) -> None:
    """An image that cannot be had is refused, never ignored."""
    spec = replace(spec_of(level), image="registry.invalid/nothing:0")
    try:
        async with AsyncSandbox(spec=spec) as it:
            await it.run("print(1)")
    except KooiError as error:
        same(error.key, "image", "the key of the error")
        return
    raise AssertionError("code ran in an image that is not there")


async def posture(level: str) -> None:
    """The posture, read from outside, shows a sealed agent at once and agrees with what the code sees."""
    async with box(level) as it:
        first = (await it.posture()).processes[0]
        if level != "process":
            true(first.no_new_privs and first.seccomp == 2, "the agent is not sealed before the first run")
        inside = ok(await it.run("import os; print(os.getuid(), sorted(os.getgroups()))"))
        seen = await it.posture()
        code = [p for p in seen.processes if p.role == "code"]
        true(code, "no process of the code in the posture")
        true(all(p.threads_uniform for p in seen.processes), "threads of one process differ")
        if level != "process":
            true(all(p.no_new_privs and p.seccomp == 2 for p in code), "no filter, or privileges can be gained")
            true(all(not any(p.capabilities.values()) for p in code), "the code has capabilities")
            true(inside.stdout.split()[0] != "0", "the code is uid 0 inside")


CHECKS: dict[str, Check] = {
    check.__name__: check
    for check in (
        files_round_trip, folders, missing_files, planted_links, files_before_the_first_run, environment, descriptors,
        home, programs, shared_files, children, pools, datasets, images, posture,
    )
}  # fmt: skip
