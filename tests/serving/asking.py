"""Requests to a server, byte by byte where they have to be."""

import http.client
import json
from collections.abc import Mapping
from typing import Any, NamedTuple
from urllib.parse import urlsplit

BOUNDARY = "boundary"
FORM = {"Content-Type": f"multipart/form-data; boundary={BOUNDARY}"}


class Answered(NamedTuple):
    status: int
    headers: Mapping[str, str]
    content: bytes

    @property
    def json(self) -> Any:
        return json.loads(self.content)

    @property
    def error(self) -> str:
        return self.json["error"]


def part(name: str, content: bytes | str, file_name: str | None = None, kind: str = "image/jpeg") -> bytes:
    """A field of a form, or a file."""
    head = f'Content-Disposition: form-data; name="{name}"'
    if file_name is not None:
        quoted = file_name.replace('"', "%22").replace("\r", "%0D").replace("\n", "%0A")  # as browsers do
        head += f'; filename="{quoted}"\r\nContent-Type: {kind}'
    body = content.encode() if isinstance(content, str) else content
    return f"--{BOUNDARY}\r\n{head}\r\n\r\n".encode() + body + b"\r\n"


def form(*parts: bytes) -> bytes:
    return b"".join(parts) + f"--{BOUNDARY}--\r\n".encode()


def ask(
    address: str, path: str, body: bytes | None = None, headers: Mapping[str, str] | None = None, method: str = ""
) -> Answered:
    """GET, or POST of a body, which is a form unless the headers say otherwise."""
    place = urlsplit(address)
    connection = http.client.HTTPConnection(place.hostname, place.port, timeout=120)
    try:
        sent = headers if headers is not None else FORM if body is not None else {}
        connection.request(method or ("GET" if body is None else "POST"), f"/{path}", body, sent)
        answer = connection.getresponse()
        return Answered(answer.status, {key.lower(): value for key, value in answer.getheaders()}, answer.read())
    finally:
        connection.close()


def caption(address: str, *photographs: bytes, path: str = "api/caption", **fields: str | list[str]) -> Answered:
    files = [part("photograph", content, f"{number}.jpg") for number, content in enumerate(photographs)]
    several = {name: value if isinstance(value, list) else [value] for name, value in fields.items()}
    texts = [part(name, value) for name, values in several.items() for value in values]
    return ask(address, path, form(*texts, *files))
