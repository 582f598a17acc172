"""A root file system made from this host: the loader, libraries, common programs, a minimal /etc, the mount points.

Only files of the system itself are copied, by name, each from a literal list; no home, no host name, no key, no
configuration of this host. Everything is merged below /usr, and all libraries go where the C library is.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterable
from pathlib import Path

from kooi.contract.errors import SetupFailed
from kooi.images.elf import Libraries, read
from kooi.images.furnish import furnish

PROGRAMS = """
sh bash dash cat ls cp mv rm mkdir rmdir ln chmod touch head tail wc sort uniq cut tr tee echo printf env date sleep seq
true false test [ expr basename dirname readlink realpath stat du df id whoami uname hostname pwd nproc timeout yes od
base64 md5sum sha1sum sha256sum sha512sum mktemp comm join paste split nl fold tac rev shuf numfmt truncate dd nice
nohup kill tty stty cksum csplit expand unexpand factor fmt install logname mkfifo pathchk pr printenv tsort unlink
ps pgrep pkill free grep egrep fgrep sed awk find xargs tar gzip gunzip zcat bzip2 bunzip2 xz unxz zip unzip diff cmp
patch which clear tput less more file getconf locale ldd strings xxd hexdump column cal bc dc jq sqlite3 tree
""".split()
_PROGRAM_FOLDERS = ("/usr/bin", "/bin", "/usr/sbin", "/sbin")
_MERGED = (("bin", "usr/bin"), ("sbin", "usr/sbin"), ("lib", "usr/lib"), ("lib64", "usr/lib64"))
# Loaded by name at run time: by the C library when a thread ends, by older ones to look up users, by wheels.
_LOADED_LATER = ("libgcc_s.so.1", "libstdc++.so.6", "libnss_files.so.2", "libnss_dns.so.2", "libpthread.so.0",
                 "libdl.so.2", "librt.so.1", "libutil.so.1", "libm.so.6", "libresolv.so.2")  # fmt: skip
_COPIED = ("/etc/mime.types", "/etc/protocols", "/etc/services", "/etc/debian_version", "/usr/lib/os-release",
           "/usr/lib/ssl/openssl.cnf", "/etc/ssl/openssl.cnf")  # fmt: skip
_COPIED_TREES = ("/usr/share/zoneinfo", "/usr/lib/locale/C.utf8", "/usr/lib/locale/C.UTF-8")
_TERMINALS = ("xterm", "xterm-256color", "linux", "dumb", "vt100", "ansi", "screen", "tmux-256color")
_CERTIFICATES = ("/etc/ssl/certs/ca-certificates.crt", "/etc/pki/tls/certs/ca-bundle.crt", "/etc/ssl/cert.pem")
CERTIFICATES = "/etc/ssl/certs/ca-certificates.crt"
_SHELLS = (b"/bin/sh", b"/usr/bin/sh", b"/bin/bash", b"/usr/bin/bash")


class Root:
    """A tree that is being made."""

    def __init__(self, tree: Path) -> None:
        self.tree = tree
        self.libraries = Libraries()
        self.missing: set[str] = set()
        self._have: set[str] = set()
        for folder in ("usr/bin", "usr/sbin", "usr/lib", "usr/lib64", "usr/local/bin", "etc/ssl/certs"):
            (tree / folder).mkdir(parents=True, exist_ok=True)
        for name, target in _MERGED:
            self.link(f"/{name}", target)
        found, interpreters, _ = self.libraries.closure(os.path.realpath("/bin/sh"))
        loaders = [name for name in found if name.startswith(("libc.so", "libc.musl", "ld-"))]
        if not interpreters or not loaders:
            raise SetupFailed("this host's /bin/sh is no dynamic program, so its C library is not known", key="image")
        self._lib = _below_usr(os.path.dirname(os.path.realpath(found[loaders[0]])))

    def place(self, inside: str) -> Path:
        """Return where an absolute path of the image is on the host; its folder is there afterwards."""
        place = self.tree / _below_usr(inside)[1:]
        place.parent.mkdir(parents=True, exist_ok=True)
        return place

    def copy(self, host: str, inside: str, *, needs: bool = True) -> None:
        """Copy one file of the host, and with `needs` the libraries that it asks for."""
        place = self.place(inside)
        if not place.exists():
            shutil.copyfile(host, place)
            shutil.copymode(host, place)
        if needs:
            self.need(host)

    def need(self, path: str) -> None:
        """Copy the libraries that a file asks for, and its loader; remember what this host does not have."""
        if read(path) is None:
            return
        found, interpreters, missing = self.libraries.closure(path)
        self.missing |= missing
        for interpreter in interpreters - self._have:
            self._have.add(interpreter)
            self.copy(os.path.realpath(interpreter), interpreter, needs=False)
            os.chmod(self.place(interpreter), 0o755)
        for name in sorted(found.keys() - self._have):
            self._have.add(name)
            self.copy(found[name], f"{self._lib}/{name}", needs=False)

    def has(self, name: str) -> bool:
        """Say whether a library is there already."""
        return name in self._have

    def link(self, inside: str, target: str) -> None:
        """Make a link."""
        place = self.tree / inside[1:]
        place.parent.mkdir(parents=True, exist_ok=True)
        if not os.path.lexists(place):
            os.symlink(target, place)

    def copy_tree(self, host: str, inside: str, skip: Iterable[str] = ()) -> None:
        """Copy a folder of the host without the names in `skip`, links of files as files, other links not."""
        skipped = set(skip)
        for folder, folders, files in os.walk(host):
            folders[:] = sorted(name for name in folders if name not in skipped)
            below = inside + folder[len(host) :]
            for name in sorted(files):
                path = f"{folder}/{name}"
                if name not in skipped and os.path.isfile(path):
                    self.copy(path, f"{below}/{name}", needs=False)


def add_system(root: Root) -> None:
    """Put in everything but an interpreter."""
    for name in PROGRAMS:
        _add_program(root, name)
    for name in _LOADED_LATER:
        asked = read(os.path.realpath("/bin/sh"))
        path = None if asked is None else root.libraries.find(name, asked, "/")
        if path is not None and not root.has(name):
            root.copy(path, f"{root._lib}/{name}")
    for path in _COPIED:
        if os.path.isfile(path):
            root.copy(os.path.realpath(path), path, needs=False)
    for path in _COPIED_TREES:
        if os.path.isdir(path):
            root.copy_tree(path, path, skip=("localtime", "posixrules", "right", "posix"))
    for name in _TERMINALS:
        for base in ("/lib/terminfo", "/usr/share/terminfo", "/etc/terminfo"):
            path = f"{base}/{name[0]}/{name}"
            if os.path.isfile(path):
                root.copy(os.path.realpath(path), f"/usr/share/terminfo/{name[0]}/{name}", needs=False)
    bundle = next((path for path in _CERTIFICATES if os.path.isfile(path)), None)
    if bundle is not None:
        root.copy(os.path.realpath(bundle), CERTIFICATES, needs=False)
    root.link("/etc/os-release", "../usr/lib/os-release")
    root.link("/etc/localtime", "/usr/share/zoneinfo/UTC")
    fd = os.open(root.tree, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        furnish(fd)
    finally:
        os.close(fd)


def _add_program(root: Root, name: str) -> None:
    found = next((path for path in (f"{f}/{name}" for f in _PROGRAM_FOLDERS) if os.access(path, os.X_OK)), None)
    if found is None:
        return
    path = os.path.realpath(found)
    with open(path, "rb") as file:
        head = file.readline(256)
    if head.startswith(b"#!"):
        # Scripts in other languages would not run: their interpreters are not here.
        if head[2:].split()[:1] and head[2:].split()[0] in _SHELLS:
            root.copy(path, f"/usr/bin/{name}", needs=False)
    elif read(path) is not None:
        root.copy(path, f"/usr/bin/{name}")


def _below_usr(path: str) -> str:
    """Return where a path is when /bin, /sbin, /lib and /lib64 are links to those in /usr."""
    first = path.split("/")[1]
    return f"/usr{path}" if first in dict(_MERGED) else path
