import math

import pytest
import torch

from showattendtell.training.optimizers import Cosine, parameter_groups


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
