"""Train a captioner, and write its best and last checkpoint, its curves and its log into the run's folder."""

import math
from collections.abc import Mapping
from contextlib import nullcontext
from pathlib import Path
from typing import Any, SupportsFloat

from omegaconf import DictConfig

from showattendtell.config.command_line import as_argument, as_command
from showattendtell.config.entry_point import entry_point, run_folder, search_root
from showattendtell.config.schemas import TrainSettings
from showattendtell.loading.hub import check_root
from showattendtell.runtime.files import BEST, LAST, LOG
from showattendtell.runtime.process import adopt_task


def restored(config: DictConfig) -> Mapping[str, Any]:
    """Return the settings of the run that `resume` names, changed by this command line, if it names one."""
    if not isinstance(config.resume, str):
        return config
    from showattendtell.training.resume import restore

    return restore(config)


@entry_point("train", restore=restored)
def main(settings: TrainSettings) -> float:
    """Return the best value of the metric `monitor`: BLEU-4 in percent, CIDEr, or the loss per word."""
    adopt_task()
    if not settings.resume:  # a finished run needs no data
        check_root(settings.dataset)
    from showattendtell.training.launcher import launch

    return launch(train, settings)


def train(settings: TrainSettings) -> float:
    """Train in this process; a distributed training calls this in each of its processes."""
    import pytorch_lightning as lightning

    from showattendtell.config.compose import training_record
    from showattendtell.config.entry_point import write_settings
    from showattendtell.config.instantiate import import_own_classes
    from showattendtell.config.validation import error_message
    from showattendtell.runtime.distributed import decide_on_first, raise_together, rank
    from showattendtell.runtime.files import logged
    from showattendtell.training.build import build_trainer, build_training, fit
    from showattendtell.training.progress import open_loggers
    from showattendtell.training.resume import check_data, check_sizes, find_start, run_lock

    lightning.seed_everything(settings.seed, verbose=False)
    record = training_record(settings)
    import_own_classes(record)
    start = decide_on_first(lambda: find_start(settings.resume, record, run_folder(), search_root()))
    if start.finished:
        print(f"{start.folder} is finished; unless it stopped early, a larger trainer.max_epochs extends it")
        return report_best(start.folder, start.best)
    log = logged(start.folder / LOG, error_message) if rank() == 0 else nullcontext()
    with run_lock(start.folder), log:
        with raise_together():
            # first, so that wrong settings are reported before features are computed
            trainer, best = build_trainer(settings, start.folder)
            check_sizes(start, settings.encoder, settings.attention, settings.decoder)
            with open_loggers(settings.logger, record, trainer):
                module, data = build_training(settings, record)
                check_data(start, module.metadata)
                if rank() == 0 and (start.checkpoint is None or start.extended):
                    write_settings(record, start.folder)
        fit(trainer, module, data, start.checkpoint)
        if settings.trainer.arguments.get("fast_dev_run"):
            print("training and validation ran without an error; no checkpoint is written by trainer.fast_dev_run")
            return math.nan
        return report_best(start.folder, best.best_model_score)


def report_best(folder: Path, score: SupportsFloat | None) -> float:
    """Print how to score a run, and return the validation score of its best checkpoint; NaN without a validation."""
    names = [LAST] if score is None else [BEST, LAST]
    checkpoint = next((folder / name for name in names if (folder / name).is_file()), None)
    if checkpoint is None:
        print("no checkpoint was written")
    else:
        missing = "there is no best checkpoint, which a validation chooses; " if checkpoint.name == LAST else ""
        print(f"{missing}the {checkpoint.stem} checkpoint is {checkpoint}; score it on the test images with")
        print(f"  {as_command('evaluate')} {as_argument('checkpoint', checkpoint)}")
    return math.nan if score is None else float(score)


if __name__ == "__main__":
    main()
