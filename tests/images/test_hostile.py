"""Hostile archives (threats F8 and F9): each is refused with the member's name, and its honest twin is taken."""

from __future__ import annotations

import gzip
import hashlib
import io
import json
import os
import random
import stat
import tarfile
from collections.abc import Callable, Iterable
from pathlib import Path

import pytest

from kooi.contract.errors import InvalidRequest, KooiError
from kooi.images import take, unpack
from kooi.images.store import Store
from kooi.images.unpack import Caps

Member = tuple[str, bytes, str, str]  # name, type, content or target, mode in octal
DEVICE = {tarfile.CHRTYPE, tarfile.BLKTYPE}


def file(name: str, content: str = "x", mode: str = "644") -> Member:
    return name, tarfile.REGTYPE, content, mode


def folder(name: str) -> Member:
    return name, tarfile.DIRTYPE, "", "755"


def link(name: str, target: str) -> Member:
    return name, tarfile.SYMTYPE, target, "777"


def hard(name: str, target: str) -> Member:
    return name, tarfile.LNKTYPE, target, "644"


HONEST = (
    folder("usr"), folder("usr/bin"), file("usr/bin/python3.11", "#!", "755"), link("usr/bin/python3", "python3.11"),
    file("usr/lib/python3.11/os.py"), file("usr/text", "text"), link("lib", "usr/lib"),
)  # fmt: skip


def tar(members: Iterable[Member], kind: str = "") -> bytes:
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode=f"w:{kind}" if kind else "w") as archive:
        for name, type_, content, mode in members:
            member = tarfile.TarInfo(name)
            member.type, member.mode = type_, int(mode, 8)
            if type_ in (tarfile.SYMTYPE, tarfile.LNKTYPE):
                member.linkname = content
            elif type_ in DEVICE:
                member.devmajor, member.devminor = 1, 3
            data = content.encode() if type_ == tarfile.REGTYPE else b""
            member.size = len(data)
            archive.addfile(member, io.BytesIO(data))
    return out.getvalue()


def taken(store: Store, data: bytes, caps: Caps = unpack.USUAL) -> Path:
    """Import an archive; return its tree."""
    path = store.folder.parent.parent / "archive"
    path.write_bytes(data)
    return store.tree(take.take(store, "it", str(path), caps=caps).digest)


def refused(store: Store, data: bytes, says: str, caps: Caps = unpack.USUAL) -> None:
    """Check that an archive is refused for a reason, and that nothing of it is left."""
    outside = set(os.listdir(store.folder.parent.parent)) | {"archive", "data"}
    with pytest.raises(KooiError, match=says) as caught:
        taken(store, data, caps)
    assert isinstance(caught.value, InvalidRequest), caught.value
    assert store.names() == {} and store.digests() == [] and os.listdir(store.folder / "tmp") == []
    assert set(os.listdir(store.folder.parent.parent)) == outside


@pytest.mark.parametrize("kind", ["", "gz", "bz2", "xz"])
def test_the_honest_archive_is_taken(store: Store, kind: str) -> None:
    tree = taken(store, tar(HONEST, kind))
    assert (tree / "usr/text").read_text() == "text" and os.readlink(tree / "usr/bin/python3") == "python3.11"
    assert stat.S_IMODE((tree / "usr/bin/python3.11").stat().st_mode) == 0o755
    assert (tree / "proc").is_dir() and "user:x:1000" in (tree / "etc/passwd").read_text()


