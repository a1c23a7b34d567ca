"""Work that is divided among the processes of a run; a run of one process does it all."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, TypeVar

import torch.distributed as dist

Item = TypeVar("Item")


def rank() -> int:
    """The number of this process, 0 for the one that speaks and writes."""
    return dist.get_rank() if dist.is_initialized() else 0


def world_size() -> int:
    return dist.get_world_size() if dist.is_initialized() else 1


def own_share(number: int) -> range:
    """Which of `number` pieces of work are this process's: each is some process's, and no two processes share one."""
    return range(rank(), number, world_size())


def even_share(number: int) -> list[int]:
    """As `own_share`, and as many for every process: one that would come short takes another's from the start again."""
    rounds = -(-number // world_size())
    return [piece % number for piece in range(rank(), rounds * world_size(), world_size())]


def gather(own: dict[str, Item]) -> dict[str, Item]:
    """What all the processes have, by name, in every process."""
    if not dist.is_initialized():
        return own
    parts: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(parts, own)
    return {name: item for part in parts for name, item in part.items()}


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
