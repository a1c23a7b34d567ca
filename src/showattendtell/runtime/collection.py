"""Garbage collection during imports."""

import gc
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def paused_collection() -> Iterator[None]:
    """Pause garbage collection. Importing torch and building a model create half a million objects that stay, and each
    collection would scan them again, which takes half a second in all."""
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()
