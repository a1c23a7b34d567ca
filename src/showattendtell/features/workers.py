"""Write a feature store in several processes of this machine, or in actors of Ray."""

import multiprocessing
import os
import signal
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from functools import partial
from multiprocessing.connection import Connection, wait
from pathlib import Path
from threading import Thread

import torch
from numpy.typing import NDArray

from showattendtell.errors import UserError
from showattendtell.features.encoding import ImageEncoding
from showattendtell.features.store import Encode, StorePlan
from showattendtell.features.writer import write_shards
from showattendtell.runtime.ray_actors import actor_options, require_ray

READERS = 2
"""Number of processes that read images, if a single process encodes."""


def in_processes(num_processes: int, write: Callable[[], None]) -> None:
    """Call `write` in several processes. They end with this one, also if it is killed.

    Raises:
        UserError: a process raised it or was killed. The others are stopped.
    """
    context = multiprocessing.get_context("spawn")  # neither CUDA nor torch's threads work in a forked process
    threads = max(1, torch.get_num_threads() // num_processes)
    pipes = [context.Pipe(duplex=False) for _ in range(num_processes)]
    processes = {receiver: context.Process(target=_work, args=(write, sender, threads)) for receiver, sender in pipes}
    try:
        for receiver, sender in pipes:
            processes[receiver].start()
            sender.close()
        open_receivers = set(processes)
        while open_receivers:
            for end in wait(open_receivers):
                assert isinstance(end, Connection)
                with suppress(EOFError):
                    raise end.recv()
                open_receivers.discard(end)
                processes[end].join()
                if processes[end].exitcode:
                    raise UserError(
                        f"a process that encodes images ended with status {processes[end].exitcode}, probably out of "
                        "memory; lower features.workers and run the command again: finished work is kept"
                    )
    finally:
        for process in processes.values():
            if process.pid:
                process.kill()
                process.join()


def _work(write: Callable[[], None], parent: Connection, threads: int) -> None:
    """Entry point of the processes."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent ends this process
    Thread(target=_end_with_parent, daemon=True).start()
    torch.set_num_threads(threads)
    try:
        write()
    except UserError as error:
        parent.send(error)


def _end_with_parent() -> None:
    parent = multiprocessing.parent_process()
    assert parent is not None
    parent.join()
    os._exit(1)


class ShardWriter:
    """Writes shards of a store in an actor of Ray.

    Args:
        folder: working directory, from which relative paths start.
    """

    def __init__(self, folder: str, path: Path, plan: StorePlan, encode: Encode):
        os.chdir(folder)
        self._write = partial(write_shards, path, plan, encode)

    def __call__(self, batch: dict[str, NDArray]) -> dict[str, list[str]]:
        """Write the shards with the numbers in the column `id`. Return the error of images that cannot be read."""
        try:
            self._write(numbers=batch["id"].tolist())
        except UserError as error:
            return {"error": [str(error)]}
        return {"error": [""]}


def write_with_ray(workers: int, path: Path, plan: StorePlan, encode: ImageEncoding) -> None:
    """Write all shards in actors of Ray. Paths have to be valid on every machine of the cluster; see `actor_options`.
    The work of an actor that is killed is done by another.

    Raises:
        UserError: Ray Data is not installed, or an actor raised it.
    """
    ray = require_ray()
    options = actor_options(ray, workers, on_gpu=encode.engine == "torch")
    encode = replace(encode, readers=READERS if options["num_gpus"] else 0)
    numbers = ray.data.range(len(plan.shards), override_num_blocks=len(plan.shards))
    arguments = (os.getcwd(), path, plan, encode)
    for row in numbers.map_batches(ShardWriter, fn_constructor_args=arguments, batch_size=1, **options).iter_rows():
        if row["error"]:
            raise UserError(row["error"])
