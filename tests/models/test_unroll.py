"""Padding is left out on the processor and computed along on a GPU: losses and gradients are the same."""

from collections.abc import Callable
from functools import partial

import pytest
import torch
from extension_cases import cases
from torch import Tensor, nn

from showattendtell.losses.caption import SoftLoss, total
from showattendtell.losses.reinforce import HardLoss
from showattendtell.losses.self_critical import log_prob
from showattendtell.models.attention import AdaptiveAttention, MeanAttention, SoftAttention
from showattendtell.models.baselines import LogBilinearDecoder, NICDecoder
from showattendtell.models.captioner import Captioner
from showattendtell.models.decoder import LSTMDecoder
from showattendtell.models.hard_attention import HardAttention
from showattendtell.models.interfaces import Packing
from showattendtell.text.vocabulary import EOS, PAD

Parts = tuple[Tensor, ...]
"""A value, and its gradient by each parameter."""

D, N, V = 5, 4, 9
REGIONS = torch.randn(2, 6, D, generator=torch.Generator().manual_seed(1)).double()
OWNERS = torch.tensor([0, 0, 1, 1])
TOKENS = torch.tensor([[5, EOS, PAD, PAD], [4, 5, 6, EOS], [7, 8, EOS, PAD], [EOS, PAD, PAD, PAD]])

MODELS = {
    "soft": (SoftAttention, LSTMDecoder, SoftLoss),
    "hard": (partial(HardAttention, expectation_prob=1.0), LSTMDecoder, HardLoss),
    "adaptive": (AdaptiveAttention, LSTMDecoder, SoftLoss),
    "none": (MeanAttention, LSTMDecoder, SoftLoss),
    "nic": (MeanAttention, NICDecoder, SoftLoss),
    "log_bilinear": (MeanAttention, LogBilinearDecoder, SoftLoss),
    **cases("UNROLLED"),
}


def captioner_of(attention: Callable[..., nn.Module], decoder: Callable[..., nn.Module]) -> Captioner:
    torch.manual_seed(0)
    return Captioner(attention(D, N), decoder(V, D, embedding_dim=3, hidden_dim=N, dropout=0.0)).double().train()


def with_gradient(value: Tensor, captioner: Captioner) -> Parts:
    gradient = torch.autograd.grad(value.sum(), list(captioner.parameters()), allow_unused=True, materialize_grads=True)
    return value.detach(), *gradient


@pytest.mark.parametrize("rewarded", [False, True], ids=["loss", "log p of rewards"])
@pytest.mark.parametrize(("attention", "decoder", "loss"), MODELS.values(), ids=MODELS)
def test_losses_and_gradients(attention, decoder, loss, rewarded: bool, monkeypatch: pytest.MonkeyPatch):
    captioner = captioner_of(attention, decoder)
    of = {"doubly_stochastic_weight": 0.5, "label_smoothing": 0.1}

    def work() -> Parts:
        if rewarded:
            return with_gradient(log_prob(captioner, REGIONS, TOKENS), captioner)
        return with_gradient(total(loss(**of)(captioner, REGIONS, OWNERS, TOKENS).terms), captioner)

    with monkeypatch.context() as patched:
        patched.setattr(Packing, "of", Packing.with_padding)
        found = work()
    assert all(part.isfinite().all() for part in found)
    torch.testing.assert_close(found, work())


def test_words_stand_where_they_stood():
    values = torch.randn(4, 4, 2) * (TOKENS != PAD).unsqueeze(-1)
    for packing in (Packing.with_padding(TOKENS), Packing.without_padding(TOKENS)):
        torch.testing.assert_close(packing.pad(packing.pack(values)), values)
        assert sum(packing.sizes) == len(packing.indices)
        assert [rows.stop - rows.start for rows, _ in packing.steps()] == list(packing.sizes)
    assert sum(Packing.without_padding(TOKENS).sizes) == int((TOKENS != PAD).sum())
