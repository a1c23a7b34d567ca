import math
from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from traces import trace_of

from showattendtell.errors import UserError
from showattendtell.losses.caption import (
    LossOutput,
    SoftLoss,
    attention_cross_entropy,
    caption_cross_entropy,
    doubly_stochastic_penalty,
    negative_log_correctness,
    negative_log_likelihood,
)
from showattendtell.losses.reinforce import HardLoss
from showattendtell.models.attention import AdaptiveAttention, SoftAttention
from showattendtell.models.captioner import Captioner
from showattendtell.models.decoder import LSTMDecoder
from showattendtell.models.hard_attention import HardAttention
from showattendtell.models.scores import AdditiveScore, MultiheadScore
from showattendtell.text.vocabulary import EOS, PAD
from showattendtell.types import AttentionTargets, CaptionerOutput


def saying(logits: Tensor) -> CaptionerOutput:
    return trace_of(logits, logits.new_ones(*logits.shape[:2], 1), logits.new_ones(logits.shape[:2]))


def test_negative_log_likelihood_worked_by_hand():
    logits = torch.tensor([[0.0, 0.0, math.log(2), 0.0, 0.0], [0.0, 0.0, 0.0, 0.0, math.log(4)]]).repeat(2, 1, 1)
    tokens = torch.tensor([[4, EOS], [EOS, PAD]])
    expected = [-math.log(1 / 6) - math.log(1 / 8), -math.log(2 / 6)]
    torch.testing.assert_close(negative_log_likelihood(saying(logits), tokens), torch.tensor(expected))


def test_label_smoothing_mixes_the_word_with_the_uniform_distribution():
    torch.manual_seed(0)
    logits, tokens = torch.randn(1, 1, 6), torch.tensor([[4]])
    log_p = logits.log_softmax(dim=-1)[0, 0]
    expected = -(0.9 * log_p[4] + 0.1 * log_p.mean())
    cost = caption_cross_entropy(saying(logits), tokens, label_smoothing=0.1)
    torch.testing.assert_close(cost.loss[0], expected)
    torch.testing.assert_close(cost.nll[0], -log_p[4])


def test_doubly_stochastic_penalty_worked_by_hand():
    weights = torch.tensor([[[0.5, 0.5, 0.0], [0.25, 0.25, 0.5], [1.0, 0.0, 0.0]]])
    seen_twice = torch.tensor([[True, True, False]])
    expected = (1 - 0.75) ** 2 + (1 - 0.75) ** 2 + (1 - 0.5) ** 2
    torch.testing.assert_close(doubly_stochastic_penalty(weights, seen_twice), torch.tensor([expected]))


class Saying(nn.Module):
    """Stands in a captioner's place: says the trace that it was given, row by row."""

    def __init__(self, trace: CaptionerOutput):
        super().__init__()
        self.trace = trace

    def forward(self, regions: Tensor, image_index: Tensor, tokens: Tensor) -> CaptionerOutput:
        return self.trace


def loss_of(
    trace: CaptionerOutput, tokens: Tensor, targets: AttentionTargets | None = None, **settings: object
) -> LossOutput:
    regions, image_index = torch.zeros(1, trace.weights.shape[2], 1), torch.zeros(len(tokens), dtype=torch.long)
    return SoftLoss(**settings)(Saying(trace), regions, image_index, tokens, targets=targets)


def test_the_supervision_worked_by_hand():
    """Two words with boxes in two captions: -(0.5 log 0.5 + 0.5 log 0.25) and -log 0.7; the others add nothing."""
    weights = torch.tensor([[[0.5, 0.25, 0.25], [0.2, 0.2, 0.6]], [[0.1, 0.2, 0.7], [0.0, 1.0, 0.0]]])
    targets = AttentionTargets(torch.tensor([0, 2]), torch.tensor([[0.5, 0.5, 0.0], [0.0, 0.0, 1.0]]))
    trace, tokens = trace_of(torch.randn(2, 2, 7), weights, torch.ones(2, 2)), torch.tensor([[4, EOS], [5, EOS]])
    output = loss_of(trace, tokens, targets, supervision_weight=0.6)
    expected = (1.5 * math.log(2) - math.log(0.7)) / 2
    torch.testing.assert_close(output.terms["supervision"], torch.tensor(0.6 * expected))
    torch.testing.assert_close(output.metrics["attention_supervision"], torch.tensor(expected))


def test_a_batch_without_boxes_and_one_without_targets():
    tokens, trace = torch.tensor([[4, EOS]]), trace_of(torch.randn(1, 2, 7), torch.rand(1, 2, 3), torch.rand(1, 2))
    nothing = AttentionTargets(torch.zeros(0, dtype=torch.long), torch.zeros(0, 3))
    assert loss_of(trace, tokens, nothing, supervision_weight=1.0).terms["supervision"] == 0
    with pytest.raises(UserError, match=r"loss\.supervision_weight needs batches with attention targets"):
        loss_of(trace, tokens, supervision_weight=1.0)


