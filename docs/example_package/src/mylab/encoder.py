"""An encoder with normalized regions."""

from typing import Any

import torch.nn.functional as F
from torch import Tensor

from showattendtell.models.encoder import Encoder


class UnitEncoder(Encoder):
    """Regions normalized to length 1; the settings are those of `Encoder`."""

    def forward(self, pixels: Tensor) -> Tensor:
        return F.normalize(super().forward(pixels), dim=2)  # (I, L, D)

    def describe(self) -> dict[str, Any]:
        """Return what identifies the feature cache: everything that changes the regions."""
        return {**super().describe(), "length": 1}
