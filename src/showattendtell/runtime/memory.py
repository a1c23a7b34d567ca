"""Garbage collection while many objects are created that stay, and memory of tensors that is used again."""

import ctypes
import gc
import sys
from collections.abc import Iterator
from contextlib import contextmanager

KEPT = 2**30
"""Bytes of freed memory that a process keeps at most, and the largest tensor that is allocated from them."""

TRIM_THRESHOLD, MMAP_THRESHOLD = -1, -3
"""M_TRIM_THRESHOLD and M_MMAP_THRESHOLD of malloc.h."""


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


def keep_freed_memory() -> None:
    """Let the C library keep the memory of freed tensors for the next ones.

    By default glibc returns large blocks to the system at once. Every training step then requests the same memory
    again, page by page, which takes about a tenth of its time. The peak memory of the process stays nearly the
    same. Other C libraries than glibc are left as they are.
    """
    if sys.platform == "linux" and (mallopt := getattr(ctypes.CDLL(None), "mallopt", None)):
        mallopt(MMAP_THRESHOLD, KEPT)
        mallopt(TRIM_THRESHOLD, KEPT)
