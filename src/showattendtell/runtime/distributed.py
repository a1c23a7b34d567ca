"""Work that is distributed over the processes of a run. All functions also work in a single process."""

import os
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from functools import cache
from typing import Any, TypeVar

import torch
import torch.distributed as dist
from torch import Tensor

from showattendtell.errors import UserError
from showattendtell.runtime.process import adopt_task, is_launched, num_cores

Item = TypeVar("Item")

TIMEOUT = timedelta(minutes=10)
"""Timeout of messages between processes."""

SHARED_MEMORY = "/dev/shm"
MAX_READERS = 16
"""Largest default number of processes that read photographs for a GPU."""

READER_MEMORY = 2**26
"""Bytes of shared memory for each of them: a few batches of 64 photographs. Docker gives 64 MB to all by default."""


class ReportedElsewhere(Exception):  # noqa: N818
    """Raised in all processes but the first instead of `error`, so that only the first one reports it."""

    def __init__(self, error: Exception):
        super().__init__(error)
        self.error = error


class LostProcessError(UserError):
    """Another process of the run is gone."""


def rank() -> int:
    """Return the number of this process. Process 0 prints and writes files."""
    return dist.get_rank() if dist.is_initialized() else 0


def world_size() -> int:
    """Return the number of processes."""
    return dist.get_world_size() if dist.is_initialized() else 1


def local_device() -> str:
    """Return the GPU of this process, given by `LOCAL_RANK` or `SLURM_LOCALID`, or `cpu` on a machine without a GPU."""
    if not torch.cuda.is_available():
        return "cpu"
    number = os.environ.get("LOCAL_RANK", os.environ.get("SLURM_LOCALID", 0))
    return f"cuda:{int(number) % torch.cuda.device_count()}"


def num_readers() -> int:
    """Return how many processes read photographs for the GPU of this process: one for each of its cores but one, and
    fewer where shared memory is small."""
    processes = max(1, min(world_size(), torch.cuda.device_count()))
    readers = max(0, num_cores() // processes - 1)
    shared = shutil.disk_usage(SHARED_MEMORY).free if os.path.isdir(SHARED_MEMORY) else 0
    return min(MAX_READERS, readers, shared // READER_MEMORY // processes)


def shard_indices(number: int) -> range:
    """Return this process's part of the indices below `number`: every `world_size()`-th, beginning with its rank."""
    return range(rank(), number, world_size())


def shard(items: list[Item]) -> list[Item]:
    """Return this process's part of the items, which are contiguous.

    The lengths of the parts differ by at most one. With fewer items than processes some parts are empty.
    """
    start, stop = (len(items) * number // world_size() for number in (rank(), rank() + 1))
    return items[start:stop]


def gather(items: dict[str, Item]) -> dict[str, Item]:
    """Return the union of the dictionaries of all processes, in each of them."""
    if not dist.is_initialized():
        return items
    parts: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(parts, items, group=_cpu_group(dist.group.WORLD))
    return {name: item for part in parts for name, item in part.items()}


def any_rank(flag: bool) -> bool:
    """Return whether `flag` is true in any process. Does not synchronize with the GPU."""
    if not dist.is_initialized():
        return flag
    flags = torch.tensor(int(flag))
    dist.all_reduce(flags, dist.ReduceOp.MAX, group=_cpu_group(dist.group.WORLD))
    return bool(flags)


def mean_over_processes(value: Tensor) -> Tensor:
    """Return the mean of a tensor over all processes."""
    if not dist.is_initialized():
        return value
    total = value.clone()
    dist.all_reduce(total)
    return total / dist.get_world_size()


def decide_on_first(decide: Callable[[], Item]) -> Item:
    """Call `decide` in the first process and return its result in all of them.

    Raises:
        UserError, OSError: from `decide`. The other processes raise `ReportedElsewhere`.
    """
    decided: dict[str, Item] = {}
    with raise_together():
        if rank() == 0:
            decided["first"] = decide()
    return gather(decided)["first"]


@contextmanager
def raise_together() -> Iterator[None]:
    """Raise the `UserError` or `OSError` of any process in all of them; in all but the first as `ReportedElsewhere`."""
    if not dist.is_initialized():
        yield
        return
    raised: dict[str, UserError | OSError] = {}
    try:
        yield
    except (UserError, OSError) as error:
        raised[str(rank())] = error
    errors = list(gather(raised).values())
    if errors:
        raise errors[0] if rank() == 0 else ReportedElsewhere(errors[0])


@contextmanager
def process_group() -> Iterator[None]:
    """Join the processes of torchrun or of srun for a `with` block; do nothing without them."""
    adopt_task()
    if dist.is_initialized() or not is_launched():
        yield
        return
    with report_lost_processes():
        dist.init_process_group("gloo", timeout=TIMEOUT)
        try:
            yield
        finally:
            dist.destroy_process_group()


@contextmanager
def report_lost_processes() -> Iterator[None]:
    """Convert the errors of communication with a process that is gone to `LostProcessError`."""
    try:
        yield
    except RuntimeError as error:  # gloo has no error class of its own
        if not isinstance(error, dist.DistError) and "gloo" not in str(error):
            raise
        raise LostProcessError(
            "another process of this run has ended or does not answer; run the command again, a training with "
            "resume=true"
        ) from None


@cache
def _cpu_group(world: Any) -> Any:
    """Return a process group for tensors and objects in CPU memory, which NCCL does not support."""
    return world if dist.get_backend(world) == "gloo" else dist.new_group(backend="gloo", timeout=TIMEOUT)
