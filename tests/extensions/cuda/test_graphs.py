"""Training with CUDA graphs, compared with the same training without them."""

import copy
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import pytorch_lightning as lightning
import torch
from extension_cases import cases
from pytorch_lightning.callbacks import LambdaCallback
from quiet_trainer import quiet_trainer
from torch import Tensor

from showattendtell import CaptioningModule, ShapesDataModule
from showattendtell.extensions.cuda.steps import Graphs, StepGraphs, fill_up
from showattendtell.losses.caption import LossOutput, SoftLoss, total
from showattendtell.losses.reinforce import HardLoss
from showattendtell.models.attention import SoftAttention
from showattendtell.models.captioner import Captioner
from showattendtell.models.decoder import LSTMDecoder
from showattendtell.models.encoder import Encoder
from showattendtell.models.hard_attention import HardAttention
from showattendtell.text.vocabulary import EOS, PAD
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


def make_encoder(trainable: bool = False) -> Encoder:
    torch.manual_seed(0)
    return Encoder("resnet18", "last", "random", size=64, resize=64, trainable=trainable)


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
    assert fill_up(regions, 5) is regions
    assert torch.equal(fill_up(regions, 16)[:5], regions)
    assert copied.item() == pytest.approx(plain.item(), rel=1e-6)
    for one, other in zip(gradients, others, strict=True):
        assert (one is None) == (other is None)
        assert one is None or torch.allclose(one, other, atol=1e-6)


@gpu
def test_steps_are_captured_while_a_thread_pins_batches():
    regions, rows, tokens = (part.cuda() for part in make_batch(16, 16, 7, seed=1))
    captioner, loss = make_captioner("soft").cuda(), SoftLoss()
    graphs, stop = StepGraphs(loss, captioner, make_encoder()), threading.Event()

    def pin() -> list[Tensor]:
        pinned = []
        while not stop.is_set():
            pinned.append(torch.empty(2**20).pin_memory())
        return pinned

    with ThreadPoolExecutor(1) as thread:
        pinned = thread.submit(pin)
        for words in (7, 6, 5, 4) * 2:
            total(graphs.loss(regions, rows, tokens[:, :words], BatchShard(1.0, 16)).terms).backward()
        stop.set()
        assert pinned.result()
    assert len(graphs) == 4


@gpu
@pytest.mark.parametrize("attention", ATTENTIONS)
def test_graphs_compute_the_loss_and_its_gradients(attention: str):
    captioner, loss = make_captioner(attention).cuda(), ATTENTIONS[attention][1]().cuda()
    eager = ATTENTIONS[attention][1]().cuda()  # its own baseline
    graphs = StepGraphs(loss, captioner, make_encoder())
    parameters = [*captioner.parameters()]
    shapes = [(5, 12, 7), (16, 16, 9), (5, 12, 7), (7, 12, 7), (16, 16, 9)]
    for step, shape in enumerate(shapes):
        batch = [part.cuda() for part in make_batch(*shape, seed=step)]
        shard = BatchShard(1.0, shape[1])
        captured, expected = values = [graphs.loss(*batch, shard), eager(captioner, *batch, shard)]
        assert captured.terms.keys() == expected.terms.keys()
        assert captured.metrics.keys() == expected.metrics.keys()
        torch.testing.assert_close(captured.nll, expected.nll)
        torch.testing.assert_close(captured.terms, expected.terms, rtol=1e-4, atol=1e-5)
        torch.testing.assert_close(captured.metrics, expected.metrics, rtol=1e-4, atol=1e-4)
        gradients = [torch.autograd.grad(total(output.terms), parameters, allow_unused=True) for output in values]
        for one, other in zip(*gradients, strict=True):
            torch.testing.assert_close(one, other, rtol=1e-3, atol=1e-5)
    assert len(graphs) == 2


@gpu
def test_graphs_encode_photographs():
    encoder = make_encoder(trainable=True).cuda()
    graphs = StepGraphs(SoftLoss(), make_captioner("soft"), encoder)
    parameters = [*encoder.parameters()]
    for images in (16, 12, 16):
        pixels = torch.randint(256, (images, 3, 64, 64), dtype=torch.uint8, device="cuda")
        captured, expected = graphs.encode(pixels), encoder(pixels)
        torch.testing.assert_close(captured, expected, rtol=1e-3, atol=1e-4)
        gradients = [torch.autograd.grad(grids.square().sum(), parameters) for grids in (captured, expected)]
        for one, other in zip(*gradients, strict=True):
            assert (one - other).norm() <= 1e-3 * other.norm()
    assert len(graphs) == 1


def train(
    folder: Path, has_graphs: bool, trainable: bool = False, accumulated: int = 1, **settings: Any
) -> tuple[list[float], int]:
    """Return the losses of 60 steps, and the number of graphs after them."""
    lightning.seed_everything(0, verbose=False)
    encoder = make_encoder(trainable=True) if trainable else None
    data = ShapesDataModule(80, 20, 1, encoder, cache=folder, seed=0)
    module = CaptioningModule(hidden_dim=32, embedding_dim=32, lr=5e-3, **settings)
    values = list[float]()
    losses = LambdaCallback(on_train_batch_end=lambda *given: values.append(float(given[2]["loss"])))
    limits = {"max_steps": 60, "accumulate_grad_batches": accumulated, "limit_val_batches": 0}
    trainer = quiet_trainer(losses, accelerator="auto", **limits)
    with pytest.MonkeyPatch.context() as patch:
        if not has_graphs:
            patch.setattr(Graphs, "_wants", lambda graphs, key: False)
        number = list[int]()
        patch.setattr(module, "on_fit_end", lambda: number.append(len(module.steps)))
        trainer.fit(module, data)
    return values, number[0]


class WaitingLoss(SoftLoss):
    """Waits for the GPU, which a graph cannot."""

    def forward(self, captioner: Captioner, *batch: Any) -> LossOutput:
        output = super().forward(captioner, *batch)
        assert float(output.terms["likelihood"].detach()) > 0
        return output


KINDS: dict[str, dict[str, Any]] = {
    "soft": {"attention": "soft"},
    "hard": {"attention": "hard"},
    "waiting": {"attention": "soft", "loss": WaitingLoss()},
    "gradients of two batches": {"attention": "soft", "accumulated": 2},
    "trainable encoder": {"attention": "soft", "trainable": True},
    "trainable encoder, gradients of two batches": {"attention": "soft", "trainable": True, "accumulated": 2},
    **cases("CAPTURED"),
}


@gpu
@pytest.mark.parametrize("kind", KINDS)
def test_training_with_graphs_has_the_losses_of_training_without(kind: str, tmp_path: Path):
    """With dropout and samples: a graph draws the random numbers that its operations would."""
    eager, _ = train(tmp_path, False, **copy.deepcopy(KINDS[kind]))
    captured, graphs = train(tmp_path, True, **copy.deepcopy(KINDS[kind]))
    assert captured[:10] == pytest.approx(eager[:10], rel=0.02)  # rounding grows from step to step
    assert eager[-1] != pytest.approx(eager[0], rel=1e-3)
    assert (graphs == 0) == (kind == "waiting")
