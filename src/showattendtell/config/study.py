"""Studies of Optuna: their storage, their metric, their trials, and the workers that share them."""

import json
import math
import socket
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple, TextIO
from uuid import uuid4

import optuna
from hydra.core.hydra_config import HydraConfig
from hydra.utils import instantiate
from omegaconf import DictConfig
from optuna.distributions import BaseDistribution, CategoricalDistribution, FloatDistribution, IntDistribution
from optuna.pruners import BasePruner
from optuna.samplers import RandomSampler
from optuna.storages import BaseStorage, JournalStorage, RDBStorage
from optuna.storages.journal import JournalFileBackend
from optuna.trial import FrozenTrial, TrialState, create_trial
from sqlalchemy.engine import URL, make_url
from sqlalchemy.exc import ArgumentError, DBAPIError

from showattendtell.config.command_line import check_command
from showattendtell.config.compose import compose
from showattendtell.config.hydra_internals import outside_of_command, parse_search_space
from showattendtell.config.validation import format_value
from showattendtell.errors import UserError, first_line, listed
from showattendtell.runtime.files import LOCK, atomic_write, file_lock, lock_file
from showattendtell.settings import may_differ

optuna.logging.set_verbosity(optuna.logging.WARNING)

FILE = "study.db"
"""The default storage of a study, a file in its sweep's folder."""

PATIENCE = 60
"""Seconds to wait while another process writes."""

OPENINGS = 3
"""Attempts to open a database, which may fail while another process creates the same tables."""

CARD = "study.json"
"""File in the sweep's folder with the name of the study and its storage, without a password."""

PRUNED = "pruned"
SECONDS = "seconds"

HELD = ".worker"
"""Lock file in a trial's folder, held by the sweep that runs the trial."""

PROPOSALS = 3
"""Number of proposals by the sampler before a random sampler replaces it, if all were tried already."""

DRAWS = 500
"""Number of random proposals before the search space counts as exhausted, if all were tried already."""

ATTEMPTS = 3
"""Number of times an interrupted trial is started before it fails."""

SAMPLERS = ["optuna.samplers.*", "hydra_plugins.hydra_optuna_sweeper.*"]


def open_storage(url: str | None, folder: Path) -> BaseStorage:
    """Open the storage at `url`, a database or a file; None for the database in a sweep's folder.

    Raises `UserError` if it cannot be opened.
    """
    if url and "://" not in url:
        return JournalStorage(JournalFileBackend(str(Path(url).expanduser())))
    place = url or URL.create("sqlite", database=str((folder / FILE).absolute())).render_as_string()
    template = place.replace("{", "{{").replace("}", "}}")  # Optuna formats it
    waiting = {"connect_args": {"timeout": PATIENCE}} if place.startswith("sqlite") else {"pool_pre_ping": True}
    for left in reversed(range(OPENINGS)):
        try:
            return RDBStorage(template, engine_kwargs=waiting)
        except ImportError:
            raise UserError(
                f"the storage {_shown(place)} needs a package; for PostgreSQL run "
                "pip install 'showattendtell[postgresql]'"
            ) from None
        except (ArgumentError, DBAPIError) as fault:
            if not left:
                reason = first_line(getattr(fault, "orig", None) or fault)
                raise UserError(f"the storage {_shown(place)} cannot be opened: {reason}") from None
    raise AssertionError


def _shown(url: str) -> str:
    """Return a database URL without its password; only the scheme if it is not a valid URL."""
    try:
        return make_url(url).render_as_string(hide_password=True)
    except ArgumentError:
        return f"{url.partition('://')[0]}://..."


def write_card(folder: Path, name: str, url: str | None) -> None:
    place = _shown(url) if url and "://" in url else url
    with atomic_write(folder / CARD) as stream:
        stream.write(json.dumps({"study": name, "storage": place}).encode())


def find_study(folder: Path, url: str | None) -> optuna.Study:
    """Return the study of a sweep's folder.

    Args:
        url: the storage, if it is outside of the folder; an outside storage in `study.json` is not trusted.

    Raises `UserError` if there is no study.
    """
    try:
        card = json.loads((folder / CARD).read_text(encoding="utf-8"))
        name, place = str(card["study"]), card["storage"]
    except FileNotFoundError:
        raise UserError(f"{folder} has no {CARD}; give the folder of a search, runs/NAME-study") from None
    except (KeyError, RecursionError, TypeError, ValueError) as fault:
        raise UserError(f"{folder / CARD} is damaged ({type(fault).__name__}); give the folder of a search") from None
    if url is None and place is not None and not _is_inside(place, folder):
        raise UserError(f"{folder / CARD} names the storage {place}, which is outside of {folder}; give storage=PLACE")
    storage = open_storage(url or place, folder)
    try:
        return optuna.load_study(study_name=name, storage=storage)
    except KeyError:
        raise UserError(f"there is no study {name} where {folder} has it; give storage=PLACE") from None


