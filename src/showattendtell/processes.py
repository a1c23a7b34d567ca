"""Work that is divided among the processes of a run; a run of one process does it all."""

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

PATIENCE = timedelta(minutes=10)
"""How long the others wait for a process that does not answer."""


class ToldElsewhere(Exception):  # noqa: N818
    """What the first process raises, in another one: that is not to tell it as well."""

    def __init__(self, fault: Exception):
        super().__init__(fault)
        self.fault = fault


def rank() -> int:
    """The number of this process, 0 for the one that speaks and writes."""
    return dist.get_rank() if dist.is_initialized() else 0


def world_size() -> int:
    return dist.get_world_size() if dist.is_initialized() else 1


def own_device() -> str:
    """The GPU that is this process's among those of the machine, as torchrun has numbered its processes; without a GPU
    the processor."""
    if not torch.cuda.is_available():
        return "cpu"
    return f"cuda:{int(os.environ.get('LOCAL_RANK', 0)) % torch.cuda.device_count()}"


def own_share(number: int) -> range:
    """Which of `number` pieces of work are this process's: each is some process's, and no two processes share one."""
    return range(rank(), number, world_size())


def own_part(items: list[Item]) -> list[Item]:
    """Those of the items that are this process's, which follow each other; the processes' numbers differ by one at the
    most, and with fewer items than processes some have none."""
    start, stop = (len(items) * number // world_size() for number in (rank(), rank() + 1))
    return items[start:stop]


def gather(own: dict[str, Item]) -> dict[str, Item]:
    """What all the processes have, by name, in every process."""
    if not dist.is_initialized():
        return own
    parts: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(parts, own, group=_messages(dist.group.WORLD))
    return {name: item for part in parts for name, item in part.items()}


def any_process(says: bool) -> bool:
    """Whether any of the processes says so; no process waits for its GPU."""
    if not dist.is_initialized():
        return says
    said = torch.tensor(int(says))
    dist.all_reduce(said, dist.ReduceOp.MAX, group=_messages(dist.group.WORLD))
    return bool(said)


def mean_over_processes(value: Tensor) -> Tensor:
    """The mean of what each process gives."""
    if not dist.is_initialized():
        return value
    total = value.clone()
    dist.all_reduce(total)
    return total / dist.get_world_size()


def agree(decide: Callable[[], Item]) -> Item:
    """What the first process decides, for all of them, which end with it where it meets a `UserError`."""
    decided: dict[str, Item] = {}
    with ending_together():
        if rank() == 0:
            decided["first"] = decide()
    return gather(decided)["first"]


@contextmanager
def ending_together() -> Iterator[None]:
    """Where a process meets a `UserError` or an `OSError`, the first raises it, and the others `ToldElsewhere`."""
    if not dist.is_initialized():
        yield
        return
    met: dict[str, UserError | OSError] = {}
    try:
        yield
    except (UserError, OSError) as fault:
        met[str(rank())] = fault
    all_met = list(gather(met).values())
    if all_met:
        raise all_met[0] if rank() == 0 else ToldElsewhere(all_met[0])


@contextmanager
def together() -> Iterator[None]:
    """Join the other processes that torchrun has started, if it has."""
    if "WORLD_SIZE" not in os.environ or dist.is_initialized():
        yield
        return
    dist.init_process_group("gloo")
    try:
        yield
    finally:
        dist.destroy_process_group()


@cache
def _messages(world: Any) -> Any:
    """All processes, talking by their processors."""
    return world if dist.get_backend(world) == "gloo" else dist.new_group(backend="gloo", timeout=PATIENCE)
