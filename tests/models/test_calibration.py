"""Calibrated probabilities and the distance from the training images, held against other ways to compute them."""

import numpy as np
import torch
from scipy.special import softmax

from showattendtell.decoding.image_captioner import Calibration, scale

GENERATOR = torch.Generator().manual_seed(0)
REGIONS = torch.rand(5, 4, 6, generator=GENERATOR)


def calibration(scaling: tuple[float, float, float] = (0.3, -0.1, 0.2)) -> Calibration:
    directions, _ = torch.linalg.qr(torch.randn(6, 2, generator=GENERATOR))
    return Calibration(torch.tensor(scaling), torch.rand(6, generator=GENERATOR), directions, torch.tensor(0.5))


def test_the_scaling_of_each_step_follows_its_entropy():
    logits = torch.randn(3, 7, generator=GENERATOR).double()
    log_p = logits.log_softmax(dim=1)
    for row, found in zip(log_p.numpy(), scale(log_p, torch.tensor([0.3, -0.1, 0.2]).double()), strict=True):
        entropy = -(np.exp(row) * row).sum()
        expected = 0.8 * softmax(row / np.exp(0.3 - 0.1 * entropy)) + 0.2 / 7
        np.testing.assert_allclose(found.numpy(), np.log(expected), atol=1e-7)


def test_zeros_change_nothing_and_no_scaling_changes_the_order():
    log_p = torch.randn(3, 7, generator=GENERATOR).log_softmax(dim=1)
    torch.testing.assert_close(calibration((0, 0, 0)).calibrate(log_p), log_p)
    changed = calibration((0.7, -0.2, 0.3)).calibrate(log_p)
    assert torch.equal(changed.argsort(dim=1), log_p.argsort(dim=1))
    torch.testing.assert_close(changed.exp().sum(dim=1), torch.ones(3))


def test_unlikeness_is_the_squared_distance_to_the_nearest_point_of_the_plane():
    own = calibration()
    for regions, found in zip(REGIONS, own(REGIONS), strict=True):
        mean = regions.mean(dim=0).double().numpy()
        difference = mean / np.linalg.norm(mean) - own.mean.double().numpy()
        _, [rest], _, _ = np.linalg.lstsq(own.directions.double().numpy(), difference, rcond=None)
        np.testing.assert_allclose(found.item(), rest, atol=1e-6)
