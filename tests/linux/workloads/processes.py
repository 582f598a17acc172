import os
import pty
import resource
import select
import signal
import sys
import time

signal.signal(signal.SIGALRM, lambda *_: print("alarm"))
signal.setitimer(signal.ITIMER_REAL, 0.01)
signal.pause()
pid = os.fork()
if pid == 0:
    os._exit(7)
print(os.WEXITSTATUS(os.waitpid(pid, 0)[1]))
read_fd, write_fd = os.pipe()
os.write(write_fd, b"x")
print(select.select([read_fd], [], [], 1)[0] == [read_fd], os.read(read_fd, 1))
resource.setrlimit(resource.RLIMIT_NOFILE, (64, 64))
print(resource.getrlimit(resource.RLIMIT_NOFILE), os.sched_getaffinity(0) != set())
print(pty.spawn(["true"]) >= 0, os.getsid(0) > 0, os.getpgrp() > 0, os.times().user >= 0, os.nice(0))
os.close(os.pidfd_open(os.getpid()))
print(len(os.urandom(8)), os.getresuid()[0] == os.getuid(), time.get_clock_info("time").monotonic)
print(signal.sigtimedwait([signal.SIGUSR1], 0), signal.getitimer(signal.ITIMER_REAL))
sys.stdout.flush()
os.kill(os.getpid(), signal.SIGTERM)
