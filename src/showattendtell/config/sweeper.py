"""Sweeps: several runs by one command, in sequence or in parallel, here or on a cluster. One failure stops no other."""

import os
import signal
import sys
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import chdir, contextmanager, nullcontext
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from hydra._internal.core_plugins.basic_sweeper import BasicSweeper
from hydra.core.hydra_config import HydraConfig
from hydra.core.override_parser.types import Quote, QuotedString
from hydra.core.utils import JobReturn, JobStatus
from hydra.plugins.launcher import Launcher
from hydra.types import HydraContext, TaskFunction
from omegaconf import DictConfig, read_write

from showattendtell.config.compose import LAUNCHER, SEARCH
from showattendtell.config.subprocesses import in_own_process
from showattendtell.config.validation import FAULTS, full_traceback, is_debugging, sentence
from showattendtell.errors import UserError

IN_TURN = "basic"
"""Hydra's own launcher, which runs one job after the other in this process."""

POOLED = ("joblib", "ray")
"""Launchers whose processes are shared by several runs: if one were killed, other runs would fail too."""

EXTRAS = {"joblib": "joblib", "submitit_local": "slurm", "submitit_slurm": "slurm", "ray": "ray"}
"""Launchers that need another package, each with the extra of this project that installs it."""


def lacking_package(group: str, option: str) -> str:
    """Return an error message if the package of a launcher or search space is not installed, else an empty text."""
    kind, extra = ("optuna", "sweeps") if group == SEARCH else (option.partition("_")[0], EXTRAS.get(option))
    part = "sweeper" if group == SEARCH else "launcher"
    if group not in (SEARCH, LAUNCHER) or not extra or _is_found(f"hydra_plugins.hydra_{kind}_{part}"):
        return ""
    return f"{group}={option} needs the package hydra-{kind}-{part}; run pip install 'showattendtell[{extra}]'"


def _is_found(module: str) -> bool:
    try:
        return find_spec(module) is not None
    except ModuleNotFoundError:  # its parent package is missing
        return False


def run_in_sweep(run: Callable[[], Any]) -> Any:
    """Run `run` in the folder where the sweep was started, and return its result.

    If runs are parallel, its output goes into NAME.log in its folder. An exception is always logged there, and then
    raised to Hydra, which continues with the other runs.
    """
    config = HydraConfig.get()
    log = Path(config.runtime.output_dir, f"{config.job.name}.log")
    launcher = config.runtime.choices["hydra/launcher"]

    def telling() -> Any:
        try:
            return run()
        except Exception as fault:
            message = f"error: {sentence(fault)}\n"
            if is_debugging() or not isinstance(fault, FAULTS):
                message = full_traceback(fault) + (message if isinstance(fault, FAULTS) else "")
            sys.stderr.write(message)
            if launcher == IN_TURN:
                log.write_text(message)
            raise

    with chdir(config.runtime.cwd), nullcontext() if launcher == IN_TURN else _printing_into(log):
        return in_own_process(telling) if launcher in POOLED else telling()


@contextmanager
def _printing_into(log: Path) -> Iterator[None]:
    """Append the output of this process and its child processes to a file."""
    with log.open("ab") as file:
        _flush()
        kept = [(descriptor, os.dup(descriptor)) for descriptor in (1, 2)]
        for descriptor, _ in kept:
            os.dup2(file.fileno(), descriptor)
        try:
            yield
        finally:
            _flush()
            for descriptor, former in kept:
                os.dup2(former, descriptor)
                os.close(former)


def _flush() -> None:
    sys.stdout.flush()
    sys.stderr.flush()


