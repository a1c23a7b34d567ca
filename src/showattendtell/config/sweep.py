"""Sweeps: several runs by one command, in turn or at once, here or on a cluster, each of which comes to its own end."""

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
from showattendtell.config.faults import FAULTS, sentence
from showattendtell.config.own_process import in_own_process
from showattendtell.errors import UserError

IN_TURN = "basic"
"""Hydra's own launcher, which runs one after the other in this process."""

POOLED = ("joblib", "ray")
"""The launchers whose processes serve several runs: one that was killed would take others with it."""

EXTRAS = {"joblib": "joblib", "submitit_local": "slurm", "submitit_slurm": "slurm", "ray": "ray"}
"""The launchers that are packages of their own, and the extra of this project that brings each."""


def lacking_package(group: str, option: str) -> str:
    """The sentence for a launcher or a search space whose package is not installed; empty where it is."""
    kind, extra = ("optuna", "sweeps") if group == SEARCH else (option.partition("_")[0], EXTRAS.get(option))
    part = "sweeper" if group == SEARCH else "launcher"
    if group not in (SEARCH, LAUNCHER) or not extra or _is_found(f"hydra_plugins.hydra_{kind}_{part}"):
        return ""
    return f"{group}={option} needs the package hydra-{kind}-{part}; run pip install 'showattendtell[{extra}]'"


def _is_found(module: str) -> bool:
    try:
        return find_spec(module) is not None
    except ModuleNotFoundError:  # the package that it would be in
        return False


def run_in_sweep(run: Callable[[], Any]) -> Any:
    """What the run returns, in the folder where the sweep was started.

    Where other runs go on beside it, all that it prints goes into NAME.log of its folder. A fault is told there in any
    case, and then left to Hydra, which lets the other runs go on.
    """
    config = HydraConfig.get()
    log = Path(config.runtime.output_dir, f"{config.job.name}.log")
    launcher = config.runtime.choices["hydra/launcher"]

    def telling() -> Any:
        try:
            return run()
        except Exception as fault:
            told = f"error: {sentence(fault)}\n" if isinstance(fault, FAULTS) else traceback.format_exc()
            sys.stderr.write(told)
            if launcher == IN_TURN:
                log.write_text(told)
            raise

    with chdir(config.runtime.cwd), nullcontext() if launcher == IN_TURN else _printing_into(log):
        return in_own_process(telling) if launcher in POOLED else telling()


@contextmanager
def _printing_into(log: Path) -> Iterator[None]:
    """What this process and those that it starts print goes to the end of a file."""
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


class Sweep(BasicSweeper):
    """All combinations of the values; at the end a line tells of every run what it returned, or that it failed.

    max_batch_size: so many runs are launched, and have ended, before the next are.
    params: values besides those of the command line.

    Raises `UserError` with the sentences of the runs that failed.
    """

    def setup(self, *, hydra_context: HydraContext, task_function: TaskFunction, config: DictConfig) -> None:
        settle_folder(config)
        super().setup(hydra_context=hydra_context, task_function=task_function, config=config)
        assert self.launcher
        self._witness = Witness(self.launcher, config)
        self.launcher = self._witness

    def sweep(self, arguments: list[str]) -> list[Sequence[JobReturn]]:
        returned: list[Sequence[JobReturn]] = super().sweep(arguments)
        self._witness.tell()
        return returned


def settle_folder(config: DictConfig) -> None:
    """Write the sweep's folder into its configuration as a path that is the same at any time and from any folder.

    It is written with `++`, so that it is told from a folder that the user named.
    """
    folder = os.path.abspath(config.hydra.sweep.dir)
    with read_write(config.hydra):
        config.hydra.sweep.dir = folder
        config.hydra.overrides.hydra.append(f"++hydra.sweep.dir={QuotedString(folder, Quote.double).with_quotes()}")


class Witness(Launcher):
    """A launcher that remembers how runs end, and shows its sweeper those alone that did well: at one that failed a
    sweeper would stop.

    Args:
        launcher: what runs them, set up already.
        config: the sweep's.

    Attributes:
        ended: all runs that have ended, in the order in which they were given.
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
            print(f"each run prints into {shown(self._hydra.sweep.dir)}/NUMBER/{self._hydra.job.name}.log", flush=True)
            signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(128 + number))  # and end the runs
            with self._telling_breakdown(name):
                ended = self._launcher.launch(job_overrides, initial_job_idx)
        self.ended += ended
        return [run for run in ended if run.status == JobStatus.COMPLETED]

    @contextmanager
    def _telling_breakdown(self, name: str) -> Iterator[None]:
        """What a launcher raises, each in its own way, as a `UserError`."""
        try:
            yield
        except Exception as fault:
            log = Path(self._hydra.sweep.dir, f"{self._hydra.job.name}.log")
            log.write_text(traceback.format_exc())
            told = " ".join(str(fault).strip().splitlines()[:2])
            raise UserError(f"hydra/launcher={name}: {told or type(fault).__name__}; {shown(log)} has more") from fault

    def tell(self) -> None:
        """Print a line for each run that did well.

        Raises `UserError` with one for each of the others.
        """
        failed = []
        shared = set.intersection(*(set(run.overrides or ()) for run in self.ended))
        for run in self.ended:
            assert run.hydra_cfg
            own = " ".join(line.lstrip("+") for line in run.overrides or () if line not in shared)
            where = f"{shown(run.hydra_cfg.hydra.runtime.output_dir)}  {own}"
            if run.status == JobStatus.COMPLETED:
                print(f"{where}  {run.return_value:.4g}" if isinstance(run.return_value, float) else where)
            else:
                failed.append(f"{where}: {sentence(run._return_value)}")
        if failed:
            raise UserError("\n  ".join([f"{len(failed)} of {len(self.ended)} runs failed:", *failed]))


def shown(folder: str | Path) -> Path:
    """As the user would type it."""
    path, here = Path(folder), Path.cwd()
    return path.relative_to(here) if path.is_relative_to(here) else path
