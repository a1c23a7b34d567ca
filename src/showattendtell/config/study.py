"""Studies of Optuna: their storage, their metric, their trials, and the workers that share them."""

import json
import math
import socket
import sys
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, TextIO, TypeVar
from uuid import uuid4

import optuna
from hydra.core.hydra_config import HydraConfig
from hydra.utils import instantiate
from omegaconf import DictConfig
from optuna.distributions import BaseDistribution, CategoricalDistribution, FloatDistribution, IntDistribution
from optuna.exceptions import StorageInternalError
from optuna.samplers import RandomSampler
from optuna.storages import BaseStorage, JournalStorage, RDBStorage
from optuna.storages.journal import JournalFileBackend
from optuna.trial import FrozenTrial, TrialState, create_trial
from sqlalchemy.engine import URL, make_url
from sqlalchemy.exc import ArgumentError, DBAPIError

from showattendtell.config.command_line import check_command
from showattendtell.config.compose import compose, to_plain
from showattendtell.config.hydra_internals import parse_search_space
from showattendtell.config.validation import format_value, reading
from showattendtell.errors import UserError, first_line, listed
from showattendtell.runtime.files import LOCK, atomic_write, file_lock, lock_file
from showattendtell.settings import may_differ

Item = TypeVar("Item")

optuna.logging.set_verbosity(optuna.logging.WARNING)

FILE = "study.db"  # the default storage of a study, in its sweep's folder
STUDY_FILE = "study.json"  # the name of the study and its storage, without a password, in the sweep's folder
HELD = ".worker"  # lock file in a trial's folder, held by the sweep that runs the trial
PRUNED, SECONDS = "pruned", "seconds"  # attributes of trials
PATIENCE = 60  # seconds to wait while another process writes to a file of SQLite, or while a server is restarted
PROPOSALS = 3  # proposals by the sampler before a random sampler replaces it, if all were tried already
SAMPLERS, PRUNERS = ["optuna.samplers.*", "hydra_plugins.hydra_optuna_sweeper.*"], ["optuna.pruners.*"]


def open_storage(url: str | None, folder: Path) -> BaseStorage:
    """Open the storage at `url`, a database or a file; None for the database in a sweep's folder.

    Raises:
        UserError: if it cannot be opened.
    """
    if url and "://" not in url:
        return JournalStorage(JournalFileBackend(str(Path(url).expanduser())))
    address = url or URL.create("sqlite", database=str((folder / FILE).absolute())).render_as_string()
    template = address.replace("{", "{{").replace("}", "}}")  # Optuna formats it
    options = {"connect_args": {"timeout": PATIENCE}} if address.startswith("sqlite") else {"pool_pre_ping": True}
    for left in reversed(range(3)):  # opening fails while another process creates the same tables
        try:
            return RDBStorage(template, engine_kwargs=options)
        except ImportError:
            install = "for PostgreSQL run pip install 'showattendtell[postgresql]'"
            raise UserError(f"the storage {_shown(address)} needs a package; {install}") from None
        except (ArgumentError, DBAPIError, StorageInternalError) as error:
            reason = _reason(error)
            if not left or "locked" in reason:
                raise UserError(f"the storage {_shown(address)} cannot be opened: {reason}") from None
    raise AssertionError


def when_reachable(call: Callable[[], Item]) -> Item:
    """Return the result of a call that uses a storage; while its server cannot be reached, call again for `PATIENCE`
    seconds. The call may be made twice, if the connection was lost after the server did its work."""
    latest, has_warned = time.monotonic() + PATIENCE, False
    while True:
        try:
            return call()
        except StorageInternalError as error:
            cause = error.__cause__
            if (
                not isinstance(cause, DBAPIError)
                or "sqlite" in type(cause.orig).__module__
                or time.monotonic() > latest
            ):
                raise
            if not has_warned:
                seconds = f"trying again for {PATIENCE} seconds"
                print(
                    f"warning: the storage cannot be reached ({_reason(error)}); {seconds}", file=sys.stderr, flush=True
                )
            has_warned = True
            time.sleep(1)


