"""A study in Optuna: which trials there are, which is next, and who runs it."""

import math
import socket
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple, TextIO
from uuid import uuid4

import optuna
from hydra.utils import instantiate
from hydra_plugins.hydra_optuna_sweeper._impl import create_params_from_overrides
from omegaconf import DictConfig
from optuna.distributions import BaseDistribution, CategoricalDistribution, FloatDistribution, IntDistribution
from optuna.samplers import RandomSampler
from optuna.trial import FrozenTrial, TrialState, create_trial

from showattendtell.config.check import shown
from showattendtell.config.selection import common_selection
from showattendtell.config.trial import PRUNED, build_pruner, open_storage, write_card
from showattendtell.errors import UserError, listed
from showattendtell.files import LOCK, alone, hold
from showattendtell.same_training import may_differ

HELD = ".worker"
"""Held in a trial's folder by the sweep that runs it."""

PROPOSALS = 3
"""How often a sampler may propose what has been tried, before chance does."""

DRAWS = 500
"""How often chance may, before all is taken for tried."""

ATTEMPTS = 3
"""How often a trial is begun that is cut off each time."""

SAMPLERS = ["optuna.samplers.*", "hydra_plugins.hydra_optuna_sweeper.*"]


class Taken(NamedTuple):
    """A trial that this process is to run, and the arguments of its run."""

    number: int
    overrides: tuple[str, ...]


def is_counted(trial: FrozenTrial) -> bool:
    """Of a study's trials those that are run or have ended; not those that gave way to another worker's."""
    return trial.state != TrialState.FAIL or "fault" in trial.user_attrs


