"""Studies of Optuna: the search space, the storage, the trials that a worker runs, and the report."""

import errno
import fcntl
import itertools
import math
import os
import shlex
import sys
import time
import warnings
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from threading import Event, Thread
from typing import Any

import optuna
from hydra.core.override_parser.types import IntervalSweep, Override, RangeSweep
from optuna.distributions import BaseDistribution, CategoricalDistribution, FloatDistribution, IntDistribution
from optuna.exceptions import ExperimentalWarning, StorageInternalError, UpdateFinishedTrialError
from optuna.samplers import BaseSampler
from optuna.storages import RDBStorage, RetryHeartbeatStaleTrialCallback, fail_stale_trials
from optuna.study import StudyDirection
from optuna.trial import FrozenTrial, Trial, TrialState
from rich.table import Table
from rich.text import Text as Literal
from sqlalchemy.engine import URL

from showattendtell.config.validation import USER_ERRORS, sentence
from showattendtell.errors import UserError, listed, printable
from showattendtell.results.tables import Terminal
from showattendtell.runtime.files import LAST, open_folder
from showattendtell.settings import NonNegativeInt, PositiveInt, Text, may_differ, metric_mode

optuna.logging.set_verbosity(optuna.logging.WARNING)
warnings.filterwarnings("ignore", category=ExperimentalWarning)  # Optuna calls heartbeats experimental
warnings.filterwarnings("ignore", "Heartbeat of storage is supposed to be used with")  # see `Worker.heartbeats`

FILE = "study.db"  # the default storage of a study, in its folder
TIMEOUT = 60  # seconds to wait while another process writes to a file of SQLite
HEARTBEAT, GRACE_PERIOD = 15, 60  # seconds between heartbeats, and without one until a trial counts as interrupted
MOST_RETRIES, MOST_FAILURES = 2, 3  # repetitions of an interrupted trial; first runs that fail until a search ends

DISK_FULL = (os.strerror(errno.ENOSPC), os.strerror(errno.EDQUOT), "disk is full")
"""Parts of error messages on a full disk; the last is SQLite's."""

LONGEST_RANGE = 100_000
NUM_BEST = 10
"""Number of best trials that are shown."""


@dataclass
class SearchConfig:
    """Settings of a search.

    Attributes:
        study_name: the study's name in its storage.
        storage: the database of the study, as postgresql://USER@HOST/NAME; by default study.db in the study's folder.
        n_trials: total number of trials of the study. Failed trials count; interrupted ones are resumed.
        n_jobs: number of trials that are launched at a time.
        seed: seed of the proposals, which also depend on earlier trials; null for a random seed.
        sampler: proposes trials.
        pruner: stops unpromising trials.
        params: settings of all trials, each with its value, or the values or range to search.
    """

    study_name: Text
    sampler: Callable[..., BaseSampler]
    pruner: Any
    storage: Text | None = None
    n_trials: PositiveInt = 20
    n_jobs: PositiveInt = 1
    seed: NonNegativeInt | None = None
    params: Mapping[str, Any] | None = None


def is_disk_full(error: str) -> bool:
    """Return whether an error message is about a full disk: runs are processes elsewhere, whose messages come back."""
    return any(reason in error for reason in DISK_FULL)


@contextmanager
def storage_errors(folder: Path) -> Iterator[None]:
    """Report any error of a storage, whose content is trusted like code and not checked, as a `UserError`."""
    try:
        yield
    except USER_ERRORS:
        raise
    except Exception as error:
        reason = sentence(error.__cause__ if isinstance(error.__cause__, Exception) else error)
        damaged = "restore a copy of it, or start another study; --debug shows where"
        hint = "free some space" if is_disk_full(reason) else damaged
        raise UserError(f"the storage of {folder} cannot be used ({reason}); {hint}") from error


