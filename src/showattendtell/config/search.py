"""Sweeps by Optuna, which choose the next trial by the results of earlier ones."""

from pathlib import Path
from typing import TYPE_CHECKING, Any

from hydra.core.hydra_config import HydraConfig
from hydra.core.plugins import Plugins
from hydra.core.utils import JobReturn, JobStatus
from hydra.plugins.sweeper import Sweeper
from hydra.types import HydraContext, TaskFunction
from omegaconf import DictConfig, OmegaConf

from showattendtell.config.compose import SEARCH
from showattendtell.config.sweeper import RecordingLauncher, format_override, settle_folder
from showattendtell.config.validation import raise_errors, sentence, validate
from showattendtell.errors import UserError
from showattendtell.runtime.files import LOCK, file_lock
from showattendtell.settings import NonNegativeInt, PositiveInt, Text

if TYPE_CHECKING:
    import optuna

    from showattendtell.config.study import ClaimedTrial, Study


HOPELESS = 3
"""A command stops after this many trials if all of them failed."""


def is_trial() -> bool:
    """Return whether this run is a trial of a study."""
    return HydraConfig.initialized() and bool(HydraConfig.get().runtime.choices.get(SEARCH))


class StudySweeper(Sweeper):
    """Run trials of an Optuna study until it has `n_trials`, including those of earlier commands and other workers.

    Optuna's Hydra plugin would add `n_trials` to a resumed study, overwrite the folders of its first trials, and not
    pass the trial to its run. Only its parser of search spaces is used here.

    study_name: the study's name in its storage.
    storage: the storage of the study: a database, as postgresql://USER@HOST/NAME, or an Optuna journal file; by default
        study.db in the sweep's folder.
    n_trials: total number of trials of the study. Failed trials count; interrupted ones are resumed.
    n_jobs: number of trials that are launched at a time.
    seed: seed of the proposals, which also depend on earlier trials; null for a random seed.
    sampler, pruner: the sampler proposes trials, the pruner stops hopeless ones.
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
        own = OmegaConf.to_container(config.hydra.sweeper, resolve=True)
        raise_errors(validate(OmegaConf.create({"hydra": {"sweeper": own}})))
        settle_folder(config)
        self._folder = format_override(config.hydra.sweep.dir)
        launcher = Plugins.instance().instantiate_launcher(
            hydra_context=hydra_context, task_function=task_function, config=config
        )
        self._witness = RecordingLauncher(launcher, config)

    def sweep(self, arguments: list[str]) -> None:
        """Run the trials and report the study. Raises `UserError` if all trials fail."""
        from showattendtell.config.study import Study

        study = Study(self._study_name, self._storage, self._folder, self._sampler, self._pruner, self._seed, arguments)
        while taken := study.take(self._n_jobs, self._n_trials):
            self._run(study, taken)
            self._refuse_hopeless()
        report(study.study, self._folder)

    def _run(self, study: "Study", taken: "list[ClaimedTrial]") -> None:
        self._witness.launch([trial.overrides for trial in taken], taken[0].number)
        for trial, run in zip(taken, self._witness.ended[-len(taken) :], strict=True):
            if run.status == JobStatus.COMPLETED:
                study.end(trial.number, run.return_value)
            else:
                study.fail(trial.number, sentence(run._return_value))

    def _refuse_hopeless(self) -> None:
        faults = [_fault(run) for run in self._witness.ended if run.status == JobStatus.FAILED]
        if len(faults) == len(self._witness.ended) >= HOPELESS:
            raise UserError("\n  ".join([f"all {len(faults)} trials failed, and there will be no more:", *faults]))


def report(study: "optuna.Study", folder: Path) -> None:
    """Print the results of a study, and write its page."""
    from showattendtell.visualization.study_page import PAGE, print_study, summarize_study, write_page

    summary = summarize_study(study, folder)
    print_study(summary)
    with file_lock(folder / LOCK):  # workers end at the same time
        write_page(summary, folder / PAGE)
    print(f"{folder / PAGE} has more")


def _fault(run: JobReturn) -> str:
    assert run.hydra_cfg
    return f"{format_override(run.hydra_cfg.hydra.runtime.output_dir)}: {sentence(run._return_value)}"
