"""Garbage collection while many objects are created that stay."""

import gc
from collections.abc import Iterator
from contextlib import contextmanager


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