def open_storage(url: str | None, folder: Path) -> RDBStorage:
    """Open the database at `url`; None for the one in a study's folder.

    Raises:
        UserError: if it cannot be opened.
    """
    address = url or URL.create("sqlite", database=str((folder / FILE).absolute())).render_as_string()
    options = {"connect_args": {"timeout": TIMEOUT}} if address.startswith("sqlite") else {"pool_pre_ping": True}
    with storage_errors(folder):
        try:
            return RDBStorage(
                address.replace("{", "{{").replace("}", "}}"),  # Optuna formats it
                engine_kwargs=options,
                heartbeat_interval=HEARTBEAT,
                grace_period=GRACE_PERIOD,
                heartbeat_stale_trial_callback=RetryHeartbeatStaleTrialCallback(
                    MOST_RETRIES, inherit_intermediate_values=True
                ),
            )
        except ImportError:
            raise UserError("the storage needs a package: pip install 'showattendtell[postgresql]'") from None


def find_study(folder: Path, url: str | None) -> optuna.Study:
    """Return the study whose trials are in a folder.

    Args:
        url: its storage, which has the study `NAME` of the folder `NAME-study`; None for the database in the folder.
    """
    if url is None and not (folder / FILE).is_file():
        raise UserError(f"{folder} has no {FILE}; give the folder of a search, runs/NAME-study, or storage=PLACE")
    name = folder.name.removesuffix("-study") if url else None  # the only one
    return optuna.load_study(study_name=name, storage=open_storage(url, folder))


def trials_of(study: optuna.Study) -> list[FrozenTrial]:
    """Return the trials that have begun, without interrupted ones that another trial repeats."""
    trials = study.get_trials(deepcopy=False)
    repeated = {number for trial in trials for number in RetryHeartbeatStaleTrialCallback.retry_history(trial)}
    return [trial for trial in trials if trial.state != TrialState.WAITING and trial.number not in repeated]


def distribution_of(override: Override) -> BaseDistribution | None:
    """Return the distribution of a setting with several values or a range; None for a setting with one value."""
    value = override.value()
    is_log = "log" in getattr(value, "tags", ())
    if isinstance(value, IntervalSweep):
        low, high = float(value.start or 0), float(value.end or 0)
        if not (low <= high and math.isfinite(high - low)):
            raise UserError(f"{override.input_line} is not an interval from a number to a larger one")
        return FloatDistribution(low, high, log=is_log)
    if isinstance(value, RangeSweep):
        if is_log:
            raise UserError(f"{override.input_line}: only an interval has a log scale")
        values = list(itertools.islice(value.range(), LONGEST_RANGE + 1)) if value.step else []
        if not 1 <= len(values) <= LONGEST_RANGE:
            raise UserError(f"{override.input_line} should have 1 to {LONGEST_RANGE:,} values, or be an interval")
        step = abs(values[1] - values[0]) if len(values) > 1 else 1
        kind: Any = IntDistribution if isinstance(values[0], int) else FloatDistribution
        return kind(min(values), max(values), step=step)
    return CategoricalDistribution(list(override.sweep_string_iterator())) if override.is_sweep_override() else None


def _values(distribution: BaseDistribution) -> Sequence[Any]:
    """Return all values of a distribution; of real numbers, a range that is as long as there can be."""
    if isinstance(distribution, CategoricalDistribution):
        return distribution.choices
    if isinstance(distribution, IntDistribution):
        return range(distribution.low, distribution.high + 1, distribution.step)
    return range(sys.maxsize)


