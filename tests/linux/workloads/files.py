import fcntl
import mmap
import os
import shutil
import stat
import tarfile
import tempfile
import zipfile
from pathlib import Path

with tempfile.TemporaryDirectory(dir=".") as name:
    folder = Path(name)
    (folder / "a").write_text("x")
    (folder / "l").symlink_to("a")
    os.link(folder / "a", folder / "h")
    os.mkfifo(folder / "fifo")
    (folder / "fifo").unlink()
    os.chmod(folder / "a", 0o640)
    os.truncate(folder / "a", 5)
    os.utime(folder / "a", (1_000_000_000, 2_000_000_000))
    shutil.copytree(folder, "copy", symlinks=True)
    shutil.copy2(folder / "a", "b")
shutil.move("b", "c")
print(sorted(os.listdir("copy")), os.stat("c").st_mtime, stat.filemode(os.stat("c").st_mode))
with tarfile.open("t.tar.gz", "w:gz") as archive:
    archive.add("copy")
with tarfile.open("t.tar.gz") as archive:
    archive.extractall("out")
    print(sorted(archive.getnames()))
with zipfile.ZipFile("z.zip", "w") as bundle:
    bundle.write("c")
with open("c", "r+b") as file:
    fcntl.flock(file, fcntl.LOCK_EX)
    fcntl.lockf(file, fcntl.LOCK_EX)
    with mmap.mmap(file.fileno(), 0) as memory:
        memory[0:1] = b"y"
        memory.flush()
    print(os.preadv(file.fileno(), [bytearray(2)], 0), os.pwritev(file.fileno(), [b"q"], 1))
print(Path("c").read_text(), os.readlink("copy/l"), os.path.realpath("copy/l")[-6:], os.statvfs(".").f_bsize > 0)
fd = os.open(".", os.O_RDONLY)
os.rename("c", "d")
os.rename("d", "e", src_dir_fd=fd, dst_dir_fd=fd)
print(os.access("e", os.R_OK), [entry.name for entry in os.scandir("out")])
shutil.rmtree("out")