def _is_inside(place: Any, folder: Path) -> bool:
    """Return whether a storage is a file in the folder, not a database elsewhere."""
    if not isinstance(place, str) or "://" in place:
        return False
    return Path(place).expanduser().resolve().is_relative_to(folder.resolve())


def build_pruner(node: DictConfig) -> BasePruner:
    pruner: BasePruner = instantiate(node, _execution_whitelist_=["optuna.pruners.*"])
    return pruner


class CurrentTrial:
    """The trial that this process runs.

    Reported values and elapsed time are stored in the study; an interrupted trial resumes with both.
    """

    def __init__(self, storage: BaseStorage, study: str, pruner: DictConfig, number: int):
        self._storage = storage
        self._study = optuna.load_study(
            study_name=study, storage=storage, sampler=RandomSampler(), pruner=build_pruner(pruner)
        )
        known = storage.get_study_id_from_name(study)
        self._id = storage.get_trial_id_from_study_id_trial_number(known, number)
        before = storage.get_trial(self._id).user_attrs.get(SECONDS, 0.0)
        self._started = time.monotonic() - before

    def report(self, figure: float, step: int) -> None:
        """Report the validation score number `step`, counted from 1."""
        self._storage.set_trial_intermediate_value(self._id, step, figure)
        self.keep_time()

    def keep_time(self) -> None:
        self._remember(SECONDS, time.monotonic() - self._started)

    def is_hopeless(self) -> bool:
        """Return whether the pruner stops this trial, and record it in the study."""
        hopeless = self._study.pruner.prune(self._study, self._storage.get_trial(self._id))
        if hopeless:
            self._remember(PRUNED, True)
        return hopeless

    def _remember(self, name: str, value: Any) -> None:
        self._storage.set_trial_user_attr(self._id, name, value)


def current_trial() -> CurrentTrial:
    """Return the trial of this run, which must be one."""
    config = HydraConfig.get()
    storage = open_storage(config.sweeper.storage, Path(config.sweep.dir))
    return CurrentTrial(storage, config.sweeper.study_name, config.sweeper.pruner, int(config.sweep.subdir))


def common_monitor(searched: Mapping[str, BaseDistribution], fixed: Mapping[str, Any]) -> str:
    """Return the metric that all trials optimise. An experiment, a variant, a reward or the last stage may set it; no
    setting of a part does.

    Args:
        searched: searched settings, with the distributions of their values.
        fixed: settings of all trials.

    Raises `UserError` if trials optimise different metrics.
    """
    first = {**fixed, **{key: _values(space)[0] for key, space in searched.items()}}
    for key in [key for key in searched if "." not in key]:
        found = {_selection_of({**first, key: value}): f"{key}={value}" for value in _values(searched[key])}
        if len(found) > 1:
            pairs = " and ".join(f"{selection} with {choice}" for selection, choice in found.items())
            raise UserError(f"trials would go by different figures, {pairs}, and none were the best; give monitor=NAME")
    return _selection_of(first)


def _selection_of(settings: Mapping[str, Any]) -> str:
    """Return `monitor` of one run, or of the last of its stages."""
    arguments = [f"{key}={value}" for key, value in settings.items()]
    with outside_of_command():
        config, _ = compose("train", arguments)
        if config.stages:
            *_, last = config.stages.values()
            config, _ = compose("train", check_command("train", [*arguments, *last, "stages=null"], complete=False))
    return str(config.monitor)


def _values(space: BaseDistribution) -> list[str]:
    """Return all choices, or the lower end of a range."""
    if isinstance(space, CategoricalDistribution):
        return [format_value(choice) for choice in space.choices]
    assert isinstance(space, IntDistribution | FloatDistribution)
    return [format_value(space.low)]


class ClaimedTrial(NamedTuple):
    """A trial claimed by this process: its number and the arguments of its run."""

    number: int
    overrides: tuple[str, ...]


