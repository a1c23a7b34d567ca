"""Limits of the server, and errors of requests: an HTTP status and one sentence."""

from collections.abc import Mapping
from typing import NamedTuple

from showattendtell.settings import PositiveFloat, PositiveInt


class RequestError(Exception):
    """A request that is not answered, with a sentence that says what is wrong and what to do.

    Args:
        status: 4xx, or 503 if the same request may succeed later.
    """

    def __init__(self, status: int, sentence: str, headers: Mapping[str, str] | None = None):
        super().__init__(sentence)
        self.status, self.headers = status, dict(headers or {})


MEGA = 1_000_000


class Limits(NamedTuple):
    """Limits of the server.

    file_megabytes: size of one photograph as a file.
    request_megabytes: size of a whole request, which is kept in memory.
    megapixels: of all photographs of a request together, checked by their headers before any is decoded.
    photographs: number of photographs in one request.
    waiting: requests that are received, queued or processed at a time; others are rejected with status 503.
    seconds: time for sending a request, again for answering it, and again for receiving the answer.
    connections: open at a time from one client address; an IPv6 network of 64 bits counts as one. Behind a reverse
        proxy all clients have the address of the proxy.
    """

    file_megabytes: PositiveFloat = 16.0
    request_megabytes: PositiveFloat = 32.0
    megapixels: PositiveFloat = 64.0
    photographs: PositiveInt = 8
    waiting: PositiveInt = 16
    seconds: PositiveFloat = 60.0
    connections: PositiveInt = 64
