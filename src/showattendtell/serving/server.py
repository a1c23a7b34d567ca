"""The server: its socket, limits on connections so that no client blocks the others, and its run until it is stopped.

This module alone uses internals of uvicorn, starlette and asyncio: the class `H11Protocol`, with its methods and
attributes `app`, `client`, `connections`, `cycle` (`response_complete`, `response_started`), `loop` and `transport`;
the form parser with its attribute `spool_max_size`; and the attribute `max_size` of a transport.
`tests/serving/test_server.py` fails if a new version changes one of them; pyproject.toml lists the versions that are
allowed.
"""

import asyncio
import socket
from collections.abc import Iterator
from contextlib import suppress
from ipaddress import IPv6Address, ip_address

import uvicorn
from fastapi import FastAPI
from starlette.formparsers import MultiPartException as FormError
from starlette.formparsers import MultiPartParser
from starlette.responses import JSONResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send
from uvicorn.protocols.http.h11_impl import H11Protocol

from showattendtell.errors import UserError
from showattendtell.serving.schemas import RETRY, Limits

__all__ = ["FormError", "InMemoryParser", "address", "client_network", "is_loopback", "listen", "run"]

HEADERS = {
    "Content-Security-Policy": "default-src 'none'; script-src 'self'; style-src 'self'; "
    "style-src-attr 'unsafe-inline'; img-src 'self' data: blob:; connect-src 'self'; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cache-Control": "no-store",
}
"""Headers of every response: only content of this server is run or loaded, and no other site may frame or read it."""

LOOPBACK = ("localhost", "127.0.0.1", "[::1]")
GRACE_SECONDS = 3
"""Time for running requests to end when the server is stopped."""

CONNECTIONS = 200
"""Maximum number of open connections of all clients together."""

HEADER_SECONDS = 10
"""Time for the header of a request to arrive, from the connection or the previous answer on.

`limits.seconds` replaces it if that is shorter."""

READ_BYTES = 65_536
"""Bytes that are read from a connection at once, after which it is the turn of the others.

A body in chunks of one byte takes h11 7 microseconds for each: 0.3 seconds for 256 kB, as much as asyncio reads."""

UNREAD_SECONDS = 10
"""Time for which the rest of a body is read and discarded after the request has been answered."""


def listen(host: str, port: int) -> socket.socket:
    """Return a listening socket; raise `UserError` if the address cannot be bound."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        return socket.create_server((host, port), family=family)
    except OSError as error:
        hint = "set another port=, or port=0 for any free one" if port else "set another host="
        reason = (error.strerror or str(error)).partition(" (")[0]
        raise UserError(f"cannot bind to host={host} port={port} ({reason}); {hint}") from None


def address(host: str, listening: socket.socket) -> str:
    """Return the URL to open in a browser."""
    visible_host = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(host, host)
    return f"http://{f'[{visible_host}]' if ':' in visible_host else visible_host}:{listening.getsockname()[1]}/"


def is_loopback(host: str) -> bool:
    """Whether the host can be reached from this machine only."""
    with suppress(ValueError):
        return ip_address(host).is_loopback
    return host == "localhost"


class InMemoryParser(MultiPartParser):
    """Starlette's parser of forms without temporary files; the size is limited before it."""

    spool_max_size = 2**40


def client_network(host: str) -> str:
    """Return the part of an address that identifies a client: for IPv6 the first 64 bits, which one site shares."""
    with suppress(ValueError):
        address = ip_address(host)
        if isinstance(address, IPv6Address):
            return str(address.ipv4_mapped or address.packed[:8].hex())
    return host


