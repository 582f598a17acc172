import ctypes
import faulthandler
import hashlib
import lzma
import socket
import ssl
import uuid
import zlib

callback = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_int)(lambda n: n + 1)
print(callback(4), ctypes.CDLL(None).getpid() > 0)
print(ssl.create_default_context().protocol.name, len(ssl.RAND_bytes(4)), len(str(uuid.uuid4())))
print(hashlib.sha256(b"x").hexdigest(), socket.getaddrinfo("127.0.0.1", 80)[0][4])
print(zlib.decompress(zlib.compress(b"q")), lzma.decompress(lzma.compress(b"q")))
faulthandler.enable()
with socket.socketpair()[0] as one:
    one.settimeout(1)
print(len(socket.if_nameindex()) > 0)
