"""Data-parallel processes: how they start and end."""

import logging
import os
import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, redirect_stdout
from typing import NamedTuple, NoReturn

import pytorch_lightning as lightning
import torch.distributed as dist
from hydra.core.hydra_config import HydraConfig
from hydra.core.utils import setup_globals
from hydra.types import RunMode
from omegaconf import DictConfig, ListConfig, OmegaConf
from pytorch_lightning.plugins.environments import LightningEnvironment, SLURMEnvironment, TorchElasticEnvironment
from pytorch_lightning.strategies import DDPStrategy
from torch.distributed.elastic.multiprocessing.api import SignalException
from torch.distributed.elastic.multiprocessing.errors import ChildFailedError
from torch.distributed.launcher.api import LaunchConfig, elastic_launch

from showattendtell.config.entry_point import without_checks
from showattendtell.config.instantiate import build
from showattendtell.config.validation import FAULTS, TARGET, sentence
from showattendtell.errors import UserError
from showattendtell.runtime.distributed import TIMEOUT, ReportedElsewhere, rank
from showattendtell.training.callbacks.interruption import GO_ON
from showattendtell.training.trainer import report_refusals, silence_warnings

Train = Callable[[DictConfig], float]

SIGNALS = "SIGTERM,SIGINT,SIGUSR1"
"""Signals that are passed on to the child processes."""

LAST_WISHES = 60
"""Grace period in seconds for child processes to save and end."""


class DataParallel(DDPStrategy):
    """DDP: every process has the whole model and applies the mean of all gradients."""

    def __init__(self) -> None:
        super().__init__(timeout=TIMEOUT, gradient_as_bucket_view=True)


class LostProcessError(UserError):
    """Another process of the run is gone."""


def launch(train: Train, config: DictConfig) -> float:
    """Return what `train` returns: in this process, if torchrun or SLURM started it or it is the only one; otherwise in
    one process per configured device, all started here."""
    silence_warnings()
    started = _started_elsewhere()
    if started and HydraConfig.get().mode == RunMode.MULTIRUN:
        raise UserError("a sweep starts its runs itself; leave torchrun out and give trainer.devices, or leave -m out")
    if started:
        try:
            return _take_part(train, _arranged(config, started))
        except ReportedElsewhere:
            sys.exit(2)
    if config.trainer.get("num_nodes", 1) != 1:
        raise UserError(
            f"trainer.num_nodes={config.trainer.num_nodes} needs torchrun on each machine, or SLURM, which tell the "
            "number themselves; docs/training.md has the commands"
        )
    number = _num_devices(config.trainer)
    return train(config) if number == 1 else _start(train, _arranged(config, ProcessGroup(number, 1)))


class ProcessGroup(NamedTuple):
    """The processes of a run: processes per machine, and machines."""

    devices: int
    nodes: int


