"""Old names of settings and classes.

A setting that is typed under its old name gets an error with the new one. Checkpoints of format 2 have the old
names, which are replaced when they are loaded.
"""

from collections.abc import Iterable, Mapping
from typing import Any

from showattendtell.config.validation import TARGET

PACKAGE = "showattendtell."

SETTINGS = {
    "attention.expectation": "attention.expectation_prob",
    "attention.relaxation": "attention.gumbel_tau",
    "attention.switch": "attention.expectation_scope",
    "attention.test": "attention.inference_mode",
    "checkpoint_every": "checkpoint_interval_minutes",
    "data.images_together": "data.group_by_image",
    "data.resident": "data.cache_on_device",
    "decoding.say_unknown": "decoding.allow_unk",
    "decoding.shrinking": "decoding.shrink_beam",
    "initial_weights": "init_from",
    "selection": "monitor",
}
"""Old name of a setting to its new one, in the same node."""

MOVED = {"early_stopping": "callbacks.early_stopping"}
"""Old name of a node at the top of a configuration to its new place."""

FORMER_GROUPS = {"loss": "the loss comes with the attention"}
"""Groups that are gone, which leave settings of the same name, and the reason."""

MODULES = {
    "batches": "datamodules.datamodule",
    "config.commands": "config.schemas",
    "config.search": "config.sweeper",
    "config.sweep": "config.sweeper",
    "data.augment": "data.augmentation",
    "decode.consensus": "decoding.consensus",
    "decode.sampling": "decoding.sampling",
    "decode.search": "decoding.beam_search",
    "encoder": "models.encoder",
    "launching": "training.launcher",
    "loggers": "training.loggers",
    "loss": "losses.caption",
    "model.attention": "models.attention",
    "model.baselines": "models.baselines",
    "model.decoder": "models.decoder",
    "model.hard": "models.hard_attention",
    "model.scores": "models.scores",
    "optimize": "training.optimizers",
    "self_critical": "losses.self_critical",
    "text.vocabulary": "data.vocabulary",
    "training.callbacks.interruption": "training.interruption",
    "training.callbacks.progress": "training.callbacks",
    "training.loggers.build": "training.loggers",
}
"""Old module of a `_target_` to its new one."""

CLASSES = {
    "config.schemas.Train": "config.schemas.TrainConfig",
    "config.sweeper.Search": "config.sweeper.StudySweeper",
    "config.sweeper.Sweep": "config.sweeper.GridSweeper",
    "datamodules.datamodule.CaptionData": "datamodules.datamodule.CaptionDataModule",
    "training.loggers.tensorboard_logger": "training.loggers.TensorBoardDashboard",
    "training.loggers.wandb_logger": "training.loggers.WandbDashboard",
}
"""Old name of a class, in its new module, to its new name."""

CHOICES = {"mean_of": "average_of"}
"""Old name of a choice, which `average` records, to the new one."""

STATES = {"CaptionData": "CaptionDataModule"}
"""Old key of a checkpoint, under which Lightning keeps the state of the data module, to the new one."""

CALLBACKS = {"Dashboards": "DashboardCallback"}
"""Old name of a callback, under which Lightning keeps its state, to the new one."""


def rename_argument(argument: str) -> str:
    """Return an argument of a command line, `name=value`, with the new name of the setting."""
    name, equals, value = argument.partition("=")
    bare = name.lstrip("+~")
    return f"{name.removesuffix(bare)}{renamed_setting(bare)}{equals}{value}"


def renamed_setting(name: str) -> str:
    """Return the new name of a setting, or of one below a node that was moved."""
    node, dot, rest = name.partition(".")
    return f"{MOVED[node]}{dot}{rest}" if node in MOVED else SETTINGS.get(name, name)


def rename_settings(config: Mapping[str, Any]) -> dict[str, Any]:
    """Return a configuration as plain data with the new names of settings and classes."""
    renamed = _renamed(config, "")
    for old, new in MOVED.items():
        if old in renamed:
            group, _, name = new.partition(".")
            renamed.setdefault(group, {})[name] = renamed.pop(old)
    return renamed


def _renamed(node: Any, path: str) -> Any:
    if isinstance(node, list):
        return [_renamed(value, path) for value in node]
    if not isinstance(node, Mapping):
        return node
    renamed = {}
    for name, value in node.items():
        setting = f"{path}{name}"
        new = SETTINGS.get(setting, setting).rpartition(".")[2]
        renamed[new] = renamed_target(str(value)) if name == TARGET else _renamed(value, f"{setting}.")
    return renamed


def renamed_target(target: str) -> str:
    """Return the new name of a class or function of this package."""
    for old, new in MODULES.items():
        if target.startswith(f"{PACKAGE}{old}."):
            target = f"{PACKAGE}{new}{target.removeprefix(PACKAGE + old)}"
            break
    return PACKAGE + CLASSES.get(name := target.removeprefix(PACKAGE), name) if target.startswith(PACKAGE) else target


def rename_choices(choices: Mapping[str, Any]) -> dict[str, Any]:
    """Return the chosen options of a checkpoint with the new names."""
    return {CHOICES.get(name, name): option for name, option in choices.items()}


def rename_states(checkpoint: Mapping[str, Any]) -> dict[str, Any]:
    """Return a checkpoint of Lightning with the new keys of the states of the data module and the callbacks."""
    renamed = {STATES.get(name, name): value for name, value in checkpoint.items()}
    callbacks = checkpoint.get("callbacks")
    if isinstance(callbacks, Mapping):
        renamed["callbacks"] = {CALLBACKS.get(name, name): value for name, value in callbacks.items()}
    return renamed


def renamed_settings(names: Iterable[str]) -> dict[str, str]:
    """Return the renamed ones of the settings, with their new names."""
    return {name: renamed_setting(name) for name in names if renamed_setting(name) != name}
