"""Garbage collection while many objects are created that stay, and what happens to freed memory."""

import ctypes
import gc
import sys
from collections.abc import Iterator
from contextlib import contextmanager

KEPT_BYTES = 2**30
"""Bytes of freed memory that a process keeps at most, and the largest tensor that is allocated from them."""

LARGE_BLOCK = 2**23
"""Bytes of a freed block that a server returns to the system. Pillow stores images in blocks of twice that."""

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
    _set_malloc(MMAP_THRESHOLD, KEPT_BYTES)
    _set_malloc(TRIM_THRESHOLD, KEPT_BYTES)


def return_freed_images() -> None:
    """Let the C library return the memory of freed images to the system, in a process that decodes them for long.

    By default glibc keeps blocks of up to 32 MB once it has freed one of them. Few of these fit the next image, so a
    few large photographs make the process twice as large as one of them needs.
    """
    _set_malloc(MMAP_THRESHOLD, LARGE_BLOCK)


def _set_malloc(parameter: int, value: int) -> None:
    if sys.platform == "linux" and (mallopt := getattr(ctypes.CDLL(None), "mallopt", None)):
        mallopt(parameter, value)
