import multiprocessing as mp
from multiprocessing import shared_memory

if __name__ == "__main__":
    for kind in ("fork", "spawn", "forkserver"):
        with mp.get_context(kind).Pool(2) as pool:
            print(kind, pool.map(abs, range(-5, 0)))
    memory = shared_memory.SharedMemory(create=True, size=100)
    assert memory.buf is not None
    memory.buf[0] = 7
    print(memory.buf[0])
    memory.close()
    memory.unlink()
    items: "mp.Queue[int]" = mp.Queue()
    process = mp.Process(target=items.put, args=(3,))
    process.start()
    print(items.get())
    process.join()
