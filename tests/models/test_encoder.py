"""Grids of timm's networks and of the encoders of conf/encoder, frozen and trained, with random weights."""

from itertools import product
from pathlib import Path
from typing import Any

import pytest
import timm
import torch
from documentation import ROOT
from encoders import LITE0, pixels, small
from omegaconf import OmegaConf
from PIL import Image, ImageDraw
from safetensors.torch import save_file
from slow_cases import slow_after
from torch import Tensor, nn

from showattendtell.errors import UserError
from showattendtell.images.reading import CropMode
from showattendtell.models.encoder import RARE, BatchSizes, Encoder
from showattendtell.types import Box

TINY = "test_efficientnet"


def tiny(stride: int | str = "last", **settings: Any) -> Encoder:
    return Encoder(TINY, stride, "random", **{"size": 64, **settings})


@pytest.mark.slow
def test_the_paper_s_grid_is_vgg19_before_its_last_pooling():
    encoder = Encoder("vgg19", 16, "random")
    reference = timm.create_model("vgg19").eval()
    reference.features.load_state_dict(encoder.network.features.state_dict())
    with torch.no_grad():
        expected = reference.features[:36](pixels(224, 1))
        regions = encoder(pixels(224, 1))
    assert (encoder.grid, encoder.dim) == ((14, 14), 512)
    assert regions.shape == (1, 196, 512)
    assert (regions >= 0).all()
    torch.testing.assert_close(regions[0].T.reshape(512, 14, 14), expected[0])
    assert encoder.preprocessing[:2] == (256, 224)
    assert encoder.preprocessing.mean == pytest.approx((0.485, 0.456, 0.406))
    assert encoder.preprocessing.std == pytest.approx((0.229, 0.224, 0.225))


