import pytest
import timm
import torch
from encoders import LITE0, pixels, small

from showattendtell.errors import UserError
from showattendtell.images.reading import PIXELS
from showattendtell.models.encoder import Encoder
from showattendtell.models.pretrained import state_hash


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


@pytest.mark.parametrize(("size", "side", "resize"), [(224, 7, 256), (448, 14, 512)])
def test_the_last_grid_of_lite0(size: int, side: int, resize: int):
    encoder = small(size=size)
    assert (encoder.grid, encoder.dim) == ((side, side), 1280)
    assert encoder(pixels(size, 1)).shape == (1, side * side, 1280)
    assert encoder.preprocessing[:4] == (resize, size, (0.5, 0.5, 0.5), (0.5, 0.5, 0.5))


@pytest.mark.parametrize(("stride", "dim"), [(2, 16), (4, 24), (8, 40), (16, 112), (32, 320)])
def test_every_stride_of_lite0_is_what_timm_s_own_feature_extractor_gives(stride: int, dim: int):
    torch.manual_seed(0)
    encoder = small(stride)
    extractor = timm.create_model(LITE0, features_only=True).eval()
    state = encoder.network.state_dict()
    missing, _ = extractor.load_state_dict(state, strict=False)
    level = [2, 4, 8, 16, 32].index(stride)
    with torch.no_grad():
        expected = extractor(pixels())[level]
        regions = encoder(pixels())
    assert (encoder.grid, encoder.dim) == ((64 // stride, 64 // stride), dim)
    torch.testing.assert_close(regions.transpose(1, 2).reshape(expected.shape), expected)
    assert not [name for name in missing if name.startswith("conv_stem")]


@pytest.mark.parametrize("network", [LITE0, "test_mambaout", "test_vit"])
def test_regions_stand_row_by_row_whatever_the_network_s_layout(network: str):
    encoder = Encoder(network, "last", "random", size=96)
    with torch.no_grad():
        regions, features = encoder(pixels(96)), encoder.network.forward_features(pixels(96))
    if network == LITE0:
        expected = torch.stack([features[:, :, row, column] for row in range(3) for column in range(3)], dim=1)
    elif network == "test_mambaout":
        expected = torch.stack([features[:, row, column] for row in range(3) for column in range(3)], dim=1)
    else:
        expected = features[:, 1:]
    assert encoder.grid[0] * encoder.grid[1] == expected.shape[1]
    torch.testing.assert_close(regions, expected, rtol=1e-3, atol=1e-4)


def test_frozen_parameters_get_no_gradient_and_normalization_stays_as_it_was():
    encoder = small()
    before = state_hash(encoder.state_dict())
    assert not any(module.training for module in encoder.train().modules())
    assert not encoder(pixels()).requires_grad
    assert not any(parameter.requires_grad for parameter in encoder.parameters())
    assert state_hash(encoder.state_dict()) == before


@pytest.mark.parametrize(
    ("network", "settings", "message"),
    [
        (LITE0, {"resize": 60}, r"encoder\.resize=60 .* encoder\.size=64 .*; give encoder\.resize=64 or more"),
        ("vgg91", {}, "encoder.network=vgg91 is not a network of timm; did you mean 'vgg19'?"),
        ("zzzz", {}, "encoder.network=zzzz is not a network of timm.*timm.list_models"),
        (LITE0, {"stride": 1}, f"encoder.stride=1 is not a grid of {LITE0}; it has 2, 4, 8, 16, 32 and last"),
        (LITE0, {"stride": 8, "pool": 3}, r"encoder\.pool=3 does not divide the grid of 8 x 8 regions"),
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
    encoder = small()
    assert encoder.describe()["weights_sha256"] != small().describe()["weights_sha256"]
    assert {key: value for key, value in encoder.describe().items() if key != "weights_sha256"} == {
        "network": LITE0,
        "stride": "last",
        "pixels": PIXELS,
        "preprocessing": {
            "resize": 73,
            "crop": 64,
            "mean": [0.5, 0.5, 0.5],
            "std": [0.5, 0.5, 0.5],
            "interpolation": "bicubic",
        },
        "pool": 1,
        "grid": [2, 2],
        "dim": 1280,
    }


def test_a_pooled_region_is_the_mean_of_its_square():
    fine, pooled = small(stride=8), small(stride=8, pool=2)
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
    plain, located = (small(stride=16, coordinate_scale=scale) for scale in (0, 3))
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
