"""Several processes that encode and write, each its own shards."""

import multiprocessing
import signal
from collections.abc import Callable, Mapping
from contextlib import suppress
from multiprocessing.connection import Connection, wait
from multiprocessing.context import SpawnProcess

import torch

from showattendtell.errors import UserError
from showattendtell.features.plan import Encode

Write = Callable[[Encode, Callable[[int], None]], None]
"""`write_shards` of a store."""


def in_processes(number: int, write: Write, encode: Encode, tell: Callable[[int], None]) -> None:
    """Let so many processes write, and `tell` here the images of each batch that any of them has written.

    Raises what one of them raised, or a `UserError` where one was killed; the others are stopped then. They stop by
    themselves at their next batch when this process is killed.
    """
    context = multiprocessing.get_context("spawn")  # after a fork neither the GPU nor torch's threads would work
    threads = max(1, torch.get_num_threads() // number)
    ends = [context.Pipe(duplex=False) for _ in range(number)]
    processes = [context.Process(target=_work, args=(write, encode, sender, threads)) for _, sender in ends]
    try:
        for process, (_, sender) in zip(processes, ends, strict=True):
            process.start()
            sender.close()
        _listen({receiver: process for (receiver, _), process in zip(ends, processes, strict=True)}, tell)
    finally:
        for process in processes:
            if process.pid:
                process.kill()
                process.join()


def _listen(processes: Mapping[Connection, SpawnProcess], tell: Callable[[int], None]) -> None:
    """Hear what the processes say until all have ended."""
    open_ends = set(processes)
    while open_ends:
        for end in wait(open_ends):
            assert isinstance(end, Connection)
            try:
                said = end.recv()
            except EOFError:
                open_ends.discard(end)
                processes[end].join()
                if processes[end].exitcode:
                    raise UserError(
                        f"a process that encodes images ended with status {processes[end].exitcode}, as for lack of "
                        "memory; set features.workers lower and go on: what is written is kept"
                    ) from None
                continue
            if isinstance(said, BaseException):
                raise said
            tell(said)


def _work(write: Write, encode: Encode, parent: Connection, threads: int) -> None:
    """What each process runs; its next word fails where the parent has been killed."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent ends it
    torch.set_num_threads(threads)
    with suppress(BrokenPipeError):
        try:
            write(encode, parent.send)
        except UserError as fault:
            parent.send(fault)
