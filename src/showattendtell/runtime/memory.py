"""Garbage collection while many objects are created that stay, and what happens to freed memory."""

import ctypes
import gc
import sys
from collections.abc import Iterator
from contextlib import contextmanager

KEPT_BYTES = 2**30
"""Bytes of freed memory that a process keeps at most, and the largest tensor that is allocated from them."""

LARGE_BLOCK = 2**23
"""The same for a process that decodes images for long. Pillow stores images in blocks of twice that."""

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
