"""Garbage collection is paused for a while, and freed memory is used again or returned."""

import ctypes
import gc
import subprocess
import sys

import pytest

from showattendtell.runtime.process import paused_collection


def fail_while_paused() -> None:
    with paused_collection():
        with paused_collection():
            assert not gc.isenabled()
        assert not gc.isenabled()
        raise ValueError("inside")


def test_collection_is_paused_and_goes_on_also_after_an_error():
    with pytest.raises(ValueError, match="inside"):
        fail_while_paused()
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


@pytest.mark.skipif(not hasattr(ctypes.CDLL(None), "mallopt"), reason="the C library is not glibc")
def test_a_block_of_memory_is_used_again_without_page_faults():
    def faults(keep: bool) -> int:
        done = subprocess.run([sys.executable, "-c", ALLOCATE.format(keep=keep)], capture_output=True, check=True)
        return int(done.stdout)

    assert faults(keep=True) < 100  # 16,384 pages of 4 kB in each block
    assert faults(keep=False) > 100


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
if {returned}:
    keep_freed_memory(LARGE_BLOCK)
before = resident()
for _ in range(4):
    thread = threading.Thread(target=decode)
    thread.start()
    thread.join()
print((resident() - before) / 1000)
"""


@pytest.mark.skipif(not hasattr(ctypes.CDLL(None), "mallopt"), reason="the C library is not glibc")
def test_memory_of_decoded_images_is_returned():
    def megabytes(returned: bool) -> float:
        script = DECODE.format(returned=returned)
        return float(subprocess.run([sys.executable, "-c", script], capture_output=True, check=True).stdout)

    assert megabytes(returned=True) < 32  # an image takes 64 as floats, and as much as RGB
    assert megabytes(returned=False) > 32