def _started_elsewhere() -> ProcessGroup | None:
    """Return the group that torchrun started, or srun of SLURM as several tasks."""
    if TorchElasticEnvironment.detect():
        devices = int(os.environ["LOCAL_WORLD_SIZE"])
        return ProcessGroup(devices, int(os.environ["WORLD_SIZE"]) // devices)
    tasks = os.environ.get("SLURM_NTASKS", "1")
    if tasks == "1" or not SLURMEnvironment.detect():
        return None
    if "SLURM_NTASKS_PER_NODE" not in os.environ:
        raise UserError(f"SLURM was given --ntasks={tasks}; give it --nodes and --ntasks-per-node instead")
    return ProcessGroup(int(os.environ["SLURM_NTASKS_PER_NODE"]), int(os.environ["SLURM_NNODES"]))


def _num_devices(trainer: DictConfig) -> int:
    """Count devices as Lightning does: a number, a list, `auto` or -1."""
    devices = OmegaConf.to_container(trainer).get("devices", 1)  # type: ignore[union-attr]
    with report_refusals("trainer"):
        number = lightning.Trainer(
            accelerator=trainer.get("accelerator", "auto"),
            devices=devices,
            plugins=[LightningEnvironment()],
            logger=False,
            enable_progress_bar=False,
            enable_model_summary=False,
        ).num_devices
    if number == 1 and devices == "auto":
        print("trainer.devices=auto finds one device; trainer.devices=2 trains in two processes")
    return number


def _arranged(config: DictConfig, group: ProcessGroup) -> DictConfig:
    """Return the configuration for a group of processes. Raises `UserError` if it asks for another group."""
    config = config.copy()
    OmegaConf.set_struct(config, False)
    given = config.trainer.get("devices", 1)
    asked = len(given) if isinstance(given, ListConfig) else given
    if asked not in (1, "auto", -1, "-1", group.devices, str(group.devices)):
        raise UserError(
            f"trainer.devices={given}, and {group.devices} processes were started on this machine; leave it out"
        )
    if not isinstance(given, ListConfig):
        config.trainer.devices = group.devices
    config.trainer.num_nodes = group.nodes
    if config.trainer.get("strategy", "auto") == "auto":
        config.trainer.strategy = {TARGET: f"{DataParallel.__module__}.{DataParallel.__qualname__}"}
    return config


def _take_part(train: Train, config: DictConfig) -> float:
    """Run `train` in this process of a group, of which only the first prints, and return its result.

    Raises `LostProcessError` if another process is gone.
    """
    with report_refusals("trainer"):
        strategy = build(config.trainer, logger=False, enable_progress_bar=False, enable_model_summary=False).strategy
    with _noticing_losses():
        strategy.setup_environment()
        with redirect_stdout(sys.stdout if rank() == 0 else None):
            result = train(config)
        if dist.is_initialized():
            dist.destroy_process_group()
    return result


@contextmanager
def _noticing_losses() -> Iterator[None]:
    try:
        yield
    except RuntimeError as fault:  # gloo has no error class of its own
        if not isinstance(fault, dist.DistError) and "gloo" not in str(fault):
            raise
        raise LostProcessError(f"another process of this run has ended or does not answer; {GO_ON}") from None


def _start(train: Train, config: DictConfig) -> float:
    """Start the processes and return the first one's result. Signals are passed on; all end with this process."""
    number = config.trainer.devices if isinstance(config.trainer.devices, int) else len(config.trainer.devices)
    os.environ.setdefault("OMP_NUM_THREADS", str(max(1, len(os.sched_getaffinity(0)) // number)))
    _quieten_agent()
    agent = LaunchConfig(
        min_nodes=1,
        max_nodes=1,
        nproc_per_node=number,
        run_id=str(os.getpid()),
        rdzv_backend="c10d",
        rdzv_endpoint="localhost:0",
        max_restarts=0,
        signals_to_handle=SIGNALS,
        shutdown_timeout=LAST_WISHES,
    )
    try:
        return float(elastic_launch(agent, _work)(train, config, HydraConfig.instance().cfg)[0])
    except SignalException as notice:
        sys.exit(128 + notice.sigval)
    except ChildFailedError as fault:
        _tell(fault, number)


def _quieten_agent() -> None:
    """Silence torch's loggers of process failures, each with its level: failures are reported here."""
    for name in logging.root.manager.loggerDict:
        if name.startswith(("torch.distributed.elastic", "torch.multiprocessing")):
            logging.getLogger(name).setLevel(logging.CRITICAL)


def _work(train: Train, config: DictConfig, hydra: DictConfig) -> float:
    """Run `train` in a process started here, with Hydra's state of the run; the parent process reports its errors."""
    setup_globals()
    HydraConfig.instance().set_config(hydra)
    silence_warnings()
    try:
        with without_checks(config):
            return _take_part(train, config)
    except LostProcessError:
        sys.exit(2)  # the parent knows which process failed, and why
    except ReportedElsewhere as reported:
        raise UserError(sentence(reported.fault)) from None
    except FAULTS as fault:
        raise UserError(sentence(fault)) from None


def _tell(fault: ChildFailedError, number: int) -> NoReturn:
    """Raise the error of the process that ended first, or exit with its status."""
    place, failure = fault.get_first_failure()
    if failure.exitcode < 0:
        name = signal.Signals(-failure.exitcode).name
        raise UserError(f"process {place + 1} of {number} was ended by {name}; {GO_ON}") from None
    message = failure.error_file_data["message"]
    if isinstance(message, str):  # the process raised no error
        sys.exit(failure.exitcode)
    kind, _, reported = message["message"].partition(": ")
    if kind == UserError.__name__:
        raise UserError(reported) from None
    raise RuntimeError(f"in process {place + 1} of {number}:\n{message['extraInfo']['py_callstack']}") from None
