"""What a training step of the LightningModule minimizes."""

from pathlib import Path
from typing import Any

import pytest
import pytorch_lightning as lightning
import torch
from quiet_trainer import quiet_trainer
from small_training import REGIONS, VALIDATED, examples_of, small_config, small_run, source

from showattendtell.datamodules.datamodule import CaptionDataModule, ShapesDataModule
from showattendtell.errors import UserError
from showattendtell.inference.pipeline import CaptioningPipeline
from showattendtell.losses.caption import SoftLoss, total
from showattendtell.training.module import CaptioningModule
from showattendtell.types import Batch, BatchShard, Dataset

TOKENS = torch.tensor([[4, 5, 2], [6, 2, 0], [7, 4, 2]])
BATCH = Batch(REGIONS[:2], torch.tensor([0, 1, 1]), TOKENS, torch.tensor([0, 1]))
WHOLE = BatchShard(weight=1.0, num_captions=3)


@pytest.fixture
def trained(tmp_path: Path) -> dict[float, CaptioningModule]:
    """Modules with a reward, by the weight of the reference captions."""
    settings = ("reward=cider", "loss.doubly_stochastic_weight=0.3", "decoder.dropout=0", "trainer.max_steps=1")
    weights = {0.0: "reward.likelihood=0", 0.25: "reward.likelihood=0.25"}
    return {weight: small_run(small_config(*settings, given), tmp_path / given) for weight, given in weights.items()}


def test_annotators_are_mixed_in_by_their_weight_and_read_without_one_only_to_be_reported_of(
    trained: dict[float, CaptioningModule],
):
    alone, mixed = (trained[weight].train() for weight in (0.0, 0.25))
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


@pytest.mark.filterwarnings("ignore")
def test_an_interrupted_validation_leaves_nothing_to_the_next(tmp_path: Path):
    class Interruption(lightning.Callback):
        def on_validation_batch_end(self, *arguments: Any) -> None:
            if arguments[-1] == 1:  # the loader of images
                raise ConnectionError

    module, examples = small_run(small_config(), tmp_path / "run"), examples_of(range(VALIDATED))
    dataset = Dataset("small", {"train": examples, "val": examples})
    data = CaptionDataModule(dataset, module.vocabulary, source, 4, seed=1, generation_batch_size=2)

    def validate(*callbacks: lightning.Callback) -> Any:
        return quiet_trainer(*callbacks).validate(module, data)

    expected = validate()
    with pytest.raises(ConnectionError):
        validate(Interruption())
    assert validate() == expected


def test_an_attention_with_a_constant_map_has_no_use_for_boxes(tmp_path: Path):
    module = CaptioningModule("none", hidden_dim=8, embedding_dim=8, loss=SoftLoss(supervision_weight=1.0))
    with pytest.raises(UserError, match="attention=none is constant"):
        quiet_trainer(max_steps=1).fit(module, ShapesDataModule(4, 2, 1, cache=tmp_path))


def test_a_model_that_has_captioned_is_trained_in_training_mode(tmp_path: Path):
    module = CaptioningModule(hidden_dim=8, embedding_dim=8)
    data, trainer = ShapesDataModule(4, 2, 1, cache=tmp_path), quiet_trainer(max_steps=1, limit_val_batches=0)
    trainer.fit(module, data)
    CaptioningPipeline.from_module(module)
    assert not module.captioner.training
    quiet_trainer(max_steps=1, limit_val_batches=0).fit(module, data)
    assert module.captioner.training
    assert not module.encoder.network.training
