import copy
import math

import numpy as np
import pytest
import torch
from torch import nn
from torch.optim import Optimizer, RMSprop

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


GRADIENTS = np.random.default_rng(0).normal(size=(6, 3, 2)) * [0.01, 3.0]


def moved(optimizer: Optimizer, parameter: nn.Parameter, gradients: np.ndarray) -> np.ndarray:
    """The parameter after a step for each gradient."""
    for gradient in gradients:
        parameter.grad = torch.from_numpy(gradient).to(parameter)
        optimizer.step()
    return parameter.detach().numpy().copy()


def ones() -> nn.Parameter:
    return nn.Parameter(torch.ones(3, 2, dtype=torch.double))


@pytest.mark.parametrize("weight_decay", [0.0, 0.1])
@torch.no_grad()
def test_graves_rmsprop_follows_his_equations(weight_decay: float):
    parameter = ones()
    optimizer = GravesRMSprop([{"params": [parameter], "weight_decay": weight_decay}], lr=0.02)
    weights, n, m, delta = np.ones((3, 2)), 0.0, 0.0, 0.0
    for gradient in GRADIENTS:
        g = gradient + weight_decay * weights
        n = 0.95 * n + 0.05 * g**2
        m = 0.95 * m + 0.05 * g
        delta = 0.9 * delta - 0.02 * g / np.sqrt(n - m**2 + 1e-4)
        weights = weights + delta
        np.testing.assert_allclose(moved(optimizer, parameter, gradient[None]), weights, rtol=1e-12)


def test_graves_rmsprop_differs_from_torch_s_where_epsilon_stands():
    def both(gradients: np.ndarray, eps: float) -> tuple[np.ndarray, np.ndarray]:
        ours, theirs = ones(), ones()
        settings = {"lr": 1e-3, "momentum": 0.9, "eps": eps}
        return (
            moved(GravesRMSprop([ours], decay=0.95, **settings), ours, gradients),
            moved(RMSprop([theirs], alpha=0.95, centered=True, **settings), theirs, gradients),
        )

    np.testing.assert_allclose(*both(GRADIENTS, eps=1e-14), rtol=1e-7)
    ours, theirs = both(GRADIENTS[:1] * 1e-3, eps=1e-4)
    assert np.abs(ours - theirs).max() > 1e-3


def test_graves_rmsprop_continues_from_its_state_bit_for_bit():
    through, stopped = ones(), ones()
    expected = moved(GravesRMSprop([through], lr=0.02), through, GRADIENTS)
    first = GravesRMSprop([stopped], lr=0.02)
    moved(first, stopped, GRADIENTS[:3])
    second = GravesRMSprop([stopped])
    second.load_state_dict(copy.deepcopy(first.state_dict()))
    np.testing.assert_array_equal(moved(second, stopped, GRADIENTS[3:]), expected)
