"""Studies of Optuna: the search space, the storage, the trials that a worker runs, and the report."""

import itertools
import math
import resource
import shlex
import signal
import sys
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass
from multiprocessing import get_context
from pathlib import Path
from typing import Any, TextIO

import optuna
from hydra.core.override_parser.types import ChoiceSweep, IntervalSweep, Override, QuotedString, RangeSweep
from optuna.distributions import BaseDistribution, CategoricalDistribution, FloatDistribution, IntDistribution
from optuna.samplers import BaseSampler
from optuna.storages import BaseStorage, JournalStorage, RDBStorage
from optuna.storages.journal import JournalFileBackend
from optuna.study import StudyDirection
from optuna.trial import FrozenTrial, Trial, TrialState
from rich.table import Table
from rich.text import Text as Literal
from sqlalchemy.engine import URL

from showattendtell.config.validation import reading
from showattendtell.errors import UserError, listed, printable
from showattendtell.runtime.files import LAST, LOCK, duration, expand_home, file_lock, lock_file
from showattendtell.settings import NonNegativeInt, PositiveInt, Text, format_value, may_differ
from showattendtell.visualization.tables import Terminal

optuna.logging.set_verbosity(optuna.logging.WARNING)

FILE = "study.db"  # the default storage of a study, in its folder
HELD = ".worker"  # lock file in a trial's folder, held by the sweep that runs the trial
TIMEOUT = 60  # seconds to wait while another process writes to a file of SQLite
MOST_ATTEMPTS = 3

NUM_BEST = 10
"""Number of best trials that are shown."""

STATES = {
    TrialState.COMPLETE: "finished",
    TrialState.PRUNED: "pruned",
    TrialState.FAIL: "failed",
    TrialState.RUNNING: "running",
}
"""The states that a report counts, and their names in it."""

METRICS = {"bleu4": "BLEU-4", "cider": "CIDEr", "nll": "-log p per word"}
"""Metrics that trials can optimize, by their values of `monitor`, and their labels."""

SECONDS, MEMORY = 60, 4 * 2**30
"""The most time and memory, in bytes, that the report of a study takes: a query of its storage may have no end."""


