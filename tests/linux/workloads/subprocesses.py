import subprocess
import sys

print(subprocess.run("echo a | tr a b; exit 3", shell=True, capture_output=True))
print(subprocess.check_output([sys.executable, "-c", "print(input())"], input=b"hello"))
child = subprocess.Popen(["sleep", "30"], start_new_session=True)
child.terminate()
print(child.wait(5))
try:
    subprocess.run(["sleep", "30"], timeout=0.2)
except subprocess.TimeoutExpired as error:
    print(error.cmd)