def _reason(error: Exception) -> str:
    """Return what the database says; Optuna and SQLAlchemy wrap its exception."""
    wrapped = error.__cause__ if isinstance(error, StorageInternalError) else error
    return first_line(getattr(wrapped, "orig", None) or error)


def _shown(url: str) -> str:
    """Return a database URL without its password; only the scheme if it is not a valid URL."""
    try:
        return make_url(url).render_as_string(hide_password=True)
    except ArgumentError:
        return f"{url.partition('://')[0]}://..."


def write_study_file(folder: Path, name: str, url: str | None) -> None:
    storage = _shown(url) if url and "://" in url else url
    with atomic_write(folder / STUDY_FILE) as stream:
        stream.write(json.dumps({"study": name, "storage": storage}).encode())


def find_study(folder: Path, url: str | None) -> optuna.Study:
    """Return the study of a sweep's folder. `url` is its storage, if that is outside of the folder; an outside storage
    in `study.json` is not trusted.

    Raises:
        UserError: if there is no study. A broken one raises any exception.
    """
    file = folder / STUDY_FILE
    if not file.is_file():
        raise UserError(f"{folder} has no {STUDY_FILE}; give the folder of a search, runs/NAME-study")
    content = json.loads(file.read_text(encoding="utf-8"))
    name, stored_url = content["study"], content["storage"]
    if url is None and stored_url is not None and not _is_inside(stored_url, folder):
        raise UserError(f"{file} names the storage {stored_url}, which is outside of {folder}; give storage=PLACE")
    try:
        return optuna.load_study(study_name=name, storage=open_storage(url or stored_url, folder))
    except KeyError:
        raise UserError(f"the storage of {folder} has no study {name}; give storage=PLACE") from None


def _is_inside(url: str, folder: Path) -> bool:
    return "://" not in url and Path(url).expanduser().resolve().is_relative_to(folder.resolve())


class CurrentTrial:
    """The trial that this process runs. An interrupted one resumes with the reported values and the elapsed time, which
    are stored in the study."""

    def __init__(self, storage: BaseStorage, study: str, pruner: DictConfig, number: int):
        self._storage = storage
        built = instantiate(pruner, _execution_whitelist_=PRUNERS)
        self._study = optuna.load_study(study_name=study, storage=storage, sampler=RandomSampler(), pruner=built)
        study_id = storage.get_study_id_from_name(study)
        self._id = storage.get_trial_id_from_study_id_trial_number(study_id, number)
        self._started = time.monotonic() - storage.get_trial(self._id).user_attrs.get(SECONDS, 0.0)

    def report(self, value: float, step: int) -> None:
        """Report the validation score number `step`, counted from 1."""
        when_reachable(lambda: self._storage.set_trial_intermediate_value(self._id, step, value))
        self.save_time()

    def save_time(self) -> None:
        seconds = time.monotonic() - self._started
        when_reachable(lambda: self._storage.set_trial_user_attr(self._id, SECONDS, seconds))

    def should_prune(self) -> bool:
        """Return whether the pruner stops this trial, and record it in the study."""
        trial = when_reachable(lambda: self._storage.get_trial(self._id))
        prune = when_reachable(lambda: self._study.pruner.prune(self._study, trial))
        if prune:
            when_reachable(lambda: self._storage.set_trial_user_attr(self._id, PRUNED, True))
        return prune


def current_trial() -> CurrentTrial:
    """Return the trial of this run, which must be one."""
    config = HydraConfig.get()
    storage = open_storage(config.sweeper.storage, Path(config.sweep.dir))
    return CurrentTrial(storage, config.sweeper.study_name, config.sweeper.pruner, int(config.sweep.subdir))


