"""The socket of the server, its connections, and its run until it is stopped."""

import asyncio
import json
import socket
import sys
from contextlib import suppress
from functools import cache
from http import HTTPStatus
from ipaddress import ip_address

import h11
import uvicorn
from fastapi import FastAPI
from uvicorn.protocols.http.h11_impl import H11Protocol, RequestResponseCycle

from showattendtell.errors import UserError
from showattendtell.extensions.serving.schemas import RETRY_SECONDS, Limits

HEADERS = {
    "Content-Security-Policy": "default-src 'none'; script-src 'self'; style-src 'self'; "
    "style-src-attr 'unsafe-inline'; img-src 'self' data: blob:; connect-src 'self'; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cache-Control": "no-store",
    "Accept-Ranges": "none",
}
"""Headers of every response: only content of this server is run or loaded, and no other site may frame or read it."""

LOOPBACK = ("localhost", "127.0.0.1", "::1")

GRACE_SECONDS = 3  # for running requests to end when the server is stopped
HEADER_SECONDS = 10  # for the header of a request, from the connection or the previous answer on

READ_BYTES = 8192
"""Bytes that are read from a connection before it is the turn of the others; as chunks of one byte they take 15 ms."""


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


def is_local(listening: socket.socket) -> bool:
    """Return whether the socket can be reached from this machine only."""
    return ip_address(listening.getsockname()[0]).is_loopback


def client_network(client: tuple[str, int] | None) -> str:
    """Return the part of an address that identifies a client: for IPv6 the first 64 bits, which one site shares."""
    host = client[0] if client else ""
    return ip_address(host).packed[:8].hex() if ":" in host else host


@cache
def error_response(status: HTTPStatus, sentence: str) -> bytes:
    """Return the response to what is not answered by the application."""
    content = json.dumps({"error": sentence})
    headers = {**HEADERS, "Content-Type": "application/json", "Content-Length": len(content), "Connection": "close"}
    if status == HTTPStatus.SERVICE_UNAVAILABLE:
        headers["Retry-After"] = RETRY_SECONDS
    lines = [f"HTTP/1.1 {status} {status.phrase}", *(f"{name}: {value}" for name, value in headers.items())]
    return "\r\n".join([*lines, "", content]).encode()


class Connection(H11Protocol):
    """A connection of uvicorn, with three differences.

    A client has a limited number of connections, of which the oldest without a request is closed. uvicorn's time
    between requests applies to the first request and to an incomplete header, too. Errors of the protocol have the form
    of all other errors.
    """

    limit = Limits().connections

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        transport.max_size = READ_BYTES  # type: ignore[attr-defined]
        super().connection_made(transport)
        self.network, self.opened = client_network(self.client), self.loop.time()
        others = [other for other in self.connections if isinstance(other, Connection)]
        same_client = [other for other in others if other.network == self.network and not other.transport.is_closing()]
        if len(same_client) > self.limit:
            idle = [other for other in same_client if other.cycle is None or other.cycle.response_complete]
            oldest = min(idle, key=lambda other: other.opened)
            oldest.refuse(503, f"this client has {self.limit} connections; try again when one of them is closed")
        self._expect_request()

    def on_response_complete(self) -> None:
        self._expect_request()
        super().on_response_complete()

    def _expect_request(self) -> None:
        self.loop.call_later(self.timeout_keep_alive, self._close_unless_requested, self.cycle)

    def _close_unless_requested(self, answered: RequestResponseCycle | None) -> None:
        if self.cycle is answered:
            self.transport.close()

    def send_400_response(self, msg: str) -> None:
        too_long = HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE
        if getattr(sys.exception(), "error_status_hint", None) == too_long:  # of h11's error, which uvicorn handles
            self.refuse(too_long, "the header is too long; send fewer or shorter fields")
        else:
            self.refuse(400, "the request is not valid HTTP; send it again with another program")

    def refuse(self, status: int, sentence: str) -> None:
        if self.conn.our_state in (h11.IDLE, h11.SEND_RESPONSE):
            self.transport.write(error_response(HTTPStatus(status), sentence))
        if self.cycle:
            self.cycle.disconnected = True  # a response of the application is not sent any more
        self.transport.close()


def run(app: FastAPI, listening: socket.socket, limits: Limits) -> None:
    """Serve until the process is interrupted; requests that are then running are aborted."""
    Connection.limit = limits.connections
    config = uvicorn.Config(
        app,
        loop="asyncio",
        http=Connection,
        ws="none",
        lifespan="off",
        log_level="error",
        access_log=False,
        proxy_headers=False,
        server_header=False,
        headers=[*HEADERS.items()],
        timeout_keep_alive=min(HEADER_SECONDS, limits.seconds),  # type: ignore[arg-type]
        timeout_graceful_shutdown=GRACE_SECONDS,
    )
    with suppress(KeyboardInterrupt):
        uvicorn.Server(config).run([listening])