CASES: dict[str, tuple[list[Member], str]] = {
    "dot-dot": ([file("../escaped")], r"'\.\./escaped' leads out"),
    "dot-dot inside": ([file("usr/../../escaped")], "leads out"),
    "dot-dot folder": ([folder("../escaped")], "leads out"),
    "dot-dot link": ([link("../escaped", "usr")], "leads out"),
    "absolute": ([file("/tmp/kooi-escaped")], "absolute name"),
    "absolute folder": ([folder("//tmp/kooi-escaped")], "absolute name"),
    "symlink then file": ([link("out", "/tmp"), file("out/kooi-escaped")], "'out/kooi-escaped' goes through a link"),
    "symlink then file inside": ([link("in", "usr"), file("in/text2")], "goes through a link"),
    "symlink then folder": ([link("out", ".."), folder("out/escaped")], "goes through a link"),
    "symlink over itself": ([link("a", "/etc/passwd"), file("a", "owned")], "'a' is there twice"),
    "link chain": ([link("a", "b"), link("b", ".."), file("a/escaped")], "goes through a link"),
    "link to link": ([folder("d"), link("d/up", ".."), link("d/up/x", "/etc")], "goes through a link"),
    "hard link out": ([hard("passwd", "/etc/passwd")], "absolute name"),
    "hard link up": ([hard("passwd", "../../../../etc/passwd")], "leads out"),
    "hard link through a link": ([link("e", "/etc"), hard("p", "e/passwd")], "goes through a link"),
    "hard link to a link": ([link("p", "/etc/passwd"), hard("q", "p"), file("q")], "is no file"),
    "hard link to nothing": ([hard("q", "no")], "not there before it"),
    "hard link to a folder": ([folder("d"), hard("q", "d")], "is no file"),
    "hard link to itself": ([hard("q", "q")], "not there before it"),
    "character device": ([("null", tarfile.CHRTYPE, "", "666")], "device"),
    "block device": ([("disk", tarfile.BLKTYPE, "", "666")], "device"),
    "fifo": ([("pipe", tarfile.FIFOTYPE, "", "666")], "device"),
    "unknown kind": ([("odd", b"Z", "", "666")], "device|something else"),
    "twice": ([file("a"), file("a")], "'a' is there twice"),
    "twice by another name": ([file("usr/a"), file("usr/./a")], "twice"),
    "file then folder": ([file("a"), folder("a")], "twice"),
    "file as folder": ([file("a"), file("a/b")], "link or a file as if"),
    "too deep": ([file("/".join("d" * 200))], "no path"),
    "too long": ([file("a" * 300)], "aaa"),
}  # fmt: skip


@pytest.mark.parametrize("name", CASES)
def test_hostile_members_are_refused(store: Store, name: str) -> None:
    members, says = CASES[name]
    refused(store, tar([*HONEST, *members]), says)


def test_set_id_bits_are_gone(store: Store) -> None:
    tree = taken(store, tar([*HONEST, file("usr/bin/su", "x", "6755"), file("w", "x", "1777"), file("r", "x", "000")]))
    for path, mode in (("usr/bin/su", 0o755), ("w", 0o755), ("r", 0o644)):
        assert stat.S_IMODE((tree / path).stat().st_mode) == mode


def test_hard_links_to_files_before_them_and_repeated_folders_are_honest(store: Store) -> None:
    tree = taken(store, tar([*HONEST, folder("usr"), folder("a"), hard("a/text", "usr/text")]))
    assert (tree / "a/text").read_text() == "text"


def test_bombs_by_ratio_bytes_and_members(store: Store) -> None:
    zeros = tar([*HONEST, file("zeros", "\0" * (8 << 20))], "gz")
    small = Caps(free=1 << 20, ratio=20)
    assert len(zeros) < 100_000
    refused(store, zeros, "more than 20 times its own", small)
    refused(store, tar(HONEST) + b"", "more than 5 members", Caps(members=5))
    refused(store, zeros, "more than 1048576 bytes", Caps(bytes=1 << 20))
    links = [file("big", "x" * (1 << 20)), *(hard(f"l{number}", "big") for number in range(20))]
    refused(store, tar([*HONEST, *links]), "more than 10485760 bytes", Caps(bytes=10 << 20))
    assert (taken(store, zeros) / "zeros").stat().st_size == 8 << 20  # the twin: the usual caps let it through


def sparse(size: int) -> bytes:
    """Return an archive with one member that says it holds `size` bytes of nothing."""
    member = tarfile.TarInfo("sparse")
    member.size = 512
    member.pax_headers = {"GNU.sparse.major": "1", "GNU.sparse.minor": "0", "GNU.sparse.name": "sparse",
                          "GNU.sparse.realsize": str(size)}  # fmt: skip
    head = tar(HONEST)[:-1024].rstrip(b"\0")
    head += b"\0" * (-len(head) % 512)
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w", format=tarfile.PAX_FORMAT) as archive:
        archive.addfile(member, io.BytesIO(b"1\n0\n0\n".ljust(512, b"\0")))
    return head + out.getvalue()


def test_a_sparse_bomb_is_counted_by_what_it_becomes(store: Store) -> None:
    refused(store, sparse(1 << 40), "holds more than")


