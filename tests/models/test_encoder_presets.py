"""Networks of timm and the encoders of conf/encoder, with random weights: regions are where they are in the image."""

from pathlib import Path
from typing import Any

import pytest
import timm
import torch
from documentation import ROOT
from omegaconf import OmegaConf
from PIL import Image, ImageDraw
from safetensors.torch import save_file
from torch import nn

from showattendtell.images.reading import CropMode
from showattendtell.models.encoder import Encoder
from showattendtell.types import Box

SMALL = ("test_resnet", "swin_tiny_patch4_window7_224", "test_vit", "vit_small_patch14_reg4_dinov2")
"""Small networks of different kinds, for tests of a second."""
OTHERS = ("test_convnext", "vit_xsmall_patch16_clip_224", "test_vit3", "vit_small_patch16_dinov3")

FILES = {file.stem: OmegaConf.load(file) for file in (ROOT / "conf/encoder").glob("*.yaml")}
PRESETS = sorted(name for name, node in FILES.items() if "Encoder" in node.get("_target_", "Encoder").split(".")[-1:])
LARGE = [name for name in PRESETS if "efficientnet" not in name]


def settings(preset: str) -> dict[str, Any]:
    node: Any = OmegaConf.load(ROOT / f"conf/encoder/{preset}.yaml")
    inherited = [settings(name) for name in node.pop("defaults", [])]
    return {**(inherited[0] if inherited else {}), **{key: value for key, value in node.items() if key != "_target_"}}


def random_encoder(name: str, crop_mode: CropMode) -> Encoder:
    """With 3 x 3 or more regions, and random weights. Those of a kernel around its center are smaller: a region of many
    random convolutions reads the whole image."""
    torch.manual_seed(0)
    given = settings(name) if name in PRESETS else {"network": name}
    size, resize = (84, 96) if "patch14" in name else (96, 110)
    encoder = Encoder(**given | {"weights": "random", "crop_mode": crop_mode, "size": size, "resize": resize})
    for layer in encoder.network.modules():
        if isinstance(layer, nn.Conv2d) and layer.kernel_size in ((3, 3), (7, 7)):
            middle = layer.kernel_size[0] // 2
            factors = torch.full_like(layer.weight, 0.2)
            factors[:, :, middle, middle] = 1
            layer.weight.data *= factors
    return encoder


def photograph(width: int, height: int, bright: Box | None = None) -> Image.Image:
    image = Image.new("RGB", (width, height), (60, 60, 60))
    if bright:
        ImageDraw.Draw(image).rectangle(tuple(map(round, bright)), fill=(255, 255, 255))
    return image


@pytest.mark.parametrize(
    ("name", "crop_mode"),
    [
        *((name, "center") for name in SMALL),
        ("test_vit", "squash"),
        *(pytest.param(name, "center", marks=pytest.mark.slow) for name in (*OTHERS, *LARGE)),
        *(
            pytest.param(name, "squash", marks=pytest.mark.slow)
            for name in (*SMALL, *OTHERS, *LARGE)
            if name != "test_vit"
        ),
    ],
)
@torch.no_grad()
def test_a_bright_square_changes_the_region_that_lies_on_it(name: str, crop_mode: CropMode):
    """Each cell of the photograph in turn is bright. A region's change is relative to its sum over all cells: padding
    makes regions at the border change less. The map of the change is laid over the photograph as attention maps are."""
    encoder, (width, height) = random_encoder(name, crop_mode), (330, 240)
    rows, columns = encoder.grid
    seen = encoder.preprocessing.crop_box(width, height)
    wide, high = (seen.right - seen.left) / columns, (seen.bottom - seen.top) / rows
    corners = [(seen.left + column * wide, seen.top + row * high) for row in range(rows) for column in range(columns)]
    squares = [Box(left, top, left + wide - 1, top + high - 1) for left, top in corners]
    images = [photograph(width, height, bright) for bright in (None, *squares)]
    regions = encoder(torch.stack([encoder.preprocessing(image) for image in images]))
    change = (regions[1:] - regions[0]).norm(dim=2)  # (squares, L)
    assert regions.shape[1] == rows * columns >= 9
    for bright, map in zip(squares, change / change.sum(dim=0), strict=True):
        row, column = divmod(int(map.argmax()), columns)
        x, y = seen.left + (column + 0.5) * wide, seen.top + (row + 0.5) * high
        assert bright.left < x < bright.right
        assert bright.top < y < bright.bottom


@pytest.mark.parametrize("preset", PRESETS)
def test_a_preset_is_normalized_as_its_network_was_trained(preset: str):
    """Its weights are published."""
    given = settings(preset)
    published = timm.get_pretrained_cfg(given["network"])
    assert published
    assert given.keys() <= {"network", "stride", "weights", "size", "resize", "coordinate_scale"}, (
        "mean and std are timm's"
    )
    if "weights" not in given:
        assert published.has_weights
        assert published.hf_hub_id or published.url


@pytest.mark.parametrize(
    ("network", "size", "prefix"),
    [("test_vit", 96, 1), ("vit_small_patch14_reg4_dinov2", 84, 5), ("vit_small_patch16_dinov3", 96, 5)],
)
@torch.no_grad()
def test_class_and_register_tokens_are_no_regions(network: str, size: int, prefix: int):
    encoder, image = Encoder(network, "last", "random", size=size), torch.rand(1, 3, size, size)
    tokens = encoder.network.forward_features(image)
    assert tokens.shape[1] == 36 + prefix
    torch.testing.assert_close(encoder(image), tokens[:, prefix:], rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize(
    ("network", "sizes"), [("test_vit", (160, 96)), ("eva02_tiny_patch14_224", (112, 84)), ("test_vit3", (96, 160))]
)
@torch.no_grad()
def test_position_embeddings_of_a_file_are_resized_to_the_input(network: str, sizes: tuple[int, int], tmp_path: Path):
    """As timm resizes those that it downloads."""
    trained, size = Encoder(network, "last", "random", size=sizes[0]), sizes[1]
    save_file(trained.network.state_dict(), tmp_path / "own.safetensors")
    encoder = Encoder(network, "last", str(tmp_path / "own.safetensors"), size=size)
    overlay = {"file": str(tmp_path / "own.safetensors"), "num_classes": 0}
    theirs = timm.create_model(
        network, pretrained=True, pretrained_cfg_overlay=overlay, num_classes=0, img_size=size
    ).eval()
    assert encoder.network.pos_embed.shape != trained.network.pos_embed.shape
    for name, value in theirs.state_dict().items():
        torch.testing.assert_close(encoder.network.state_dict()[name], value)


def test_a_tag_names_the_weights_of_a_network():
    with pytest.raises(Exception, match=r"did you mean 'vit_base_patch16_clip_224\.openai'"):
        Encoder("vit_base_patch16_clip_224.opena")
    assert Encoder("vit_tiny_patch16_224.augreg_in21k", "last", "random", size=32).grid == (2, 2)
