"""This process: the launcher that started it, signals that ask a run to stop, its cores and threads, garbage collection
while many objects are created that stay, and what happens to freed memory."""

import ctypes
import gc
import math
import os
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from showattendtell.errors import UserError

NUM_PROCESSES = {"SLURM_NTASKS": "srun", "WORLD_SIZE": "torchrun", "OMPI_COMM_WORLD_SIZE": "torchrun"}
"""Variables that hold a number of processes, and the launcher that starts so many."""

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


def is_launched() -> bool:
    """Return whether torchrun, or srun before `adopt_task`, started this process as one of several."""
    return "TORCHELASTIC_RUN_ID" in os.environ


def adopt_task() -> None:
    """Set the variables of torchrun in a task of srun.

    A process that neither started works alone, with a note if the environment has a number of processes: SLURM sets
    that of the job also in a batch script and in the shell of salloc.

    Raises:
        UserError: SLURM does not know the number of tasks per machine.
    """
    if is_launched():
        return
    number = os.environ.get("SLURM_STEP_NUM_TASKS", os.environ.get("SLURM_NTASKS", "1"))
    if "SLURM_STEP_ID" not in os.environ or number == "1":
        name = next((name for name in NUM_PROCESSES if os.environ.get(name, "1") != "1"), None)
        if name:
            ignored, launcher = f"{name}={os.environ[name]}", NUM_PROCESSES[name]
            message = f"note: {ignored} is ignored, because {launcher} did not start this process"
            print(f"{message}; for several processes, put {launcher} before the command", file=sys.stderr)
        return
    if "SLURM_NTASKS_PER_NODE" not in os.environ:
        raise UserError(f"SLURM was given --ntasks={number}; give it --nodes and --ntasks-per-node instead")
    from pytorch_lightning.plugins.environments import SLURMEnvironment

    job = os.environ.get("SLURM_JOB_ID", "0")
    os.environ.setdefault("MASTER_ADDR", SLURMEnvironment.resolve_root_node_address(os.environ["SLURM_NODELIST"]))
    os.environ.setdefault("MASTER_PORT", str(15000 + int(job[-4:])))
    os.environ |= {
        "TORCHELASTIC_RUN_ID": job,
        "WORLD_SIZE": number,
        "RANK": os.environ["SLURM_PROCID"],
        "LOCAL_WORLD_SIZE": os.environ["SLURM_NTASKS_PER_NODE"],
        "LOCAL_RANK": os.environ["SLURM_LOCALID"],
        "GROUP_RANK": os.environ["SLURM_NODEID"],
    }


def stop_signals() -> list[signal.Signals]:
    """Return the signals that ask a run to stop: without SIGHUP if it is ignored, as nohup does."""
    signals = [signal.SIGINT, signal.SIGTERM, signal.SIGUSR1]
    is_hangup_ignored = signal.getsignal(signal.SIGHUP) == signal.SIG_IGN
    return signals if is_hangup_ignored else [*signals, signal.SIGHUP]


def end_with_parent() -> None:
    """Make the kernel send SIGTERM to this process when its parent ends, even if the parent is killed (Linux only)."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(1, signal.SIGTERM)  # PR_SET_PDEATHSIG