def _common_monitor(
    searched: Mapping[str, BaseDistribution], fixed: Mapping[str, Any], searchpath: Sequence[str]
) -> str:
    """Return the metric that all trials optimize. An experiment, a variant, a reward or the last stage may set it; no
    setting of a part does.

    Raises:
        UserError: if trials optimize different metrics.
    """
    first = {**fixed, **{key: _values(space)[0] for key, space in searched.items()}}
    for key in [key for key in searched if "." not in key]:
        choices_by_metric = {
            _monitor_of({**first, key: value}, searchpath): f"{key}={value}" for value in _values(searched[key])
        }
        if len(choices_by_metric) > 1:
            pairs = " and ".join(f"{selection} with {choice}" for selection, choice in choices_by_metric.items())
            raise UserError(f"the trials have different metrics, {pairs}, and cannot be compared; set monitor=NAME")
    return _monitor_of(first, searchpath)


def _monitor_of(settings: Mapping[str, Any], searchpath: Sequence[str]) -> str:
    """Return `monitor` of one run, or of the last of its stages that trains."""
    arguments = [*searchpath, *(f"{key}={value}" for key, value in settings.items())]
    config, _ = compose("train", arguments)
    if config.stages:
        *_, last = (stage for stage in to_plain(config.stages).values() if isinstance(stage, list))
        config, _ = compose("train", check_command("train", [*arguments, *last, "stages=null"], complete=False))
    return str(config.monitor)


def _values(space: BaseDistribution) -> list[str]:
    """Return all choices, or the lower end of a range."""
    if isinstance(space, CategoricalDistribution):
        return [format_value(choice) for choice in space.choices]
    assert isinstance(space, IntDistribution | FloatDistribution)
    return [format_value(space.low)]


def _counted(trials: Iterable[FrozenTrial]) -> list[FrozenTrial]:
    """Return the trials that run or have ended, and were not withdrawn in favor of another worker's trial."""
    return [trial for trial in trials if trial.state != TrialState.FAIL or "error" in trial.user_attrs]


