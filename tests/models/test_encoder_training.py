from typing import Any

import pytest
import torch
from encoders import LITE0, pixels, small
from slow_cases import slow_after
from torch import Tensor

from showattendtell.errors import UserError
from showattendtell.models.encoder import RARE, BatchSizes, Encoder


def test_a_trainable_encoder_gets_gradients_and_keeps_its_statistics():
    encoder = small(16, trainable=True).train()
    statistics = {name: buffer.clone() for name, buffer in encoder.named_buffers()}
    assert len(statistics) > 50
    encoder(pixels()).square().sum().backward()
    assert not any(module.training for module in encoder.modules())
    assert all(torch.equal(buffer, statistics[name]) for name, buffer in encoder.named_buffers())
    assert all(parameter.grad is not None for parameter in encoder.parameters())
    assert encoder.network.conv_stem.weight.grad.abs().sum() > 0


@pytest.mark.parametrize(("images", "computed"), slow_after(1, [(3, 4), (16, 16), (17, 32)]))
@pytest.mark.parametrize("network", slow_after(1, ["tf_efficientnet_lite0", "vgg11"]))
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
        2,
        [
            ("tf_efficientnet_lite0", "last", 8, "blocks.3.0.conv_pw.weight"),
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
        4,
        [
            (LITE0, {"trainable": False}, "frozen_stride=8 is for encoder.trainable=true"),
            (LITE0, {"frozen_stride": 5}, "frozen_stride=5 is not a grid of .*; it has 2, 4, 8, 16, 32$"),
            (LITE0, {"stride": 16, "frozen_stride": 16}, NOTHING_LEFT),
            (LITE0, {"stride": 16, "frozen_stride": 32}, NOTHING_LEFT),
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
        encoder = Encoder("resnet18", 16, "random", size=64, trainable=True, frozen_stride=8)
    assert not encoder.network.layer2[0].conv1.weight.requires_grad
    assert encoder.network.layer3[0].conv1.weight.requires_grad


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
