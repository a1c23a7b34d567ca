"""The cores of a process and how its threads wait for each other, garbage collection while many objects are
created that stay, and what happens to freed memory."""

import ctypes
import gc
import math
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

QUOTA = Path("/sys/fs/cgroup/cpu.max")
"""The CPU time of a container, in microseconds of each period: `150000 100000` are one and a half cores."""

KEPT_BYTES = 2**30
"""Bytes of freed memory that a process keeps at most, and the largest tensor that is allocated from them."""

LARGE_BLOCK = 2**23
"""The same for a process that decodes images for long. Pillow stores images in blocks of twice that."""

TRIM_THRESHOLD, MMAP_THRESHOLD = -1, -3
"""M_TRIM_THRESHOLD and M_MMAP_THRESHOLD of malloc.h."""


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


@contextmanager
def paused_collection() -> Iterator[None]:
    """Disable the cyclic garbage collector. It scans all objects again and again while a million are created that stay:
    records of captions, or the modules of torch, which takes half a second.
    """
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()


def keep_freed_memory(limit: int = KEPT_BYTES) -> None:
    """Let the C library keep so many bytes of freed blocks for the next ones, and return others to the system.

    By default glibc returns large blocks at once. Every training step then requests the same memory again, page by
    page, which takes about a tenth of its time; the peak memory stays nearly the same. But once it has freed a block
    of up to 32 MB it keeps all of these. Few of them fit the next image, so a few large photographs make a process
    twice as large as one of them needs. Other C libraries than glibc are left as they are.
    """
    if sys.platform == "linux" and (mallopt := getattr(ctypes.CDLL(None), "mallopt", None)):
        for parameter in (MMAP_THRESHOLD, TRIM_THRESHOLD):
            mallopt(parameter, limit)
