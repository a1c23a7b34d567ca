"""CLIPScore (Hessel et al. 2021) of captions and photographs, without reference captions."""

from collections.abc import Sequence
from functools import partial
from importlib import import_module
from typing import Any

import numpy as np
import torch
from rich.console import Console
from rich.progress import track
from torch import Tensor
from torchvision.transforms.v2.functional import pil_to_tensor

from showattendtell.errors import UserError, first_line
from showattendtell.images.reading import middle, open_image
from showattendtell.metrics.bootstrap import Array
from showattendtell.metrics.tokenizers import Caption, split_captions

Clip = tuple[Any, Any]
"""A CLIP model of transformers and its processor of images and text."""


@torch.no_grad()
def measure_clip_score(
    captions: Sequence[Caption], paths: Sequence[str], clip: Clip, device: torch.device | str = "cpu"
) -> Array:
    """Return CLIPScore (N,) of each caption: 100 max(cos(image, caption), 0) of the model's features.

    Hessel et al. 2021 use the factor 2.5 instead of 100. torchmetrics 1.9 has the same metric, but cannot read the
    features of transformers 5.

    Args:
        captions: N captions.
        paths: N files of their images.
        clip: what `load_clip` returned.

    Raises:
        UserError: an image cannot be read.
    """
    pairs = list(zip(split_captions(captions), paths, strict=True))
    model, processor = clip
    model.to(device)

    def direction(features: Any) -> Tensor:
        features = getattr(features, "pooler_output", features)  # transformers 5 returns an output object
        return features / features.norm(dim=-1, keepdim=True)

    scores = []
    for words, path in track(pairs, "comparing", console=Console(stderr=True), transient=True):
        pixels = processor(images=[middle(pil_to_tensor(open_image(path)))], return_tensors="pt")
        tokens = processor(text=[" ".join(words)], return_tensors="pt").to(device)
        image = direction(model.get_image_features(pixels["pixel_values"].to(device)))
        text = direction(model.get_text_features(tokens["input_ids"], tokens["attention_mask"]))
        scores.append((100 * (image * text).sum()).clamp(min=0).item())
    return np.array(scores)


def load_clip(name: str) -> Clip:
    """Load a CLIP model of transformers from a folder or a hub id.

    Raises:
        UserError: the model cannot be loaded, or transformers is not installed.
    """
    try:
        transformers: Any = import_module("transformers")
    except ImportError:
        raise UserError(
            "CLIPScore needs the package transformers; install it with pip install 'showattendtell[clip]'"
        ) from None
    try:
        model_type = transformers.AutoConfig.from_pretrained(name).model_type
        if model_type != "clip":
            raise ValueError(f"it is of the kind {model_type}")
        clip, info = transformers.CLIPModel.from_pretrained(name, output_loading_info=True)
        if info["missing_keys"]:
            raise ValueError(f"it lacks {sorted(info['missing_keys'])[0]}")
        processor = transformers.CLIPProcessor.from_pretrained(name)
    except Exception as error:  # transformers has no common error for loading failures
        reason = first_line(error).removesuffix(".")
        raise UserError(
            f"the CLIP model {name} cannot be loaded ({reason}); give the folder of one, or its name on the hub"
        ) from None
    length = clip.config.text_config.max_position_embeddings
    return clip.eval(), partial(processor, truncation=True, max_length=length)
