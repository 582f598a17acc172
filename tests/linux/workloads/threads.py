import queue
import threading
from concurrent.futures import ThreadPoolExecutor

with ThreadPoolExecutor(8) as pool:
    print(sum(pool.map(lambda n: n * n, range(1000))))
items: "queue.Queue[int]" = queue.Queue()
thread = threading.Thread(target=items.put, args=(7,))
thread.start()
print(items.get(timeout=5))
thread.join()
event = threading.Event()
threading.Timer(0.01, event.set).start()
print(event.wait(5))