@dataclass
class Worker:
    """Takes trials of a study for this process, and tells the study how they end.

    Any number of processes, on one machine or several, may work on one study. A trial without heartbeats was
    interrupted, and is repeated.

    Attributes:
        study: the study, with sampler and pruner.
        folder: has a folder for each trial.
        space: the distribution of each searched setting.
        fixed: the value of each other setting.
        total: number of trials that the study is to have; fewer if the search space has fewer points.

    Raises:
        UserError: if the study has trials with other settings.
    """

    study: optuna.Study
    folder: Path
    space: dict[str, BaseDistribution]
    fixed: Mapping[str, str]
    total: int

    def __post_init__(self) -> None:
        self._storage: Any = self.study._storage
        values = [_values(distribution) for distribution in self.space.values()]
        size = math.prod(map(len, values))
        self._refuse_others()
        if size <= self.total:  # each combination once, instead of proposals of the sampler
            self.total = size
            for combination in itertools.product(*values):
                self.study.enqueue_trial(dict(zip(self.space, combination, strict=True)), skip_if_exists=True)

    def _refuse_others(self) -> None:
        """Raise a `UserError` if the study has trials with other settings or another search space."""
        ours = {name: value for name, value in self.fixed.items() if not may_differ(name)}
        ours |= {name: str(distribution) for name, distribution in self.space.items()}
        stored = self.study.user_attrs.get("space")
        if stored is None:
            self.study.set_user_attr("space", stored := ours)
        if changed := sorted({name for name, _ in stored.items() ^ ours.items()}):
            raise UserError(
                f"the study {self.study.study_name} was started with other values of {listed(changed)}; give the same "
                "values, or start another study with hydra.sweeper.study_name=NAME"
            )

    def take(self, number: int) -> dict[Trial, list[str]]:
        """Claim up to `number` trials: first interrupted ones, then new ones until the study has its total.

        If all others have ended, wait until those that run elsewhere would be known to be interrupted.

        Returns:
            The settings of the run of each trial; empty if all are done or run by other processes.
        """
        claimed = self._claim(number)
        if not claimed and any(trial.state == TrialState.RUNNING for trial in trials_of(self.study)):
            print(f"waiting {GRACE_PERIOD} s for trials of other processes, which may have been interrupted")
            time.sleep(GRACE_PERIOD + 1)
            claimed = self._claim(number)
        return claimed

    def _claim(self, number: int) -> dict[Trial, list[str]]:
        claimed: dict[Trial, list[str]] = {}
        with open_folder(self.folder) as lock, storage_errors(self.folder):
            fcntl.flock(lock, fcntl.LOCK_EX)  # or workers would exceed the total
            fail_stale_trials(self.study)
            for begun in trials_of(self.study):
                if begun.state == TrialState.RUNNING and "settings" not in begun.user_attrs:
                    # its process was killed in the loop below; Optuna repeats only trials that had a heartbeat
                    self._storage.record_heartbeat(begun._trial_id)
            while len(claimed) < number and len(trials_of(self.study)) < self.total:
                trial = self.study.ask(self.space)
                self._storage.record_heartbeat(trial._trial_id)
                claimed[trial] = self._begin(trial)
        return claimed

    def _begin(self, trial: Trial) -> list[str]:
        """Return the settings of a trial's run, which continues in the folder of the interrupted one if there is one.

        Parameters in the storage that are not in the search space are ignored: they would become arguments.
        """
        settings = {**{name: str(trial.params[name]) for name in self.space}, **self.fixed}
        trial.set_user_attr("settings", settings)
        folder = self.folder / str(trial.number)
        frozen = self.study.get_trials(deepcopy=False)[trial.number]
        for number in RetryHeartbeatStaleTrialCallback.retry_history(frozen):
            with suppress(OSError):  # it never began, or ran on another machine
                folder.with_name(str(number)).rename(folder)
        is_resumed = (folder / LAST).is_file()
        return [*(f"{name}={value}" for name, value in settings.items()), *(["resume=true"] if is_resumed else [])]

    @contextmanager
    def heartbeats(self, trials: Iterable[Trial]) -> Iterator[None]:
        """Record heartbeats of trials in the `with` block. Optuna does so only in `Study.optimize`, which runs one
        trial per thread: launchers run several at a time from one."""
        ended = Event()

        def record() -> None:
            while not ended.wait(HEARTBEAT):
                for trial in trials:
                    with suppress(StorageInternalError):  # the next one may be recorded
                        self._storage.record_heartbeat(trial._trial_id)

        thread = Thread(target=record)
        thread.start()
        try:
            yield
        finally:
            ended.set()
            thread.join()

    def end(self, trial: Trial, returned: Any) -> str:
        """Record the value that the run of a trial returned, or its error: the trial failed unless it is a finite
        number. A trial that has ended, because it was pruned or seemed to be interrupted, is left as it is.

        Returns:
            The error message, if it failed.

        Raises:
            UserError: a disk is full; the trial is left to be repeated.
        """
        with storage_errors(self.folder), suppress(UpdateFinishedTrialError):
            if isinstance(returned, float) and math.isfinite(returned):
                self.study.tell(trial, returned, skip_if_finished=True)
                return ""
            error = sentence(returned) if isinstance(returned, Exception) else f"it returned {returned}"
            if is_disk_full(error):
                raise UserError(f"{error}; the same command continues the search with this trial")
            trial.set_user_attr("error", error)
            self.study.tell(trial, state=TrialState.FAIL)
        return error


