import math

import numpy as np
import pytest
import torch

from showattendtell.training.optimizers import Cosine, GravesRMSprop, parameter_groups


@pytest.mark.parametrize(
    ("step", "factor"), [(0, 1.0), (25, 0.2 + 0.8 * (1 + math.cos(math.pi / 4)) / 2), (50, 0.6), (100, 0.2), (200, 0.2)]
)
def test_the_cosine_worked_by_hand(step: int, factor: float):
    assert Cosine(final=0.2)(step, 100) == pytest.approx(factor)


def test_biases_do_not_decay_and_the_encoder_has_its_own_rate():
    captioner, encoder = torch.nn.Linear(2, 3), torch.nn.Linear(4, 5)
    matrices, biases, tuned = parameter_groups(captioner, encoder, encoder_rate=1e-5)
    assert matrices["params"] == [captioner.weight]
    assert biases["params"] == [captioner.bias]
    assert biases["weight_decay"] == 0
    assert tuned == {"params": [encoder.weight, encoder.bias], "lr": 1e-5}


@pytest.mark.parametrize("weight_decay", [0.0, 0.1])
def test_graves_rmsprop_follows_his_equations(weight_decay: float):
    parameter = torch.nn.Parameter(torch.ones(3, 2, dtype=torch.double))
    optimizer = GravesRMSprop([{"params": [parameter], "weight_decay": weight_decay}], lr=0.02)
    weights, n, m, delta = np.ones((3, 2)), 0.0, 0.0, 0.0
    for gradient in np.random.default_rng(0).normal(size=(6, 3, 2)) * [0.01, 3.0]:
        parameter.grad = torch.from_numpy(gradient)
        optimizer.step()
        g = gradient + weight_decay * weights
        n = 0.95 * n + 0.05 * g**2
        m = 0.95 * m + 0.05 * g
        delta = 0.9 * delta - 0.02 * g / np.sqrt(n - m**2 + 1e-4)
        weights = weights + delta
        np.testing.assert_allclose(parameter.detach().numpy(), weights, rtol=1e-12)
