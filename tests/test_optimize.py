import math

import pytest
import torch

from showattendtell.optimize import Constant, Cosine, parameter_groups


@pytest.mark.parametrize(("step", "factor"), [(0, 1 / 5), (3, 4 / 5), (4, 1.0), (1000, 1.0)])
def test_a_constant_rate_rises_linearly_first(step: int, factor: float):
    assert Constant(warmup=4)(step, 2000) == pytest.approx(factor)


@pytest.mark.parametrize(
    ("step", "factor"),
    [(0, 1.0), (25, 0.2 + 0.8 * (1 + math.cos(math.pi / 4)) / 2), (50, 0.6), (100, 0.2), (200, 0.2)],
)
def test_the_cosine_worked_by_hand(step: int, factor: float):
    assert Cosine(final=0.2)(step, 100) == pytest.approx(factor)


def test_the_cosine_starts_after_the_rise():
    schedule = Cosine(warmup=10)
    assert schedule(0, 110) == pytest.approx(1 / 11)
    assert schedule(10, 110) == pytest.approx(1)
    assert schedule(60, 110) == pytest.approx(0.5)


def test_biases_do_not_decay_and_the_encoder_has_its_own_rate():
    captioner, encoder = torch.nn.Linear(2, 3), torch.nn.Linear(4, 5)
    matrices, biases, tuned = parameter_groups(captioner, encoder, encoder_rate=1e-5)
    assert matrices["params"] == [captioner.weight]
    assert biases["params"] == [captioner.bias]
    assert biases["weight_decay"] == 0
    assert tuned == {"params": [encoder.weight, encoder.bias], "lr": 1e-5}


def test_a_frozen_encoder_has_no_group():
    encoder = torch.nn.Linear(4, 5).requires_grad_(False)
    assert len(parameter_groups(torch.nn.Linear(2, 3), encoder, encoder_rate=1e-5)) == 2
