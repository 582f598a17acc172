"""What a container must be, seen from inside and from outside; each finding is one word, so that tests can name it."""

from __future__ import annotations

import json

from kooi.contract.backend import Posture
from kooi.contract.limits import MIB, Limits
from kooi.contract.result import Result
from kooi.contract.spec import Spec
from kooi.sandbox import AsyncSandbox

LIMITS = Limits(memory_bytes=96 * MIB, disk_bytes=16 * MIB, files=400, processes=24, wall_seconds=30)
_NAMESPACES = ("user", "pid", "net", "ipc", "uts", "mnt", "cgroup")

_INSIDE = r"""
import json, os, resource, socket, time
found = []
status = dict(line.split(":", 1) for line in open("/proc/self/status") if ":" in line)
if any(int(status["Cap" + name], 16) for name in ("Inh", "Prm", "Eff", "Bnd", "Amb")): found.append("capabilities")
if status["NoNewPrivs"].strip() != "1": found.append("no_new_privs")
if int(status.get("Seccomp_filters", "2")) < 2: found.append("seccomp")
if os.getuid() == 0: found.append("user_is_root")
for path in ("/proc/kcore", "/proc/timer_list"):
    if os.path.exists(path) and (os.major(os.stat(path).st_rdev), os.minor(os.stat(path).st_rdev)) != (1, 3):
        found.append("masked")
options = {}
for line in open("/proc/self/mountinfo"):
    fields = line.split()
    options[fields[4]] = set(fields[5].split(","))
if "ro" not in options["/"]: found.append("read_only_root")
if "ro" not in options.get("/proc/sys", ()): found.append("read_only_paths")
if not {"nosuid", "nodev"} <= options.get("/home/user", options.get("/home", set())): found.append("workspace_options")
if resource.getrlimit(resource.RLIMIT_CORE) != (1, 1): found.append("rlimits")
if sorted(name for _, name in socket.if_nameindex()) != ["lo"]: found.append("network")
if socket.gethostname() != "kooi": found.append("uts")
def fill(path, size):
    try:
        with open(path, "wb", buffering=0) as file:
            for _ in range(size):
                if file.write(bytes(1 << 20)) != 1 << 20: return False
        return True
    except OSError:
        return False
    finally:
        try: os.unlink(path)
        except OSError: pass
with open("/home/user/small", "wb") as file: file.write(b"xx")
if fill("/home/user/big", 20): found.append("disk")
if fill("/tmp/big", 20): found.append("tmp")
if fill("/dev/shm/big", 20): found.append("shm")
made = 0
try:
    for made in range(600): open("/tmp/f%d" % made, "w").close()
    found.append("files")
except OSError:
    pass
for number in range(made + 1):
    try: os.unlink("/tmp/f%d" % number)
    except OSError: pass
children = []
try:
    for _ in range(60):
        pid = os.fork()
        if pid == 0: time.sleep(60); os._exit(0)
        children.append(pid)
    found.append("processes")
except OSError:
    pass
for pid in children: os.kill(pid, 9); os.waitpid(pid, 0)
print(json.dumps(found))
"""
_EAT = "x = []\nfor _ in range(40): x.append(bytearray(b'x') * (4 << 20))\nprint('ate')"


def inside(result: Result) -> set[str]:
    """Return what the code found open."""
    assert result.ok, (result.status, result.stderr, result.error)
    return set(json.loads(result.stdout))


def outside(posture: Posture, shared: frozenset[str]) -> set[str]:
    """Return what the host sees open; `shared` are namespaces that this engine does not have."""
    found = set()
    for each in posture.processes:
        found |= {f"namespace_{name}" for name in _NAMESPACES if name not in shared and each.namespaces[name] != "own"}
        found |= {"capabilities"} if any(each.capabilities.values()) else set()
        found |= set() if each.no_new_privs else {"no_new_privs"}
        found |= set() if each.seccomp == 2 else {"seccomp"}
        found |= {"user_is_root"} if 0 in each.uids else set()
        found |= {"threads"} if not each.threads_uniform else set()
        if each.role == "agent" and each.dumpable:
            found.add("dumpable")
    return found


async def holes(shared: frozenset[str] = frozenset()) -> set[str]:
    """Open a container, look at it from both sides, fill its memory, and return all that is open."""
    async with AsyncSandbox(spec=Spec(level="container", limits=LIMITS)) as box:
        found = inside(await box.run(_INSIDE))
        found |= outside(await box.posture(), shared)
        eaten = await box.run(_EAT)
        if eaten.status not in ("oom", "error"):
            found.add("memory")
        return found