class Study:
    """The trials of one search space: proposes, claims and ends them.

    Any number of processes, on one machine or several, may work on one study. Each locks a file in the folder of a
    trial that it runs; the kernel releases the lock however the process ends. So others see which trials were
    interrupted, and resume them in the same folder.

    A trial is proposed in a copy of the study and added with all its values at once, so that values are unique and
    never missing. Numbers are rounded to 4 digits.

    Args:
        sampler, pruner: their nodes in the configuration.
        seed: seed of the proposals, which also depend on earlier trials.
        arguments: arguments of the runs; a setting with several values or a range is searched.
        searchpath: the argument that names the user's own folders of options, if it is given.

    Raises:
        UserError: if the study was started with another search space or other settings, if the folder has trials that
            the study does not have, or if trials would optimize different metrics.
    """

    def __init__(
        self,
        name: str,
        storage: str | None,
        folder: Path,
        sampler: DictConfig,
        pruner: DictConfig,
        seed: int | None,
        arguments: list[str],
        searchpath: Sequence[str] = (),
    ):
        searched, fixed = parse_search_space(arguments)
        if not searched:
            raise UserError("there is nothing to search; give one setting several values or a range: seed=1,2,3")
        self._keys = {key.lstrip("+"): key for key in searched}
        self._space: dict[str, BaseDistribution] = {key.lstrip("+"): space for key, space in searched.items()}
        self._searchpath = searchpath
        self._given = {key: value for key, value in fixed.items() if key != "resume"}
        self._monitor = _common_monitor(searched, fixed, searchpath)
        self._sampler, self._seed = sampler, seed
        self._pruner = instantiate(pruner, _execution_whitelist_=PRUNERS)
        self._folder = folder
        self._held: dict[int, TextIO] = {}
        with file_lock(self._folder / LOCK), reading(f"the study in {folder}"):
            self._storage = open_storage(storage, folder)
            self.study = optuna.create_study(
                study_name=name,
                storage=self._storage,
                direction="minimize" if self._monitor == "nll" else "maximize",
                load_if_exists=True,
            )
            self._id = self._storage.get_study_id_from_name(name)
            self._refuse_others()
            write_study_file(folder, name, storage)

    def _refuse_others(self) -> None:
        """Raise a `UserError` if the study has other settings or choices, or the folder trials that the study has not.
        The bounds of ranges may change."""
        name, settings = self.study.study_name, {key.lstrip("+"): str(value) for key, value in self._given.items()}
        search_space: dict[str, Any] = {
            key: value for key, value in settings.items() if key != "sweep" and not may_differ(key)
        }
        for key, space in self._space.items():
            choices = getattr(space, "choices", None)  # of a range only its kind may not change
            search_space[key] = list(map(str, choices)) if choices else type(space).__name__
        search_space["monitor"] = self._monitor
        stored = self.study.user_attrs.get("space")
        if stored is None:
            self.study.set_user_attr("space", stored := search_space)
        changed = sorted(key for key in {**stored, **search_space} if stored.get(key) != search_space.get(key))
        if changed:
            hint = "give the same values, or start another study with hydra.sweeper.study_name=NAME"
            raise UserError(f"the study {name} was started with other values of {listed(changed)}; {hint}")
        numbers = {str(trial.number) for trial in self.trials()}
        others = [run for run in sorted(self._folder.iterdir()) if run.name.isdigit() and run.name not in numbers]
        if others:
            hint = "move it, or start another study with hydra.sweeper.study_name=NAME"
            raise UserError(f"{others[0]} does not belong to the study {name}; {hint}")

    def trials(self) -> list[FrozenTrial]:
        """Return all trials of the study, ordered by number."""
        return self.study.get_trials(deepcopy=False)

    def take(self, number: int, total: int) -> dict[int, list[str]]:
        """Claim up to `number` trials for this process: first interrupted ones, then new ones until the study has
        `total`. Return the arguments of their runs by number; none if all are done or run by other processes."""
        with file_lock(self._folder / LOCK), reading(f"the study in {self._folder}"):
            return when_reachable(lambda: self._take(number, total))

    def _take(self, number: int, total: int) -> dict[int, list[str]]:
        while self._held:  # by a call that has lost its connection
            self._held.popitem()[1].close()
        claimed: dict[int, list[str]] = {}
        for trial in self.trials():
            is_free = len(claimed) < number and trial.state == TrialState.RUNNING and self._seize(trial)
            if is_free and self._may_resume(trial):
                claimed[trial.number] = [*self._arguments(trial), "resume=true"]
        while len(claimed) < number and (added := self._add(total)):
            self._hold(added.number)
            claimed[added.number] = self._arguments(added)
        return claimed

    def _seize(self, trial: FrozenTrial) -> bool:
        """Claim a trial that is marked as running if no process runs it; return whether it was claimed."""
        folder = self._folder / str(trial.number)
        if not (folder / HELD).exists() and trial.user_attrs["host"] != socket.gethostname():
            return False  # its folder is on another machine
        trained = lock_file(folder / LOCK) if (folder / LOCK).exists() else None
        if trained:
            trained.close()
        elif (folder / LOCK).exists():
            return False  # a scheduler runs it, though its sweep has ended
        return self._hold(trial.number)

    def _hold(self, number: int) -> bool:
        file = lock_file(self._folder / str(number) / HELD) if number not in self._held else None
        if file:
            self._held[number] = file
        return file is not None

    def _may_resume(self, trial: FrozenTrial) -> bool:
        """Count an attempt to resume a trial. It fails if it was interrupted too often."""
        attempts = trial.user_attrs.get("attempts", 1)
        if attempts >= 3:
            self.fail(trial.number, f"it was interrupted {attempts} times")
            return False
        self._remember(trial.number, "attempts", attempts + 1)
        return True

    def _arguments(self, trial: FrozenTrial) -> list[str]:
        fixed = [f"{key}={value}" for key, value in self._given.items()]
        sampled = [f"{self._keys[name]}={format_value(value)}" for name, value in trial.params.items()]
        return [*fixed, *sampled, f"hydra.sweep.subdir={trial.number}"]

    def _add(self, total: int) -> FrozenTrial | None:
        """Add a new trial and return it; None if the study has `total` trials or has tried all values."""
        while True:
            if len(_counted(self.trials())) >= min(total, math.prod(map(_num_values, self._space.values()))):
                return None
            token = uuid4().hex
            if not (proposed := self._propose(token)):
                return None
            self.study.add_trial(proposed)
            trials = self.trials()
            added = next(trial for trial in trials if trial.user_attrs.get("token") == token)
            earlier = _counted(trials[: added.number])
            if len(earlier) < total and all(trial.params != added.params for trial in earlier):
                return added
            self.study.tell(added.number, state=TrialState.FAIL)  # another worker was faster

    def _propose(self, token: str) -> FrozenTrial | None:
        """Return a trial with values that no other trial has; None if none is found."""
        trials = self.trials()
        tried = [trial.params for trial in _counted(trials)]
        seed = None if self._seed is None else self._seed + len(trials)
        sampler = instantiate(self._sampler, seed=seed, _execution_whitelist_=SAMPLERS)
        name, direction = self.study.study_name, self.study.direction
        draft = optuna.create_study(study_name=name, direction=direction, sampler=sampler, pruner=self._pruner)
        draft.add_trials(trials)
        for attempt in range(PROPOSALS + 500):  # then the search space counts as exhausted
            if attempt == PROPOSALS:
                draft.sampler = RandomSampler(seed)
            proposed = draft.ask(self._space)
            params = {name: _rounded(value, self._space[name]) for name, value in proposed.params.items()}
            if params not in tried:
                break
        else:
            return None
        fixed = {key.lstrip("+"): value for key, value in self._given.items() if key != "sweep"}
        own = dict(argument.split("=", 1) for argument in self._searchpath)
        settings = {**own, **fixed, **{name: format_value(value) for name, value in params.items()}}
        return create_trial(
            state=TrialState.RUNNING,
            params=params,
            distributions=self._space,
            system_attrs=draft.trials[proposed.number].system_attrs,
            user_attrs={"host": socket.gethostname(), "token": token, "settings": settings},
        )

    def end(self, number: int, returned: Any) -> None:
        """Record the value that the run of a trial returned. The trial failed if it is not a finite number."""
        if when_reachable(self.trials)[number].user_attrs.get(PRUNED):
            self._tell(number, state=TrialState.PRUNED)
        elif isinstance(returned, float) and math.isfinite(returned):
            self._tell(number, returned)
        else:
            self.fail(number, f"it returned {returned}")
            return
        self._held.pop(number).close()

    def _tell(self, number: int, value: float | None = None, state: TrialState | None = None) -> None:
        with reading(f"the study in {self._folder}"):
            when_reachable(lambda: self.study.tell(number, value, state, skip_if_finished=True))

    def fail(self, number: int, error: str) -> None:
        """Record that a trial failed, with the error message."""
        self._remember(number, "error", error)
        self._tell(number, state=TrialState.FAIL)
        self._held.pop(number).close()

    def _remember(self, number: int, name: str, value: Any) -> None:
        def remember() -> None:
            trial = self._storage.get_trial_id_from_study_id_trial_number(self._id, number)
            self._storage.set_trial_user_attr(trial, name, value)

        with reading(f"the study in {self._folder}"):
            when_reachable(remember)


def _num_values(space: BaseDistribution) -> float:
    """Return the number of values of a distribution."""
    if isinstance(space, CategoricalDistribution):
        return len(set(space.choices))
    if isinstance(space, IntDistribution | FloatDistribution) and space.step:
        return round((space.high - space.low) / space.step) + 1
    return math.inf


def _rounded(value: Any, space: BaseDistribution) -> Any:
    if not isinstance(space, FloatDistribution) or space.step:
        return value
    return min(max(float(f"{value:.4g}"), space.low), space.high)
