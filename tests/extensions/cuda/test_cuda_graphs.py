"""Training with CUDA graphs, compared with the same training without them."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import pytorch_lightning as lightning
import torch
from pytorch_lightning.callbacks import Callback
from torch import Tensor

from showattendtell import CaptioningModule, ShapesDataModule
from showattendtell.data.vocabulary import EOS, PAD
from showattendtell.errors import UserError
from showattendtell.extensions.cuda.graphs import CUDAGraphs, LossGraphs, fill_up
from showattendtell.losses.caption import SoftLoss, total
from showattendtell.losses.reinforce import HardLoss
from showattendtell.models.attention import SoftAttention
from showattendtell.models.captioner import Captioner
from showattendtell.models.decoder import LSTMDecoder
from showattendtell.models.hard_attention import HardAttention
from showattendtell.types import BatchShard

pytestmark = pytest.mark.filterwarnings("ignore")
gpu = pytest.mark.skipif(not torch.cuda.is_available(), reason="CUDA graphs need a GPU")

REGIONS, REGION_DIM, WORDS = 9, 8, 20
ATTENTIONS = {"soft": (SoftAttention, SoftLoss), "hard": (HardAttention, HardLoss)}


def make_captioner(attention: str) -> Captioner:
    """A captioner without dropout; hard attention always uses the expectation, so that nothing is random."""
    kind, settings = ATTENTIONS[attention][0], {"expectation_prob": 1.0} if attention == "hard" else {}
    torch.manual_seed(0)
    return Captioner(kind(REGION_DIM, 16, **settings), LSTMDecoder(WORDS, REGION_DIM, 16, 16, dropout=0.0))


def make_batch(images: int, captions: int, words: int, seed: int) -> tuple[Tensor, Tensor, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    tokens = torch.randint(4, WORDS, (captions, words), generator=generator)
    lengths = torch.randint(2, words + 1, (captions, 1), generator=generator)
    steps = torch.arange(words)
    tokens = tokens.masked_fill(steps == lengths - 1, EOS).masked_fill(steps >= lengths, PAD)
    return torch.rand(images, REGIONS, REGION_DIM, generator=generator), torch.arange(captions) % images, tokens


@pytest.mark.parametrize("attention", ATTENTIONS)
def test_the_copies_of_an_image_change_neither_loss_nor_gradients(attention: str):
    regions, rows, tokens = make_batch(5, 12, 7, seed=1)
    results = []
    for filled in (regions, fill_up(regions, 16)):
        captioner, loss = make_captioner(attention), ATTENTIONS[attention][1]()
        value = total(loss(captioner, filled, rows, tokens).terms)
        gradients = torch.autograd.grad(value, [*captioner.parameters()], allow_unused=True)
        results.append((value, gradients))
    (plain, gradients), (copied, others) = results
    assert len(fill_up(regions, 16)) == 16
    assert torch.equal(fill_up(regions, 16)[:5], regions)
    assert copied.item() == pytest.approx(plain.item(), rel=1e-6)
    for one, other in zip(gradients, others, strict=True):
        assert (one is None) == (other is None)
        assert one is None or torch.allclose(one, other, atol=1e-6)


def test_a_full_number_of_images_is_not_copied():
    regions = torch.rand(32, 2, 2)
    assert fill_up(regions, 16) is regions


@gpu
@pytest.mark.parametrize("attention", ATTENTIONS)
def test_graphs_compute_the_loss_and_its_gradients(attention: str):
    captioner, loss = make_captioner(attention).cuda(), ATTENTIONS[attention][1]().cuda()
    eager = ATTENTIONS[attention][1]().cuda()  # its own baseline
    graphs = LossGraphs(loss, captioner)
    parameters = [*captioner.parameters()]
    for step, shape in enumerate([(5, 12, 7), (16, 16, 9), (5, 12, 7), (7, 12, 7), (16, 16, 9)]):
        batch = [part.cuda() for part in make_batch(*shape, seed=step)]
        shard = BatchShard(1.0, shape[1])
        values = [function(captioner, *batch, shard, None) for function in (graphs, eager)]
        captured, expected = values
        assert captured.terms.keys() == expected.terms.keys()
        assert captured.metrics.keys() == expected.metrics.keys()
        torch.testing.assert_close(captured.nll, expected.nll)
        torch.testing.assert_close(captured.terms, expected.terms, rtol=1e-4, atol=1e-5)
        torch.testing.assert_close(captured.metrics, expected.metrics, rtol=1e-4, atol=1e-4)
        gradients = [torch.autograd.grad(total(output.terms), parameters, allow_unused=True) for output in values]
        for one, other in zip(*gradients, strict=True):
            torch.testing.assert_close(one, other, rtol=1e-3, atol=1e-5)


class Losses(Callback):
    def __init__(self) -> None:
        self.values: list[float] = []

    def on_train_batch_end(self, trainer: Any, module: Any, outputs: Any, batch: Any, index: int) -> None:
        self.values.append(float(outputs["loss"]))


def train(folder: Path, attention: str, *callbacks: Callback, **settings: Any) -> list[float]:
    """Return the losses of 30 steps."""
    lightning.seed_everything(0, verbose=False)
    data = ShapesDataModule(80, 20, 1, cache=folder, seed=0)
    module = CaptioningModule(attention, hidden_dim=32, embedding_dim=32, lr=5e-3, **settings)
    losses = Losses()
    trainer = lightning.Trainer(
        max_steps=30,
        limit_val_batches=0,
        callbacks=[losses, *callbacks],
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    trainer.fit(module, data)
    return losses.values


@gpu
def test_training_with_graphs_has_the_losses_of_training_without(tmp_path: Path):
    eager, captured = train(tmp_path, "soft", dropout=0.0), train(tmp_path, "soft", CUDAGraphs(), dropout=0.0)
    assert captured == pytest.approx(eager, rel=0.02)
    assert abs(eager[-1] / eager[0] - 1) > 0.02


@gpu
def test_training_of_hard_attention_with_graphs_learns_as_much(tmp_path: Path):
    eager, captured = train(tmp_path, "hard"), train(tmp_path, "hard", CUDAGraphs())
    assert sum(captured[-5:]) == pytest.approx(sum(eager[-5:]), rel=0.1)
    assert len(set(captured)) == len(captured)  # every step draws its own regions and dropout


@gpu
def test_a_loss_that_changes_from_step_to_step_is_reported(tmp_path: Path):
    with pytest.raises(UserError, match=r"cannot capture loss\.scheduled_sampling; leave one of both out"):
        train(tmp_path, "soft", CUDAGraphs(), loss=SoftLoss(scheduled_sampling=0.5))


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_a_machine_without_a_gpu_is_reported(tmp_path: Path):
    with pytest.raises(UserError, match="for training on one GPU, and this run uses cpu; leave it out, or set"):
        train(tmp_path, "soft", CUDAGraphs())


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_a_machine_without_a_gpu_is_reported_before_the_data_are_read(run_forked: Callable[..., Any], tmp_path: Path):
    done = run_forked("train", "dataset=flickr8k", "dataset.root=nowhere", "callbacks=cuda_graphs", folder=tmp_path)
    assert done.status == 2
    assert done.err.startswith("error: callbacks=cuda_graphs is for training on one GPU, and this run uses cpu")
    assert "Traceback" not in done.err
