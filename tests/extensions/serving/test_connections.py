"""Connections, bodies and work are bounded: requests that are idle, slow or costly end, and others get answers."""

import asyncio
import contextlib
import io
import re
import socket
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any
from urllib.parse import urlsplit

import pytest
import requests
from fastapi import UploadFile
from hostile_uploads import encoded, noise
from runs import wait_until
from server_requests import FORM, Response, caption, form, part, send_request
from slow_cases import slow_after
from slow_images import SLOW_IMAGES, jpeg_with_scans
from small_server import Served
from starlette.requests import Request
from starlette.responses import Response as ServerResponse

from showattendtell.extensions.serving import app
from showattendtell.extensions.serving.app import Service
from showattendtell.extensions.serving.schemas import CaptionForm, Limits, RequestError, Upload

Serve = Callable[..., Served]
SMALL = encoded(noise(), "PNG")
SOON = 30
"""Seconds in which a request is answered whatever others do, on the busiest machine."""


@pytest.fixture(scope="module")
def narrow(serve: Serve) -> Served:
    return serve("limits.request_megabytes=0.1", "limits.seconds=1", "limits.connections=4", "limits.waiting=4")


def place_of(served: Served) -> tuple[str, int]:
    place = urlsplit(served.address)
    return place.hostname, place.port


@contextlib.contextmanager
def connected(served: Served, count: int, sent: bytes = b"") -> Iterator[list[socket.socket]]:
    """So many connections, each of which has sent something."""
    with contextlib.ExitStack() as stack:
        sockets = []
        for _ in range(count):
            connection = stack.enter_context(socket.create_connection(place_of(served), timeout=900))
            with contextlib.suppress(OSError):  # closed already
                connection.sendall(sent)
            sockets.append(connection)
        yield sockets


def is_closed(connection: socket.socket) -> bool:
    """Whether the server closes it; waits up to a minute for that."""
    try:
        return connection.recv(1) == b""
    except ConnectionError:
        return True


def is_sent(connection: socket.socket, content: bytes) -> bool:
    """Whether the server still takes it."""
    try:
        connection.sendall(content)
    except ConnectionError:
        return False
    return True


def in_time(ask: Callable[[], Response]) -> Response:
    begin = time.monotonic()
    answered = ask()
    assert time.monotonic() - begin < SOON
    return answered


@pytest.mark.parametrize("kind", slow_after(4, SLOW_IMAGES))
def test_a_file_that_takes_too_long_to_decode_is_refused_and_the_next_request_answered(served: Served, kind: str):
    make, reason = SLOW_IMAGES[kind]
    content = make()
    refused = in_time(lambda: caption(served.address, content))
    assert refused.status == 422
    assert re.match(rf"image 0.jpg {reason}", refused.error)
    assert in_time(lambda: caption(served.address, SMALL)).status == 200


def test_many_files_that_take_too_long_to_decode_do_not_keep_others_waiting(served: Served):
    costly = jpeg_with_scans(60_000, (1_000, 1_000))
    with ThreadPoolExecutor(12) as clients:
        refused = [clients.submit(caption, served.address, *[costly] * 8) for _ in range(12)]
        assert in_time(lambda: caption(served.address, SMALL)).status in (200, 503)
        assert {one.result().status for one in refused} <= {422, 503}
    assert in_time(lambda: caption(served.address, SMALL)).status == 200


BEGUN = {
    "nothing": b"",
    "half a header": b"GET / HTTP/1.1\r\nHost: loc",
    "a header without its end": b"POST /api/caption HTTP/1.1\r\nHost: localhost\r\n",
}


@pytest.mark.parametrize("sent", BEGUN.values(), ids=[*BEGUN])
def test_a_request_is_answered_while_a_client_holds_250_idle_connections(served: Served, sent: bytes):
    with connected(served, 250, sent):
        assert in_time(lambda: send_request(served.address, "")).status == 200
        assert in_time(lambda: caption(served.address, SMALL)).status == 200


@pytest.mark.parametrize("sent", slow_after(1, BEGUN.values()), ids=[*BEGUN])
def test_a_connection_on_which_no_header_comes_is_closed(narrow: Served, sent: bytes):
    with connected(narrow, 1, sent) as [idle]:
        assert is_closed(idle)


@pytest.mark.slow
def test_a_header_that_comes_byte_by_byte_is_not_waited_for(narrow: Served):
    with connected(narrow, 1, b"GET / HTTP/1.1\r\n") as [slow]:
        wait_until(lambda: not is_sent(slow, b"A: b\r\n"))
        assert not is_sent(slow, b"\r\n")


