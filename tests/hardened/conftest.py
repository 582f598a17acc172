"""An engine of our own (dockerd), and our own image in it, for tests inside a hardened container."""

from __future__ import annotations

import os
import shutil
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from kooi.images import build, export
from kooi.images.store import Store
from kooi.settings import load_settings
from tests.folders import remove_unmounted

SOURCE = Path(__file__).resolve().parents[2] / "src"
START_SECONDS, RUN_SECONDS = 30.0, 240.0
HARDENED = (
    "--network none --cap-drop ALL --security-opt no-new-privileges --user 65534:65534 --read-only --tmpfs /tmp"
).split()
Inside = Callable[..., "subprocess.CompletedProcess[str]"]


def _start(folder: Path) -> subprocess.Popen[bytes]:
    # The address is a path of at most 108 bytes, so what is in the folder has short names.
    command = [
        "dockerd", "--data-root", str(folder / "d"), "-H", f"unix://{folder}/s", "--exec-root", str(folder / "e"),
        "--pidfile", str(folder / "p"), "--iptables=false", "--bridge=none",
        "--default-ulimit", "nofile=1024:1024",
    ]  # fmt: skip
    with open(folder / "log", "wb") as log:
        return subprocess.Popen(command, stdout=log, stderr=log, stdin=subprocess.DEVNULL)


def _docker(folder: Path, *words: str) -> subprocess.CompletedProcess[str]:
    command = ["docker", "-H", f"unix://{folder}/s", *words]
    return subprocess.run(command, capture_output=True, text=True, timeout=RUN_SECONDS, check=False)


@pytest.fixture(scope="module")
def engine(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """The folder of a running engine that ends with the tests."""
    missing = [name for name in ("dockerd", "docker") if shutil.which(name) is None]
    if os.geteuid() != 0:
        pytest.skip("an engine needs root")
    if missing:
        (pytest.fail if load_settings().must_work("confined") else pytest.skip)(f"not installed: {missing}")
    folder = tmp_path_factory.mktemp("k")
    daemon = _start(folder)
    try:
        deadline = time.monotonic() + START_SECONDS
        while _docker(folder, "info").returncode != 0:
            said = (folder / "log").read_text(errors="replace")[-2000:]
            assert daemon.poll() is None and time.monotonic() < deadline, said
            time.sleep(0.2)
        yield folder
    finally:
        daemon.terminate()
        daemon.wait(timeout=START_SECONDS)
        # The layers are large.
        remove_unmounted(folder)


@pytest.fixture(scope="module")
def inside(engine: Path) -> Inside:
    """Return a function that runs `python3` with the given words in our image, hardened, and `flags` besides."""
    store = Store(engine / "images")
    meta = build.build(store, "python", build.DEFINITIONS["python"])
    tree, entries = store.tree(meta.digest), store.manifest(meta.digest)
    export.export(tree, entries, meta, "python", engine / "it.tar", "tar", lambda count: None)
    imported = _docker(engine, "import", str(engine / "it.tar"), "kooi")
    assert imported.returncode == 0, imported.stderr

    def run(*words: str, flags: tuple[str, ...] = ()) -> subprocess.CompletedProcess[str]:
        mounts = ["-v", f"{SOURCE}:/opt/src:ro", "-e", "PYTHONPATH=/opt/src", "-e", "PYTHONDONTWRITEBYTECODE=1"]
        return _docker(engine, "run", "--rm", *HARDENED, *flags, *mounts, "kooi", meta.python, *words)

    return run
