"""The sweeper of hyperparameter searches: Hydra composes and launches each run, Optuna proposes its settings."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.plugins import Plugins
from hydra.core.utils import JobReturn, JobStatus
from hydra.plugins.sweeper import Sweeper
from hydra.types import HydraContext, TaskFunction
from omegaconf import DictConfig, OmegaConf

from showattendtell.config.command_line import parse
from showattendtell.config.compose import compose, sweep_values
from showattendtell.config.entry_point import as_typed
from showattendtell.config.validation import TARGET, raise_errors, sentence, validate
from showattendtell.errors import UserError
from showattendtell.runtime.files import LOCK, file_lock
from showattendtell.settings import short_metric

MONITORS = ("monitor", "experiment", "variant", "reward")
"""Settings that may set the metric that trials optimize."""


class StudySweeper(Sweeper):
    """Run trials of an Optuna study until it has `n_trials`, including those of earlier commands and other workers.

    The arguments are those of `SearchConfig`.
    """

    def __init__(self, **settings: Any):
        self._settings = settings

    def setup(self, *, hydra_context: HydraContext, task_function: TaskFunction, config: DictConfig) -> None:
        given: Any = OmegaConf.to_container(config.hydra.sweeper, resolve=True)
        schema = {**given, TARGET: "showattendtell.extensions.search.study.SearchConfig"}
        raise_errors(validate(OmegaConf.create({"hydra.sweeper": schema})))
        self._parser = OverridesParser.create(hydra_context.config_loader)
        self._launcher = Plugins.instance().instantiate_launcher(
            hydra_context=hydra_context, task_function=task_function, config=config
        )
        self._folder = as_typed(Path(config.hydra.sweep.dir).absolute())
        given = config.hydra.overrides.hydra
        self._own_folders = [line for line in given if line.startswith("hydra.searchpath=")]

    def sweep(self, arguments: list[str]) -> None:
        """Run the trials and report the study.

        Raises:
            UserError: if the first three trials fail.
        """
        import optuna

        from showattendtell.extensions.search.study import SearchConfig, Worker, distribution_of, open_storage, report

        search = SearchConfig(**self._settings)
        lines = [f"{name}={value}" for name, value in (search.params or {}).items()]
        overrides = {each.key_or_group: each for each in self._parser.parse_overrides([*lines, *arguments])}
        space = {name: found for name, each in overrides.items() if (found := distribution_of(each))}
        if not space:
            raise UserError("there is nothing to search; give one setting several values or a range: seed=1,2,3")
        fixed = {name: each.get_value_element_as_str() for name, each in overrides.items() if name not in space}
        searched = [name for name in MONITORS if name in space]
        if searched and "monitor" not in fixed:
            raise UserError(
                f"trials with different values of {searched[0]} may optimize different metrics; set monitor"
            )
        monitor = self._monitor([sweep_values(str(each.input_line))[0] for each in overrides.values()])
        choice = f"sweep={fixed.pop('sweep')}"  # it adds the callback that prunes
        fixed.pop("resume", None)
        self._folder.mkdir(parents=True, exist_ok=True)
        with file_lock(self._folder / LOCK):  # two workers that create the tables of a storage would both fail
            study = optuna.create_study(
                study_name=search.study_name,
                storage=open_storage(search.storage, self._folder),
                direction="minimize" if monitor == "nll" else "maximize",
                load_if_exists=True,
                pruner=search.pruner,
            )
        # a resumed study with the same seed would propose its first trials again
        study.sampler = search.sampler(seed=None if search.seed is None else search.seed + len(study.trials))
        worker = Worker(study, self._folder, space, fixed, monitor, search.n_trials)
        runs: list[JobReturn] = []
        while claimed := worker.take(search.n_jobs):
            jobs = []
            for number, settings in claimed.items():
                arguments = parse("train", [*self._own_folders, choice, *settings]).overrides
                jobs.append([*arguments, f"hydra.sweep.subdir={number}"])
            results = self._launcher.launch(jobs, initial_job_idx=next(iter(claimed)))
            for number, run in zip(claimed, results, strict=True):
                if run.status == JobStatus.COMPLETED:
                    worker.end(number, run.return_value)
                else:
                    worker.fail(number, error_of(run))
            runs += results
            if len(runs) >= 3 and all(run.status == JobStatus.FAILED for run in runs):
                raise UserError("\n  ".join(["all of the first trials failed:", *map(error_of, runs)]))
        report(study, self._folder)

    def _monitor(self, settings: Sequence[str]) -> str:
        """Return the metric of a run."""
        return short_metric(compose("train", [*self._own_folders, *settings]).monitor)


def error_of(run: JobReturn) -> str:
    """Return the error message of a failed run."""
    try:
        run.return_value  # noqa: B018
    except Exception as error:
        return sentence(error)
    return ""