@pytest.mark.slow
def test_a_second_header_that_does_not_come_is_not_waited_for_either(narrow: Served):
    with connected(narrow, 1, b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n") as [idle]:
        assert idle.recv(12) == b"HTTP/1.1 200"
        idle.sendall(b"GET / HT")
        with contextlib.suppress(ConnectionError):
            while idle.recv(100_000):
                pass


HEAD = b"POST /api/caption HTTP/1.1\r\nHost: localhost\r\nContent-Type: " + FORM["Content-Type"].encode() + b"\r\n"


def test_where_all_connections_are_used_another_is_requested_to_try_again(narrow: Served):
    with connected(narrow, 3, HEAD + b"Expect: 100-continue\r\nContent-Length: 9999\r\n\r\n") as busy:
        assert {one.recv(12) for one in busy} == {b"HTTP/1.1 100"}
        assert send_request(narrow.address, "").status == 503
    wait_until(lambda: send_request(narrow.address, "").status == 200)


MUCH = form(part("photograph", bytes(40_000_000), "a.jpg"))
"""More than the system keeps of what a server does not read."""


@pytest.mark.parametrize("path", ["api/caption", "nowhere", ""])
def test_a_large_body_is_refused_without_a_reset(served: Served, path: str):
    head = HEAD.replace(b"/api/caption", f"/{path}".encode())
    length = f"Content-Length: {len(MUCH)}\r\n\r\n".encode()
    with connected(served, 1) as [connection]:
        connection.sendall(head + length + MUCH)  # all of it, before a word of the answer is read
        time.sleep(0.5)
        assert re.match(rb"HTTP/1.1 4\d\d ", connection.recv(10_000))
    answered = requests.post(f"{served.address}{path}", MUCH, headers=FORM, timeout=900)
    assert answered.status_code in (404, 405, 413)


@pytest.mark.slow
def test_a_body_that_continues_after_its_refusal_is_not_read_for_ever(narrow: Served):
    with connected(narrow, 1, HEAD + b"Transfer-Encoding: chunked\r\n\r\n") as [endless]:
        wait_until(lambda: not is_sent(endless, b"2710\r\n" + bytes(10_000) + b"\r\n"))
        assert not is_sent(endless, b"0\r\n\r\n")


@pytest.mark.slow
def test_a_body_that_comes_byte_by_byte_is_refused(narrow: Served):
    begun = part("photograph", b"", "a.jpg")[:-2]
    with connected(narrow, 1, HEAD + b"Content-Length: 9999\r\n\r\n" + begun) as [slow]:
        stop = threading.Event()

        def trickle() -> None:
            with contextlib.suppress(OSError):
                while not stop.wait(0.1):
                    slow.sendall(b"x")

        sender = threading.Thread(target=trickle)
        sender.start()
        assert slow.recv(12) == b"HTTP/1.1 408"
        stop.set()
        sender.join()


class Models:
    """Models that take until they are released."""

    def __init__(self) -> None:
        self.released, self.described = threading.Event(), []

    def describe(self, _: Any, photographs: list[Upload], *__: Any) -> dict[str, Any]:
        self.described += [photograph.name for photograph in photographs]
        self.released.wait()
        return {}


def request_of(gone: asyncio.Event) -> Request:
    """Return a request whose body has been read, and whose client hangs up when `gone` is set."""

    async def receive() -> dict[str, Any]:
        await gone.wait()
        return {"type": "http.disconnect"}

    return Request({"type": "http", "headers": []}, receive)


async def caption_with(service: Service, name: str, gone: asyncio.Event) -> bytes:
    form = CaptionForm(photograph=[UploadFile(io.BytesIO(SMALL), filename=name)])

    async def handle(request: Request) -> ServerResponse:
        return ServerResponse(await service.caption(request, form, lambda *_: b"done"))

    return (await service.answer(request_of(gone), handle)).body


@pytest.mark.parametrize("gone", [True, False])
def test_work_that_nobody_waits_for_is_not_begun_and_leaves_its_place(gone: bool, monkeypatch: pytest.MonkeyPatch):
    models = Models()
    monkeypatch.setattr(app, "describe", models.describe)
    service = Service({}, Limits(seconds=60 if gone else 0.3))

    async def crowd() -> None:
        first = asyncio.create_task(caption_with(service, "first", asyncio.Event()))
        while not models.described:
            await asyncio.sleep(0.01)
        hung_up = asyncio.Event()
        asyncio.get_running_loop().call_later(0.1, hung_up.set if gone else str)
        with pytest.raises(RequestError):
            await caption_with(service, "second", hung_up)
        models.released.set()
        with contextlib.suppress(RequestError):
            await first
        assert await caption_with(service, "third", asyncio.Event()) == b"done"

    asyncio.run(crowd())
    assert models.described == ["first", "third"]
    assert service.places_taken == 0
