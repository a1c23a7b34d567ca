"""An encoder of random weights that takes milliseconds, and what it is shown."""

from typing import Any

import torch
from torch import Tensor

from showattendtell.encoder import Encoder

LITE0 = "tf_efficientnet_lite0"


def small(stride: int | str = "last", weights: str = "random", **settings: Any) -> Encoder:
    return Encoder(LITE0, stride, weights, **{"size": 64, **settings})


def pixels(size: int = 64, number: int = 2) -> Tensor:
    return torch.randn(number, 3, size, size, generator=torch.Generator().manual_seed(0))
