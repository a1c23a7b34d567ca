"""One client shuts no others out: not with connections, not with bodies, not with files that take long to decode."""

import asyncio
import contextlib
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
import uvicorn
from hostile_uploads import encoded, noise
from server_requests import FORM, Response, caption, form, part, send_request
from slow_cases import slow_after
from slow_images import SLOW_IMAGES, jpeg_with_scans
from small_server import Served
from uvicorn.server import ServerState

from showattendtell.extensions.serving import server
from showattendtell.extensions.serving.app import RequestQueue
from showattendtell.extensions.serving.schemas import RequestError
from showattendtell.extensions.serving.server import client_network

Serve = Callable[..., Served]
SMALL = encoded(noise(), "PNG")
SOON = 30
"""Seconds in which a request is answered whatever others do, on the busiest machine."""


@pytest.fixture(scope="module")
def narrow(serve: Serve) -> Served:
    return serve("limits.request_megabytes=0.1", "limits.seconds=1", "limits.connections=3", "limits.waiting=4")


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


@pytest.mark.parametrize("sent", BEGUN.values(), ids=[*BEGUN])
def test_a_connection_on_which_no_header_comes_is_closed(narrow: Served, sent: bytes):
    with connected(narrow, 1, sent) as [idle]:
        assert is_closed(idle)


def test_a_header_that_comes_byte_by_byte_is_not_waited_for(narrow: Served):
    with connected(narrow, 1, b"GET / HTTP/1.1\r\n") as [slow]:
        assert wait_until(lambda: not is_sent(slow, b"A: b\r\n"))


