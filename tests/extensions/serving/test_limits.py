"""What a server takes is what it was started to take, and how it starts and ends."""

import os
import re
import socket
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
from hostile_uploads import encoded, noise
from server_requests import FORM, caption, form, part, send_request
from slow_cases import slow_after
from small_server import Served

Serve = Callable[..., Served]
SMALL = encoded(noise(), "PNG")


@pytest.fixture(scope="module")
def narrow(serve: Serve) -> Served:
    return serve(
        *("limits.file_megabytes=0.05", "limits.request_megabytes=0.1", "limits.megapixels=0.01", "limits.waiting=1"),
        *("limits.photographs=2", "limits.seconds=2"),
    )


def test_limits_are_known_before_anything_is_sent(narrow: Served):
    assert send_request(narrow.address, "api/models").json["limits"] == {
        **{"file_megabytes": 0.05, "request_megabytes": 0.1, "megapixels": 0.01, "photographs": 2, "waiting": 1},
        **{"seconds": 2, "connections": 512},
    }


@pytest.mark.parametrize(
    ("photographs", "status", "sentence"),
    [
        ([SMALL, SMALL], 200, ""),
        ([SMALL] * 3, 400, "Too many files. Maximum number of files is 2"),
        ([SMALL + bytes(50_000)], 413, "0.jpg has more than 0.05 MB"),
        ([SMALL + bytes(100_000)], 413, "the request has more than 0.1 MB; send less"),
        ([encoded(noise(101, 100), "PNG")], 413, "0.jpg: more than 0.01 million pixels"),
        ([encoded(noise(202, 100), "JPEG")], 200, ""),
        ([encoded(noise(80, 80), "JPEG")] * 2, 413, "the photographs together: more than 0.01 million pixels"),
    ],
    ids=[
        "as many as may be",
        "too many",
        "too large a file",
        "too large a request",
        "too many pixels",
        "a larger JPEG",
        "together",
    ],
)
def test_what_exceeds_a_limit_is_refused(narrow: Served, photographs: list[bytes], status: int, sentence: str):
    answered = caption(narrow.address, *photographs)
    assert answered.status == status
    if status != 200:
        assert sentence in answered.error


class Slow:
    """A request that is begun, and sent no further."""

    def __init__(self, served: Served, head: bytes):
        place = urlsplit(served.address)
        self.socket = socket.create_connection((place.hostname, place.port), timeout=900)
        kind = FORM["Content-Type"].encode()
        self.socket.sendall(b"POST /api/caption HTTP/1.1\r\nHost: localhost\r\nContent-Type: " + kind + b"\r\n" + head)

    def __enter__(self) -> "Slow":
        return self

    def __exit__(self, *_: object) -> None:
        self.socket.close()


@pytest.mark.parametrize("declared", [b"", b"Content-Length: 9\r\n"])
def test_a_body_is_refused_as_soon_as_it_is_too_large(narrow: Served, declared: bytes):
    with Slow(narrow, declared + b"Transfer-Encoding: chunked\r\n\r\n") as endless:
        head = part("photograph", b"", "a.jpg")[:-2]
        endless.socket.sendall(f"{len(head):x}\r\n".encode() + head + b"\r\n")
        for _ in range(60):
            endless.socket.sendall(b"7d0\r\n" + bytes(2000) + b"\r\n")
        assert b"413" in endless.socket.recv(100)


@pytest.mark.parametrize("length", [b"many", b"-1", b"1_0", b"1\r\nContent-Length: 2"])
def test_a_length_that_is_no_number_is_refused(narrow: Served, length: bytes):
    with Slow(narrow, b"Content-Length: " + length + b"\r\n\r\n") as sent:
        assert sent.socket.recv(12) == b"HTTP/1.1 400"


def test_a_client_that_comes_while_all_places_are_taken_learns_when_to_try_again(narrow: Served):
    with Slow(narrow, b"Content-Length: 9999\r\n\r\n"):
        refused = _until(lambda: caption(narrow.address, SMALL), lambda answered: answered.status == 503)
        assert refused.error == "all 1 places are taken; try again in a moment"
        assert int(refused.headers["retry-after"]) > 0
        assert send_request(narrow.address, "").status == 200
    assert _until(lambda: caption(narrow.address, SMALL), lambda answered: answered.status == 200).status == 200


