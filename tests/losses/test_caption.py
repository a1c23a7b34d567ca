import math

import torch
from torch import Tensor, nn
from traces import trace_of

from showattendtell.data.vocabulary import EOS, PAD
from showattendtell.losses.caption import (
    LossOutput,
    SoftLoss,
    cost_of_captions,
    doubly_stochastic_penalty,
    negative_log_likelihood,
    total,
)
from showattendtell.types import CaptionerOutput


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
    cost = cost_of_captions(saying(logits), tokens, label_smoothing=0.1)
    torch.testing.assert_close(cost.learned[0], expected)
    torch.testing.assert_close(cost.nll[0], -log_p[4])


def test_doubly_stochastic_penalty_worked_by_hand():
    weights = torch.tensor([[[0.5, 0.5, 0.0], [0.25, 0.25, 0.5], [1.0, 0.0, 0.0]]])
    seen_twice = torch.tensor([[True, True, False]])
    expected = (1 - 0.75) ** 2 + (1 - 0.75) ** 2 + (1 - 0.5) ** 2
    torch.testing.assert_close(doubly_stochastic_penalty(weights, seen_twice), torch.tensor([expected]))


def test_the_penalty_is_zero_when_every_region_was_looked_at_once():
    weights = torch.eye(4).unsqueeze(0)
    assert doubly_stochastic_penalty(weights, torch.ones(1, 4, dtype=torch.bool)).item() == 0


class Saying(nn.Module):
    """Stands in a captioner's place: says the trace that it was given, row by row."""

    def __init__(self, trace: CaptionerOutput):
        super().__init__()
        self.trace = trace

    def forward(self, regions: Tensor, image_index: Tensor, tokens: Tensor, read: None) -> CaptionerOutput:
        return self.trace


def loss_of(trace: CaptionerOutput, tokens: Tensor, **settings: object) -> LossOutput:
    regions = torch.zeros(1, trace.weights.shape[2], 1)
    return SoftLoss(**settings)(Saying(trace), regions, torch.zeros(len(tokens), dtype=torch.long), tokens)


def test_padding_changes_neither_term():
    torch.manual_seed(0)
    tokens = torch.tensor([[4, 5, EOS]])
    parts = torch.randn(1, 3, 7), torch.rand(1, 3, 4), torch.rand(1, 3)
    trace, padded = (
        trace_of(*each) for each in (parts, [torch.cat([part, torch.rand_like(part[:, :2])], dim=1) for part in parts])
    )
    short = loss_of(trace, tokens, attention_weight=0.5)
    long = loss_of(padded, torch.cat([tokens, torch.full((1, 2), PAD)], dim=1), attention_weight=0.5)
    torch.testing.assert_close(long.terms, short.terms)


def test_the_total_is_a_mean_over_captions_of_sums_over_words():
    torch.manual_seed(0)
    tokens = torch.tensor([[4, EOS], [5, EOS]])
    trace = trace_of(torch.randn(2, 2, 7), torch.rand(2, 2, 3), torch.rand(2, 2))
    words = negative_log_likelihood(trace, tokens)
    penalties = doubly_stochastic_penalty(trace.weights, tokens != PAD)
    together = loss_of(trace, tokens, attention_weight=0.3)
    torch.testing.assert_close(total(together.terms), ((words + 0.3 * penalties) / 2).sum())
    torch.testing.assert_close(together.nll, words.mean())


def test_the_released_codes_mean_of_the_penalty_is_over_locations():
    """alpha_c there is lambda * L / B here."""
    torch.manual_seed(0)
    tokens = torch.tensor([[4, EOS], [5, EOS]])
    trace = trace_of(torch.randn(2, 2, 7), torch.rand(2, 2, 3), torch.rand(2, 2))
    released = loss_of(trace, tokens, attention_weight=0.6, penalty_mean="locations").terms["attention"]
    paper = loss_of(trace, tokens, attention_weight=0.6 * 2 / 3).terms["attention"]
    torch.testing.assert_close(released, paper)
