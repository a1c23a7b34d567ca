"""Old names of settings and classes, which are replaced when a checkpoint is loaded."""

from collections.abc import Mapping
from typing import Any

from showattendtell.config.validation import TARGET

PACKAGE = "showattendtell."

# old name of a setting to its new one, in the same node
SETTINGS = {
    "attention.expectation": "attention.expectation_prob",
    "attention.relaxation": "attention.gumbel_tau",
    "attention.samples": "attention.num_samples",
    "attention.score.heads": "attention.score.num_heads",
    "attention.switch": "attention.expectation_scope",
    "attention.temperature": "attention.inverse_temperature",
    "attention.test": "attention.inference_mode",
    "augment.colour": "augment.color",
    "callbacks.step_figures": "callbacks.step_metrics",
    "callbacks.training_figures": "callbacks.training_metrics",
    "checkpoint_every": "checkpoint_interval_minutes",
    "data.images_together": "data.group_by_image",
    "data.resident": "data.cache_on_device",
    "decoder.heads": "decoder.num_heads",
    "decoder.layers": "decoder.num_layers",
    "decoding.block_ngrams": "decoding.no_repeat_ngram_size",
    "decoding.diversity": "decoding.diversity_penalty",
    "decoding.groups": "decoding.num_beam_groups",
    "decoding.length_power": "decoding.length_penalty",
    "decoding.normalization": "decoding.length_normalization",
    "decoding.samples": "decoding.num_samples",
    "decoding.say_unknown": "decoding.allow_unk",
    "decoding.shrinking": "decoding.shrink_beam",
    "encoder.positions": "encoder.coordinate_scale",
    "encoder.recompute": "encoder.gradient_checkpointing",
    "initial_weights": "init_from",
    "loss.attention_weight": "loss.doubly_stochastic_weight",
    "loss.decay": "loss.baseline_decay",
    "loss.penalty_mean": "loss.penalty_reduction",
    "reward.samples": "reward.num_samples",
    "selection": "monitor",
}

# old value of `init_from` to the value of `weight_init`
WEIGHT_INITS = {"project": "default", "released": "released"}

# old name of a node at the top of a configuration to its new place
MOVED = {"early_stopping": "callbacks.early_stopping"}

# old module of a `_target_` to its new one
MODULES = {
    "batches": "datamodules.datamodule",
    "config.commands": "config.schemas",
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

# old name of a class, in its new module, to its new name
CLASSES = {
    "config.schemas.Train": "config.schemas.TrainConfig",
    "losses.caption.HardLoss": "losses.reinforce.HardLoss",
    "datamodules.datamodule.CaptionData": "datamodules.datamodule.CaptionDataModule",
    "training.callbacks.TrainingFigures": "training.callbacks.TrainingMetrics",
    "training.progress.StepFigures": "training.progress.StepMetrics",
    "training.loggers.tensorboard_logger": "training.loggers.TensorBoardDashboard",
    "training.loggers.wandb_logger": "training.loggers.WandbDashboard",
}

# the choice that `average` records
CHOICES = {"mean_of": "average_of"}

# keys of a checkpoint under which Lightning keeps the state of the data module and of the callbacks
STATES = {"CaptionData": "CaptionDataModule"}
CALLBACKS = {"Dashboards": "DashboardCallback"}


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
    if renamed.get("init_from") in WEIGHT_INITS:  # had two meanings
        renamed["weight_init"] = WEIGHT_INITS[renamed["init_from"]]
        renamed["init_from"] = None
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
        renamed[new] = _renamed_target(str(value)) if name == TARGET else _renamed(value, f"{setting}.")
    return renamed


def _renamed_target(target: str) -> str:
    if not target.startswith(PACKAGE):
        return target
    name = target.removeprefix(PACKAGE)
    old = next((module for module in MODULES if name.startswith(f"{module}.")), "")
    name = MODULES[old] + name.removeprefix(old) if old else name
    return PACKAGE + CLASSES.get(name, name)


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