def test_every_stride_of_lite0_is_what_timm_s_own_feature_extractor_gives():
    extractor = timm.create_model(LITE0, features_only=True).eval()
    for level, (stride, dim) in enumerate({2: 16, 4: 24, 8: 40, 16: 112, 32: 320}.items()):
        encoder = small(stride)
        missing, _ = extractor.load_state_dict(encoder.network.state_dict(), strict=False)
        with torch.no_grad():
            expected = extractor(pixels())[level]
            regions = encoder(pixels())
        assert (encoder.grid, encoder.dim) == ((64 // stride, 64 // stride), dim)
        torch.testing.assert_close(regions.transpose(1, 2).reshape(expected.shape), expected)
        assert not [name for name in missing if name.startswith("conv_stem")]


@pytest.mark.parametrize("network", [TINY, "test_mambaout"])
def test_regions_stand_row_by_row_whatever_the_network_s_layout(network: str):
    encoder = Encoder(network, "last", "random", size=96)
    with torch.no_grad():
        regions, features = encoder(pixels(96)), encoder.network.forward_features(pixels(96))
    features = features.movedim(1, -1) if network == TINY else features
    expected = torch.stack([features[:, row, column] for row in range(3) for column in range(3)], dim=1)
    torch.testing.assert_close(regions, expected, rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize(
    ("network", "settings", "message"),
    [
        (TINY, {"resize": 60}, r"encoder\.resize=60 .* encoder\.size=64 .*; give encoder\.resize=64 or more"),
        ("vgg91", {}, "encoder.network=vgg91 is not a network of timm; did you mean 'vgg19'?"),
        ("zzzz", {}, "encoder.network=zzzz is not a network of timm.*timm.list_models"),
        (TINY, {"stride": 1}, f"encoder.stride=1 is not a grid of {TINY}; it has 2, 4, 8, 16, 32 and last"),
        (TINY, {"stride": 8, "pool": 3}, r"encoder\.pool=3 does not divide the grid of 8 x 8 regions"),
        ("coat_tiny", {}, "coat_tiny.*no grid"),
        ("efficientvim_m1", {}, "efficientvim_m1.*no grid"),
        ("test_vit", {"size": 100}, "encoder.size=100"),
        ("xcit_nano_12_p8_224", {"size": 100}, "encoder.size=100"),
        ("inception_v3", {"size": 96, "trainable": True, "gradient_checkpointing": True}, "supports no gradient"),
    ],
)
def test_what_an_encoder_cannot_be_is_reported(network: str, settings: dict, message: str):
    with pytest.raises(UserError, match=message):
        Encoder(network, **{"weights": "random", "size": 64, **settings})


def test_the_description_changes_with_whatever_changes_the_regions():
    settings = [{}, {"stride": 8}, {"stride": 8, "pool": 2}, {"size": 96}, {"resize": 80}, {"crop_mode": "squash"}]
    described = [tiny(**changed).describe() for changed in [*settings, {"mean": (0.4, 0.5, 0.6)}, {}]]
    assert len({description.pop("weights_sha256") for description in described}) == len(described)
    assert [described.index(description) for description in described] == [*range(len(described) - 1), 0]


def test_a_pooled_region_is_the_mean_of_its_square():
    fine, pooled = tiny(stride=8), tiny(stride=8, pool=2)
    pooled.load_state_dict(fine.state_dict())
    with torch.no_grad():
        regions, means = fine(pixels()).unflatten(1, (8, 8)), pooled(pixels()).unflatten(1, (4, 4))
    assert pooled.grid == (4, 4)
    for row in range(4):
        for column in range(4):
            square = [regions[:, 2 * row + y, 2 * column + x] for y in (0, 1) for x in (0, 1)]
            torch.testing.assert_close(means[:, row, column], sum(square) / 4)
    assert pooled.prepare_regions(means.flatten(1, 2)).shape == means.flatten(1, 2).shape


def test_positions_add_each_regions_place_behind_its_channels():
    plain, located = (tiny(stride=16, coordinate_scale=scale) for scale in (0, 3))
    rows, columns = located.grid
    regions = torch.randn(2, rows * columns, located.dim)
    assert torch.equal(plain.prepare_regions(regions), regions)
    assert (plain.region_dim, located.region_dim) == (plain.dim, located.dim + 2)
    output = located.prepare_regions(regions).unflatten(1, (rows, columns))
    assert torch.equal(output[..., :-2].flatten(1, 2), regions)
    assert output[0, 0, 0, -2:].tolist() == [-3, -3]
    assert output[1, 0, columns - 1, -2:].tolist() == [3, -3]
    assert output[1, rows - 1, 0, -2:].tolist() == [-3, 3]
    assert located.describe() | {"weights_sha256": ""} == plain.describe() | {"weights_sha256": ""}


@pytest.mark.parametrize("trainable", [False, True])
def test_an_encoder_keeps_its_statistics_and_gets_gradients_if_it_is_trainable(trainable: bool):
    encoder = tiny(16, trainable=trainable).train()
    statistics = {name: buffer.clone() for name, buffer in encoder.named_buffers()}
    assert len(statistics) > 10
    regions = encoder(pixels())
    assert not any(module.training for module in encoder.modules())
    assert all(torch.equal(buffer, statistics[name]) for name, buffer in encoder.named_buffers())
    assert {regions.requires_grad, *(parameter.requires_grad for parameter in encoder.parameters())} == {trainable}
    if trainable:
        regions.square().sum().backward()
        assert encoder.network.conv_stem.weight.grad.abs().sum() > 0


@pytest.mark.parametrize(("images", "computed"), slow_after(1, [(3, 4), (16, 16), (17, 32)]))
@pytest.mark.parametrize("network", slow_after(1, [TINY, "vgg11"]))
def test_a_batch_that_is_filled_up_has_the_same_regions_and_gradients(
    network: str, images: int, computed: int, monkeypatch: pytest.MonkeyPatch
):
    encoder = Encoder(network, 16, "random", size=32, trainable=True).double()
    batch = torch.rand(images, 3, 32, 32, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    sizes, results = [], []
    monkeypatch.setattr(encoder, "_feature_map", lambda pixels: sizes.append(len(pixels)) or features(pixels))
    features = type(encoder)._feature_map.__get__(encoder)
    for devices in (("cuda",), ("cpu",)):
        monkeypatch.setattr("showattendtell.models.encoder.FILLED", devices)
        regions = encoder(batch)
        weights = torch.linspace(-1, 1, regions.numel(), dtype=torch.float64).view_as(regions)
        gradients = torch.autograd.grad((weights * regions).sum(), [*encoder.parameters()])
        results.append((regions, *gradients))
    assert sizes == [images, computed]
    torch.testing.assert_close(results[0], results[1], rtol=1e-9, atol=1e-12)


def test_rare_numbers_of_images_are_filled_up_to_one_that_is_planned():
    sizes = BatchSizes()
    assert [sizes.choose(images) for images in (61, 64, 58, 30, 3, 70, 66, 64)] == [64, 64, 64, 64, 64, 80, 80, 64]
    assert [sizes.choose(29) for _ in range(RARE)] == (RARE - 1) * [64] + [32]
    assert [sizes.choose(images) for images in (17, 33, 3)] == [32, 64, 32]


@pytest.mark.parametrize(
    ("network", "stride", "frozen", "first"),
    slow_after(
        1,
        [
            (TINY, "last", 8, "blocks.3.0.conv_pw.weight"),
            ("resnet18", 16, 8, "layer3.0.conv1.weight"),
            ("vgg11", 16, 8, "features.16.weight"),
            ("convnext_atto", 32, 16, "stages.3.downsample.0.weight"),
        ],
    ),
)
def test_what_computes_the_grid_of_the_frozen_stride_is_not_trained(
    network: str, stride: int | str, frozen: int, first: str
):
    encoder = Encoder(network, stride, "random", size=64, trainable=True, frozen_stride=frozen)
    encoder(pixels(64)).square().sum().backward()
    names = [name for name, _ in encoder.network.named_parameters()]
    learning = {name for name, parameter in encoder.network.named_parameters() if parameter.grad is not None}
    assert learning == set(names[names.index(first) :])
    whole = Encoder(network, stride, "random", size=64, trainable=True)
    whole.load_state_dict(encoder.state_dict())
    whole(pixels(64)).square().sum().backward()
    theirs = dict(whole.network.named_parameters())
    for name, parameter in encoder.network.named_parameters():
        if name in learning:
            torch.testing.assert_close(parameter.grad, theirs[name].grad)


NOTHING_LEFT = "leaves nothing of .* to train, or is not known for it; choose a smaller stride, or leave it out"


@pytest.mark.parametrize(
    ("network", "settings", "message"),
    slow_after(
        3,
        [
            (TINY, {"trainable": False}, "frozen_stride=8 is for encoder.trainable=true"),
            (TINY, {"frozen_stride": 5}, "frozen_stride=5 is not a grid of .*; it has 2, 4, 8, 16, 32$"),
            (TINY, {"stride": 16, "frozen_stride": 16}, NOTHING_LEFT),
            ("vgg11", {"stride": "last", "frozen_stride": 32}, NOTHING_LEFT),
            ("convnext_atto", {"stride": "last", "frozen_stride": 32}, NOTHING_LEFT),
            ("twins_svt_small", {"stride": "last"}, NOTHING_LEFT),
        ],
    ),
)
def test_a_frozen_stride_that_cannot_be_is_reported(network: str, settings: dict, message: str):
    with pytest.raises(UserError, match=message):
        Encoder(network, weights="random", size=64, **{"trainable": True, "frozen_stride": 8, **settings})


@pytest.mark.parametrize("restoring", [torch.no_grad, torch.inference_mode])
def test_an_encoder_is_restored_where_no_gradients_are_computed(restoring: Any):
    with restoring():
        encoder = tiny(trainable=True, frozen_stride=8)
    assert not encoder.network.conv_stem.weight.requires_grad
    assert encoder.network.blocks[3][0].conv_pw.weight.requires_grad


def seen_and_kept(encoder: Encoder) -> tuple[Tensor, int, list[Tensor]]:
    """The regions, the bytes kept for the backward pass besides the weights, and the gradients."""
    weights = {parameter.untyped_storage().data_ptr() for parameter in encoder.parameters()}
    kept: dict[int, torch.UntypedStorage] = {}

    def keep(tensor: Tensor) -> Tensor:
        storage = tensor.untyped_storage()
        kept[storage.data_ptr()] = storage
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        regions = encoder(pixels(encoder.preprocessing.crop))
    regions.square().mean().backward()
    gradients = [parameter.grad for parameter in encoder.parameters() if parameter.grad is not None]
    return regions.detach(), sum(s.nbytes() for place, s in kept.items() if place not in weights), gradients


@pytest.mark.parametrize(
    ("network", "stride", "share"),
    slow_after(
        1,
        [
            (LITE0, "last", 0.15),
            (LITE0, 8, 0.15),
            ("resnet50", 16, 0.5),
            ("vit_tiny_patch16_224", "last", 0.15),
            ("convnext_atto", 16, 0.2),
        ],
    ),
)
def test_what_is_recomputed_is_not_kept_and_gives_the_same_gradients(network: str, stride: int | str, share: float):
    plain, recomputing = (
        Encoder(network, stride, "random", size=64, trainable=True, gradient_checkpointing=r) for r in (False, True)
    )
    recomputing.load_state_dict(plain.state_dict())
    assert recomputing.describe() == plain.describe()
    regions, kept, gradients = seen_and_kept(plain)
    same_regions, kept_less, same_gradients = seen_and_kept(recomputing)
    assert torch.equal(regions, same_regions)
    assert len(gradients) > 10
    assert all(torch.equal(*pair) for pair in zip(gradients, same_gradients, strict=True))
    assert 0 < kept_less < share * kept


OTHERS = ["swin_tiny_patch4_window7_224", "vit_small_patch14_reg4_dinov2", "test_convnext", "test_vit3"]
OTHERS += ["vit_xsmall_patch16_clip_224", "vit_small_patch16_dinov3"]
"""Small networks of different kinds."""

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
    slow_after(2, [("test_resnet", "center"), ("test_vit", "squash"), *product(OTHERS + LARGE, ("center", "squash"))]),
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
    slow_after(1, [("test_vit", 96, 1), ("vit_small_patch14_reg4_dinov2", 84, 5), ("vit_small_patch16_dinov3", 96, 5)]),
)
@torch.no_grad()
def test_class_and_register_tokens_are_no_regions(network: str, size: int, prefix: int):
    encoder, image = Encoder(network, "last", "random", size=size), torch.rand(1, 3, size, size)
    tokens = encoder.network.forward_features(image)
    assert tokens.shape[1] == 36 + prefix
    torch.testing.assert_close(encoder(image), tokens[:, prefix:], rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize(
    ("network", "sizes"),
    slow_after(1, [("test_vit", (160, 96)), ("eva02_tiny_patch14_224", (112, 84)), ("test_vit3", (96, 160))]),
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
