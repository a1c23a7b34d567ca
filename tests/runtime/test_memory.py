"""Garbage collection is paused for a while, and freed memory is used again or returned."""

import ctypes
import gc
import subprocess
import sys
from contextlib import suppress

import pytest

from showattendtell.runtime.process import paused_collection


def test_collection_is_paused_and_goes_on_also_after_an_error():
    with suppress(ValueError), paused_collection():
        with paused_collection():
            assert not gc.isenabled()
        assert not gc.isenabled()
        raise ValueError
    assert gc.isenabled()


ALLOCATE = """
import ctypes, resource
from showattendtell.runtime.process import keep_freed_memory
if {keep}:
    keep_freed_memory()
libc = ctypes.CDLL(None)
libc.malloc.restype, libc.free.argtypes = ctypes.c_void_p, [ctypes.c_void_p]
def allocate():
    block = libc.malloc(64 << 20)
    ctypes.memset(block, 1, 64 << 20)
    libc.free(block)
allocate()
before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
for _ in range(5):
    allocate()
print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
"""
"""Prints the page faults of blocks that are allocated again; each has 16,384 pages of 4 kB."""

DECODE = """
import threading
from pathlib import Path
from PIL import Image
from showattendtell.runtime.process import LARGE_BLOCK, keep_freed_memory
def resident():
    return int(Path("/proc/self/status").read_text().partition("VmRSS:")[2].split()[0])
def decode():
    grey = Image.new("F", (4000, 4000))
    return grey.convert("RGB")
if {keep}:
    keep_freed_memory(LARGE_BLOCK)
before = resident()
for _ in range(4):
    thread = threading.Thread(target=decode)
    thread.start()
    thread.join()
print((resident() - before) / 1000)
"""
"""Prints the MB that the process has grown by; an image takes 64 as floats, and as much as RGB."""


@pytest.mark.skipif(not hasattr(ctypes.CDLL(None), "mallopt"), reason="the C library is not glibc")
@pytest.mark.parametrize(("script", "limit"), [(ALLOCATE, 100), (DECODE, 32)], ids=["used again", "returned"])
def test_freed_memory_is_used_again_or_returned(script: str, limit: int):
    def measured(keep: bool) -> float:
        line = [sys.executable, "-c", script.format(keep=keep)]
        return float(subprocess.run(line, capture_output=True, check=True).stdout)

    assert measured(keep=True) < limit < measured(keep=False)