def test_a_bomb_in_the_header_does_not_take_the_host_with_it(store: Store) -> None:
    """A name of 1.1 GB, compressed: the library would read it whole into memory."""
    header = tarfile.TarInfo("pax")
    header.type, header.size = tarfile.XHDTYPE, 1100 << 20
    path = store.folder.parent.parent / "archive"
    with gzip.open(path, "wb", compresslevel=1) as out:
        out.write(header.tobuf(tarfile.USTAR_FORMAT))
        for _ in range(35):
            out.write(b"\0" * (32 << 20))
    refused(store, path.read_bytes(), "memory")


@pytest.mark.parametrize("cut", [0, 1, 600, 1500, 3000])
def test_a_damaged_archive_is_no_shorter_archive(store: Store, cut: int) -> None:
    whole = tar(HONEST)[: 512 * 10]  # without the end mark
    refused(store, whole[: len(whole) - cut], "damaged|no header|cut off")
    broken = bytearray(tar(HONEST))
    broken[512 * 4 + 10] ^= 0xFF
    refused(store, bytes(broken), "damaged|no header")


def test_what_is_no_archive(store: Store) -> None:
    for data in (b"", b"hello", b"\x1f\x8b" + b"x" * 100, b"\xfd7zXZ\x00junk", random.Random(1).randbytes(5000)):
        refused(store, data, "archive is refused")


def test_an_archive_without_python_says_so(store: Store) -> None:
    refused(store, tar([folder("usr"), file("usr/x")]), "no Python 3.8")
    refused(store, tar([file("usr/bin/python3.7", "x", "755"), link("usr/bin/python3", "python3.7"),
                        file("usr/lib/python3.7/os.py")]), "3.7")  # fmt: skip


def test_links_that_lead_out_are_data_and_are_never_followed(store: Store, tmp_path: Path) -> None:
    victim = tmp_path / "victim"
    victim.mkdir()
    (victim / "kept").write_text("kept")
    outs = [link("etc", str(victim)), link("tmp", str(victim)), link("proc", str(victim)), link("opt", str(victim)),
            link("home", str(victim)), link("var", str(victim))]  # fmt: skip
    tree = taken(store, tar([*HONEST, *outs]))
    assert os.listdir(victim) == ["kept"]
    for name in ("etc", "tmp", "proc", "opt", "home", "var"):
        assert (tree / name).is_dir() and not (tree / name).is_symlink()


# --- image archives


