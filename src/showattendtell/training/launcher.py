"""Start data-parallel processes before anything is built, and report how they end.

Lightning's launcher starts them within `Trainer.fit`, when each has chosen a run to resume and a folder on its own; it
forwards SIGTERM only, and a process that dies is reported by the others' traceback, if at all. Processes of torchrun
and SLURM are used as they are. `tests/integration/test_launching.py` has a test for each of these points.
"""

import logging
import os
import signal
import sys
from collections.abc import Callable
from contextlib import redirect_stdout
from dataclasses import replace
from typing import Any, NoReturn
from unittest.mock import patch

import pytorch_lightning as lightning
import torch.distributed as dist
from hydra.core.hydra_config import HydraConfig
from hydra.core.utils import setup_globals
from hydra.types import RunMode
from pytorch_lightning.plugins.environments import LightningEnvironment
from torch.distributed.elastic.multiprocessing.api import SignalException
from torch.distributed.elastic.multiprocessing.errors import ChildFailedError
from torch.distributed.launcher.api import LaunchConfig, elastic_launch

from showattendtell.config.instantiate import build
from showattendtell.config.schemas import TrainSettings
from showattendtell.config.validation import TARGET, USER_ERRORS, sentence
from showattendtell.errors import UserError
from showattendtell.runtime.distributed import (
    TIMEOUT,
    LostProcessError,
    ReportedElsewhere,
    rank,
    report_lost_processes,
)
from showattendtell.runtime.process import is_launched, num_cores, stop_signals
from showattendtell.settings import Node
from showattendtell.training.build import report_refusals
from showattendtell.training.interruption import RESUME

Train = Callable[[Any], float]

STRATEGIES = ("auto", "ddp", "ddp_find_unused_parameters_false", "ddp_find_unused_parameters_true")
"""Names of Lightning's strategies that can train in processes that are started here."""

DATA_PARALLEL = {
    TARGET: "pytorch_lightning.strategies.DDPStrategy",
    "timeout": {TARGET: "datetime.timedelta", "seconds": TIMEOUT.seconds},
    "gradient_as_bucket_view": True,
}
"""The default one: every process has the whole model and applies the mean of all gradients."""


def launch(train: Train, settings: TrainSettings) -> float:
    """Return what `train(settings)` returns: in this process, if torchrun or SLURM started it or it is the only one;
    otherwise in one process per configured device, all started here."""
    given = settings.trainer.arguments
    strategy = given.get("strategy", "auto")
    if strategy not in STRATEGIES:  # others start processes themselves, or share a model
        raise UserError(f"trainer.strategy={strategy} cannot train here; choose one of {', '.join(STRATEGIES)}")
    is_sweep = HydraConfig.get().mode == RunMode.MULTIRUN
    if is_sweep and isinstance(settings.resume, str):
        raise UserError("resume=FOLDER resumes one run, and -m runs several; give one of them")
    if is_launched():
        if is_sweep:
            raise UserError("a sweep starts its runs itself; leave torchrun out and give trainer.devices")
        try:
            return _run_process(train, settings)
        except ReportedElsewhere:
            sys.exit(2)
    number = given.get("num_nodes", 1)
    if number != 1:
        raise UserError(
            f"trainer.num_nodes={number} needs torchrun on each machine, or SLURM; docs/training.md has the commands"
        )
    if given.get("devices", 1) != 1:
        num_processes = _bare_trainer(settings.trainer).num_devices
        if num_processes > 1:
            return _start(train, settings, num_processes)
    return train(settings)


def _bare_trainer(node: Node) -> lightning.Trainer:
    """Return a Trainer that knows devices and strategy."""
    with report_refusals("trainer"):
        trainer: lightning.Trainer = build(
            node, plugins=LightningEnvironment(), logger=False, enable_progress_bar=False
        )
    return trainer


def _run_process(train: Train, settings: TrainSettings) -> float:
    """Run `train` in this process of a group, of which only the first prints, and return its result.

    Raises:
        UserError: the settings ask for another number of processes.
    """
    devices = int(os.environ["LOCAL_WORLD_SIZE"])
    given = settings.trainer.arguments.get("devices", 1)
    is_list = isinstance(given, list)
    if (len(given) if is_list else given) not in (1, "auto", -1, "-1", devices, str(devices)):
        raise UserError(f"trainer.devices={given}, and {devices} processes were started on this machine; leave it out")
    num_nodes = int(os.environ["WORLD_SIZE"]) // devices
    trainer = settings.trainer.changed(num_nodes=num_nodes, devices=given if is_list else devices)
    if trainer.arguments.get("strategy", "auto") == "auto":
        trainer = trainer.changed(strategy=DATA_PARALLEL)
    settings = replace(settings, trainer=trainer)
    strategy = _bare_trainer(trainer).strategy
    with report_lost_processes():
        strategy.setup_environment()
        with redirect_stdout(sys.stdout if rank() == 0 else None):
            result = train(settings)
        if dist.is_initialized():
            dist.destroy_process_group()
        return result


def _start(train: Train, settings: TrainSettings, num_processes: int) -> float:
    """Start the processes and return the first one's result. Signals are passed on; all end with this process."""
    threads = os.environ.get("OMP_NUM_THREADS", str(max(1, num_cores() // num_processes)))
    logging.disable(logging.ERROR)  # failures are reported here
    agent = LaunchConfig(
        min_nodes=1,
        max_nodes=1,
        nproc_per_node=num_processes,
        run_id=str(os.getpid()),
        rdzv_backend="c10d",
        rdzv_endpoint="localhost:0",
        max_restarts=0,
        signals_to_handle=",".join(number.name for number in stop_signals()),  # passed on to the child processes
        shutdown_timeout=60,  # seconds for child processes to save and end
    )
    try:
        with patch.dict(os.environ, OMP_NUM_THREADS=threads):  # a sweep may have runs of other numbers of processes
            return float(elastic_launch(agent, _work)(train, settings, HydraConfig.instance().cfg)[0])
    except SignalException as notice:
        sys.exit(128 + notice.sigval)
    except ChildFailedError as error:
        _report(error, num_processes)
    finally:
        logging.disable(logging.NOTSET)


def _work(train: Train, settings: TrainSettings, hydra: Any) -> float:
    """Run `train` in a process started here, with Hydra's state of the run; the parent process reports its errors."""
    setup_globals()
    HydraConfig.instance().set_config(hydra)
    try:
        return _run_process(train, settings)
    except LostProcessError:
        sys.exit(2)  # the parent knows which process failed, and why
    except ReportedElsewhere as reported:
        raise UserError(sentence(reported.error)) from None
    except USER_ERRORS as error:
        raise UserError(sentence(error)) from None


def _report(error: ChildFailedError, num_processes: int) -> NoReturn:
    """Raise the error of the process that ended first, or exit with its status."""
    index, failure = error.get_first_failure()
    process = f"process {index + 1} of {num_processes}"
    if failure.exitcode < 0:
        name = signal.Signals(-failure.exitcode).name
        raise UserError(f"{process} was ended by {name}; {RESUME}") from None
    message = failure.error_file_data["message"]
    if isinstance(message, str):  # the process raised no error
        sys.exit(failure.exitcode)
    text = message["message"]
    if text.startswith("UserError: "):
        raise UserError(text.removeprefix("UserError: ")) from None
    raise RuntimeError(f"in {process}:\n{message['extraInfo']['py_callstack']}") from None
