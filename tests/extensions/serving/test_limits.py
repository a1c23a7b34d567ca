"""Limits of requests, connections and decoding, and how a server starts and ends."""

import contextlib
import os
import re
import signal
import socket
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
from hostile_uploads import encoded, noise
from runs import wait_until
from server_requests import FORM, Response, caption, part, send_request
from slow_images import jpeg_with_scans
from small_server import Served

Serve = Callable[..., Served]
SMALL = encoded(noise(), "PNG")
HEAD = b"POST /api/caption HTTP/1.1\r\nHost: localhost\r\nContent-Type: " + FORM["Content-Type"].encode() + b"\r\n"
SOON = 30
"""Seconds in which a request is answered whatever others do, on the busiest machine."""


@pytest.fixture(scope="module")
def narrow(serve: Serve) -> Served:
    """A server with small limits, open to others."""
    limits = ["megabytes=0.1", "megapixels=0.01", "photographs=2", "server.limit_concurrency=4"]
    return serve(*limits, "host=0.0.0.0")


@contextlib.contextmanager
def connected(served: Served, sent: bytes = b"", count: int = 1) -> Iterator[list[socket.socket]]:
    """So many connections, each of which has sent something."""
    place = urlsplit(served.address)
    with contextlib.ExitStack() as stack:
        sockets = []
        for _ in range(count):
            sockets.append(stack.enter_context(socket.create_connection((place.hostname, place.port), timeout=900)))
            sockets[-1].sendall(sent)
        yield sockets


def in_time(ask: Callable[[], Response]) -> Response:
    begin = time.monotonic()
    answered = ask()
    assert time.monotonic() - begin < SOON
    return answered


@pytest.mark.parametrize(
    ("photographs", "status", "sentence"),
    [
        ([SMALL, SMALL], 200, ""),
        ([SMALL] * 3, 400, "Too many files. Maximum number of files is 2"),
        ([SMALL + bytes(100_000)], 413, None),
        ([encoded(noise(101, 100), "PNG")], 422, "image 0.jpg has more than 0.01 million pixels"),
        ([encoded(noise(202, 100), "JPEG")], 200, ""),
        ([encoded(noise(80, 80), "PNG")] * 2, 422, "image 1.jpg has more than 0.0036 million pixels"),
        ([encoded(noise(80, 80), "JPEG")] * 2, 200, ""),
    ],
    ids=["as many as may be", "too many", "too large", "pixels", "a JPEG", "pixels together", "JPEGs together"],
)
def test_what_exceeds_a_limit_is_refused(narrow: Served, photographs: list[bytes], status: int, sentence: str | None):
    answered = caption(narrow.address, *photographs)
    assert answered.status == status
    if sentence:
        assert sentence in answered.error


@pytest.mark.parametrize("length", [b"100001", b"10000000000000", b"9" * 19])
def test_a_declared_length_that_is_too_large_is_refused_at_once(narrow: Served, length: bytes):
    with connected(narrow, HEAD + b"Content-Length: " + length + b"\r\n\r\n") as [connection]:
        assert connection.recv(12) == b"HTTP/1.1 413"


def test_a_body_is_refused_as_soon_as_it_is_too_large(narrow: Served):
    with connected(narrow, HEAD + b"Transfer-Encoding: chunked\r\n\r\n") as [endless]:
        head = part("photograph", b"", "a.jpg")[:-2]
        endless.sendall(f"{len(head):x}\r\n".encode() + head + b"\r\n")
        for _ in range(60):
            endless.sendall(b"7d0\r\n" + bytes(2000) + b"\r\n")
        assert b"413" in endless.recv(100)


def test_where_all_connections_are_used_another_is_requested_to_try_again(narrow: Served):
    with connected(narrow, HEAD + b"Expect: 100-continue\r\nContent-Length: 9999\r\n\r\n", 3) as busy:
        assert {one.recv(12) for one in busy} == {b"HTTP/1.1 100"}
        assert send_request(narrow.address, "").status == 503
    wait_until(lambda: send_request(narrow.address, "").status == 200)