def blob(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def oci(*layers: bytes, change: Callable[[dict[str, bytes]], None] = lambda _: None) -> bytes:
    files = {f"blobs/sha256/{blob(layer)}": layer for layer in layers}
    config = b"{}"
    manifest = json.dumps({"config": {"digest": f"sha256:{blob(config)}"}, "layers": [
        {"digest": f"sha256:{blob(layer)}", "mediaType": "x"} for layer in layers]}).encode()  # fmt: skip
    files |= {f"blobs/sha256/{blob(config)}": config, f"blobs/sha256/{blob(manifest)}": manifest}
    files["index.json"] = json.dumps({"manifests": [{"digest": f"sha256:{blob(manifest)}"}]}).encode()
    files["oci-layout"] = b"{}"
    change(files)
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w") as archive:
        for name, data in files.items():
            member = tarfile.TarInfo(name)
            member.size = len(data)
            archive.addfile(member, io.BytesIO(data))
    return out.getvalue()


def test_layers_replace_and_take_away(store: Store) -> None:
    second = [
        file("usr/text", "second"), file("usr/.wh.gone"), folder("usr/d"), file("usr/d/.wh..wh..opq"),
        file("usr/d/new"), file("usr/f2", "was a folder"), folder("usr/l"), file("usr/l/x"),
    ]  # fmt: skip
    first = [*HONEST, file("usr/gone"), file("usr/d/old"), file("usr/f2/x"), link("usr/l", "/etc")]
    tree = taken(store, oci(tar(first, "gz"), tar(second)))
    assert (tree / "usr/text").read_text() == "second" and not (tree / "usr/gone").exists()
    assert os.listdir(tree / "usr/d") == ["new"] and (tree / "usr/f2").read_text() == "was a folder"
    assert not (tree / "usr/l").is_symlink() and not (tree / "index.json").exists()


def test_a_docker_archive(store: Store) -> None:
    def legacy(files: dict[str, bytes]) -> None:
        del files["index.json"], files["oci-layout"]
        files["manifest.json"] = json.dumps([{"Config": "c", "Layers": ["a/layer.tar"]}]).encode()
        files["a/layer.tar"] = tar(HONEST)

    assert (taken(store, oci(change=legacy)) / "usr/text").read_text() == "text"


def swapped(files: dict[str, bytes]) -> None:
    for name in files:
        if name.startswith("blobs/") and len(files[name]) > 5000:
            files[name] = tar([*HONEST, file("other")])


def index(document: object) -> Callable[[dict[str, bytes]], None]:
    return lambda files: files.update({"index.json": json.dumps(document).encode()})


@pytest.mark.parametrize(
    ("data", "says"),
    [
        (oci(tar(HONEST), change=swapped), "does not have the content"),
        (oci(tar(HONEST), change=index([])), "no JSON object"),
        (oci(tar(HONEST), change=index({"manifests": []})), "no image for"),
        (oci(tar(HONEST), change=index({"layers": [{"digest": "sha256:../../../etc/passwd"}]})), "no SHA-256"),
        (oci(tar(HONEST), change=index({"layers": [{"digest": "sha256:" + "0" * 64}]})), "No such file"),
        (oci(tar(HONEST), change=lambda files: files.update({"index.json": b"{" * 100_000})), "not JSON"),
        (oci(tar([*HONEST, file("../x")])), "leads out"),
        (oci(tar(HONEST), tar([file("lib/x")])), "goes through a link"),
        (oci(tar(HONEST), tar([file("usr/.wh...")])), "no name"),
        (oci(tar(HONEST), tar([file("usr/.wh.")])), "no name"),
        (oci(tar(HONEST), tar([file("lib/.wh.python3.11")])), "goes through a link"),
    ],
)
def test_hostile_image_archives_are_refused(store: Store, data: bytes, says: str) -> None:
    refused(store, data, says)


def test_a_layer_path_of_a_docker_archive_is_opened_inside_only(store: Store) -> None:
    for path in ("/etc/passwd", "../../../../../../etc/passwd", "l"):

        def legacy(files: dict[str, bytes], path: str = path) -> None:
            del files["index.json"], files["oci-layout"]
            files["manifest.json"] = json.dumps([{"Layers": [path]}]).encode()

        refused(store, oci(change=legacy), "its manifest names")


# --- the helper itself


def test_the_helper_can_reach_nothing_but_its_folder(store: Store, tmp_path: Path) -> None:
    """What a bug in the parser could be made to do, done on purpose in the helper after it confined itself."""
    import subprocess
    import sys

    code = f"""
import os, socket, sys, json
sys.path.insert(0, {str(Path(unpack.__file__).parents[2])!r})
from kooi.images import helper
folder = os.open(sys.argv[1], os.O_RDONLY)
tries = {{
    "read": lambda: open("/etc/passwd").read(),
    "list": lambda: os.listdir("/"),
    "write": lambda: open(sys.argv[2] + "/x", "w"),
    "socket": lambda: socket.socket(socket.AF_INET),
    "unix": lambda: socket.socket(socket.AF_UNIX),
    "execute": lambda: os.execv("/bin/true", ["true"]),
    "device": lambda: os.mknod("null", 0o20666, os.makedev(1, 3), dir_fd=folder),
    "owner": lambda: os.chown("inside", 12345, 12345, dir_fd=folder),
    "inside": lambda: os.close(os.open("inside", os.O_CREAT | os.O_WRONLY, dir_fd=folder)),
}}
if sys.argv[3] == "confined":
    helper._confine(folder, 1 << 20)
found = {{}}
for name in ("read", "list", "write", "socket", "unix", "inside", "device", "owner"):
    try:
        tries[name]()
        found[name] = True
    except OSError:
        found[name] = False
if sys.argv[3] == "confined":
    try:
        tries["execute"]()
    except OSError:
        found["execute"] = False
os.write(1, json.dumps(found).encode())
os._exit(0)
"""
    inside, outside = tmp_path / "in", tmp_path / "out"
    inside.mkdir()
    outside.mkdir()
    found = {}
    for how in ("confined", "open"):
        done = subprocess.run([sys.executable, "-c", code, str(inside), str(outside), how], capture_output=True)
        assert done.returncode == 0, done.stderr.decode()
        found[how] = json.loads(done.stdout)
        for name in os.listdir(inside):
            (inside / name).unlink()
    assert [name for name, worked in found["confined"].items() if worked] == ["inside"]
    root = os.geteuid() == 0
    assert all(worked or (name in ("device", "owner") and not root) for name, worked in found["open"].items())
