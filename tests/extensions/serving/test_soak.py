"""A server that is attacked, and the memory of the server after all of them.

`SHOWATTENDTELL_SOAK_MINUTES=10` makes them take ten minutes together. `-s` shows the figures.
"""

import os
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path

import attacks
import pytest
from hostile_uploads import encoded, noise
from server_requests import caption
from small_server import Served

SECONDS = 60 * float(os.environ.get("SHOWATTENDTELL_SOAK_MINUTES", "2")) / len(attacks.ATTACKS)
PAUSE = 0.2
SOON = 30
"""Seconds after an attack within which a good client is answered."""
MEGABYTES = 1200
"""Memory by which the server never grows: a photograph of 64 megapixels is decoded and resized in 800."""


@pytest.fixture(scope="module")
def idle_megabytes(served: Served) -> float:
    return served.megabytes()


@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="needs /proc, which shows the memory of a process")
@pytest.mark.parametrize("name", attacks.ATTACKS)
def test_no_attack_stops_the_server_or_fills_the_memory(served: Served, idle_megabytes: float, name: str):
    photograph = encoded(noise(480, 320), "JPEG")
    command = [sys.executable, attacks.__file__, served.address, name, str(SECONDS + 60)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as attacker:
        assert attacker.stdout
        attacker.stdout.readline()
        end, statuses = time.monotonic() + SECONDS, Counter[int]()
        while time.monotonic() < end:
            statuses[caption(served.address, photograph).status] += 1
            time.sleep(PAUSE)
        attacker.kill()
    growth, end = served.megabytes("VmHWM") - idle_megabytes, time.monotonic() + SOON
    print(f"{name}: {dict(statuses)}; grown by {growth:.0f} MB at most")
    assert statuses.keys() <= {200, 503}
    assert growth < MEGABYTES
    while caption(served.address, photograph).status == 503:
        assert time.monotonic() < end
        time.sleep(PAUSE)
