"""In which settings two trainings may differ and still be the same one."""

MAY_DIFFER = {
    *("cache", "dataset.root", "data.num_workers", "features.workers", "logger", "checkpoint_every"),
    *("trainer.accelerator", "encoder.recompute"),
}
"""Settings that say where things are, who works on them and who is told, with all that is in them."""


def may_differ(setting: str) -> bool:
    """Whether a run that goes on may have it otherwise than it had."""
    return any(setting == name or setting.startswith(f"{name}.") for name in MAY_DIFFER)
