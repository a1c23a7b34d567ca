"""Work that is distributed over the processes of a run. All functions also work in a single process."""

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from functools import cache
from typing import Any, TypeVar

import torch
import torch.distributed as dist
from torch import Tensor

from showattendtell.errors import UserError

Item = TypeVar("Item")

TIMEOUT = timedelta(minutes=10)
"""Timeout of messages between processes."""


class ReportedElsewhere(Exception):  # noqa: N818
    """Raised in all processes but the first instead of `error`, so that only the first one reports it."""

    def __init__(self, error: Exception):
        super().__init__(error)
        self.error = error


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


def slurm_environment() -> Any:
    """Return Lightning's `SLURMEnvironment` if srun started this process as one of several tasks, else None.

    Raises:
        UserError: SLURM does not know the number of tasks per machine.
    """
    tasks = os.environ.get("SLURM_NTASKS", "1")
    if tasks == "1":
        return None
    from pytorch_lightning.plugins.environments import SLURMEnvironment

    if not SLURMEnvironment.detect():
        return None
    if "SLURM_NTASKS_PER_NODE" not in os.environ:
        raise UserError(f"SLURM was given --ntasks={tasks}; give it --nodes and --ntasks-per-node instead")
    return SLURMEnvironment()


@contextmanager
def process_group() -> Iterator[None]:
    """Join the process group of torchrun or of srun for a `with` block; do nothing without them."""
    if dist.is_initialized():
        yield
        return
    if "WORLD_SIZE" not in os.environ:
        slurm = slurm_environment()
        if slurm is None:
            yield
            return
        os.environ |= {"MASTER_ADDR": slurm.main_address, "MASTER_PORT": str(slurm.main_port)}
        os.environ |= {"WORLD_SIZE": str(slurm.world_size()), "RANK": str(slurm.global_rank())}
    dist.init_process_group("gloo")
    try:
        yield
    finally:
        dist.destroy_process_group()


@cache
def _cpu_group(world: Any) -> Any:
    """Return a process group for tensors and objects in CPU memory, which NCCL does not support."""
    return world if dist.get_backend(world) == "gloo" else dist.new_group(backend="gloo", timeout=TIMEOUT)
