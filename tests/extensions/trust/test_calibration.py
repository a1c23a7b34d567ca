"""The calibration error, held against torchmetrics', and the curve of risk and coverage worked out by hand."""

import numpy as np
import pytest
import torch
from torchmetrics.functional.classification import binary_calibration_error

from showattendtell.extensions.trust.reliability import reliability, risk_coverage


@pytest.mark.parametrize("bins", [5, 15])
def test_the_error_is_that_of_torchmetrics(bins: int):
    rng = np.random.default_rng(0)
    p = rng.random(2000)
    correct = rng.random(2000) < p**2
    expected = binary_calibration_error(torch.tensor(p), torch.tensor(correct).int(), n_bins=bins, norm="l1")
    assert reliability(p, correct, bins).error == pytest.approx(expected.item(), abs=1e-6)


def test_a_diagram_worked_by_hand():
    diagram = reliability([0.1, 0.2, 0.9, 1.0, 0.0], [0, 1, 1, 1, 0], bins=2)
    np.testing.assert_allclose(diagram.counts, [3, 2])
    np.testing.assert_allclose(diagram.confidence, [0.1, 0.95])
    np.testing.assert_allclose(diagram.accuracy, [1 / 3, 1])
    assert diagram.error == pytest.approx((3 * (1 / 3 - 0.1) + 2 * 0.05) / 5)


def test_an_empty_bin_counts_for_nothing():
    diagram = reliability([0.9, 0.9], [1, 0], bins=3)
    assert np.isnan(diagram.confidence[0])
    assert diagram.error == pytest.approx(0.4)


def test_probabilities_and_predictions_have_one_length():
    with pytest.raises(ValueError, match="got 2 probabilities for 1 predictions"):
        reliability([0.5, 0.5], [1])


def test_the_most_confident_captions_are_kept_first():
    coverage, kept = risk_coverage([0.2, 0.9, 0.5], [10.0, 40.0, 10.0])
    np.testing.assert_allclose(coverage, [1 / 3, 2 / 3, 1])
    np.testing.assert_allclose(kept, [40, 25, 20])
