"""The socket of the server, its connections, and its run until it is stopped."""

import asyncio
import socket
from contextlib import suppress
from ipaddress import ip_address

import uvicorn
from fastapi import FastAPI
from uvicorn.protocols.http.h11_impl import H11Protocol, RequestResponseCycle

from showattendtell.errors import UserError
from showattendtell.extensions.serving.schemas import Limits

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

LOOPBACK = ("localhost", "127.0.0.1", "[::1]")

GRACE_SECONDS = 3  # for running requests to end when the server is stopped
HEADER_SECONDS = 10  # for the header of a request, from the connection or the previous answer on


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


class Connection(H11Protocol):
    """A connection of uvicorn that is closed unless the header of a request arrives within `timeout_keep_alive`, from
    the connection or the previous answer on.

    uvicorn has no such limit for the first header, and none for a body that continues after the request was refused.
    """

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._expect_request()

    def on_response_complete(self) -> None:
        self._expect_request()
        super().on_response_complete()

    def _expect_request(self) -> None:
        self.loop.call_later(self.timeout_keep_alive, self._close_unless_requested, self.cycle)

    def _close_unless_requested(self, answered: RequestResponseCycle | None) -> None:
        if self.cycle is answered:
            self.transport.close()


def run(app: FastAPI, listening: socket.socket, limits: Limits) -> None:
    """Serve until the process is interrupted; requests that are then running are aborted."""
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
        limit_concurrency=limits.connections,
        timeout_keep_alive=min(HEADER_SECONDS, limits.seconds),  # type: ignore[arg-type]
        timeout_graceful_shutdown=GRACE_SECONDS,
    )
    with suppress(KeyboardInterrupt):
        uvicorn.Server(config).run([listening])
