"""The parts of uvicorn and starlette that the server builds on."""

import asyncio
import tomllib
from collections.abc import AsyncIterator
from importlib.metadata import version
from typing import Any

import pytest
import uvicorn
from packaging.requirements import Requirement
from repository import ROOT
from server_requests import FORM, form, part
from starlette.datastructures import Headers
from starlette.formparsers import MultiPartParser
from uvicorn.server import ServerState

from showattendtell.extensions.serving import server
from showattendtell.extensions.serving.forms import InMemoryParser

SIZE = 3_000_000


@pytest.mark.parametrize(("parser", "in_memory"), [(InMemoryParser, True), (MultiPartParser, False)])
def test_a_large_file_stays_in_memory(parser: type[MultiPartParser], in_memory: bool):
    async def body() -> AsyncIterator[bytes]:
        yield form(part("photograph", bytes(SIZE), "a.jpg"))

    parsed = asyncio.run(parser(Headers(FORM), body()).parse())
    assert parsed["photograph"].size == SIZE
    assert parsed["photograph"]._in_memory is in_memory


@pytest.mark.parametrize("package", ["starlette", "uvicorn"])
def test_the_allowed_versions_have_an_upper_bound(package: str):
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]["optional-dependencies"]
    [allowed] = [one.specifier for one in map(Requirement, extras["serve"]) if one.name == package]
    assert any(bound.operator == "<" for bound in allowed)
    assert allowed.contains(version(package))


async def answer(scope: Any, receive: Any, send: Any) -> None:
    await send({"type": "http.response.start", "status": 200, "headers": []})
    await send({"type": "http.response.body", "body": b"answer"})


def test_no_connection_is_read_for_long_at_once():
    """A body in chunks of one byte takes seconds for each megabyte."""
    sizes = []

    class Protocol(server.Connection):
        def data_received(self, data: bytes) -> None:
            sizes.append(len(data))
            super().data_received(data)

    async def serve() -> None:
        config, state = uvicorn.Config(answer, lifespan="off", log_level="error"), ServerState()
        config.load()
        loop = asyncio.get_running_loop()
        listening = await loop.create_server(lambda: Protocol(config, state, {}), "127.0.0.1", 0)
        reader, writer = await asyncio.open_connection(*listening.sockets[0].getsockname())
        writer.write(b"POST / HTTP/1.1\r\nHost: localhost\r\nContent-Length: 1000000\r\n\r\n" + bytes(1_000_000))
        assert b"200 OK" in await reader.readline()
        writer.close()
        listening.close()

    asyncio.run(serve())
    assert 1_000 < max(sizes) <= server.READ_BYTES
