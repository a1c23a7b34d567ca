import math

import torch

from showattendtell.model.attention import SoftAttention


def tiny_attention(gate: bool = True) -> SoftAttention:
    """D = n = A = 1, every weight 1 but b = 0 and the gate's bias = -1."""
    attention = SoftAttention(region_dim=1, hidden_dim=1, width=1, gate=gate)
    for layer in (attention.key, attention.query, attention.score):
        torch.nn.init.ones_(layer.weight)
    torch.nn.init.zeros_(attention.query.bias)
    if attention.gate is not None:
        torch.nn.init.ones_(attention.gate.weight)
        torch.nn.init.constant_(attention.gate.bias, -1.0)
    return attention


def test_two_regions_worked_by_hand():
    attention = tiny_attention()
    glimpse = attention(attention.remember(torch.tensor([[[0.0], [2.0]]])), torch.tensor([[1.0]]))

    first, second = math.tanh(0 + 1), math.tanh(2 + 1)
    alpha = math.exp(second) / (math.exp(first) + math.exp(second))
    beta = 1 / (1 + math.exp(-(1 - 1)))
    torch.testing.assert_close(glimpse.weights, torch.tensor([[1 - alpha, alpha]]))
    torch.testing.assert_close(glimpse.gate, torch.tensor([beta]))
    torch.testing.assert_close(glimpse.context, torch.tensor([[beta * alpha * 2.0]]))


def test_without_a_gate_beta_is_one_and_the_context_is_the_plain_expectation():
    attention = tiny_attention(gate=False)
    regions = torch.tensor([[[0.0], [2.0]]])
    glimpse = attention(attention.remember(regions), torch.tensor([[1.0]]))
    assert glimpse.gate.item() == 1
    torch.testing.assert_close(glimpse.context, (glimpse.weights.unsqueeze(-1) * regions).sum(dim=1))


def test_captions_that_share_an_image_get_what_they_would_get_alone():
    torch.manual_seed(0)
    attention = SoftAttention(region_dim=5, hidden_dim=4, width=3)
    regions, hidden = torch.randn(2, 6, 5), torch.randn(6, 4)
    shared = attention(attention.remember(regions), hidden)
    for row in range(6):
        alone = attention(attention.remember(regions[row // 3 : row // 3 + 1]), hidden[row : row + 1])
        for together, single in zip(shared, alone, strict=True):
            torch.testing.assert_close(together[row], single[0])


def test_weights_are_a_distribution_over_the_regions():
    torch.manual_seed(0)
    attention = SoftAttention(region_dim=5, hidden_dim=4, width=3)
    weights = attention(attention.remember(100 * torch.randn(3, 7, 5)), torch.randn(3, 4)).weights
    assert (weights >= 0).all()
    torch.testing.assert_close(weights.sum(dim=1), torch.ones(3))