def test_a_weight_that_is_rounded_to_zero_gives_a_finite_loss():
    weights = torch.tensor([[[0.0, 1.0]]], requires_grad=True)
    cost = attention_cross_entropy(weights, torch.tensor([[[1.0, 0.0]]]))
    cost.sum().backward()
    assert cost.isfinite().all()
    assert weights.grad is not None
    assert weights.grad.isfinite().all()


def test_correctness_is_the_attention_inside_of_the_boxes():
    """A box over the first region and half of the second: 0.4 + 0.2 / 2; a word without boxes costs nothing."""
    weights = torch.tensor([[[0.4, 0.2, 0.4], [0.1, 0.1, 0.8]]])
    maps = torch.tensor([[[2 / 3, 1 / 3, 0.0], [0.0, 0.0, 0.0]]])
    torch.testing.assert_close(negative_log_correctness(weights, maps), torch.tensor([-math.log(0.5)]))
    concentrated = torch.tensor([[[1.0, 0.0, 0.0], [0.1, 0.1, 0.8]]])
    assert negative_log_correctness(concentrated, maps).item() == pytest.approx(0.0)
    assert attention_cross_entropy(concentrated, maps).item() > 10


@pytest.mark.parametrize("supervision_loss", ["cross_entropy", "correctness"])
@pytest.mark.parametrize("attention", ["soft", "multihead", "adaptive", "hard", "hard, rloo"])
def test_supervision_has_the_gradient_of_the_plain_formula(attention: str, supervision_loss: Any):
    """For each caption and word with boxes one by one, from the weights of the plain loop."""
    captioner = supervised_captioner(attention)
    torch.manual_seed(0)
    regions, image_index = torch.randn(2, 4, 3).double(), torch.tensor([0, 1, 1])
    tokens = torch.tensor([[4, 5, EOS], [6, EOS, PAD], [5, 4, EOS]])
    masses = torch.rand(3, 4).double()
    targets = AttentionTargets(torch.tensor([1, 3, 7]), masses / masses.sum(dim=1, keepdim=True))
    kind = HardLoss if "hard" in attention else SoftLoss
    loss = kind(supervision_weight=0.7, supervision_loss=supervision_loss).double()
    torch.manual_seed(3)
    output = loss(captioner, regions, image_index, tokens, targets=targets)
    weights = output.outputs.weights.unflatten(0, (-1, 3))  # (N, B, T, L)
    plain, num_paths = torch.tensor(0.0).double(), weights[:, :, 0, 0].numel()
    for place, mass in zip(targets.indices.tolist(), targets.masses, strict=True):
        maps = weights[:, place // 3, place % 3]  # (N, L)
        inside = (maps * mass / mass.max()).sum(dim=1).log()
        plain -= ((mass * maps.log()).sum() if supervision_loss == "cross_entropy" else inside.sum()) / num_paths
    torch.testing.assert_close(output.terms["supervision"], 0.7 * plain)
    parameters = list(captioner.parameters())
    found, expected = (
        torch.autograd.grad(value, parameters, allow_unused=True, retain_graph=True)
        for value in (output.terms["supervision"], 0.7 * plain)
    )
    torch.testing.assert_close(found, expected)


def supervised_captioner(attention: str) -> Captioner:
    torch.manual_seed(1)
    name, _, estimator = attention.partition(", ")
    settings = {"estimator": estimator or "reinforce", "num_samples": 2 if estimator == "rloo" else 1}
    score = MultiheadScore if name == "multihead" else AdditiveScore
    build = {"adaptive": AdaptiveAttention, "hard": partial(HardAttention, **settings)}.get(name, SoftAttention)
    part = build(3, 8, score=partial(score, width=8) if score is AdditiveScore else partial(score, num_heads=2))
    return Captioner(part, LSTMDecoder(7, 3, embedding_dim=5, hidden_dim=8, dropout=0.0)).double().train()


def test_the_released_codes_mean_of_the_penalty_is_over_locations():
    """alpha_c there is lambda * L / B here."""
    torch.manual_seed(0)
    tokens = torch.tensor([[4, EOS], [5, EOS]])
    trace = trace_of(torch.randn(2, 2, 7), torch.rand(2, 2, 3), torch.rand(2, 2))
    released = loss_of(trace, tokens, doubly_stochastic_weight=0.6, penalty_reduction="locations").terms[
        "doubly_stochastic"
    ]
    paper = loss_of(trace, tokens, doubly_stochastic_weight=0.6 * 2 / 3).terms["doubly_stochastic"]
    torch.testing.assert_close(released, paper)
