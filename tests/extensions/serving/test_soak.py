"""The server for minutes with 50 clients, some of which mean no good.

`SHOWATTENDTELL_SOAK_MINUTES=30` makes it half an hour. `-s` shows the figures.
"""

import os
import random
import socket
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import NamedTuple
from urllib.parse import urlsplit

import numpy as np
import pytest
from hostile_uploads import ATTACKS, encoded, noise
from server_requests import caption, send_request
from slow_images import jpeg_with_scans
from small_server import Served

MINUTES = float(os.environ.get("SHOWATTENDTELL_SOAK_MINUTES", "2"))
CLIENTS, PAUSE = 50, 4.0
"""Clients, and the mean seconds that each waits between its requests."""
GROWTH = 60.0
"""MB by which the server may grow after its first minute."""


class Reply(NamedTuple):
    """The kind of a request, the status of its response, and the seconds until it came."""

    kind: str
    status: int
    seconds: float


PHOTOGRAPHS = [
    encoded(noise(width, height), "JPEG") for width, height in ((640, 480), (480, 640), (900, 300), (64, 64))
]
SLOW_IMAGE = jpeg_with_scans(20_000)


def good(address: str, draw: random.Random) -> int:
    return caption(address, draw.choice(PHOTOGRAPHS), beam_size=str(draw.randint(1, 4))).status


def hostile(address: str, draw: random.Random) -> int:
    return caption(address, draw.choice(ATTACKS).content).status


def costly(address: str, draw: random.Random) -> int:
    return caption(address, *[SLOW_IMAGE] * draw.randint(1, 8)).status


def malformed(address: str, draw: random.Random) -> int:
    body = bytes(draw.getrandbits(8) for _ in range(draw.randint(0, 2_000)))
    return send_request(address, draw.choice(["api/caption", "cards", "api/picture", "nowhere"]), body).status


def hung_up(address: str, draw: random.Random) -> int:
    """A connection that is closed in the middle of a request."""
    place = urlsplit(address)
    with socket.create_connection((place.hostname, place.port), timeout=60) as connection:
        connection.sendall(b"POST /api/caption HTTP/1.1\r\nHost: localhost\r\nContent-Length: 99999\r\n\r\n")
        time.sleep(draw.random())
    return 0


def dripping(address: str, draw: random.Random) -> int:
    """A connection that sends a header or an endless body byte by byte until the server closes it."""
    place = urlsplit(address)
    head = b"POST /api/caption HTTP/1.1\r\nHost: localhost\r\n"
    body = b"Content-Type: multipart/form-data; boundary=b\r\nTransfer-Encoding: chunked\r\n\r\n"
    first, rest = draw.choice([(head, b"X"), (head + body, b"1\r\n-\r\n")])
    with socket.create_connection((place.hostname, place.port), timeout=0.5) as connection:
        connection.sendall(first)
        while True:
            connection.sendall(rest)
            try:
                if not (answer := connection.recv(12)):
                    return 0
            except TimeoutError:
                continue
            return int(answer.split()[1])


KINDS: list[Callable[[str, random.Random], int]] = [good, good, good, hostile, costly, malformed, hung_up, dripping]


def client(address: str, number: int, end: float) -> list[Reply]:
    draw, replies = random.Random(number), []
    while time.monotonic() < end:
        kind = draw.choice(KINDS)
        began = time.monotonic()
        try:
            status = kind(address, draw)
        except ConnectionError:  # the server may close the connection of a refused upload
            status = -1
        replies.append(Reply(kind.__name__, status, time.monotonic() - began))
        time.sleep(draw.expovariate(1 / PAUSE))
    return replies


def resident_megabytes(pid: int) -> float:
    status = Path(f"/proc/{pid}/status").read_text()
    return int(status.partition("VmRSS:")[2].split()[0]) / 1000


@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="needs /proc, which shows the memory of a process")
def test_50_clients_do_not_make_the_server_fail_or_grow(serve: Callable[..., Served]):
    served = serve()
    end = time.monotonic() + 60 * MINUTES
    memory = []
    with ThreadPoolExecutor(CLIENTS) as clients:
        running = [clients.submit(client, served.address, number, end) for number in range(CLIENTS)]
        while time.monotonic() < end:
            time.sleep(5)
            memory.append(resident_megabytes(served.pid))
        replies = [reply for one in running for reply in one.result()]

    waits = [reply.seconds for reply in replies if reply.kind == "good" and reply.status == 200]
    median, p95 = np.percentile(waits, [50, 95])
    settled = memory[min(12, len(memory) // 2) :]
    growth = max(settled) - settled[0]
    print(
        f"\n{len(replies):,} requests in {MINUTES:g} minutes, {len(waits):,} photographs captioned: "
        f"median {median:.2f} s, 95 % within {p95:.2f} s; "
        f"{settled[0]:.0f} MB after the first minute, {growth:.0f} MB more at most"
    )
    statuses = {kind.__name__: {reply.status for reply in replies if reply.kind == kind.__name__} for kind in KINDS}
    assert statuses["good"] <= {200, 503}
    assert not {status for status in set().union(*statuses.values()) if status >= 500} - {503}
    assert growth < GROWTH
    assert caption(served.address, PHOTOGRAPHS[0]).status == 200