class LimitedProtocol(H11Protocol):
    """uvicorn's connections, limited in time and number.

    A connection is aborted if the header of a request takes longer than `HEADER_SECONDS`, or if a request is not sent,
    answered and its answer received within three times `limits.seconds`.

    If a client or all together have too many connections, the oldest one without a request is closed. If
    all have one, requests of the new connection are answered with 503.
    """

    limits: Limits

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        transport.max_size = READ_BYTES  # type: ignore[attr-defined]
        super().connection_made(transport)
        self.client_network = client_network(self.client[0] if self.client else "")
        self.opened = self.loop.time()
        self._deadline: asyncio.TimerHandle | None = None
        self._limit_time(self._header_seconds)
        same_client = [connection for connection in self._others() if connection.client_network == self.client_network]
        self._make_room(same_client, self.limits.connections)
        self._make_room([*self._others()], CONNECTIONS)

    def data_received(self, data: bytes) -> None:
        idle = self.idle
        super().data_received(data)
        if idle and not self.idle:
            self._limit_time(3 * self.limits.seconds)

    def on_response_complete(self) -> None:
        super().on_response_complete()
        self._limit_time(self._header_seconds if self.idle else 3 * self.limits.seconds)

    def connection_lost(self, exc: Exception | None) -> None:
        super().connection_lost(exc)
        if self._deadline:
            self._deadline.cancel()

    @property
    def idle(self) -> bool:
        """Whether no request is waiting for an answer."""
        return self.cycle is None or self.cycle.response_complete

    @property
    def answered(self) -> bool:
        """Whether the answer is on its way to the client."""
        return self.cycle is not None and self.cycle.response_started

    @property
    def _header_seconds(self) -> float:
        return min(HEADER_SECONDS, self.limits.seconds)

    def _limit_time(self, seconds: float) -> None:
        """Abort the connection after this time; replaces the previous limit."""
        if self._deadline:
            self._deadline.cancel()
        self._deadline = self.loop.call_later(seconds, self.transport.abort)

    def _others(self) -> Iterator["LimitedProtocol"]:
        for connection in self.connections:
            if (
                isinstance(connection, LimitedProtocol)
                and connection is not self
                and not connection.transport.is_closing()
            ):
                yield connection

    def _make_room(self, others: list["LimitedProtocol"], limit: int) -> None:
        """Close one of the other connections if there are more than `limit` with this one."""
        if len(others) >= limit:
            closable = [connection for connection in others if connection.idle] or [
                connection for connection in others if connection.answered
            ]
            if closable:
                min(closable, key=lambda connection: connection.opened).transport.abort()
            else:
                self.app = crowded


class ReadBody:
    """Middleware that answers before it has read the whole body, and only then discards the rest of it.

    Closing a connection while data arrive resets it, and the client may never see the answer.
    """

    def __init__(self, app: ASGIApp):
        self.app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        unread = scope["type"] == "http"

        async def read() -> Message:
            nonlocal unread
            message = await receive()
            unread = unread and message.get("more_body", False)
            return message

        async def write(message: Message) -> None:
            if unread and message["type"] == "http.response.body" and not message.get("more_body", False):
                await send({**message, "more_body": True})
                with suppress(TimeoutError, asyncio.CancelledError):  # cancelled when the server stops
                    async with asyncio.timeout(UNREAD_SECONDS):
                        while unread:
                            await read()
                message = {"type": "http.response.body", "body": b""}
            await send(message)

        await self.app(scope, read, write)


crowded = ReadBody(
    JSONResponse(
        {"error": "there are too many connections; try again in a moment"}, 503, {**RETRY, "Connection": "close"}
    )
)
"""The application for connections beyond the limit."""


def run(app: FastAPI, listening: socket.socket, limits: Limits) -> None:
    """Serve until the process is interrupted; requests that are then running are aborted."""
    config = uvicorn.Config(
        app,
        loop="asyncio",
        http=type("LimitedProtocol", (LimitedProtocol,), {"limits": limits}),
        ws="none",
        lifespan="off",
        log_level="error",
        access_log=False,
        proxy_headers=False,
        server_header=False,
        headers=[*HEADERS.items()],
        timeout_graceful_shutdown=GRACE_SECONDS,
    )
    with suppress(KeyboardInterrupt):
        uvicorn.Server(config).run([listening])
