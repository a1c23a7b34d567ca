import io
import random

import numpy as np
import pytest
import torch

from showattendtell.training.checkpointing import random_states, set_random_states


def draw() -> list[float]:
    """One of each kind, of the normal distribution too, of which the generators keep every other number for later."""
    drawn = [random.random(), random.gauss(0, 1), np.random.rand(), np.random.randn(), torch.rand(()).item()]
    return [*drawn, torch.randn(()).item(), *torch.randperm(5).tolist()]


def test_everything_is_drawn_again_from_states_that_a_checkpoint_has_held():
    random.seed(1)
    np.random.seed(2)
    torch.manual_seed(3)
    draw()
    file = io.BytesIO()
    torch.save(random_states(), file)
    drawn = [draw() for _ in range(3)]
    assert drawn[0] != drawn[1]
    file.seek(0)
    set_random_states(torch.load(file, weights_only=True))
    assert [draw() for _ in range(3)] == drawn


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_a_gpu_draws_again():
    torch.rand(1, device="cuda")
    states = random_states()
    drawn = torch.rand(5, device="cuda")
    set_random_states(states)
    assert torch.equal(torch.rand(5, device="cuda"), drawn)
