"""Listening socket of the server, and its run until it is stopped."""

import socket
from contextlib import suppress
from ipaddress import ip_address

import uvicorn
from fastapi import FastAPI

from showattendtell.errors import UserError
from showattendtell.serving.connections import limited_protocol
from showattendtell.serving.limits import Limits

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
"""Headers of every answer: only content of this server is run or loaded, and no other site may frame or read it."""

LOOPBACK = ("localhost", "127.0.0.1", "[::1]")
PARTING = 3
"""Seconds that running requests have to end when the server is stopped."""


def listen(host: str, port: int) -> socket.socket:
    """Return a listening socket; raise `UserError` if the address cannot be bound."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        return socket.create_server((host, port), family=family)
    except OSError as fault:
        hint = "take another port=, or port=0 for any that is free" if port else "take another host="
        reason = (fault.strerror or str(fault)).partition(" (")[0]
        raise UserError(f"host={host} port={port} cannot be listened on ({reason}); {hint}") from None


def address(host: str, listening: socket.socket) -> str:
    """Return the URL to open in a browser."""
    shown = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(host, host)
    return f"http://{f'[{shown}]' if ':' in shown else shown}:{listening.getsockname()[1]}/"


def is_loopback(host: str) -> bool:
    """Whether the host can be reached from this machine only."""
    with suppress(ValueError):
        return ip_address(host).is_loopback
    return host == "localhost"


def run(app: FastAPI, listening: socket.socket, limits: Limits) -> None:
    """Serve until the process is interrupted; requests that are then running are aborted."""
    config = uvicorn.Config(
        app,
        loop="asyncio",
        http=limited_protocol(limits),
        ws="none",
        lifespan="off",
        log_level="error",
        access_log=False,
        proxy_headers=False,
        server_header=False,
        headers=[*HEADERS.items()],
        timeout_graceful_shutdown=PARTING,
    )
    with suppress(KeyboardInterrupt):
        uvicorn.Server(config).run([listening])
