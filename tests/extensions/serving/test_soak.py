"""A good client next to each attack, and the memory of the server after all of them.

`SHOWATTENDTELL_SOAK_MINUTES=10` makes them take ten minutes together. `-s` shows the figures.
"""

import os
import subprocess
import sys
import time
from pathlib import Path

import attacks
import numpy as np
import pytest
from hostile_uploads import encoded, noise
from server_requests import caption
from small_server import Served

SECONDS = 60 * float(os.environ.get("SHOWATTENDTELL_SOAK_MINUTES", "2")) / len(attacks.ATTACKS)
PAUSE = 0.2
SLOWEST = 1.0
"""Seconds within which 95 % of the good client's requests are answered."""
MEGABYTES = 1200
"""Memory by which the server never grows: a photograph of 64 megapixels is decoded and resized in 800."""


def waits(served: Served, seconds: float) -> list[float]:
    """Return the seconds that a client waits for each caption."""
    photograph, end, found = encoded(noise(480, 320), "JPEG"), time.monotonic() + seconds, []
    while time.monotonic() < end:
        begin = time.monotonic()
        assert caption(served.address, photograph).status == 200
        found.append(time.monotonic() - begin)
        time.sleep(PAUSE)
    return found


def megabytes(served: Served, which: str) -> float:
    """Return a size of the server's memory: `VmRSS`, or `VmHWM` for its maximum until now."""
    status = Path(f"/proc/{served.pid}/status").read_text()
    return int(status.partition(f"{which}:")[2].split()[0]) / 1000


@pytest.fixture(scope="module")
def idle_megabytes(served: Served) -> float:
    return megabytes(served, "VmRSS")


@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="needs /proc, which shows the memory of a process")
@pytest.mark.parametrize("name", attacks.ATTACKS)
def test_no_attack_keeps_a_good_client_waiting(served: Served, idle_megabytes: float, name: str):
    alone = float(np.quantile(waits(served, 3), 0.95))
    command = [sys.executable, attacks.__file__, served.address, name, str(SECONDS + 60)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as attacker:
        assert attacker.stdout
        attacker.stdout.readline()
        attacked = float(np.quantile(waits(served, SECONDS), 0.95))
        attacker.kill()
    growth = megabytes(served, "VmHWM") - idle_megabytes
    print(f"{name}: 95 % within {attacked:.2f} s, {alone:.2f} s alone; grown by {growth:.0f} MB at most")
    assert attacked < SLOWEST * max(1.0, 5 * alone)
    assert growth < MEGABYTES