@dataclass
class SearchConfig:
    """Settings of a search.

    Attributes:
        study_name: the study's name in its storage.
        storage: the storage of the study: a database, as postgresql://USER@HOST/NAME, or an Optuna journal file; by
            default study.db in the study's folder.
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


@dataclass
class StudyConfig:
    """Settings of `study`.

    Attributes:
        folder: folders of searches, runs/NAME-study; folder= may be left out.
        storage: the storage of the study, if it is not the database in this folder.
    """

    folder: Sequence[Text]
    storage: Text | None


def open_storage(url: str | None, folder: Path) -> BaseStorage:
    """Open the storage at `url`, a database or a file; None for the database in a study's folder.

    Raises:
        UserError: if it cannot be opened.
    """
    with reading("the storage of the study"):
        if url and "://" not in url:
            return JournalStorage(JournalFileBackend(str(expand_home(url))))
        address = url or URL.create("sqlite", database=str((folder / FILE).absolute())).render_as_string()
        options = {"connect_args": {"timeout": TIMEOUT}} if address.startswith("sqlite") else {"pool_pre_ping": True}
        try:
            return RDBStorage(address.replace("{", "{{").replace("}", "}}"), engine_kwargs=options)  # Optuna formats it
        except ImportError:
            raise UserError("the storage needs a package: pip install 'showattendtell[postgresql]'") from None


def find_study(folder: Path, url: str | None) -> optuna.Study:
    """Return the study whose trials are in a folder, `NAME-study`, or the only one of its storage.

    Args:
        url: its storage, if that is not the database in the folder.
    """
    if url is None and not (folder / FILE).is_file():
        raise UserError(f"{folder} has no {FILE}; give the folder of a search, runs/NAME-study, or storage=PLACE")
    storage = open_storage(url, folder)
    with reading(f"the storage of {folder}"):
        names = optuna.get_all_study_names(storage)
        name = names[0] if len(names) == 1 else folder.name.removesuffix("-study")
        if name not in names:
            raise UserError(f"the storage of {folder} has no study {name}; give storage=PLACE")
        study = optuna.load_study(study_name=name, storage=storage)
        study.get_trials(deepcopy=False)
        return study


def current_trial(study: optuna.Study, number: int) -> Trial:
    """Return a running trial, to report its values to the study from another process."""
    storage = study._storage
    return Trial(study, storage.get_trial_id_from_study_id_trial_number(study._study_id, number))


def distribution_of(override: Override) -> BaseDistribution | None:
    """Return the distribution of a setting with several values or a range; None for a setting with one value."""
    value = override.value()
    if isinstance(value, ChoiceSweep):
        return CategoricalDistribution([_text(choice) for choice in value.list])
    is_log = "log" in getattr(value, "tags", ())
    if isinstance(value, IntervalSweep):
        return FloatDistribution(float(value.start or 0), float(value.end or 0), log=is_log)
    if isinstance(value, RangeSweep):
        if is_log:
            raise UserError(f"{override.input_line}: only an interval has a log scale")
        values = list(value.range())
        step = abs(values[1] - values[0]) if len(values) > 1 else 1
        kind: Any = IntDistribution if isinstance(values[0], int) else FloatDistribution
        return kind(min(values), max(values), step=step)
    return None


def _text(choice: Any) -> Any:
    """Return a choice as plain data: a text if it was quoted, or a list."""
    if isinstance(choice, QuotedString):
        return choice.text
    return choice if isinstance(choice, str | int | float | bool | None) else format_value(choice)


def _values(distribution: BaseDistribution) -> Sequence[Any]:
    """Return all values of a distribution; of real numbers, a range that is as long as there can be."""
    if isinstance(distribution, CategoricalDistribution):
        return distribution.choices
    if isinstance(distribution, IntDistribution):
        return range(distribution.low, distribution.high + 1, distribution.step)
    return range(sys.maxsize)


class Worker:
    """Takes trials of a study for this process, and tells the study how they end.

    Any number of processes, on one machine or several, may work on one study. Each locks a file in the folder of a
    trial that it runs; the kernel releases the lock however the process ends. So others see which trials were
    interrupted, and resume them in the same folder.

    Args:
        study: the study, with sampler and pruner.
        folder: has a folder for each trial.
        space: the distribution of each searched setting.
        fixed: the value of each other setting.
        monitor: the metric that the trials optimize.
        total: number of trials that the study is to have.

    Raises:
        UserError: if the study has trials with other settings.
    """

    def __init__(
        self,
        study: optuna.Study,
        folder: Path,
        space: dict[str, BaseDistribution],
        fixed: Mapping[str, str],
        monitor: str,
        total: int,
    ):
        self.study, self._folder, self._space, self._fixed = study, folder, space, fixed
        self._held: dict[int, TextIO] = {}
        self._total = total
        values = [_values(distribution) for distribution in space.values()]
        with file_lock(folder / LOCK), reading(f"the storage of {folder}"):
            self._refuse_others(monitor)
            if math.prod(map(len, values)) <= total:  # each combination once, instead of proposals of the sampler
                for combination in itertools.product(*values):
                    study.enqueue_trial(dict(zip(space, combination, strict=True)), skip_if_exists=True)
                self._total = min(total, len(study.get_trials(deepcopy=False)))  # with those of other bounds

    def _refuse_others(self, monitor: str) -> None:
        """Raise a `UserError` if the study has trials with other settings or choices. Bounds of ranges may change."""
        ours: dict[str, Any] = {name: value for name, value in self._fixed.items() if not may_differ(name)}
        for name, distribution in self._space.items():
            choices = getattr(distribution, "choices", None)
            ours[name] = list(map(str, choices)) if choices else type(distribution).__name__
        ours["monitor"] = monitor
        stored = self.study.user_attrs.get("space")
        if stored is None:
            self.study.set_user_attr("space", stored := ours)
        if changed := sorted(name for name in {**stored, **ours} if stored.get(name) != ours.get(name)):
            raise UserError(
                f"the study {self.study.study_name} was started with other values of {listed(changed)}; give the same "
                "values, or start another study with hydra.sweeper.study_name=NAME"
            )

    def take(self, number: int) -> dict[int, list[str]]:
        """Claim up to `number` trials: first interrupted ones, then new ones until the study has its total.

        Returns:
            The settings of their runs by number; empty if all are done or run by other processes.
        """
        claimed: dict[int, list[str]] = {}
        with file_lock(self._folder / LOCK), reading(f"the storage of {self._folder}"):
            for trial in self._trials():
                is_left = len(claimed) < number and trial.state == TrialState.RUNNING
                if is_left and (settings := self._resume(trial)):
                    claimed[trial.number] = settings
            while len(claimed) < number and len(self._trials()) < self._total:
                added = self.study.ask(self._space)
                self._hold(added.number)
                claimed[added.number] = self._settings(added.params)
                added.set_user_attr("settings", dict(line.split("=", 1) for line in claimed[added.number]))
        return claimed

    def _trials(self) -> list[FrozenTrial]:
        trials = self.study.get_trials(deepcopy=False)
        return [trial for trial in trials if trial.state != TrialState.WAITING]

    def _resume(self, trial: FrozenTrial) -> list[str]:
        """Claim an interrupted trial, and return the settings of its run; none unless it was claimed.

        It fails if it was interrupted too often, or if this search could not have proposed its values: they come from
        a database, and would become arguments.
        """
        folder = self._folder / str(trial.number)
        if not folder.is_dir() or not self._hold(trial.number):  # without a folder, it runs on another machine
            return []
        try:
            params = {}
            for name, own in self._space.items():
                params[name] = own.to_external_repr(own.to_internal_repr(trial.params[name]))
        except (KeyError, ValueError):
            self.fail(trial.number, "its values are outside of the search space")
            return []
        attempts = trial.user_attrs.get("attempts", 1)
        if attempts == MOST_ATTEMPTS:
            self.fail(trial.number, f"it was interrupted {MOST_ATTEMPTS} times")
            return []
        current_trial(self.study, trial.number).set_user_attr("attempts", attempts + 1)
        return [*self._settings(params), *(["resume=true"] if (folder / LAST).is_file() else [])]

    def _hold(self, number: int) -> bool:
        file = lock_file(self._folder / str(number) / HELD) if number not in self._held else None
        if file:
            self._held[number] = file
        return file is not None

    def _settings(self, params: Mapping[str, Any]) -> list[str]:
        sampled = {name: format_value(value) for name, value in params.items()}
        return [f"{name}={value}" for name, value in {**self._fixed, **sampled}.items()]

    def end(self, number: int, returned: Any) -> None:
        """Record the value that the run of a trial returned. The trial failed if it is not a finite number."""
        if self.study.get_trials(deepcopy=False)[number].user_attrs.get("pruned"):
            self.study.tell(number, state=TrialState.PRUNED, skip_if_finished=True)
        elif isinstance(returned, float) and math.isfinite(returned):
            self.study.tell(number, returned, skip_if_finished=True)
        else:
            self.fail(number, f"it returned {returned}")
            return
        self._held.pop(number).close()

    def fail(self, number: int, error: str) -> None:
        """Record that a trial failed, with the error message."""
        current_trial(self.study, number).set_user_attr("error", error)
        self.study.tell(number, state=TrialState.FAIL, skip_if_finished=True)
        self._held.pop(number).close()


def report(study: optuna.Study, folder: Path) -> None:
    """Print the number of trials of a study, whose runs are in `folder`, the best and the failed ones, and the command
    that trains the model of the best trial again, outside of the study."""
    by_state: dict[TrialState, list[FrozenTrial]] = {state: [] for state in TrialState}
    for trial in study.get_trials(deepcopy=False):
        by_state[trial.state].append(trial)
    counts = [f"{len(by_state[state])} {name}" for state, name in STATES.items() if by_state[state]]
    maximize = study.direction == StudyDirection.MAXIMIZE
    best = sorted(by_state[TrialState.COMPLETE], key=lambda trial: trial.value or 0.0, reverse=maximize)
    table = Table("trial", METRICS[study.user_attrs["space"]["monitor"]], "wall time", "settings searched")
    for trial in best[:NUM_BEST]:
        time = duration(trial.duration.total_seconds()) if trial.duration else "?"
        settings = " ".join(f"{name}={value}" for name, value in trial.params.items())
        table.add_row(str(trial.number), f"{trial.value:.3f}", time, Literal(printable(settings)))
    lines = []
    for trial in by_state[TrialState.FAIL]:
        lines.append(f"{folder / str(trial.number)} failed: {trial.user_attrs.get('error', 'no reason is known')}")
    if best:
        lines.append(f"to train the best, {folder / str(best[0].number)}, on its own, run")
        settings_of_best = [f"{name}={value}" for name, value in best[0].user_attrs["settings"].items()]
        lines.append(f"  {shlex.join(['showattendtell', 'train', *settings_of_best])}")
    terminal = Terminal(highlight=False, markup=False)
    terminal.print(f"{study.study_name}: {', '.join(counts) or 'no trials'}", table)
    terminal.print("\n".join(lines), soft_wrap=True)


def report_study(folder: Path, storage: str | None) -> None:
    """Print the results of the study in a folder. Its content is trusted like code.

    Raises:
        UserError: it cannot be read, or not within `SECONDS` and `MEMORY`.
    """
    with ProcessPoolExecutor(1, get_context("fork"), initializer=_limit_resources) as pool:
        try:
            pool.submit(_read_and_report, folder, storage).result()
        except BrokenProcessPool:
            limits = f"{SECONDS} seconds or {MEMORY / 2**30:.0f} GB"
            raise UserError(f"the study in {folder} takes more than {limits}; restore a copy of it") from None


def _limit_resources() -> None:
    """Make the system end this process if it needs more than `SECONDS`, or `MEMORY` besides what its parent has."""
    signal.alarm(SECONDS)
    inherited = 1024 * resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    _, hard_limit = resource.getrlimit(resource.RLIMIT_DATA)
    resource.setrlimit(resource.RLIMIT_DATA, (inherited + MEMORY, hard_limit))


def _read_and_report(folder: Path, storage: str | None) -> None:
    with reading(f"the study in {folder}"):
        report(find_study(folder, storage), folder)