def test_a_second_header_that_does_not_come_is_not_waited_for_either(narrow: Served):
    with connected(narrow, 1, b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n") as [idle]:
        assert idle.recv(12) == b"HTTP/1.1 200"
        idle.sendall(b"GET / HT")
        with contextlib.suppress(ConnectionError):
            while idle.recv(100_000):
                pass


def wait_until(fulfilled: Callable[[], bool]) -> bool:
    deadline = time.monotonic() + 900
    while not fulfilled() and time.monotonic() < deadline:
        time.sleep(0.05)
    return fulfilled()


def test_of_too_many_connections_the_oldest_without_a_request_is_closed(narrow: Served):
    with connected(narrow, 4) as [oldest, *others]:
        assert oldest.recv(12) == b"HTTP/1.1 503"
        others[-1].sendall(b"GET / HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n")
        assert others[-1].recv(12) == b"HTTP/1.1 200"


HEAD = b"POST /api/caption HTTP/1.1\r\nHost: localhost\r\nContent-Type: " + FORM["Content-Type"].encode() + b"\r\n"


def test_where_all_connections_are_used_another_is_requested_to_try_again(narrow: Served):
    with connected(narrow, 3, HEAD + b"Expect: 100-continue\r\nContent-Length: 9999\r\n\r\n") as busy:
        assert {one.recv(12) for one in busy} == {b"HTTP/1.1 100"}
        refused = send_request(narrow.address, "")
    assert (refused.status, refused.error) == (
        503,
        "this client has 3 connections; try again when one of them is closed",
    )
    assert int(refused.headers["retry-after"]) > 0
    assert wait_until(lambda: send_request(narrow.address, "").status == 200)


MUCH = form(part("photograph", bytes(40_000_000), "a.jpg"))
"""More than the system keeps of what a server does not read."""


@pytest.mark.parametrize("path", ["api/caption", "nowhere", ""])
def test_a_large_body_is_refused_with_a_sentence_and_no_reset(served: Served, path: str):
    head = HEAD.replace(b"/api/caption", f"/{path}".encode())
    length = f"Content-Length: {len(MUCH)}\r\n\r\n".encode()
    with connected(served, 1) as [connection]:
        connection.sendall(head + length + MUCH)  # all of it, before a word of the answer is read
        time.sleep(0.5)
        content = b""
        while b"}" not in content:
            content += connection.recv(10_000)
        assert re.match(rb"HTTP/1.1 4\d\d ", content)
        assert re.search(rb'"error":"[^"]+"', content)
    answered = requests.post(f"{served.address}{path}", MUCH, headers=FORM, timeout=900)
    assert answered.status_code in (404, 405, 413)
    assert answered.json()["error"]


def test_a_body_that_continues_after_its_refusal_is_not_read_for_ever(narrow: Served):
    with connected(narrow, 1, HEAD + b"Transfer-Encoding: chunked\r\n\r\n") as [endless]:
        assert wait_until(lambda: not is_sent(endless, b"2710\r\n" + bytes(10_000) + b"\r\n"))


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


def test_unfinished_bodies_of_many_clients_turn_nobody_away(narrow: Served):
    with contextlib.ExitStack() as stack:
        for number in range(2, 8):
            source = (f"127.0.0.{number}", 0)
            connection = socket.create_connection(place_of(narrow), timeout=900, source_address=source)
            stack.enter_context(connection).sendall(HEAD + b"Content-Length: 9999\r\n\r\n")
        assert wait_until(lambda: caption(narrow.address, SMALL).status == 200)


async def in_queue(client: str, queue: RequestQueue, work: Callable[[], Any], gone: bool = False) -> Any:
    """Ask for work as a request does that has arrived; the client may hang up soon after."""
    async with queue.place(client) as place:
        place.arriving = False
        if gone:
            asyncio.get_running_loop().call_later(0.1, place.task.cancel)
        return await queue.work(client, work)


@pytest.mark.parametrize("gone", [True, False])
def test_work_that_nobody_waits_for_is_not_begun(gone: bool):
    queue, release, done = RequestQueue(4, 60 if gone else 0.2), threading.Event(), []

    async def crowd() -> None:
        first = asyncio.create_task(in_queue("b", queue, release.wait))
        await asyncio.sleep(0)
        with pytest.raises(RequestError):
            await in_queue("a", queue, lambda: done.append(1), gone)
        release.set()
        with contextlib.suppress(RequestError):
            await first
        assert await in_queue("a", queue, lambda: 7) == 7

    asyncio.run(crowd())
    assert done == []


def test_clients_take_turns_and_a_large_photograph_does_not_keep_others_waiting():
    queue, release, order = RequestQueue(16, 60), threading.Event(), []

    async def crowd() -> None:
        large = asyncio.create_task(queue.work("a", release.wait, large=True))
        held = threading.Event()
        first = asyncio.create_task(in_queue("c", queue, held.wait))
        await asyncio.sleep(0)
        tasks = [asyncio.create_task(in_queue("a", queue, lambda n=n: order.append(f"a{n}"))) for n in range(5)]
        await asyncio.sleep(0)
        tasks.append(asyncio.create_task(in_queue("b", queue, lambda: order.append("b0"))))
        await asyncio.sleep(0.2)
        held.set()
        await asyncio.gather(first, *tasks)
        assert not large.done()
        release.set()
        await large

    asyncio.run(crowd())
    assert order.index("b0") <= 2
    assert [one for one in order if one != "b0"] == ["a0", "a1", "a2", "a3", "a4"]


@pytest.mark.parametrize(
    ("held", "newcomer", "loser"),
    [
        ("aaaa", "b", "a"),  # the client with the most places gives one of them
        ("aaab", "b", "a"),
        ("AAbb", "c", "A"),
        ("aabb", "b", "b"),  # it would have more than another
        ("abcd", "e", "e"),
        ("aBcd", "e", "B"),  # what has not arrived gives way
        ("aBcd", "a", "a"),  # but not to a client that has more
        ("aaaa", "a", "a"),
    ],
)
def test_places_are_shared_among_clients(held: str, newcomer: str, loser: str):
    """A letter is a place of a client, a capital one whose body has not arrived."""
    queue, lost = RequestQueue(4, 60), []

    async def occupy(letter: str) -> None:
        try:
            async with queue.place(letter.lower()) as place:
                place.arriving = letter.isupper()
                await asyncio.sleep(0.3)
        except RequestError as error:
            lost.append((letter, error.status_code, error.headers))

    async def crowd() -> None:
        tasks = [asyncio.create_task(occupy(letter)) for letter in held]
        await asyncio.sleep(0.05)
        await asyncio.gather(*tasks, occupy(newcomer))

    asyncio.run(crowd())
    assert lost == [(loser, 503, {"Retry-After": "2"})]


@pytest.mark.parametrize(
    ("host", "network"),
    [
        ("192.0.2.1", "192.0.2.1"),
        ("2001:db8:1:2::3", "20010db800010002"),
        ("2001:db8:1:2:ffff::1", "20010db800010002"),
        ("fe80::1%eth0", "fe80000000000000"),
    ],
)
def test_the_network_of_a_client(host: str, network: str):
    assert client_network((host, 80)) == network


async def answer(scope: Any, receive: Any, send: Any) -> None:
    await send({"type": "http.response.start", "status": 200, "headers": []})
    await send({"type": "http.response.body", "body": b"answer"})


def test_no_connection_is_read_for_long_at_once():
    """A body in chunks of one byte takes seconds for each megabyte."""
    sizes = []

    class Protocol(server.Connection):
        def data_received(self, data: bytes) -> None:
            sizes.append(len(data))
            super().data_received(data)

    async def serve() -> None:
        config, state = uvicorn.Config(answer, lifespan="off", log_level="error"), ServerState()
        config.load()
        loop = asyncio.get_running_loop()
        listening = await loop.create_server(lambda: Protocol(config, state, {}), "127.0.0.1", 0)
        reader, writer = await asyncio.open_connection(*listening.sockets[0].getsockname())
        writer.write(b"POST / HTTP/1.1\r\nHost: localhost\r\nContent-Length: 1000000\r\n\r\n" + bytes(1_000_000))
        assert b"200 OK" in await reader.readline()
        writer.close()
        listening.close()

    asyncio.run(serve())
    assert 1_000 < max(sizes) <= server.READ_BYTES
