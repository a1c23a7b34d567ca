"""A publisher of archives on this machine, whose server does as it is told; and archives to publish."""

import io
import re
import tarfile
import threading
import zipfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path


class Publisher(ThreadingHTTPServer):
    """Serves `files` by name with ranges and ETags.

    faults   what is done to the next requests, one each: `drop:N` closes the line N bytes into the body, `busy` answers
             503, `change` sends a new ETag from now on, `ignore` knows no ranges, `shift` sends another rest than asked
    breath   seconds to wait after every `piece` bytes
    asked    (name, Range, If-Range) of every request
    """

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.files: dict[str, bytes] = {}
        self.faults: list[str] = []
        self.ranges = True
        self.validator: str | None = '"first"'
        self.tells_length = True
        self.breath, self.piece = 0.0, 2**16
        self.asked: list[tuple[str, str | None, str | None]] = []

    @property
    def address(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}"

    def handle_error(self, *_: object) -> None:
        """Clients that go away are what is tested."""


class Handler(BaseHTTPRequestHandler):
    server: Publisher

    def log_message(self, *_: object) -> None: ...

    def do_GET(self) -> None:
        name = self.path.rpartition("/")[2]
        wanted, condition = self.headers["Range"], self.headers["If-Range"]
        self.server.asked.append((name, wanted, condition))
        fault, _, number = (self.server.faults.pop(0) if self.server.faults else "").partition(":")
        if fault == "busy":
            self.send_error(503)
        elif name not in self.server.files:
            self.send_error(404)
        else:
            self._send(self.server.files[name], wanted, condition, fault, int(number or 0))

    def _send(self, content: bytes, wanted: str | None, condition: str | None, fault: str, number: int) -> None:
        first = self._first(wanted, condition, fault)
        if wanted and first >= len(content):
            self.send_error(416)
            return
        self.send_response(206 if first else 200)
        if first:
            self.send_header("Content-Range", f"bytes {first}-{len(content) - 1}/{len(content)}")
        if self.server.validator:
            self.send_header("ETag", self.server.validator)
        body = content[first:]
        if self.server.tells_length:
            self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self._write(body[:number] if fault == "drop" else body)
        self.close_connection = True

    def _first(self, wanted: str | None, condition: str | None, fault: str) -> int:
        """The first byte that is sent."""
        if not (wanted and self.server.ranges) or condition != self.server.validator:
            return 0
        return int(re.findall(r"\d+", wanted)[0]) + (1 if fault == "shift" else 0)

    def _write(self, body: bytes) -> None:
        for start in range(0, len(body), self.server.piece):
            self.wfile.write(body[start : start + self.server.piece])
            if self.server.breath:
                self.wfile.flush()
                threading.Event().wait(self.server.breath)


@contextmanager
def publishing() -> Iterator[Publisher]:
    with Publisher() as server:
        threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True).start()
        try:
            yield server
        finally:
            server.shutdown()


def zipped(members: Mapping[str, bytes]) -> bytes:
    content = io.BytesIO()
    with zipfile.ZipFile(content, "w") as file:
        for name, data in members.items():
            file.writestr(name, data)
    return content.getvalue()


def tarred(members: Mapping[str, bytes]) -> bytes:
    content = io.BytesIO()
    with tarfile.open(fileobj=content, mode="w:gz") as file:
        for name, data in members.items():
            info = tarfile.TarInfo(name)
            info.size = len(data)
            file.addfile(info, io.BytesIO(data))
    return content.getvalue()


def files_in(folder: Path) -> dict[str, bytes]:
    """What a root has, but for the folder of the downloads."""
    found = {str(path.relative_to(folder)): path for path in folder.rglob("*") if path.is_file()}
    return {name: path.read_bytes() for name, path in sorted(found.items()) if not name.startswith("downloads/")}