def test_many_files_that_take_too_long_to_decode_do_not_keep_others_waiting(served: Served):
    costly = jpeg_with_scans(60_000, (1_000, 1_000))
    with ThreadPoolExecutor(12) as clients:
        refused = [clients.submit(caption, served.address, *[costly] * 8) for _ in range(12)]
        assert in_time(lambda: caption(served.address, SMALL)).status in (200, 503)
        assert {one.result().status for one in refused} <= {422, 503}
    assert in_time(lambda: caption(served.address, SMALL)).status == 200


@pytest.mark.slow
def test_requests_that_are_answered_when_the_server_is_stopped_are_answered_to_the_end(serve: Serve):
    ended, photographs = serve(), [encoded(noise(600, 400), "PNG")] * 8
    assert send_request(ended.address, "").status == 200
    with ThreadPoolExecutor(10) as clients:
        answers = [clients.submit(caption, ended.address, *photographs, model=["hard/best.ckpt"]) for _ in range(10)]
        wait_until(lambda: any(answer.done() for answer in answers))
        os.kill(ended.pid, signal.SIGTERM)
        assert [answer.result().status for answer in answers] == [200] * 10
    assert "Traceback" not in ended.running.finish().err


@pytest.mark.slow
@pytest.mark.parametrize("sent", [b"", b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n"], ids=["nothing", "a request"])
def test_a_server_ends_by_ctrl_c_while_someone_is_connected(serve: Serve, sent: bytes):
    ended = serve()
    assert send_request(ended.address, "").status == 200  # who answers hears Ctrl-C
    with connected(ended, sent):
        os.kill(ended.pid, signal.SIGINT)
        done = ended.running.finish()
    assert done.status == 0
    assert done.err == ""
    assert re.fullmatch(r"soft/best.ckpt, hard/best.ckpt at http://127.0.0.1:\d+/ \(Ctrl-C ends it\)\n", done.out)


def test_a_port_that_is_in_use_is_an_error_of_one_sentence(
    start_forked: Callable[..., Any], served: Served, tmp_path: Path
):
    port = urlsplit(served.address).port
    done = start_forked("serve", "checkpoint=none.ckpt", f"port={port}", folder=tmp_path).finish()
    assert done.status == 2
    reason = f"cannot bind to host=127.0.0.1 port={port} (Address already in use); set another host= or port="
    assert done.err == f"error: {reason}\n"


def test_a_server_open_to_others_prints_a_note_and_answers_by_any_name(narrow: Served):
    assert narrow.running.err.read_text() == "note: host=0.0.0.0 opens the server to everyone; it has no password\n"
    assert send_request(narrow.address, "", headers={"Host": "photos.example"}).status == 200


@pytest.mark.parametrize("package", ["fastapi", "python_multipart"])
def test_a_package_that_is_missing_is_named(run_light: Callable[..., Any], tmp_path: Path, package: str):
    code = f"sys.modules['{package}'] = None; from showattendtell.serve import main; main()"
    done = run_light(code, "serve", folder=tmp_path)
    sentence = f"serve needs the package {package}; run pip install 'showattendtell[serve]'"
    assert (done.status, done.err) == (2, f"error: {sentence}\n")


def open_files(served: Served) -> set[str]:
    names = set()
    for link in Path(f"/proc/{served.pid}/fd").iterdir():
        with contextlib.suppress(OSError):  # closed meanwhile
            names.add(os.readlink(link))
    return {name for name in names if name.startswith("/")}


@pytest.mark.skipif(not Path("/proc/self/fd").exists(), reason="needs /proc, which lists open files")
def test_nothing_is_written_anywhere(served: Served):
    """Neither in the current folder nor among temporary files, not even while a large photograph comes in."""
    large = encoded(noise(1500, 1000), "BMP")
    assert caption(served.address, large).status == 200  # and has opened what it reads
    before, seen = open_files(served), set[str]()
    with ThreadPoolExecutor(1) as client:
        answer = client.submit(caption, served.address, large)
        while not answer.done():
            seen |= open_files(served)
    assert answer.result().status == 200
    assert seen - before == set()
