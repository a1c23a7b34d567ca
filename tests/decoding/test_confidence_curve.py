"""Calibrated probabilities and the distance from the training images, held against other ways to compute them."""

import math

import numpy as np
import pytest
import torch
from scipy.special import expit

from showattendtell.decoding.confidence import Confidence

GENERATOR = torch.Generator().manual_seed(0)
REGIONS = torch.rand(5, 4, 6, generator=GENERATOR)


def calibration(*curve: float) -> Confidence:
    directions, _ = torch.linalg.qr(torch.randn(6, 2, generator=GENERATOR))
    return Confidence(torch.tensor(curve), torch.rand(6, generator=GENERATOR), directions, torch.tensor(0.5))


@pytest.mark.parametrize(
    ("odds", "expected"),
    [
        (1 / 1, [0.5, 0.375, 0.125]),
        # the runner-up would get 0.45: both get 0.4, and all words a third of the remaining 1 - 0.4 - 0.4 - 0.4 / 3
        (2 / 3, [0.4 + 0.2 / 9, 0.4 + 0.2 / 9, 0.4 / 3 + 0.2 / 9]),
    ],
)
def test_calibrated_words_worked_by_hand(odds: float, expected: list[float]):
    """Odds of 1.5 of the first word become those that are given."""
    found = calibration(1, 1, math.log(odds / 1.5)).rescale(torch.tensor([0.6, 0.3, 0.1]).log())
    torch.testing.assert_close(found.exp(), torch.tensor(expected))


def test_the_most_probable_word_follows_the_curve_up_to_certainty():
    scores = torch.tensor([2.0, 5.0, 20.0, 60.0])
    logits = torch.stack([scores, torch.zeros(4), torch.zeros(4)], dim=1)
    found = calibration(0.8, 0.4, -0.5).rescale(logits.log_softmax(dim=1))
    of_p = scores.double().numpy() - math.log(2)
    odds = 0.8 * np.log(expit(of_p)) - 0.4 * np.log(expit(-of_p)) - 0.5
    np.testing.assert_allclose(found[:, 0].double().numpy(), np.log(expit(odds)), atol=1e-6)
    torch.testing.assert_close(found.exp().sum(dim=1), torch.ones(4))
    torch.testing.assert_close(found[:, 1], found[:, 2])


def test_the_identity_changes_nothing_and_no_curve_changes_the_order():
    log_p = torch.randn(30, 7, generator=GENERATOR).log_softmax(dim=1)
    torch.testing.assert_close(calibration(1, 1, 0).rescale(log_p), log_p)
    for offset in (-1.0, 1.0):
        changed = calibration(0.8, 0.4, offset).rescale(log_p).exp()
        in_order = changed.gather(1, log_p.argsort(dim=1))
        assert (in_order.diff(dim=1) > -1e-6).all()
        torch.testing.assert_close(changed.sum(dim=1), torch.ones(30))


def test_unlikeness_is_the_squared_distance_to_the_nearest_point_of_the_plane():
    own = calibration(1, 1, 0)
    for regions, found in zip(REGIONS, own(REGIONS), strict=True):
        mean = regions.mean(dim=0).double().numpy()
        difference = mean / np.linalg.norm(mean) - own.mean.double().numpy()
        _, [rest], _, _ = np.linalg.lstsq(own.directions.double().numpy(), difference, rcond=None)
        np.testing.assert_allclose(found.item(), rest, atol=1e-6)
