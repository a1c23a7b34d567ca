"""The internals of uvicorn and starlette that the server relies on, and that one module alone uses them."""

import ast
import asyncio
import tomllib
from collections.abc import AsyncIterator
from importlib.metadata import version
from inspect import getsource
from pathlib import Path
from typing import Any

import pytest
import uvicorn
from packaging.requirements import Requirement
from repository import ROOT
from server_requests import FORM, form, part
from starlette.datastructures import Headers
from starlette.formparsers import MultiPartException, MultiPartParser
from uvicorn.protocols.http import h11_impl
from uvicorn.server import ServerState

import showattendtell
from showattendtell.serving import server
from showattendtell.serving.schemas import Limits

SIZE = 3_000_000
INTERNALS = ("uvicorn.", "starlette.formparsers", "python_multipart")


class Transport(asyncio.Transport):
    """A transport that keeps what is written."""

    def __init__(self) -> None:
        super().__init__({"peername": ("192.0.2.1", 5), "sockname": ("127.0.0.1", 80)})
        self.written = b""

    def write(self, data: bytes) -> None:
        self.written += data

    def is_closing(self) -> bool:
        return False

    def close(self) -> None: ...


async def answer(scope: Any, receive: Any, send: Any) -> None:
    await send({"type": "http.response.start", "status": 200, "headers": []})
    await send({"type": "http.response.body", "body": b"answer"})


def test_a_connection_of_uvicorn_has_the_attributes_that_limits_need():
    completed = []

    class Protocol(h11_impl.H11Protocol):
        def on_response_complete(self) -> None:
            super().on_response_complete()
            completed.append((self.cycle.response_started, self.cycle.response_complete))

    async def serve() -> None:
        config, state = uvicorn.Config(answer, lifespan="off", log_level="error"), ServerState()
        config.load()
        protocol = Protocol(config, state, {})
        assert protocol.cycle is None
        assert protocol.loop is asyncio.get_running_loop()
        transport = Transport()
        protocol.connection_made(transport)
        assert (protocol.client, protocol.transport) == (("192.0.2.1", 5), transport)
        assert protocol.connections == state.connections == {protocol}
        protocol.data_received(b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n")
        assert (protocol.cycle.response_started, protocol.cycle.response_complete) == (False, False)
        await asyncio.gather(*state.tasks)
        assert b"answer" in transport.written
        protocol.connection_lost(None)
        assert state.connections == set()

    asyncio.run(serve())
    assert completed == [(True, True)]


def test_uvicorn_calls_the_application_that_a_connection_has_when_a_request_arrives():
    assert "app = self.app" in getsource(h11_impl.H11Protocol.handle_events)


@pytest.mark.parametrize(("parser", "in_memory"), [(server.InMemoryParser, True), (MultiPartParser, False)])
def test_a_large_file_stays_in_memory(parser: type[MultiPartParser], in_memory: bool):
    async def body() -> AsyncIterator[bytes]:
        yield form(part("photograph", bytes(SIZE), "a.jpg"))

    parsed = asyncio.run(parser(Headers(FORM), body()).parse())
    assert parsed["photograph"].size == SIZE
    assert parsed["photograph"]._in_memory is in_memory


def test_a_form_that_cannot_be_read_has_a_message():
    async def body() -> AsyncIterator[bytes]:
        yield b"nonsense"

    with pytest.raises(server.FormError) as fault:
        asyncio.run(server.InMemoryParser(Headers(FORM), body()).parse())
    assert server.FormError is MultiPartException
    assert fault.value.message


@pytest.mark.parametrize("package", ["starlette", "uvicorn"])
def test_the_allowed_versions_have_an_upper_bound(package: str):
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]["optional-dependencies"]
    [allowed] = [one.specifier for one in map(Requirement, extras["serve"]) if one.name == package]
    assert any(bound.operator == "<" for bound in allowed)
    assert allowed.contains(version(package))


def test_no_other_module_of_the_server_uses_internals():
    """Of `self` they are a module's own; `_asdict` and `_replace` belong to named tuples."""
    found = []
    for file in sorted(Path(showattendtell.__file__).parent.glob("serving/*.py")):
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
            if isinstance(node, ast.ImportFrom) and f"{node.module}.".startswith(INTERNALS):
                found.append(f"{file.name} {node.module}")
            if isinstance(node, ast.Attribute) and node.attr.startswith("_") and not node.attr.startswith("__"):
                is_own = isinstance(node.value, ast.Name) and node.value.id == "self"
                if not is_own and node.attr not in ("_asdict", "_replace"):
                    found.append(f"{file.name} {node.attr}")
    assert set(found) == {"server.py starlette.formparsers", "server.py uvicorn.protocols.http.h11_impl"}


def test_no_connection_is_read_for_long_at_once():
    """A body in chunks of one byte takes seconds for each megabyte."""
    sizes = []

    class Protocol(server.LimitedProtocol):
        limits = Limits()

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
