"""Regions with boxes that a detector has found, in place of the grid of an encoder (Anderson et al. 2018)."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from showattendtell.errors import UserError
from showattendtell.extensions.regions.files import BOX, RegionReading, open_regions
from showattendtell.models.encoder import EncoderWithoutNetwork
from showattendtell.runtime.files import expand_home
from showattendtell.settings import NonNegativeFloat, PositiveInt, Text
from showattendtell.types import Box, RegionBoxes


class RegionFeatures(EncoderWithoutNetwork):
    """Regions that a detector has found, from a file: bottom-up attention (Anderson et al. 2018).

    The detector is not part of this project: photographs that are not in the file cannot be captioned. For the layouts
    of files see docs/data.md. The feature cache has rows (D + 4) of features and box; images with fewer regions than
    `max_regions` end with rows of zeros, which have no weight in any attention.

    Args:
        features: the file or folder with the regions.
        boxes: the folder with a file of boxes for each image, if `features` is a folder of files that have none; by
            default the folder with `_box` in place of `_att` at the end of its name.
        dim: D, the width of a region.
        max_regions: the largest number of regions of an image.
        coordinate_scale: add five channels to each region, left, top, right, bottom and area in fractions of the
            photograph, multiplied by this number; 0 adds none.
    """

    padded, network_name = True, "regions"

    def __init__(
        self,
        features: Text,
        boxes: Text | None = None,
        dim: PositiveInt = 2048,
        max_regions: PositiveInt = 100,
        coordinate_scale: NonNegativeFloat = 0.0,
    ):
        super().__init__(max_regions, dim + BOX)
        self.features, self.boxes, self.max_regions = features, boxes, max_regions
        self.coordinate_scale, self.feature_dim = coordinate_scale, dim

    def check_reads_pixels(self) -> None:
        raise UserError(
            f"this model reads regions that a detector has stored in {Path(self.features).name}, and the detector "
            "is not part of showattendtell; caption images of its data set with split=test, or take another checkpoint"
        )

    @property
    def store_name(self) -> str:
        return f"{self.network_name}-{Path(self.features).name}-{self.max_regions}-{self.feature_dim}"

    @property
    def stored_files(self) -> Sequence[Path]:  # type: ignore[override]  # an attribute of the base class
        file = expand_home(self.features)
        return [file] if file.is_file() else []

    def region_reader(self, paths: Mapping[str, str], skip_unreadable: bool) -> RegionReading:
        path, boxes = expand_home(self.features), None if self.boxes is None else expand_home(self.boxes)
        read = open_regions(path, boxes)
        return RegionReading(path, read, paths, skip_unreadable, self.feature_dim, self.max_regions)

    @property
    def region_dim(self) -> int:
        return self.feature_dim + (BOX + 1) * bool(self.coordinate_scale)

    def prepare_regions(self, regions: Tensor) -> Tensor:
        """Return the features (I, L, D) of stored regions, with the channels of `coordinate_scale`. L is the largest
        number of regions of these images."""
        regions = regions[:, : int(is_region(regions).sum(dim=1).max())]
        features, boxes = regions.split([self.feature_dim, BOX], dim=2)
        if not self.coordinate_scale:
            return features
        left, top, right, bottom = boxes.unbind(dim=2)
        area = (right - left) * (bottom - top)
        return torch.cat(
            [features, self.coordinate_scale * torch.stack([left, top, right, bottom, area], dim=2)], dim=2
        )

    def boxes_of(self, regions: Tensor) -> RegionBoxes:
        """Return the boxes of the stored regions (L, D + 4) of an image, without padding."""
        return RegionBoxes(tuple(Box(*box) for box in regions[is_region(regions), -BOX:].float().tolist()))

    def arrange(self, maps: np.ndarray, regions: Tensor, seen: Box) -> tuple[np.ndarray, RegionBoxes]:
        """Return attention maps (T, L) without padding, and the boxes of their regions."""
        boxes = self.boxes_of(regions)
        return maps[:, : len(boxes.boxes)], boxes

    def settings(self) -> dict[str, Any]:
        settings = {"features": self.features, "boxes": self.boxes, "dim": self.feature_dim}
        return {**settings, "max_regions": self.max_regions, "coordinate_scale": self.coordinate_scale}

    def describe(self) -> dict[str, Any]:
        return {**super().describe(), "features": Path(self.features).name}


def is_region(regions: Tensor) -> Tensor:
    """Return which of the stored regions (..., D + 4) are not padding: those whose box has a right side beyond 0."""
    return regions[..., -2] > 0
