import numpy as np
import pytest
import torch

from showattendtell.features.layout import NUMBERS, Precision


def regions(scale: float = 1.0) -> torch.Tensor:
    generator = torch.Generator().manual_seed(0)
    return scale * torch.randn(3, 4, 64, generator=generator) * torch.rand(3, 4, 1, generator=generator)


def through(dtype: Precision, grids: torch.Tensor) -> torch.Tensor:
    """Packed and unpacked."""
    packed = NUMBERS[dtype].pack(grids)
    assert (packed.nbytes, len(packed)) == (3 * NUMBERS[dtype].record(4, 64).itemsize, 3)
    return NUMBERS[dtype].unpack(packed)


def test_float16_is_torch_s():
    assert torch.equal(through("float16", regions()), regions().half())


def test_int8_by_hand():
    grid = torch.tensor([[[127.0, -127.0, 1.4, 0.6], [0.0, 2.54, -1.27, 0.011]]])
    packed = NUMBERS["int8"].pack(grid)
    assert packed["q"].tolist() == [[[127, -127, 1, 1], [0, 127, -64, 1]]]
    assert packed["step"].tolist() == [[1.0, pytest.approx(0.02)]]
    expected = torch.tensor([[[127.0, -127.0, 1.0, 1.0], [0.0, 2.54, -1.28, 0.02]]])
    torch.testing.assert_close(NUMBERS["int8"].unpack(packed), expected)


@pytest.mark.parametrize("scale", [1e-30, 1e-3, 1.0, 1e6])
def test_int8_is_off_by_half_a_step_of_the_region_at_most(scale: float):
    exact = regions(scale)
    steps = exact.abs().amax(dim=2, keepdim=True) / 127
    assert ((through("int8", exact) - exact).abs() <= 0.5001 * steps).all()


def test_int8_loses_what_rounding_evenly_spread_numbers_loses():
    """The error of rounding to a step is spread evenly over it: its root mean square is step / sqrt(12)."""
    exact = torch.rand(1, 1, 100_000, generator=torch.Generator().manual_seed(0)) * 2 - 1
    error = (NUMBERS["int8"].unpack(NUMBERS["int8"].pack(exact)) - exact).square().mean().sqrt()
    assert error.item() == pytest.approx(1 / 127 / 12**0.5, rel=0.01)


def test_regions_of_zeros_stay_zeros():
    assert torch.equal(through("int8", torch.zeros(3, 4, 64)), torch.zeros(3, 4, 64))


@pytest.mark.parametrize("dtype", ["float16", "int8"])
@pytest.mark.parametrize("value", [torch.inf, -torch.inf, torch.nan])
def test_what_is_not_finite_is_found(dtype: Precision, value: float):
    numbers, grids = NUMBERS[dtype], regions()
    assert numbers.are_finite(numbers.pack(grids))
    grids[1, 2, 3] = value
    assert not numbers.are_finite(numbers.pack(grids))


def test_the_largest_float16_is_finite_and_what_rounds_beyond_is_not():
    numbers = NUMBERS["float16"]
    assert numbers.are_finite(np.array([65504, -65504, 6e-8, 0], np.float16))
    assert not numbers.are_finite(numbers.pack(torch.full((1, 1, 1), 1e5)))
