"""Encoders whose grids are concatenated, against each of them alone."""

from functools import partial
from typing import Any

import pytest
import torch
from encoders import LITE0
from torchvision.transforms.v2 import InterpolationMode, functional

from showattendtell.config.compose import as_node
from showattendtell.config.instantiate import build
from showattendtell.errors import UserError
from showattendtell.extensions.concatenation.encoder import ConcatenatedEncoder
from showattendtell.models.encoder import Encoder
from showattendtell.settings import describe_call

FIRST = partial(Encoder, LITE0, 16, "random", size=96, resize=96)
SECOND = partial(Encoder, "test_resnet", 16, "random", size=64, resize=64, mean=(0.4, 0.5, 0.6), std=(0.2, 0.3, 0.1))
PHOTOGRAPHS = torch.randint(0, 256, (2, 3, 96, 96), dtype=torch.uint8, generator=torch.Generator().manual_seed(0))


def concatenated(second: Any = SECOND, **settings: Any) -> ConcatenatedEncoder:
    torch.manual_seed(0)
    return ConcatenatedEncoder(FIRST, second, **settings)


@torch.no_grad()
def test_each_encoder_has_its_own_channels_and_a_smaller_one_a_coarser_grid():
    encoder = concatenated()
    first, second = encoder.network["first"], encoder.network["second"]
    assert (encoder.grid, second.grid, encoder.preprocessing.crop) == ((6, 6), (4, 4), 96)
    small = functional.resize(PHOTOGRAPHS / 255, [64, 64], InterpolationMode.BICUBIC, antialias=True).clamp(0, 1)
    mean, std = (torch.tensor(numbers).view(3, 1, 1) for numbers in second.preprocessing[2:4])
    grid = second((small - mean) / std).transpose(1, 2).unflatten(2, (4, 4))
    expected = functional.resize(grid, [6, 6], InterpolationMode.BILINEAR, antialias=False).flatten(2).transpose(1, 2)
    expected = torch.cat([first(PHOTOGRAPHS), expected], dim=2)
    torch.testing.assert_close(encoder(PHOTOGRAPHS), expected, atol=1e-4, rtol=1e-4)


@torch.no_grad()
def test_it_is_built_again_from_its_settings_and_weights():
    encoder = concatenated(coordinate_scale=2.0)
    node = describe_call(partial(ConcatenatedEncoder, **encoder.settings()))
    other = build(as_node({**node, "weights": "random"}))
    assert other.describe()["weights_sha256"] != encoder.describe()["weights_sha256"]
    other.load_state_dict(encoder.state_dict())
    assert other.describe() == encoder.describe()
    assert other.region_dim == encoder.dim + 2
    assert torch.equal(other.prepare_regions(other(PHOTOGRAPHS)), encoder.prepare_regions(encoder(PHOTOGRAPHS)))


@pytest.mark.parametrize(
    ("second", "sentence"),
    [
        (partial(SECOND, trainable=True), "encoder.second.trainable is not possible"),
        (partial(SECOND, coordinate_scale=1.0), "encoder.second.coordinate_scale is not possible"),
        (partial(SECOND, crop_mode="squash"), "see different parts of a photograph"),
        (partial(SECOND, resize=73), "see different parts of a photograph"),
    ],
)
def test_encoders_that_do_not_go_together_are_reported(second: Any, sentence: str):
    with pytest.raises(UserError, match=sentence):
        concatenated(second=second)
