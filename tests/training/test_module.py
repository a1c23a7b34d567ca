"""What a training step of the LightningModule minimizes."""

from pathlib import Path

import pytest
import torch
from small_training import REGIONS, small_config, small_run

from showattendtell.losses.caption import total
from showattendtell.training.module import CaptioningModule
from showattendtell.types import Batch, BatchShard

TOKENS = torch.tensor([[4, 5, 2], [6, 2, 0], [7, 4, 2]])
BATCH = Batch(REGIONS[:2], torch.tensor([0, 1, 1]), TOKENS, torch.tensor([0, 1]))
WHOLE = BatchShard(weight=1.0, num_captions=3)


@pytest.fixture
def trained(tmp_path: Path) -> dict[float, CaptioningModule]:
    """Modules with a reward, by the weight of the reference captions."""
    settings = ("reward=cider", "loss.doubly_stochastic_weight=0.3", "decoder.dropout=0")
    weights = {0.0: "reward.likelihood=0", 0.25: "reward.likelihood=0.25"}
    return {weight: small_run(small_config(*settings, given), tmp_path / given) for weight, given in weights.items()}


def test_annotators_are_mixed_in_by_their_weight_and_read_without_one_only_to_be_reported_of(
    trained: dict[float, CaptioningModule],
):
    alone, mixed = (trained[weight].train() for weight in (0.0, 0.25))
    for module in (alone, mixed):
        module.loss.progress = 0.5
    people = mixed.loss(mixed.captioner, BATCH.images, BATCH.image_index, BATCH.tokens)
    step = mixed._step(BATCH, WHOLE, log_nll=False)
    assert step.terms.keys() == {"likelihood", "doubly_stochastic", "reward"}
    for name, term in people.terms.items():
        torch.testing.assert_close(step.terms[name], 0.25 * term)
    torch.testing.assert_close(total(step.terms), 0.25 * total(people.terms) + step.terms["reward"])
    torch.testing.assert_close(step.nll, people.nll)
    output, unlogged = (alone._step(BATCH, WHOLE, log_nll=log_nll) for log_nll in (True, False))
    assert output.terms.keys() == unlogged.terms.keys() == {"reward"}
    assert output.nll is not None
    assert not output.nll.requires_grad
    assert unlogged.nll is None
    assert output.metrics.keys() > unlogged.metrics.keys() > {"sampled_cider"}