class Study:
    """The trials that one search space has had, and the next ones.

    Any number of processes work on one study, on one machine or on several. Each holds a file in the folder of a trial
    that it runs, which the kernel gives back whatever becomes of it: so others see which trials were cut off, and run
    them again in the same folder.

    A trial is proposed in a copy of the study, and comes into it with all its values at once: no two have the same, and
    none is ever without. Numbers are rounded to 4 digits.

    Args:
        sampler, pruner: their nodes in the configuration.
        seed: decides what is proposed, together with the trials that there are.
        arguments: what the runs are given; a setting with several values or a range is searched.

    Raises `UserError` where the study was begun with another search space or other settings, where the folder has
    trials that the study does not have, or where trials would go by different figures.
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
        searched, fixed, _ = create_params_from_overrides(arguments)
        if not searched:
            raise UserError("there is nothing to search; give a setting several values or a range: seed=1,2,3")
        self._keys = {key.lstrip("+"): key for key in searched}
        self._space: dict[str, BaseDistribution] = {key.lstrip("+"): space for key, space in searched.items()}
        self._given = {key: value for key, value in fixed.items() if key != "resume"}
        self._selection = common_selection(searched, fixed)
        self._sampler, self._pruner, self._seed = sampler, build_pruner(pruner), seed
        self._folder = folder
        self._held: dict[int, TextIO] = {}
        with alone(self._folder / LOCK):
            self._storage = open_storage(storage, folder)
            self.study = optuna.create_study(
                study_name=name,
                storage=self._storage,
                direction="minimize" if self._selection == "nll" else "maximize",
                load_if_exists=True,
            )
            self._id = self._storage.get_study_id_from_name(name)
            self._refuse_other_space()
            self._refuse_strangers()
            write_card(folder, name, storage)

    def _refuse_other_space(self) -> None:
        """Ranges may change."""
        settings = {key.lstrip("+"): str(value) for key, value in self._given.items()}
        own: dict[str, Any] = {
            name: value for name, value in settings.items() if name != "sweep" and not may_differ(name)
        }
        own |= {name: _kind(space) for name, space in self._space.items()} | {"selection": self._selection}
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
        """All that were ever begun, by their numbers."""
        return self.study.get_trials(deepcopy=False)

    def take(self, number: int, total: int) -> list[Taken]:
        """As many trials as `number`, to be run by this process: first those that were cut off, then new ones until the
        study has `total`. There are none where all are done, or are run by others."""
        taken: list[Taken] = []
        with alone(self._folder / LOCK):
            for trial in self.trials():
                if len(taken) < number and trial.state == TrialState.RUNNING and self._seize(trial):
                    taken += self._again(trial)
            while len(taken) < number and (added := self._add(total)):
                self._hold(added.number)
                taken.append(self._taken(added))
        return taken

    def _seize(self, trial: FrozenTrial) -> bool:
        """Whether a trial that is said to be run is not, and is this process's now."""
        folder = self._folder / str(trial.number)
        if not (folder / HELD).exists() and trial.user_attrs["host"] != socket.gethostname():
            return False  # its folder is on another machine
        trained = hold(folder / LOCK) if (folder / LOCK).exists() else None
        if trained:
            trained.close()
        elif (folder / LOCK).exists():
            return False  # the sweep has ended, and left it to a scheduler
        return self._hold(trial.number)

    def _hold(self, number: int) -> bool:
        file = hold(self._folder / str(number) / HELD) if number not in self._held else None
        if file:
            self._held[number] = file
        return file is not None

    def _again(self, trial: FrozenTrial) -> list[Taken]:
        """The trial from where it was cut off; not if that happens again and again."""
        attempts = trial.user_attrs.get("attempts", 1)
        if attempts >= ATTEMPTS:
            self.fail(trial.number, f"it was cut off {attempts} times")
            return []
        self._remember(trial.number, "attempts", attempts + 1)
        return [self._taken(trial, "resume=true")]

    def _taken(self, trial: FrozenTrial, *more: str) -> Taken:
        given = [f"{key}={value}" for key, value in self._given.items()]
        own = [f"{self._keys[name]}={shown(value)}" for name, value in trial.params.items()]
        return Taken(trial.number, (*given, *own, f"hydra.sweep.subdir={trial.number}", *more))

    def _add(self, total: int) -> FrozenTrial | None:
        """A new trial, unless the study has its `total` or has tried all that there is."""
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
            self.study.tell(own.number, state=TrialState.FAIL)  # a worker elsewhere was as fast

    def _propose(self, token: str) -> FrozenTrial | None:
        """A trial with values that no other one has; None where none is found."""
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
        settings = {**given, **{name: shown(value) for name, value in params.items()}}
        return create_trial(
            state=TrialState.RUNNING,
            params=params,
            distributions=self._space,
            system_attrs=system,
            user_attrs={"host": socket.gethostname(), "token": token, "settings": settings},
        )

    def end(self, number: int, returned: Any) -> None:
        """Tell what the run of a trial has returned; without a finite number it has failed."""
        if self.trials()[number].user_attrs.get(PRUNED):
            self.study.tell(number, state=TrialState.PRUNED)
        elif isinstance(returned, float) and math.isfinite(returned):
            self.study.tell(number, returned)
        else:
            return self.fail(number, f"it returned {returned}")
        return self._release(number)

    def fail(self, number: int, fault: str) -> None:
        """Tell that a trial has failed, and why."""
        self._remember(number, "fault", fault)
        self.study.tell(number, state=TrialState.FAIL)
        self._release(number)

    def _release(self, number: int) -> None:
        self._held.pop(number).close()

    def _remember(self, number: int, name: str, value: Any) -> None:
        trial = self._storage.get_trial_id_from_study_id_trial_number(self._id, number)
        self._storage.set_trial_user_attr(trial, name, value)


def _kind(space: BaseDistribution) -> str | list[str]:
    """What of a setting's values cannot change in a study: which choices there are, or that there is a range."""
    if isinstance(space, CategoricalDistribution):
        return [str(choice) for choice in space.choices]
    return type(space).__name__


def _size(space: Mapping[str, BaseDistribution]) -> float:
    """How many points there are."""
    return math.prod(_num_values(values) for values in space.values())


def _num_values(space: BaseDistribution) -> float:
    if isinstance(space, CategoricalDistribution):
        return len(set(space.choices))
    if isinstance(space, IntDistribution | FloatDistribution) and space.step:
        return round((space.high - space.low) / space.step) + 1
    return math.inf


def _rounded(value: Any, space: BaseDistribution) -> Any:
    if not isinstance(space, FloatDistribution) or space.step:
        return value
    return min(max(float(f"{value:.4g}"), space.low), space.high)
