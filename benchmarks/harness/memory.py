"""Peak memory of a process, as Linux counts it."""

import multiprocessing
import os
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from contextlib import AbstractContextManager
from pathlib import Path
from typing import ParamSpec, TypeVar
from unittest.mock import patch

STATUS, CLEAR = Path("/proc/self/status"), Path("/proc/self/clear_refs")

RETURN_AT_ONCE = {"MALLOC_ARENA_MAX": "1", "MALLOC_MMAP_THRESHOLD_": "65536", "MALLOC_TRIM_THRESHOLD_": "65536"}
"""Settings of the GNU C library."""

P = ParamSpec("P")
R = TypeVar("R")


def in_subprocess(function: Callable[P, R], *args: P.args, **kwargs: P.kwargs) -> R:
    """Return the function's result in a new process, which starts with an empty memory."""
    with ProcessPoolExecutor(1, multiprocessing.get_context("spawn")) as process:
        return process.submit(function, *args, **kwargs).result()


def returning_freed_memory() -> AbstractContextManager[object]:
    """Make new processes return freed memory to the system at once, so that resident memory is memory in use.

    This slows down many small allocations.
    """
    return patch.dict(os.environ, RETURN_AT_ONCE)


def can_measure() -> bool:
    return STATUS.exists() and CLEAR.exists()


def peak_over_resident(work: Callable[[], object]) -> float:
    """Return the peak resident memory during `work` minus the resident memory before it, in MB.

    `work` has run once before, which allocates what remains in memory, such as gradients.
    """
    work()
    CLEAR.write_text("5")  # resets the peak to the resident memory
    before = memory("VmRSS")
    work()
    return memory("VmHWM") - before


def memory(kind: str) -> float:
    """Return the memory of this process in MB: `VmRSS` is resident memory, `VmHWM` its peak."""
    [line] = [line for line in STATUS.read_text().splitlines() if line.startswith(kind)]
    return int(line.split()[1]) * 1024 / 1e6