def _until(ask: Callable[[], Any], good: Callable[[Any], bool]) -> Any:
    for _ in range(100):
        answered = ask()
        if good(answered):
            break
        time.sleep(0.05)
    return answered


@pytest.mark.slow
def test_a_server_ends_by_ctrl_c_while_someone_is_connected(serve: Serve):
    ended = serve()
    assert send_request(ended.address, "").status == 200  # who answers hears Ctrl-C
    with Slow(ended, b"Content-Length: 9999\r\n\r\n"):
        done = ended.interrupt()
    assert done.status == 0
    assert "Traceback" not in done.err
    assert re.fullmatch(r"soft/best.ckpt, hard/best.ckpt at http://127.0.0.1:\d+/ \(Ctrl-C ends it\)\n", done.out)


def test_a_port_that_is_in_use_is_an_error_of_one_sentence(
    start_forked: Callable[..., Any], served: Served, tmp_path: Path
):
    port = urlsplit(served.address).port
    done = start_forked("serve", "checkpoint=none.ckpt", f"port={port}", folder=tmp_path).finish()
    assert done.status == 2
    assert done.err == (
        f"error: cannot bind to host=127.0.0.1 port={port} (Address already in use); set another port=, or "
        "port=0 for any free one\n"
    )


@pytest.mark.parametrize("host", slow_after(1, ["192.0.2.1", "no.such.host.invalid"]))
def test_an_invalid_host_is_an_error(start_forked: Callable[..., Any], tmp_path: Path, host: str):
    done = start_forked("serve", "checkpoint=none.ckpt", "port=0", f"host={host}", folder=tmp_path).finish()
    assert done.status == 2
    assert re.fullmatch(rf"error: cannot bind to host={host} port=0 \(.*\); set another host=\n", done.err)


def test_a_server_open_to_others_prints_a_note_and_checks_its_names_where_they_are_given(serve: Serve):
    opened = serve("host=0.0.0.0", "allowed_hosts=[photos.example]")
    assert opened.running.err.read_text() == (
        "note: host=0.0.0.0 opens the server to everyone who can reach this machine; it has no password\n"
    )
    assert send_request(opened.address, "", headers={"Host": "photos.example"}).status == 200
    assert send_request(opened.address, "", headers={"Host": "127.0.0.1"}).status == 400


@pytest.mark.parametrize(("module", "package"), [("fastapi", "fastapi"), ("python_multipart", "python-multipart")])
def test_a_package_that_is_missing_is_named(run_light: Callable[..., Any], tmp_path: Path, module: str, package: str):
    code = f"sys.modules['{module}'] = None; from showattendtell.serve import main; main()"
    done = run_light(code, "serve", folder=tmp_path)
    sentence = f"serve needs the package {package}; run pip install 'showattendtell[serve]'"
    assert (done.status, done.err) == (2, f"error: {sentence}\n")


def test_nothing_is_written_anywhere(serve: Serve, tmp_path: Path):
    """Neither in the current folder nor among temporary files, not even while a large photograph comes in."""
    if not Path("/proc/self/fd").exists():
        pytest.skip("needs /proc, which lists the files that a process has open")
    served, seen = serve(), set()
    body = form(part("photograph", encoded(noise(1500, 1000), "BMP"), "a.bmp"))
    watching = threading.Event()

    def watch() -> None:
        while not watching.is_set():
            seen.update(_written_files(served.pid))

    watcher = threading.Thread(target=watch)
    watcher.start()
    assert send_request(served.address, "api/caption", body).status == 200
    watching.set()
    watcher.join()
    printed = {str(served.running.out), str(served.running.err)}
    assert {file for file in seen if file.startswith("/") and not file.startswith("/dev/")} - printed == set()


def _written_files(pid: int) -> Iterator[str]:
    """Those that a process has open to write to."""
    for link in Path(f"/proc/{pid}/fd").iterdir():
        try:
            info = Path(f"/proc/{pid}/fdinfo", link.name).read_text()
            if int(info.split("flags:")[1].split()[0], 8) & os.O_ACCMODE:
                yield os.readlink(link)
        except OSError:  # closed meanwhile
            continue
