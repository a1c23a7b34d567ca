"""Sweeps: several runs by one command, over a grid or as trials of an Optuna study, in sequence or in parallel, here or
on a cluster. A failed run does not stop the others."""

import os
import signal
import sys
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, chdir, contextmanager, nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hydra.core.hydra_config import HydraConfig
from hydra.core.override_parser.types import Quote, QuotedString
from hydra.core.plugins import Plugins
from hydra.core.utils import JobReturn, JobStatus
from hydra.plugins.launcher import Launcher
from hydra.plugins.sweeper import Sweeper
from hydra.types import HydraContext, TaskFunction
from omegaconf import DictConfig, OmegaConf, read_write

from showattendtell.config.compose import SEARCH, find_searchpath
from showattendtell.config.hydra_internals import BasicSweeper, failure_of
from showattendtell.config.subprocesses import in_own_process
from showattendtell.config.validation import error_message, raise_errors, sentence, validate
from showattendtell.errors import UserError
from showattendtell.settings import NonNegativeInt, PositiveInt, Text

if TYPE_CHECKING:
    import optuna

IN_TURN = "basic"  # Hydra's own launcher, which runs one job after the other in this process


def run_in_sweep(run: Callable[[], Any]) -> Any:
    """Run `run` in the folder where the sweep was started, and return its result. If runs are parallel, its output goes
    into NAME.log in its folder. An exception is always logged there, and then raised to Hydra."""
    config = HydraConfig.get()
    log = Path(config.runtime.output_dir, f"{config.job.name}.log")
    launcher = config.runtime.choices["hydra/launcher"]

    def logged() -> Any:
        try:
            return run()
        except Exception as error:
            message = error_message(error)
            sys.stderr.write(message)
            if launcher == IN_TURN:
                log.write_text(message)
            raise

    # processes of these launchers are shared by several runs: if one were killed, other runs would fail too
    is_pooled = launcher in ("joblib", "ray")
    with chdir(config.runtime.cwd), nullcontext() if launcher == IN_TURN else _printing_into(log):
        return in_own_process(logged) if is_pooled else logged()


@contextmanager
def _printing_into(log: Path) -> Iterator[None]:
    """Append the output of this process and its child processes to a file."""
    with log.open("ab") as file, ExitStack() as stack:
        for stream, descriptor in ((sys.stdout, 1), (sys.stderr, 2)):
            stream.flush()
            saved = os.dup(descriptor)
            os.dup2(file.fileno(), descriptor)
            stack.callback(os.close, saved)
            stack.callback(os.dup2, saved, descriptor)
            stack.callback(stream.flush)
        yield


class GridSweeper(BasicSweeper):
    """Grid search over all combinations of the values; at the end it prints a line with the result of every run.

    Args:
        max_batch_size: number of runs in a batch; the next batch is launched when all of them have ended.
        params: values in addition to those of the command line.

    Raises:
        UserError: with the error messages of the runs that failed.
    """

    def setup(self, *, hydra_context: HydraContext, task_function: TaskFunction, config: DictConfig) -> None:
        settle_folder(config)
        super().setup(hydra_context=hydra_context, task_function=task_function, config=config)
        assert self.launcher
        self._recorder = RecordingLauncher(self.launcher, config)
        self.launcher = self._recorder

    def sweep(self, arguments: list[str]) -> list[Sequence[JobReturn]]:
        returned: list[Sequence[JobReturn]] = super().sweep(arguments)
        self._recorder.report()
        return returned


def settle_folder(config: DictConfig) -> None:
    """Write the sweep's folder into its configuration as an absolute path, with its time stamp resolved."""
    folder = os.path.abspath(config.hydra.sweep.dir)
    with read_write(config.hydra):
        config.hydra.sweep.dir = folder
        # the prefix distinguishes it from a folder that the user named
        config.hydra.overrides.hydra.append(f"++hydra.sweep.dir={QuotedString(folder, Quote.double).with_quotes()}")


class RecordingLauncher(Launcher):
    """Wraps a launcher that is set up: records the results of all runs in `results`, in the order of their launch, and
    returns only the successful ones to its sweeper, which would stop at a failed run."""

    def __init__(self, launcher: Launcher, config: DictConfig):
        self._launcher, self._hydra = launcher, config.hydra
        self.results: list[JobReturn] = []

    def setup(self, *, hydra_context: HydraContext, task_function: TaskFunction, config: DictConfig) -> None:
        self._launcher.setup(hydra_context=hydra_context, task_function=task_function, config=config)

    def launch(self, job_overrides: Sequence[Sequence[str]], initial_job_idx: int) -> Sequence[JobReturn]:
        name = self._hydra.runtime.choices["hydra/launcher"]
        if name == IN_TURN:
            results = self._launcher.launch(job_overrides, initial_job_idx)
        else:
            folder, file = self._hydra.sweep.dir, f"{self._hydra.job.name}.log"
            print(f"each run prints into {format_override(folder)}/NUMBER/{file}", flush=True)
            signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(128 + number))  # and end the runs
            try:
                results = self._launcher.launch(job_overrides, initial_job_idx)
            except Exception as error:
                log = Path(folder, file)
                log.write_text(traceback.format_exc())
                message = " ".join(str(error).strip().splitlines()[:2]) or type(error).__name__
                raise UserError(f"hydra/launcher={name}: {message}; {format_override(log)} has more") from error
        self.results += results
        return [run for run in results if run.status == JobStatus.COMPLETED]

    def report(self) -> None:
        """Print a line for each successful run.

        Raises:
            UserError: with a line for each failed run.
        """
        failed = []
        shared = set.intersection(*(set(run.overrides or ()) for run in self.results))
        for run in self.results:
            overrides = " ".join(line.lstrip("+") for line in run.overrides or () if line not in shared)
            label = f"{_folder_of(run)}  {overrides}"
            if run.status == JobStatus.COMPLETED:
                print(f"{label}  {run.return_value:.4g}" if isinstance(run.return_value, float) else label)
            else:
                failed.append(f"{label}: {sentence(failure_of(run))}")
        if failed:
            raise UserError("\n  ".join([f"{len(failed)} of {len(self.results)} runs failed:", *failed]))


