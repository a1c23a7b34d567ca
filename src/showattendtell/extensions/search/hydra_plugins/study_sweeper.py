"""The sweeper of hyperparameter searches: Hydra composes and launches each run, Optuna proposes its settings."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.plugins import Plugins
from hydra.plugins.sweeper import Sweeper
from hydra.types import HydraContext, TaskFunction
from omegaconf import DictConfig, OmegaConf

from showattendtell.config.command_line import parse
from showattendtell.config.compose import compose
from showattendtell.config.entry_point import as_typed, unresolved
from showattendtell.config.validation import TARGET, raise_errors, validate
from showattendtell.errors import UserError
from showattendtell.settings import short_metric


class StudySweeper(Sweeper):
    """Run trials of an Optuna study until it has `n_trials`, including those of earlier commands and other workers.

    The arguments are those of `SearchConfig`.
    """

    def __init__(self, **settings: Any):
        self._settings = settings

    def setup(self, *, hydra_context: HydraContext, task_function: TaskFunction, config: DictConfig) -> None:
        given: Any = OmegaConf.to_container(config.hydra.sweeper, resolve=True)
        schema = {**given, TARGET: "showattendtell.extensions.search.study.SearchConfig"}
        raise_errors(validate({"hydra.sweeper": schema}))
        self._parser = OverridesParser.create(hydra_context.config_loader)
        self._launcher = Plugins.instance().instantiate_launcher(
            hydra_context=hydra_context, task_function=task_function, config=config
        )
        self._folder = as_typed(Path(config.hydra.sweep.dir).absolute())
        given = unresolved(config.hydra.overrides.hydra)
        self._own_folders = [line for line in given if line.startswith("hydra.searchpath=")]

    def sweep(self, arguments: list[str]) -> None:
        """Run the trials and report the study. All optimize the metric of the first values."""
        from showattendtell.extensions.search.study import SearchConfig, distribution_of, search  # Hydra reads plugins

        settings = SearchConfig(**self._settings)
        lines = [f"{name}={value}" for name, value in (settings.params or {}).items()]
        overrides = {each.key_or_group: each for each in self._parser.parse_overrides([*lines, *arguments])}
        space = {name: found for name, each in overrides.items() if (found := distribution_of(each))}
        if not space:
            raise UserError("there is nothing to search; give one setting several values or a range: seed=1,2,3")
        fixed = {name: each.get_value_element_as_str() for name, each in overrides.items() if name not in space}
        choices = [each for each in overrides.values() if each.is_choice_sweep()]
        first = {**fixed, **{each.key_or_group: next(each.sweep_string_iterator()) for each in choices}}
        lines = [f"{name}={value}" for name, value in first.items()]
        monitor = short_metric(compose("train", [*self._own_folders, *lines]).monitor)
        choice = f"sweep={fixed.pop('sweep')}"  # it adds the callback that prunes
        fixed.pop("resume", None)

        def launch(runs: Mapping[int, list[str]]) -> list[Any]:
            jobs = []
            for number, line in runs.items():
                own = parse("train", [*self._own_folders, choice, *line]).overrides
                jobs.append([*own, f"hydra.sweep.subdir={number}"])
            returned = self._launcher.launch(jobs, initial_job_idx=min(runs))
            return [run._return_value for run in returned]  # the property would print that it is an error

        search(settings, self._folder, space, {**fixed, "monitor": monitor}, launch)
