"""Access to private parts of Lightning.

`trainer.fit_loop._data_fetcher`; of `trainer.fit_loop.epoch_loop` `_is_training_done`, `_should_check_val_fx` and
`_should_accumulate`; the entry `loops` of its checkpoints; `optimizer._step_supports_amp_scaling`; and
`RichProgressBar._get_train_description`, which `progress.ProgressBar` overrides.

`tests/training/test_lightning_internals.py` fails if a new version changes one of them; pyproject.toml lists the
tested versions.
"""

from typing import Any

from pytorch_lightning import Trainer
from torch.optim import Optimizer

VALIDATION_PROGRESS = "epoch_loop.val_loop.batch_progress"


def is_accumulating(trainer: Trainer) -> bool:
    """Return whether the step of the current batch needs further batches."""
    return trainer.fit_loop.epoch_loop._should_accumulate()


def is_between_steps(trainer: Trainer) -> bool:
    """Return whether the batch that just ended completes a step, with another batch following immediately."""
    loop, fetcher = trainer.fit_loop.epoch_loop, trainer.fit_loop._data_fetcher
    assert fetcher is not None
    ends = loop._is_training_done or loop._should_check_val_fx(fetcher)
    return not ends and not loop._should_accumulate()


def mark_validation_as_begun(checkpoint: dict[str, Any]) -> None:
    """Make a run that resumes from this checkpoint begin with the validation that is about to start."""
    total = checkpoint["loops"]["fit_loop"][VALIDATION_PROGRESS]["total"]
    done = total["completed"]
    total.update(ready=done + 1, started=done + 1, processed=done)


def let_lightning_unscale(optimizer: Optimizer) -> None:
    """Let Lightning unscale half-precision gradients, as clipping requires."""
    optimizer._step_supports_amp_scaling = False  # type: ignore[attr-defined]
