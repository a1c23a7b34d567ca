"""Sweeps that learn from their runs: what is tried next is chosen by what the runs before have returned."""

from pathlib import Path
from typing import TYPE_CHECKING, Any

from hydra.core.hydra_config import HydraConfig
from hydra.core.plugins import Plugins
from hydra.core.utils import JobReturn, JobStatus
from hydra.plugins.sweeper import Sweeper
from hydra.types import HydraContext, TaskFunction
from omegaconf import DictConfig, OmegaConf

from showattendtell.arguments import NonNegativeInt, PositiveInt, Text
from showattendtell.config.check import find_faults, raise_all
from showattendtell.config.compose import SEARCH
from showattendtell.config.faults import sentence
from showattendtell.config.sweep import Witness, settle_folder, shown
from showattendtell.errors import UserError
from showattendtell.files import LOCK, alone

if TYPE_CHECKING:
    import optuna

    from showattendtell.config.study import Study, Taken

HOPELESS = 3
"""So many trials of a command that all fail end it."""


def is_trial() -> bool:
    """Whether this run is one of a study."""
    return HydraConfig.initialized() and bool(HydraConfig.get().runtime.choices.get(SEARCH))


class Search(Sweeper):
    """Runs the trials of a study in Optuna until it has `n_trials`, those of earlier commands and of other workers
    included.

    Optuna's own plugin for Hydra would give a study that goes on `n_trials` more, write them over the folders of the
    first ones, and not let a run know its trial. How it reads a search space from the command line is used here.

    study_name: the study's name in its storage.
    storage: where the study is kept: a database, as postgresql://USER@HOST/NAME, or a file, which Optuna calls a
        journal; by default study.db in the sweep's folder.
    n_trials: how many trials the study is to have. Those that failed count; those that were cut off are run again.
    n_jobs: how many are launched at a time.
    seed: decides what is proposed, together with the trials that there are; null for chance.
    sampler, pruner: what proposes trials, and what ends hopeless ones.
    params: settings of all trials, with their value, or the values or the range in which they are searched.
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
        params: Any = None,  # the check of the command line puts them among the arguments
    ):
        self._study_name, self._storage = study_name, storage
        self._sampler, self._pruner, self._seed = sampler, pruner, seed
        self._n_trials, self._n_jobs = n_trials, n_jobs

    def setup(self, *, hydra_context: HydraContext, task_function: TaskFunction, config: DictConfig) -> None:
        own = OmegaConf.to_container(config.hydra.sweeper, resolve=True)
        raise_all(find_faults(OmegaConf.create({"hydra": {"sweeper": own}})))
        settle_folder(config)
        self._folder = shown(config.hydra.sweep.dir)
        launcher = Plugins.instance().instantiate_launcher(
            hydra_context=hydra_context, task_function=task_function, config=config
        )
        self._witness = Witness(launcher, config)

    def sweep(self, arguments: list[str]) -> None:
        """Raises `UserError` where all trials fail."""
        from showattendtell.config.study import Study

        study = Study(self._study_name, self._storage, self._folder, self._sampler, self._pruner, self._seed, arguments)
        while taken := study.take(self._n_jobs, self._n_trials):
            self._run(study, taken)
            self._refuse_hopeless()
        report(study.study, self._folder)

    def _run(self, study: "Study", taken: "list[Taken]") -> None:
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
    """Print what a study has found, and write its page."""
    from showattendtell.report.study_page import PAGE, print_study, tell, write_page

    told = tell(study, folder)
    print_study(told)
    with alone(folder / LOCK):  # workers end at the same time
        write_page(told, folder / PAGE)
    print(f"{folder / PAGE} has more")


def _fault(run: JobReturn) -> str:
    assert run.hydra_cfg
    return f"{shown(run.hydra_cfg.hydra.runtime.output_dir)}: {sentence(run._return_value)}"