def search(
    settings: SearchConfig,
    folder: Path,
    space: dict[str, BaseDistribution],
    fixed: Mapping[str, str],
    launch: Callable[[Mapping[int, list[str]]], Sequence[Any]],
) -> None:
    """Run trials until the study has its total, and report it.

    Args:
        folder, space, fixed: see `Worker`; `fixed` has `monitor`.
        launch: runs trainings with the settings of trials by number, and returns their values or errors.

    Raises:
        UserError: the first trials fail, none finishes, or a disk is full.
    """
    folder.mkdir(parents=True, exist_ok=True)
    with open_folder(folder) as lock, storage_errors(folder):
        fcntl.flock(lock, fcntl.LOCK_EX)  # two workers that create the tables would both fail
        study = optuna.create_study(
            study_name=settings.study_name,
            storage=open_storage(settings.storage, folder),
            direction="minimize" if metric_mode(fixed["monitor"]) == "min" else "maximize",
            load_if_exists=True,
            pruner=settings.pruner,
        )
        worker = Worker(study, folder, space, fixed, settings.n_trials)
    # a resumed study with the same seed would propose its first trials again
    study.sampler = settings.sampler(seed=None if settings.seed is None else settings.seed + len(study.trials))
    errors: list[str] = []  # of all runs; empty for one that succeeded
    while claimed := worker.take(settings.n_jobs):
        with worker.heartbeats(claimed):
            returned = launch({trial.number: arguments for trial, arguments in claimed.items()})
        errors += map(worker.end, claimed, returned)
        if len(errors) >= MOST_FAILURES and all(errors):
            raise UserError("\n  ".join(["all of the first trials failed:", *errors]))
    report(study, folder)
    if not study.get_trials(deepcopy=False, states=[TrialState.COMPLETE]):
        raise UserError(f"no trial of the study {study.study_name} has finished; raise hydra.sweeper.n_trials")


def report(study: optuna.Study, folder: Path) -> None:
    """Print the number of trials of a study, whose runs are in `folder`, the best and the failed ones, and the command
    that trains the model of the best trial again, outside of the study."""
    trials = trials_of(study)
    counts = Counter(trial.state.name.lower() for trial in trials)
    best = [trial for trial in trials if trial.state == TrialState.COMPLETE]
    best.sort(key=lambda trial: trial.value or 0.0, reverse=study.direction == StudyDirection.MAXIMIZE)
    table = Table("trial", study.user_attrs["space"]["monitor"], "settings searched")
    for trial in best[:NUM_BEST]:
        searched = " ".join(f"{name}={value}" for name, value in trial.params.items())
        table.add_row(str(trial.number), f"{trial.value:.3f}", Literal(printable(searched)))
    terminal = Terminal(markup=False, soft_wrap=True)
    found = ", ".join(f"{number} {state}" for state, number in counts.items())
    terminal.print(f"{study.study_name}: {found or 'no trials'}", table)
    for trial in trials:
        if trial.state == TrialState.FAIL:
            error = trial.user_attrs.get("error", f"it was interrupted {MOST_RETRIES + 1} times")
            terminal.print(f"{folder / str(trial.number)} failed: {error}")
    if best:
        settings = [f"{name}={value}" for name, value in best[0].user_attrs["settings"].items()]
        terminal.print(f"to train the best, {folder / str(best[0].number)}, on its own, run")
        terminal.print(f"  {shlex.join(['showattendtell', 'train', *settings])}")
