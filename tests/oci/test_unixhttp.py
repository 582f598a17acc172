"""The small HTTP client against answers that an engine should not give."""

from __future__ import annotations

import asyncio
import io
from pathlib import Path
from typing import Any

import pytest

from kooi.oci import unixhttp
from kooi.oci.unixhttp import EngineError


async def _with(answer: bytes, path: Path, what: Any) -> Any:
    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if b"chunked" in await reader.readuntil(b"\r\n\r\n"):
            await reader.readuntil(b"\r\n0\r\n\r\n")
        writer.write(answer)
        await writer.drain()
        writer.close()

    server = await asyncio.start_unix_server(serve, str(path))
    try:
        return await what(str(path))
    finally:
        server.close()


def answered(answer: bytes, tmp_path: Path, what: Any = None) -> Any:
    async def call(path: str) -> Any:
        return await unixhttp.call(path, "GET", "/x")

    return asyncio.run(_with(answer, tmp_path / "s", what or call))


def test_json_with_a_length_in_chunks_and_to_the_end(tmp_path: Path) -> None:
    assert answered(b'HTTP/1.1 200 OK\r\nContent-Length: 7\r\n\r\n{"a":1}', tmp_path) == {"a": 1}
    chunked = b'HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n3\r\n{"a\r\n4\r\n":1}\r\n0\r\n\r\n'
    (tmp_path / "s").unlink()
    assert answered(chunked, tmp_path) == {"a": 1}
    (tmp_path / "s").unlink()
    assert answered(b"HTTP/1.1 204 No Content\r\n\r\n", tmp_path) is None


def test_an_error_has_the_engines_word(tmp_path: Path) -> None:
    body = b'{"message":"no space left on device"}'
    head = b"HTTP/1.1 500 Oops\r\nContent-Length: %d\r\n\r\n" % len(body)
    with pytest.raises(EngineError, match="no space left on device") as caught:
        answered(head + body, tmp_path)
    assert caught.value.status == 500


@pytest.mark.parametrize(
    "answer",
    [
        b"",
        b"hello\r\n\r\n",
        b"HTTP/1.1 huh\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\n{}",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nfffffffff\r\nx",
        b"HTTP/1.1 200 OK\r\nX: " + b"x" * 100_000,
    ],
)
def test_what_is_not_http_is_an_error(answer: bytes, tmp_path: Path) -> None:
    with pytest.raises(EngineError):
        answered(answer, tmp_path)


def test_an_upload_that_fails_in_its_answer(tmp_path: Path) -> None:
    async def upload(path: str) -> Any:
        return await unixhttp.upload(path, "/images/create", io.BytesIO(b"x" * 10_000))

    with pytest.raises(EngineError, match="bad tar"):
        answered(b'HTTP/1.1 200 OK\r\n\r\n{"status":"x"}\n{"error":"bad tar"}\n', tmp_path, upload)


def test_a_stream_that_is_refused(tmp_path: Path) -> None:
    async def attach(path: str) -> Any:
        return await unixhttp.hijack(path, "/attach")

    with pytest.raises(EngineError, match="no such"):
        answered(b"HTTP/1.1 404 Not Found\r\nContent-Length: 7\r\n\r\nno such", tmp_path, attach)