def format_override(folder: str | Path) -> Path:
    """Return a path as the user would type it: relative to the working folder if it is inside."""
    path, cwd = Path(folder), Path.cwd()
    return path.relative_to(cwd) if path.is_relative_to(cwd) else path


def _folder_of(run: JobReturn) -> Path:
    assert run.hydra_cfg
    return format_override(run.hydra_cfg.hydra.runtime.output_dir)


def is_trial() -> bool:
    """Return whether this run is a trial of a study."""
    return HydraConfig.initialized() and bool(HydraConfig.get().runtime.choices.get(SEARCH))


class StudySweeper(Sweeper):
    """Run trials of an Optuna study until it has `n_trials`, including those of earlier commands and other workers.

    Optuna's Hydra plugin would add `n_trials` to a resumed study, overwrite the folders of its first trials, and not
    pass the trial to its run. Only its parser of search spaces is used here.

    Args:
        study_name: the study's name in its storage.
        storage: the storage of the study: a database, as postgresql://USER@HOST/NAME, or an Optuna journal file; by
            default study.db in the sweep's folder.
        n_trials: total number of trials of the study. Failed trials count; interrupted ones are resumed.
        n_jobs: number of trials that are launched at a time.
        seed: seed of the proposals, which also depend on earlier trials; null for a random seed.
        sampler: proposes trials.
        pruner: stops unpromising trials.
        params: settings of all trials, each with its value, or the values or range to search.
    """

    def __init__(
        self,
        study_name: Text,
        sampler: Any,
        pruner: Any,
        storage: Text | None = None,
        n_trials: PositiveInt = 20,
        n_jobs: PositiveInt = 1,
        seed: NonNegativeInt | None = None,
        params: Any = None,  # the check of the command line adds them to the arguments
    ):
        self._study_name, self._storage = study_name, storage
        self._sampler, self._pruner, self._seed = sampler, pruner, seed
        self._n_trials, self._n_jobs = n_trials, n_jobs

    def setup(self, *, hydra_context: HydraContext, task_function: TaskFunction, config: DictConfig) -> None:
        settings = OmegaConf.to_container(config.hydra.sweeper, resolve=True)
        raise_errors(validate(OmegaConf.create({"hydra": {"sweeper": settings}})))
        settle_folder(config)
        self._folder = format_override(config.hydra.sweep.dir)
        self._searchpath = find_searchpath(config.hydra.overrides.hydra)
        launcher = Plugins.instance().instantiate_launcher(
            hydra_context=hydra_context, task_function=task_function, config=config
        )
        self._recorder = RecordingLauncher(launcher, config)

    def sweep(self, arguments: list[str]) -> None:
        """Run the trials and report the study.

        Raises:
            UserError: if all trials fail.
        """
        from showattendtell.config.study import Study

        study = Study(
            self._study_name,
            self._storage,
            self._folder,
            self._sampler,
            self._pruner,
            self._seed,
            arguments,
            self._searchpath,
        )
        while claimed := study.take(self._n_jobs, self._n_trials):
            self._recorder.launch(list(claimed.values()), next(iter(claimed)))
            results = self._recorder.results
            for number, run in zip(claimed, results[-len(claimed) :], strict=True):
                if run.status == JobStatus.COMPLETED:
                    study.end(number, run.return_value)
                else:
                    study.fail(number, sentence(failure_of(run)))
            if len(results) >= 3 and all(run.status == JobStatus.FAILED for run in results):
                errors = [f"{_folder_of(run)}: {sentence(failure_of(run))}" for run in results]
                raise UserError("\n  ".join([f"all of the first {len(errors)} trials failed:", *errors]))
        report(study.study, self._folder)


def report(study: "optuna.Study", folder: Path) -> None:
    """Print the results of a study, and write its page."""
    from showattendtell.visualization.study_page import PAGE, print_study, summarize_study, write_page

    summary = summarize_study(study, folder)
    write_page(summary, folder / PAGE)
    print_study(summary)
    print(f"{folder / PAGE} has more")
