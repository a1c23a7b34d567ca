"""How many cores a process may use, and how long its threads wait for each other."""

import math
import os
from contextlib import suppress
from pathlib import Path

QUOTA = Path("/sys/fs/cgroup/cpu.max")
"""The CPU time of a container, in microseconds of each period: `150000 100000` are one and a half cores."""


def num_cores() -> int:
    """Return how many cores this process may use, by its affinity and by the CPU quota of its container."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    with suppress(OSError, ValueError):  # no container, or one without a quota, which is called `max`
        content = QUOTA.read_text()
        quota, period = map(int, content.split())
        return min(cores, math.ceil(quota / period))
    return cores


def limit_threads() -> None:
    """Let OpenMP's threads sleep while they wait instead of spinning, and start no more than the quota of a container
    has cores. OpenMP reads this when torch is imported; what the user has set stays."""
    if "GOMP_SPINCOUNT" not in os.environ:
        os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
    if num_cores() < (os.cpu_count() or 1):
        os.environ.setdefault("OMP_NUM_THREADS", str(num_cores()))
