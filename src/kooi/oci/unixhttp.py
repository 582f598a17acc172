"""As much of HTTP as a container engine's interface needs: a unix socket, one request a connection, JSON, upgrades."""

from __future__ import annotations

import asyncio
import contextlib
import json
import socket
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlencode

from kooi.contract.errors import KooiError

MAX_HEAD, MAX_BODY = 64 * 1024, 16 << 20
_CHUNK = 256 * 1024


class EngineError(KooiError):
    """The engine answered with an error; `status` is HTTP's."""

    code = "setup_failed"

    def __init__(self, status: int, message: str, *, fix: str | None = None) -> None:
        super().__init__(message, fix=fix)
        self.status = status


@dataclass(frozen=True)
class Head:
    """The start of an answer."""

    status: int
    fields: Mapping[str, str]


async def call(path: str, method: str, target: str, body: Any = None, **query: str) -> Any:
    """Make one request and return the answer's JSON (None where it is empty). Raises `EngineError` or `OSError`."""
    async with opened(path) as (reader, writer):
        data = b"" if body is None else json.dumps(body).encode()
        writer.write(_request(method, target, query, {"Content-Length": str(len(data)), "Connection": "close"}) + data)
        head = await _head(reader)
        answer = b"".join([part async for part in _body(reader, head)])
    return _checked(head, answer)


async def upload(path: str, target: str, content: Any, **query: str) -> Any:
    """Post a file's content and return the last JSON document of the answer. Raises like `call`."""
    async with opened(path) as (reader, writer):
        fields = {"Transfer-Encoding": "chunked", "Content-Type": "application/x-tar", "Connection": "close"}
        writer.write(_request("POST", target, query, fields))
        try:
            while part := await asyncio.to_thread(content.read, _CHUNK):
                writer.write(b"%x\r\n%s\r\n" % (len(part), part))
                await writer.drain()
            writer.write(b"0\r\n\r\n")
            await writer.drain()
        except ConnectionError:
            pass  # an engine that has refused it says why, and reads no more
        head = await _head(reader)
        answer = b"".join([part async for part in _body(reader, head)])
    last = answer.strip().rpartition(b"\n")[2]
    found = _checked(head, last)
    if isinstance(found, dict) and "error" in found:
        raise EngineError(500, str(found["error"]))
    return found


async def hijack(path: str, target: str, **query: str) -> tuple[socket.socket, bytes]:
    """Return the connection of a request that becomes a stream, and what has arrived on it already."""
    loop = asyncio.get_running_loop()
    connection = socket.socket(socket.AF_UNIX)
    connection.setblocking(False)
    try:
        await loop.sock_connect(connection, path)
        await loop.sock_sendall(
            connection, _request("POST", target, query, {"Upgrade": "tcp", "Connection": "Upgrade"})
        )
        data = b""
        while b"\r\n\r\n" not in data:
            part = await loop.sock_recv(connection, 65536)
            if not part or len(data) > MAX_HEAD:
                raise EngineError(500, "the engine ended the connection that was to be the stream")
            data += part
        text, _, rest = data.partition(b"\r\n\r\n")
        head = _parse(text)
        if head.status not in (101, 200):
            raise EngineError(head.status, rest.decode("utf-8", "replace")[:500].strip() or "no stream")
        return connection, rest
    except BaseException:
        connection.close()
        raise


@contextlib.asynccontextmanager
async def opened(path: str) -> AsyncIterator[tuple[asyncio.StreamReader, asyncio.StreamWriter]]:
    """Connect, and close the connection afterwards. Raises `OSError`."""
    reader, writer = await asyncio.open_unix_connection(path, limit=MAX_HEAD)
    try:
        yield reader, writer
    finally:
        writer.close()


def _request(method: str, target: str, query: Mapping[str, str], fields: Mapping[str, str]) -> bytes:
    where = f"{target}?{urlencode(query)}" if query else target
    given = {"Host": "engine", "Content-Type": "application/json", **fields}
    head = "".join(f"{name}: {value}\r\n" for name, value in given.items())
    return f"{method} {where} HTTP/1.1\r\n{head}\r\n".encode()


async def _head(reader: asyncio.StreamReader) -> Head:
    try:
        text = await reader.readuntil(b"\r\n\r\n")
    except (asyncio.IncompleteReadError, asyncio.LimitOverrunError, ConnectionError) as error:
        raise EngineError(500, f"the engine's answer is not HTTP: {error}") from error
    return _parse(text)


def _parse(text: bytes) -> Head:
    first, *rest = text.decode("latin-1").split("\r\n")
    words = first.split(" ", 2)
    if len(words) < 2 or not words[0].startswith("HTTP/1.") or not words[1].isdigit():
        raise EngineError(500, f"the engine's answer is not HTTP: {first[:80]!r}")
    pairs = (line.partition(":") for line in rest if ":" in line)
    return Head(int(words[1]), {name.strip().lower(): value.strip() for name, _, value in pairs})


async def _body(reader: asyncio.StreamReader, head: Head) -> AsyncIterator[bytes]:
    total = 0
    if head.status in (204, 304):
        return
    try:
        if head.fields.get("transfer-encoding", "").lower() == "chunked":
            while size := int((await reader.readline()).split(b";")[0] or b"0", 16):
                total += size
                if total > MAX_BODY:
                    raise EngineError(500, "the engine's answer is too long")
                yield await reader.readexactly(size)
                await reader.readline()
        elif "content-length" in head.fields:
            yield await reader.readexactly(min(int(head.fields["content-length"]), MAX_BODY))
        else:
            while part := await reader.read(65536):
                yield part
    except (ValueError, asyncio.IncompleteReadError) as error:
        raise EngineError(500, f"the engine's answer is not whole: {error}") from error


def _checked(head: Head, answer: bytes) -> Any:
    try:
        found = json.loads(answer) if answer.strip() else None
    except ValueError:
        found = {"message": answer.decode("utf-8", "replace")[:500]}
    if head.status >= 300 and head.status != 304:
        message = found.get("message") or found.get("cause") if isinstance(found, dict) else None
        raise EngineError(head.status, str(message or f"HTTP status {head.status}").strip())
    return found
