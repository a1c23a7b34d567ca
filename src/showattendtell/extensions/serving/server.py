"""The socket of the server, its connections, and its run until it is stopped."""

import asyncio
import socket
import sys
from contextlib import suppress
from ipaddress import ip_address

import uvicorn
from omegaconf import DictConfig
from uvicorn.protocols.http.h11_impl import H11Protocol, RequestResponseCycle

from showattendtell.config.instantiate import build
from showattendtell.errors import UserError
from showattendtell.extensions.serving.app import make_app
from showattendtell.extensions.serving.models import ServedModel
from showattendtell.inference.captioning import load_captioners, model_note
from showattendtell.runtime.memory import LARGE_BLOCK, keep_freed_memory

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


def serve(config: DictConfig) -> None:
    """Serve the models of the command until the process is interrupted; requests that are then running are aborted."""
    keep_freed_memory(LARGE_BLOCK)
    host, limits = config.host, build(config.limits)
    listening = listen(host, config.port)
    models = {captioner.name: ServedModel(captioner) for captioner in load_captioners(config)}
    bound, port, *_ = listening.getsockname()
    is_local = ip_address(bound).is_loopback
    if not is_local:
        print(
            f"note: host={host} opens the server to everyone who can reach this machine; it has no password",
            file=sys.stderr,
        )
    visible_host = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(host, host)
    address = f"http://{f'[{visible_host}]' if ':' in visible_host else visible_host}:{port}/"
    hosts = config.allowed_hosts or ([*LOOPBACK, host] if is_local else ["*"])
    settings = uvicorn.Config(
        make_app(models, limits, hosts, model_note(config), address),
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
        timeout_keep_alive=min(HEADER_SECONDS, limits.seconds),
        timeout_graceful_shutdown=GRACE_SECONDS,
    )
    print(f"{', '.join(models)} at {address} (Ctrl-C ends it)", flush=True)
    with suppress(KeyboardInterrupt):
        uvicorn.Server(settings).run([listening])