class GridSweeper(BasicSweeper):
    """Grid search over all combinations of the values; at the end it prints a line with the result of every run.

    max_batch_size: number of runs in a batch; the next batch is launched when all of them have ended.
    params: values in addition to those of the command line.

    Raises `UserError` with the error messages of the runs that failed.
    """

    def setup(self, *, hydra_context: HydraContext, task_function: TaskFunction, config: DictConfig) -> None:
        settle_folder(config)
        super().setup(hydra_context=hydra_context, task_function=task_function, config=config)
        assert self.launcher
        self._witness = RecordingLauncher(self.launcher, config)
        self.launcher = self._witness

    def sweep(self, arguments: list[str]) -> list[Sequence[JobReturn]]:
        returned: list[Sequence[JobReturn]] = super().sweep(arguments)
        self._witness.tell()
        return returned


def settle_folder(config: DictConfig) -> None:
    """Write the sweep's folder into its configuration as an absolute path, with its time stamp resolved.

    The override has the prefix `++`, which distinguishes it from a folder that the user named.
    """
    folder = os.path.abspath(config.hydra.sweep.dir)
    with read_write(config.hydra):
        config.hydra.sweep.dir = folder
        config.hydra.overrides.hydra.append(f"++hydra.sweep.dir={QuotedString(folder, Quote.double).with_quotes()}")


class RecordingLauncher(Launcher):
    """A launcher that records the results of all runs, and returns only the successful ones to its sweeper, which would
    stop at a failed run.

    Args:
        launcher: the wrapped launcher, already set up.
        config: the configuration of the sweep.

    Attributes:
        ended: results of all runs that have ended, in the order of their launch.
    """

    def __init__(self, launcher: Launcher, config: DictConfig):
        self._launcher, self._hydra = launcher, config.hydra
        self.ended: list[JobReturn] = []

    def setup(self, *, hydra_context: HydraContext, task_function: TaskFunction, config: DictConfig) -> None:
        self._launcher.setup(hydra_context=hydra_context, task_function=task_function, config=config)

    def launch(self, job_overrides: Sequence[Sequence[str]], initial_job_idx: int) -> Sequence[JobReturn]:
        name = self._hydra.runtime.choices["hydra/launcher"]
        if name == IN_TURN:
            ended = self._launcher.launch(job_overrides, initial_job_idx)
        else:
            print(
                f"each run prints into {format_override(self._hydra.sweep.dir)}/NUMBER/{self._hydra.job.name}.log",
                flush=True,
            )
            signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(128 + number))  # and end the runs
            with self._telling_breakdown(name):
                ended = self._launcher.launch(job_overrides, initial_job_idx)
        self.ended += ended
        return [run for run in ended if run.status == JobStatus.COMPLETED]

    @contextmanager
    def _telling_breakdown(self, name: str) -> Iterator[None]:
        """Raise any exception of a launcher as a `UserError`, and log its traceback."""
        try:
            yield
        except Exception as fault:
            log = Path(self._hydra.sweep.dir, f"{self._hydra.job.name}.log")
            log.write_text(traceback.format_exc())
            message = " ".join(str(fault).strip().splitlines()[:2])
            raise UserError(
                f"hydra/launcher={name}: {message or type(fault).__name__}; {format_override(log)} has more"
            ) from fault

    def tell(self) -> None:
        """Print a line for each successful run.

        Raises `UserError` with a line for each failed run.
        """
        failed = []
        shared = set.intersection(*(set(run.overrides or ()) for run in self.ended))
        for run in self.ended:
            assert run.hydra_cfg
            own = " ".join(line.lstrip("+") for line in run.overrides or () if line not in shared)
            where = f"{format_override(run.hydra_cfg.hydra.runtime.output_dir)}  {own}"
            if run.status == JobStatus.COMPLETED:
                print(f"{where}  {run.return_value:.4g}" if isinstance(run.return_value, float) else where)
            else:
                failed.append(f"{where}: {sentence(run._return_value)}")
        if failed:
            raise UserError("\n  ".join([f"{len(failed)} of {len(self.ended)} runs failed:", *failed]))


def format_override(folder: str | Path) -> Path:
    """Return a path as the user would type it: relative to the working folder if it is inside."""
    path, here = Path(folder), Path.cwd()
    return path.relative_to(here) if path.is_relative_to(here) else path
