"""How much memory work takes at its highest, as Linux counts it."""

import multiprocessing
import os
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from contextlib import AbstractContextManager
from pathlib import Path
from typing import ParamSpec, TypeVar
from unittest.mock import patch

STATUS, CLEAR = Path("/proc/self/status"), Path("/proc/self/clear_refs")

RETURNED = {"MALLOC_ARENA_MAX": "1", "MALLOC_MMAP_THRESHOLD_": "65536", "MALLOC_TRIM_THRESHOLD_": "65536"}
"""Settings of the GNU C library."""

P = ParamSpec("P")
R = TypeVar("R")


def apart(work: Callable[P, R], *args: P.args, **kwargs: P.kwargs) -> R:
    """The result of `work` in a process of its own, which starts with nothing in memory."""
    with ProcessPoolExecutor(1, multiprocessing.get_context("spawn")) as process:
        return process.submit(work, *args, **kwargs).result()


def giving_back() -> AbstractContextManager[object]:
    """Processes that are started meanwhile return freed memory to the system at once, so that what is resident is in
    use. It slows down work on many small things."""
    return patch.dict(os.environ, RETURNED)


def can_measure() -> bool:
    return STATUS.exists() and CLEAR.exists()


def peak_over_resident(work: Callable[[], object]) -> float:
    """MB by which memory grows at its highest while `work` runs, over what is resident before."""
    CLEAR.write_text("5")  # the highest is now what is resident
    before = memory("VmRSS")
    work()
    return memory("VmHWM") - before


def memory(kind: str) -> float:
    """MB of this process: `VmRSS` now, `VmHWM` at its highest."""
    [line] = [line for line in STATUS.read_text().splitlines() if line.startswith(kind)]
    return int(line.split()[1]) * 1024 / 1e6
