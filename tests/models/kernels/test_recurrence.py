"""All steps in one go are held against the same steps one by one, which are held against the paper's equations."""

from collections.abc import Callable
from functools import partial

import pytest
import torch
from torch import Tensor

from showattendtell.losses.caption import SoftLoss, total
from showattendtell.losses.reinforce import HardLoss
from showattendtell.models import decoder as decoder_module
from showattendtell.models.attention import SoftAttention
from showattendtell.models.captioner import Captioner
from showattendtell.models.decoder import LSTMDecoder
from showattendtell.models.hard_attention import HardAttention
from showattendtell.models.interfaces import Attention, AttentionCache, AttentionOutput, DecoderState, is_fused
from showattendtell.models.kernels import attention as kernels
from showattendtell.models.kernels import recurrence
from showattendtell.text.vocabulary import EOS, PAD

D, N, V = 7, 6, 11
OWNERS = torch.tensor([2, 0, 1, 0, 2])
TOKENS = torch.tensor([[4, 5, EOS, PAD], [4, 5, 6, EOS], [7, EOS, PAD, PAD], [9, 9, 9, EOS], [4, EOS, PAD, PAD]])

Make = Callable[[int, int], Attention]
KINDS: dict[str, tuple[Make, Callable[[], SoftLoss]]] = {
    "soft": (SoftAttention, SoftLoss),
    "soft, a gate a channel": (partial(SoftAttention, gate="channel"), SoftLoss),
    "soft, no gate": (partial(SoftAttention, gate="none"), partial(SoftLoss, doubly_stochastic_weight=0.3)),
    "hard": (
        partial(HardAttention, expectation_prob=0.5),
        partial(HardLoss, reward_weight=0.1, doubly_stochastic_weight=0.2),
    ),
    "hard, gated": (
        partial(HardAttention, gate="scalar", inverse_temperature=2.0, expectation_prob=0.0),
        partial(HardLoss, entropy_weight=1.0),
    ),
    "hard, three samples": (partial(HardAttention, estimator="rloo", num_samples=3), HardLoss),
}


