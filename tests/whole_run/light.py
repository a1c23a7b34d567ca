"""A command that imports nothing heavy: what a run of it does says its seed."""

import os
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path

from omegaconf import DictConfig

from showattendtell.config.entry import entry_point, run_folder
from showattendtell.errors import UserError

MEETING = (0, 1)
"""Runs that end only if they go on at the same time."""

FAULTY, BROKEN, KILLED, STOPPED, WAITING, NOTIFIED = range(2, 8)

SOCIABLE = 10
"""A run that ends only if another one of its sweep has begun."""


def run(config: DictConfig) -> float:
    print(f"seed {config.seed} in {run_folder()} with {os.environ.get('OMP_NUM_THREADS')} threads")
    folder, seed = Path(config.cache), config.seed
    if seed in MEETING:
        _meet(folder, seed)
    elif seed == FAULTY:
        raise UserError("a seed of 2 is a fault; take another")
    elif seed == BROKEN:
        raise ZeroDivisionError("there is something wrong here")
    elif seed == KILLED:
        os.kill(os.getpid(), signal.SIGKILL)
    elif seed == STOPPED:
        sys.exit(143)
    elif seed == WAITING:
        (folder / "waiting").write_text(str(os.getpid()))
        time.sleep(120)
    elif seed == NOTIFIED and not (folder / "notified").exists():
        (folder / "notified").touch()
        os.kill(os.getpid(), signal.SIGUSR1)
        time.sleep(120)
    elif seed == SOCIABLE:
        _wait_for(lambda: len([run for run in run_folder().parent.iterdir() if run.name.isdigit()]) > 1)
    return seed + 0.5


def _meet(folder: Path, seed: int) -> None:
    (folder / f"here-{seed}").touch()
    _wait_for((folder / f"here-{1 - seed}").exists)


def _wait_for(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 120
    while not condition():
        if time.monotonic() > deadline:
            raise UserError("the other run did not come")
        time.sleep(0.1)


if __name__ == "__main__":
    entry_point("train", run)()
