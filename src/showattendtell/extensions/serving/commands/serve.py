"""Serve a web page and an HTTP API that caption photographs."""

import socket
import sys
from contextlib import suppress
from ipaddress import ip_address

from showattendtell.config.entry_point import entry_point, exit_process
from showattendtell.errors import UserError
from showattendtell.extensions.serving import ServeSettings


@entry_point("serve")
def main(settings: ServeSettings) -> None:
    try:
        import python_multipart  # noqa: F401  # FastAPI imports it for the first form
        import uvicorn

        from showattendtell.config.instantiate import build
        from showattendtell.extensions.serving.app import HEADERS, Service, make_app
    except ModuleNotFoundError as error:
        raise UserError(f"serve needs the package {error.name}; run pip install 'showattendtell[serve]'") from None
    listening = listen(settings.host, settings.port)
    service, (bound, port, *_) = Service(settings), listening.getsockname()
    address = f"http://{f'[{settings.host}]' if ':' in settings.host else settings.host}:{port}/"
    hosts = ["localhost", "127.0.0.1", "[::1]", settings.host]
    if not ip_address(bound).is_loopback:
        hosts = ["*"]
        print(f"note: host={settings.host} opens the server to everyone; it has no password", file=sys.stderr)
    server = uvicorn.Server(build(settings.server, app=make_app(service, hosts, address), headers=HEADERS))
    print(f"{', '.join(service.models)} at {address} (Ctrl-C ends it)", flush=True)
    with suppress(KeyboardInterrupt):
        server.run([listening])


def listen(host: str, port: int) -> socket.socket:
    """Return a listening socket; raise `UserError` if the address cannot be bound."""
    try:
        return socket.create_server((host, port), family=socket.AF_INET6 if ":" in host else socket.AF_INET)
    except OSError as error:
        reason = (error.strerror or str(error)).partition(" (")[0]
        raise UserError(f"cannot bind to host={host} port={port} ({reason}); set another host= or port=") from None


if __name__ == "__main__":
    main()
    exit_process()