@pytest.fixture(params=KINDS)
def kind(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> tuple[Make, Callable[[], SoftLoss]]:
    """An attention and its loss; the likeliest region is drawn, so that both ways draw alike."""

    def likeliest(attention: HardAttention, weights: Tensor, given: Tensor | None) -> Tensor:
        drawn = weights.argmax(dim=-1)
        return drawn if given is None else torch.where(given.view_as(drawn) >= 0, given.view_as(drawn), drawn)

    monkeypatch.setattr(HardAttention, "sample", likeliest)
    return KINDS[request.param]


class Learner:
    """A captioner whose attention moves, and its loss.

    Args:
        spread: of the score's weights; where it is large the sums reach far beyond tanh's ends.
    """

    def __init__(
        self,
        attention: Make,
        loss: Callable[[], SoftLoss],
        dtype: torch.dtype,
        spread: float = 1.0,
        num_regions: int = 9,
    ):
        torch.manual_seed(0)
        decoder = LSTMDecoder(V, D, embedding_dim=5, hidden_dim=N, dropout=0.0)
        self.model, self.loss = Captioner(attention(D, N), decoder), loss().to(dtype)
        with torch.no_grad():
            for parameter in self.model.attention.score.parameters():
                parameter.normal_(std=spread)
        self.model.to(dtype)
        generator = torch.Generator().manual_seed(1)
        self.regions = torch.randn(3, num_regions, D, generator=generator).to(dtype).requires_grad_()

    def total(self) -> Tensor:
        torch.manual_seed(2)
        return total(self.loss(self.model, self.regions, OWNERS, TOKENS).terms)

    def gradients(self) -> dict[str, Tensor]:
        """Of the regions and of all parameters."""
        self.total().backward()
        found = {"regions": self.regions.grad} | {name: part.grad for name, part in self.model.named_parameters()}
        return {name: gradient for name, gradient in found.items() if gradient is not None}


def one_by_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(decoder_module, "is_fused", lambda *_: False)


@pytest.mark.parametrize("spread", [1.0, 30.0])
def test_gradients_are_those_of_steps_one_by_one(kind, spread: float, monkeypatch: pytest.MonkeyPatch):
    together = Learner(*kind, torch.float64, spread).gradients()
    one_by_one(monkeypatch)
    apart = Learner(*kind, torch.float64, spread).gradients()
    assert together.keys() == apart.keys()
    for name, gradient in apart.items():
        torch.testing.assert_close(together[name], gradient, rtol=1e-8, atol=1e-10, msg=name)


@pytest.mark.parametrize("way", ["compiled", "compiled but for large queries", "plain"])
@pytest.mark.parametrize("spread", [1.0, 10.0])
def test_in_single_precision_they_are_right_to_a_hundred_thousandth(
    kind, spread: float, way: str, monkeypatch: pytest.MonkeyPatch
):
    if way == "plain":
        monkeypatch.setattr(kernels, "compilable", lambda *_: False)
    elif way != "compiled":
        for module in (kernels, recurrence):
            monkeypatch.setattr(module, "MAX_QUERY", 3.0)
    exact, found = (Learner(*kind, dtype, spread).gradients() for dtype in (torch.float64, torch.float32))
    whole = torch.cat([gradient.flatten() for gradient in exact.values()]).norm()
    for name, gradient in exact.items():
        assert (found[name] - gradient).norm() <= 1e-5 * whole, name


def test_what_each_caption_saw_is_reported_at_its_own_steps(kind, monkeypatch: pytest.MonkeyPatch):
    def trace() -> tuple[Tensor, ...]:
        learner = Learner(*kind, torch.float64)
        torch.manual_seed(3)
        trace = learner.model(learner.regions, OWNERS, TOKENS)
        sample = () if trace.sample is None else trace.sample
        return trace.at_steps(trace.logits), trace.weights, trace.gates, *sample

    together = trace()
    one_by_one(monkeypatch)
    for found, expected in zip(together, trace(), strict=True):
        torch.testing.assert_close(found, expected)
    torch.testing.assert_close(together[1].sum(dim=2), (TOKENS != PAD).double())


def test_a_forward_pass_keeps_nothing_of_the_size_of_all_sums():
    learner, kept = Learner(SoftAttention, SoftLoss, torch.float32, num_regions=100), []
    with torch.autograd.graph.saved_tensors_hooks(lambda tensor: kept.append(tensor.shape), lambda kept: kept):
        learner.total()
    captions, width = len(TOKENS), N
    assert max(shape.numel() for shape in kept) < captions * 100 * width
    assert kept.count(torch.Size([3, 100, width])) == 1  # keys


class Watched(SoftAttention):
    """Counts its steps."""

    steps = 0

    def forward(self, cache: AttentionCache, state: DecoderState) -> AttentionOutput:
        self.steps += 1
        return super().forward(cache, state)


def test_an_attention_of_your_own_is_requested_at_every_step():
    decoder, watched = LSTMDecoder(V, D, embedding_dim=5, hidden_dim=N), Watched(D, N)
    assert is_fused(SoftAttention(D, N), decoder)
    Captioner(watched, decoder)(torch.randn(3, 9, D), OWNERS, TOKENS)
    assert watched.steps == TOKENS.shape[1]


def test_nothing_waits_for_numbers_where_the_processor_does_not_compute(kind):
    """Tensors on the device "meta" have no numbers: asking for one, or for a shape that depends on one, raises."""
    learner = Learner(*kind, torch.float32)
    model, loss = learner.model.to("meta"), learner.loss.to("meta")
    seen, image_index, tokens = (part.detach().to("meta") for part in (learner.regions, OWNERS, TOKENS))
    total(loss(model, seen, image_index, tokens).terms).backward()
    assert all(parameter.grad is not None for parameter in model.decoder.parameters())
