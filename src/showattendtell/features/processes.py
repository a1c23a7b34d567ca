"""Run a function in several processes of this machine."""

import os
import sys
from collections.abc import Callable
from multiprocessing import parent_process
from multiprocessing.queues import SimpleQueue
from threading import Thread

import torch
import torch.multiprocessing as multiprocessing

from showattendtell.errors import UserError


def run_in_processes(number: int, function: Callable[[], None]) -> None:
    """Call a function in several processes, each with its share of the threads. They end with this one.

    Raises:
        UserError: a process raised it or was killed. The others are stopped.
    """
    context = multiprocessing.get_context("spawn")  # neither CUDA nor torch's threads work in a forked process
    errors = context.SimpleQueue()
    threads = max(1, torch.get_num_threads() // number)
    try:
        multiprocessing.spawn(_run, (function, errors, threads), nprocs=number)
    except (multiprocessing.ProcessExitedException, multiprocessing.ProcessRaisedException) as error:
        if not errors.empty():
            raise errors.get() from None
        if isinstance(error, multiprocessing.ProcessRaisedException):
            raise
        raise UserError(
            f"a process that encodes images ended with status {error.exit_code}, probably out of memory; "
            "lower features.workers and run the command again: finished work is kept"
        ) from None


def _run(index: int, function: Callable[[], None], errors: "SimpleQueue[UserError]", threads: int) -> None:
    Thread(target=_end_with_parent, daemon=True).start()
    torch.set_num_threads(threads)
    try:
        function()
    except UserError as error:
        errors.put(error)
        sys.exit(1)


def _end_with_parent() -> None:
    """End this process if its parent was killed. The SIGINT that torch sends then is ignored in some shells."""
    parent = parent_process()
    assert parent is not None
    parent.join()
    os._exit(1)
