"""Result files of evaluate, made by hand."""

import copy
import json
from pathlib import Path
from typing import Any

CONFIG = {
    "encoder": {"_target_": "showattendtell.encoder.Encoder", "network": "vgg19", "mean": [0.5, 0.5, 0.5]},
    "attention": {"_target_": "showattendtell.model.attention.SoftAttention", "score": {"width": 512}},
    "dataset": {"root": "data", "captions_per_image": 5},
    "decoding": {"beam_size": 1},
    "optimizer": {"lr": 0.001},
    "logger": {},
    "cache": "cache",
}
CHOICES = {"attention": "soft", "encoder": "vgg19", "decoder": "lstm", "attention/score": "additive"}


def result(*, settings: dict[str, Any] | None = None, **changes: Any) -> dict[str, Any]:
    """The content of a result file; `settings` are changes of the configuration by dotted name."""
    seed = changes.get("seed", 1)
    config = {**copy.deepcopy(CONFIG), "seed": seed}
    for name, value in (settings or {}).items():
        *path, last = name.split(".")
        node = config
        for part in path:
            node = node[part]
        node[last] = value
    content = {
        **{f"bleu{n}": 70.0 - 10 * n for n in range(1, 5)},
        "missing": {"meteor": "there is no Java"},
        "dataset": "flickr8k",
        "split": "test",
        "split_sha256": "ab" * 32,
        "images": 1000,
        "seed": seed,
        "checkpoint": "runs/best.ckpt",
        "checkpoint_sha256": f"weights of {json.dumps([config, changes], sort_keys=True)}",
        "tokenizer": "plain",
        "decoding": {"method": "BeamSearch", "beam_size": 3},
        "captions": {"1.jpg": "a dog"},
        "references": {"1.jpg": ["A dog ."]},
    }
    choices = {**CHOICES, **changes.pop("choices", {})}
    return {**content, "choices": choices, "config": config, **changes}


def ensemble(*members: dict[str, Any], **changes: Any) -> dict[str, Any]:
    """The content of the result file of several models that wrote together."""
    each = ("seed", "checkpoint", "checkpoint_sha256", "choices", "config")
    return {**members[0], **{name: [member[name] for member in members] for name in each}, **changes}


def write(content: Any, path: Path) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(content))
    return path
