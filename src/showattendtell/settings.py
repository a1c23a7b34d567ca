"""Types of settings, which say what values a setting accepts, and settings that may change when a run is resumed."""

from typing import Annotated

from pydantic import Field, NonNegativeFloat, NonNegativeInt, PositiveFloat, PositiveInt

__all__ = ["NonNegativeFloat", "NonNegativeInt", "PositiveFloat", "PositiveInt"]  # re-exported

Fraction = Annotated[float, Field(ge=0, lt=1)]
Probability = Annotated[float, Field(ge=0, le=1)]
Share = Annotated[float, Field(gt=0, le=1)]
ImageLength = Annotated[int, Field(gt=0, le=2048)]
Text = Annotated[str, Field(min_length=1)]

MAY_DIFFER = {
    *("cache", "dataset.root", "data.num_workers", "features.workers", "logger", "checkpoint_interval_minutes"),
    *("callbacks.gradient_norm", "callbacks.progress_bar", "callbacks.learning_rate_monitor", "callbacks.dashboards"),
    *("callbacks.training_figures", "callbacks.epoch_times", "callbacks.epoch_report", "callbacks.step_figures"),
    *("callbacks.trial_pruning", "callbacks.worker_shutdown"),
    *("trainer.accelerator", "encoder.recompute"),
}
"""Settings of paths, workers, devices and loggers, with all settings below them. They do not change what is learned."""


def may_differ(setting: str) -> bool:
    """Return whether a resumed run may have another value of the setting than the run had before."""
    return any(setting == name or setting.startswith(f"{name}.") for name in MAY_DIFFER)
