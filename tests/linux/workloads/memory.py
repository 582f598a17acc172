import gc
import sys

sys.setrecursionlimit(20000)


def down(n: int) -> int:
    return n and down(n - 1)


print(down(5000))
blocks = [bytearray(1 << 20) for _ in range(200)]
del blocks
print(gc.collect() >= 0)
