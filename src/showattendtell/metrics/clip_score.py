"""CLIPScore (Hessel et al. 2021) of captions and photographs, without reference captions, by torchmetrics."""

from collections.abc import Sequence
from functools import partial
from importlib import import_module
from typing import Any

import numpy as np
import torch
from rich.console import Console
from rich.progress import track
from torch import Tensor, nn
from torchvision.transforms.v2 import functional as transforms

from showattendtell.data.images import middle, open_image
from showattendtell.errors import UserError, first_line
from showattendtell.metrics.bootstrap import Array
from showattendtell.metrics.tokenizers import Caption, split_captions


class ClipFeatures(nn.Module):
    """CLIP model that returns features as tensors for torchmetrics; transformers 5 returns them in an output object."""

    def __init__(self, clip: Any):
        super().__init__()
        self.clip = clip
        self.config = clip.config

    def get_image_features(self, pixels: Tensor) -> Tensor:
        """Return image features: (B, 3, H, W) -> (B, width)."""
        return self._pooled(self.clip.get_image_features(pixels))

    def get_text_features(self, tokens: Tensor, mask: Tensor) -> Tensor:
        """Return text features: (B, T), (B, T) -> (B, width)."""
        return self._pooled(self.clip.get_text_features(tokens, mask))

    def _pooled(self, features: Any) -> Tensor:
        return features if isinstance(features, Tensor) else features.pooler_output


Clip = tuple[ClipFeatures, Any]
"""A CLIP model and its processor of images and text."""


@torch.no_grad()
def measure_clip_score(
    captions: Sequence[Caption], paths: Sequence[str], clip: Clip, device: torch.device | str
) -> Array:
    """Return CLIPScore (N,) of each caption: 100 max(cos(image, caption), 0) of the model's features.

    Hessel et al. 2021 use the factor 2.5 instead of 100.

    Args:
        captions: N captions.
        paths: N files of their images.

    Raises:
        UserError: an image cannot be read.
    """
    model: Any = clip
    from torchmetrics.functional.multimodal.clip_score import clip_score  # takes seconds

    sentences = [" ".join(words) for words in split_captions(captions)]
    pairs = track(list(zip(sentences, paths, strict=True)), "comparing", console=Console(stderr=True), transient=True)
    scores = [
        clip_score(middle(transforms.pil_to_tensor(open_image(path))).to(device), sentence, lambda: model)
        for sentence, path in pairs
    ]
    return np.array([score.item() for score in scores])


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
    return ClipFeatures(clip.eval()), partial(processor, truncation=True, max_length=length)