def is_counted(trial: FrozenTrial) -> bool:
    """Return whether a trial is running or has ended, and was not withdrawn in favour of another worker's trial."""
    return trial.state != TrialState.FAIL or "fault" in trial.user_attrs


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

    Raises `UserError` if the study was started with another search space or other settings, if the folder has trials
    that the study does not have, or if trials would optimise different metrics.
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
    ):
        searched, fixed = parse_search_space(arguments)
        if not searched:
            raise UserError("there is nothing to search; give a setting several values or a range: seed=1,2,3")
        self._keys = {key.lstrip("+"): key for key in searched}
        self._space: dict[str, BaseDistribution] = {key.lstrip("+"): space for key, space in searched.items()}
        self._given = {key: value for key, value in fixed.items() if key != "resume"}
        self._monitor = common_monitor(searched, fixed)
        self._sampler, self._pruner, self._seed = sampler, build_pruner(pruner), seed
        self._folder = folder
        self._held: dict[int, TextIO] = {}
        with file_lock(self._folder / LOCK):
            self._storage = open_storage(storage, folder)
            self.study = optuna.create_study(
                study_name=name,
                storage=self._storage,
                direction="minimize" if self._monitor == "nll" else "maximize",
                load_if_exists=True,
            )
            self._id = self._storage.get_study_id_from_name(name)
            self._refuse_other_space()
            self._refuse_strangers()
            write_card(folder, name, storage)

    def _refuse_other_space(self) -> None:
        """Raise a `UserError` if the study has other settings or choices. The bounds of ranges may change."""
        settings = {key.lstrip("+"): str(value) for key, value in self._given.items()}
        own: dict[str, Any] = {
            name: value for name, value in settings.items() if name != "sweep" and not may_differ(name)
        }
        own |= {name: _kind(space) for name, space in self._space.items()} | {"monitor": self._monitor}
        known = self.study.user_attrs.get("space")
        if known is None:
            self.study.set_user_attr("space", own)
            return
        others = sorted(name for name in {**known, **own} if known.get(name) != own.get(name))
        if others:
            raise UserError(
                f"the study {self.study.study_name} was begun with other values of {listed(others)}; give what it "
                "had, or begin another one with hydra.sweeper.study_name=NAME"
            )

    def _refuse_strangers(self) -> None:
        known = {str(trial.number) for trial in self.trials()}
        strangers = [run for run in sorted(self._folder.iterdir()) if run.name.isdigit() and run.name not in known]
        if strangers:
            raise UserError(
                f"{strangers[0]} is no trial of the study {self.study.study_name}, and stays as it is; move it, or "
                "begin another study with hydra.sweeper.study_name=NAME"
            )

    def trials(self) -> list[FrozenTrial]:
        """Return all trials of the study, ordered by number."""
        return self.study.get_trials(deepcopy=False)

    def take(self, number: int, total: int) -> list[ClaimedTrial]:
        """Claim up to `number` trials for this process: first interrupted ones, then new ones until the study has
        `total`. Return an empty list if all are done or run by other processes."""
        taken: list[ClaimedTrial] = []
        with file_lock(self._folder / LOCK):
            for trial in self.trials():
                if len(taken) < number and trial.state == TrialState.RUNNING and self._seize(trial):
                    taken += self._again(trial)
            while len(taken) < number and (added := self._add(total)):
                self._hold(added.number)
                taken.append(self._taken(added))
        return taken

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

    def _again(self, trial: FrozenTrial) -> list[ClaimedTrial]:
        """Return the interrupted trial, to be resumed; none if it was interrupted too often, or if this search could
        not have proposed its values: they come from a database, and would become arguments."""
        if not self._is_own(trial):
            self.fail(trial.number, "its values are outside of the search space")
            return []
        attempts = trial.user_attrs.get("attempts", 1)
        if attempts >= ATTEMPTS:
            self.fail(trial.number, f"it was cut off {attempts} times")
            return []
        self._remember(trial.number, "attempts", attempts + 1)
        return [self._taken(trial, "resume=true")]

    def _is_own(self, trial: FrozenTrial) -> bool:
        return trial.params.keys() == self._space.keys() and all(
            _is_in(value, self._space[name]) for name, value in trial.params.items()
        )

    def _taken(self, trial: FrozenTrial, *more: str) -> ClaimedTrial:
        given = [f"{key}={value}" for key, value in self._given.items()]
        own = [f"{self._keys[name]}={format_value(value)}" for name, value in trial.params.items()]
        return ClaimedTrial(trial.number, (*given, *own, f"hydra.sweep.subdir={trial.number}", *more))

    def _add(self, total: int) -> FrozenTrial | None:
        """Add a new trial and return it; None if the study has `total` trials or has tried all values."""
        while True:
            counted = [trial for trial in self.trials() if is_counted(trial)]
            if len(counted) >= min(total, _size(self._space)):
                return None
            token = uuid4().hex
            proposed = self._propose(token)
            if not proposed:
                return None
            self.study.add_trial(proposed)
            trials = self.trials()
            own = next(trial for trial in trials if trial.user_attrs.get("token") == token)
            before = [trial for trial in trials[: own.number] if is_counted(trial)]
            if len(before) < total and all(trial.params != own.params for trial in before):
                return own
            self.study.tell(own.number, state=TrialState.FAIL)  # another worker was faster

    def _propose(self, token: str) -> FrozenTrial | None:
        """Return a trial with values that no other trial has; None if none is found."""
        trials = self.trials()
        tried = [trial.params for trial in trials if is_counted(trial)]
        seed = None if self._seed is None else self._seed + len(trials)
        draft = optuna.create_study(
            study_name=self.study.study_name,
            direction=self.study.direction,
            sampler=instantiate(self._sampler, seed=seed, _execution_whitelist_=SAMPLERS),
            pruner=self._pruner,
        )
        draft.add_trials(trials)
        for attempt in range(PROPOSALS + DRAWS):
            if attempt == PROPOSALS:
                draft.sampler = RandomSampler(seed)
            proposed = draft.ask(self._space)
            params = {name: _rounded(value, self._space[name]) for name, value in proposed.params.items()}
            if params not in tried:
                break
        else:
            return None
        system = draft.trials[proposed.number].system_attrs
        given = {key.lstrip("+"): value for key, value in self._given.items() if key != "sweep"}
        settings = {**given, **{name: format_value(value) for name, value in params.items()}}
        return create_trial(
            state=TrialState.RUNNING,
            params=params,
            distributions=self._space,
            system_attrs=system,
            user_attrs={"host": socket.gethostname(), "token": token, "settings": settings},
        )

    def end(self, number: int, returned: Any) -> None:
        """Record the value that the run of a trial returned. The trial failed if it is not a finite number."""
        if self.trials()[number].user_attrs.get(PRUNED):
            self.study.tell(number, state=TrialState.PRUNED)
        elif isinstance(returned, float) and math.isfinite(returned):
            self.study.tell(number, returned)
        else:
            return self.fail(number, f"it returned {returned}")
        return self._release(number)

    def fail(self, number: int, fault: str) -> None:
        """Record that a trial failed, with the error message."""
        self._remember(number, "fault", fault)
        self.study.tell(number, state=TrialState.FAIL)
        self._release(number)

    def _release(self, number: int) -> None:
        self._held.pop(number).close()

    def _remember(self, number: int, name: str, value: Any) -> None:
        trial = self._storage.get_trial_id_from_study_id_trial_number(self._id, number)
        self._storage.set_trial_user_attr(trial, name, value)


def _kind(space: BaseDistribution) -> str | list[str]:
    """Return the part of a distribution that may not change in a study: its choices, or the kind of range."""
    if isinstance(space, CategoricalDistribution):
        return [str(choice) for choice in space.choices]
    return type(space).__name__


def _size(space: Mapping[str, BaseDistribution]) -> float:
    """Return the number of points of a search space."""
    return math.prod(_num_values(values) for values in space.values())


def _num_values(space: BaseDistribution) -> float:
    if isinstance(space, CategoricalDistribution):
        return len(set(space.choices))
    if isinstance(space, IntDistribution | FloatDistribution) and space.step:
        return round((space.high - space.low) / space.step) + 1
    return math.inf


def _is_in(value: Any, space: BaseDistribution) -> bool:
    if isinstance(space, CategoricalDistribution):
        return any(type(value) is type(choice) and value == choice for choice in space.choices)
    assert isinstance(space, IntDistribution | FloatDistribution)
    return type(value) in (int, float) and space.low <= value <= space.high


def _rounded(value: Any, space: BaseDistribution) -> Any:
    if not isinstance(space, FloatDistribution) or space.step:
        return value
    return min(max(float(f"{value:.4g}"), space.low), space.high)
