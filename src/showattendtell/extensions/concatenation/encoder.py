"""Two or three encoders at once, whose grids are concatenated."""

import math
from collections.abc import Callable
from functools import partial
from operator import attrgetter
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.nn.functional import interpolate

from showattendtell.errors import UserError
from showattendtell.images.reading import PIXELS
from showattendtell.models.encoder import Encoder
from showattendtell.models.pretrained import state_hash
from showattendtell.settings import NonNegativeFloat


class ConcatenatedEncoder(Encoder):
    """Concatenate the grids of two or three frozen encoders: D is the sum of their widths.

    Photographs are resized to the largest of their input sizes, and from there for each encoder. Grids are resized to
    the one with the most regions, by bilinear interpolation. All encoders see the same part of a photograph.

    Args:
        first, second, third: the encoders, as functions of `weights`.
        weights: `hub`, each encoder loads the weights of its own setting; or `random`.
        coordinate_scale: see `Encoder`; the encoders have no coordinates of their own.

    Raises:
        UserError: an encoder is trainable or has position channels, or encoders crop differently.
    """

    def __init__(
        self,
        first: Callable[..., Encoder],
        second: Callable[..., Encoder],
        third: Callable[..., Encoder] | None = None,
        weights: Literal["hub", "random"] = "hub",
        coordinate_scale: NonNegativeFloat = 0.0,
    ):
        nn.Module.__init__(self)
        factories = {"first": first, "second": second} | ({"third": third} if third else {})
        parts = {name: make(weights="random") if weights == "random" else make() for name, make in factories.items()}
        for name, part in parts.items():
            for setting in ("trainable", "coordinate_scale"):
                if getattr(part, setting):
                    raise UserError(f"encoder.{name}.{setting} is not possible if grids are concatenated; leave it out")
        preprocessings = [part.preprocessing for part in parts.values()]
        # how each crops, and the share of the resized photograph that it sees
        if len({(each.crop_mode, round(each.crop / each.resize, 2)) for each in preprocessings}) > 1:
            raise UserError(
                "the encoders see different parts of a photograph; give all the same crop_mode and the same share of "
                "resize in size"
            )
        self.network = nn.ModuleDict(parts)
        self.network_name = "+".join(part.network_name for part in parts.values())
        self.stride, self.weights = "last", weights
        self.coordinate_scale, self.pool = coordinate_scale, 1
        self.trainable, self.learning_rate, self.tuned = False, 0.0, False
        self.preprocessing = max(preprocessings, key=attrgetter("crop"))
        self.grid = max((part.grid for part in parts.values()), key=math.prod)
        self.dim = sum(part.dim for part in parts.values())
        self.requires_grad_(False)
        self.eval()

    def forward(self, pixels: Tensor) -> Tensor:
        """Encode (I, 3, H, W), uint8 from the preprocessing or normalized floats, as (I, L, D), the grid row by row."""
        preprocessing = self.preprocessing
        normalized = pixels if pixels.is_floating_point() else preprocessing.normalize(pixels)
        mean, std = (normalized.new_tensor(values).view(3, 1, 1) for values in (preprocessing.mean, preprocessing.std))
        values = normalized * std + mean  # from 0 to 1
        return torch.cat([self._encode(part, values) for part in self.network.values()], dim=2)

    def _encode(self, part: Any, values: Tensor) -> Tensor:
        """Return the grid of an encoder from RGB values (I, 3, H, W) between 0 and 1: (I, L, its width)."""
        side = [part.preprocessing.crop] * 2
        if list(values.shape[2:]) != side:
            values = interpolate(values, side, mode="bicubic", antialias=True).clamp(0, 1)
        regions = part(part.preprocessing.normalize(values))
        if part.grid == self.grid:
            return regions
        grid = regions.transpose(1, 2).unflatten(2, part.grid)
        resized = interpolate(grid, self.grid, mode="bilinear", align_corners=False)
        return resized.flatten(2).transpose(1, 2)

    def settings(self) -> dict[str, Any]:
        parts = {name: partial(Encoder, **part.settings()) for name, part in self.network.items()}
        return {**parts, "weights": self.weights, "coordinate_scale": self.coordinate_scale}

    def describe(self) -> dict[str, Any]:
        return {
            "network": self.network_name,
            **{name: part.describe() for name, part in self.network.items()},
            "weights_sha256": state_hash(self.network.state_dict()),
            "pixels": PIXELS,
            "preprocessing": self.preprocessing.describe(),
            "grid": list(self.grid),
            "dim": self.dim,
        }
