import math
from functools import partial

import pytest
import torch

from showattendtell.models.attention import AdaptiveAttention, MeanAttention, SoftAttention
from showattendtell.models.interfaces import DecoderState
from showattendtell.models.scores import MultiheadScore

D, N, L = 6, 4, 7


def state(captions: int) -> DecoderState:
    return DecoderState(torch.randn(captions, N), torch.randn(captions, N))


def test_two_regions_worked_by_hand():
    """D = n = A = 1, every weight 1 but b = 0 and the gate's bias = -1."""
    attention = SoftAttention(region_dim=1, hidden_dim=1)
    for layer in (attention.score.key, attention.score.query, attention.score.score, attention.gate):
        torch.nn.init.ones_(layer.weight)
    torch.nn.init.zeros_(attention.score.query.bias)
    torch.nn.init.constant_(attention.gate.bias, -1.0)
    one = torch.tensor([[1.0]])
    glimpse = attention(attention.precompute(torch.tensor([[[0.0], [2.0]]])), DecoderState(one, one))

    first, second = math.tanh(0 + 1), math.tanh(2 + 1)
    alpha = math.exp(second) / (math.exp(first) + math.exp(second))
    beta = 1 / (1 + math.exp(-(1 - 1)))
    torch.testing.assert_close(glimpse.weights, torch.tensor([[1 - alpha, alpha]]))
    torch.testing.assert_close(glimpse.gate, torch.tensor([beta]))
    torch.testing.assert_close(glimpse.context, torch.tensor([[beta * alpha * 2.0]]))


def test_a_gate_per_channel_scales_each_channel_by_its_own_sigmoid():
    torch.manual_seed(0)
    open_gate, gated = (SoftAttention(D, N, gate=gate) for gate in ("none", "channel"))
    gated.load_state_dict(open_gate.state_dict(), strict=False)
    regions, now = torch.randn(2, L, D), state(2)
    beta = torch.sigmoid(gated.gate(now.hidden))
    context = open_gate(open_gate.precompute(regions), now).context
    glimpse = gated(gated.precompute(regions), now)
    torch.testing.assert_close(glimpse.context, beta * context)
    torch.testing.assert_close(glimpse.gate, beta.mean(dim=1))
    assert beta.shape == (2, D)


def test_each_head_reads_its_own_part_as_torchs_multi_head_attention_does():
    torch.manual_seed(0)
    attention = SoftAttention(D, D, score=partial(MultiheadScore, num_heads=3), gate="none")
    for parameter in attention.parameters():
        torch.nn.init.normal_(parameter)
    torchs = torch.nn.MultiheadAttention(D, num_heads=3, batch_first=True)
    with torch.no_grad():
        values = attention.values.movedim(2, 1).flatten(0, 1)  # (heads, D, D / heads) to torch's (D, D)
        torchs.in_proj_weight.copy_(torch.cat([attention.score.query.weight, attention.score.key.weight, values]))
        torchs.in_proj_bias.zero_()
        torchs.in_proj_bias[:D].copy_(attention.score.query.bias)
        torchs.out_proj.weight.copy_(torch.eye(D))
        torchs.out_proj.bias.zero_()
    regions, hidden = torch.randn(2, L, D), torch.randn(2, D)
    glimpse = attention(attention.precompute(regions), DecoderState(hidden, hidden))
    context, weights = torchs(hidden.unsqueeze(1), regions, regions)
    torch.testing.assert_close(glimpse.context, context.squeeze(1))
    torch.testing.assert_close(glimpse.weights, weights.squeeze(1))


def test_where_heads_do_not_divide_the_channels_the_last_head_gives_fewer():
    torch.manual_seed(0)
    attention = SoftAttention(7, N, score=partial(MultiheadScore, width=6, num_heads=3), gate="none")
    regions, now = torch.randn(2, L, 7), state(2)
    cache = attention.precompute(regions)
    maps = attention.scores(cache, now.hidden).softmax(dim=-1).squeeze(1)  # (B, H, L)
    parts = [maps[:, head, None] @ regions @ attention.values[head] for head in range(3)]
    torch.testing.assert_close(attention(cache, now).context, torch.cat(parts, dim=2).squeeze(1)[:, :7])


def test_the_sentinel_is_one_more_region_that_the_softmax_chooses_from():
    torch.manual_seed(0)
    adaptive = AdaptiveAttention(D, N)
    regions, now = torch.randn(1, L, D), state(1)
    gate = torch.sigmoid(adaptive.sentinel_gate.weight @ now.hidden[0] + adaptive.sentinel_gate.bias)
    sentinel = adaptive.sentinel.weight @ (gate * torch.tanh(now.cell[0])) + adaptive.sentinel.bias
    soft = SoftAttention(D, N, gate="none")
    soft.load_state_dict(adaptive.state_dict(), strict=False)
    among = soft(soft.precompute(torch.cat([regions, sentinel.view(1, 1, D)], dim=1)), now)
    glimpse = adaptive(adaptive.precompute(regions), now)
    torch.testing.assert_close(glimpse.context, among.context)
    torch.testing.assert_close(glimpse.gate, 1 - among.weights[:, -1])
    torch.testing.assert_close(glimpse.weights * glimpse.gate, among.weights[:, :-1])


def test_a_sentinel_next_to_several_maps_is_refused():
    with pytest.raises(ValueError, match="needs a score with one head, got num_heads=3"):
        AdaptiveAttention(D, N, score=partial(MultiheadScore, width=6, num_heads=3))


def test_no_attention_gives_the_mean_region_at_every_step():
    torch.manual_seed(0)
    attention, regions = MeanAttention(D, N), torch.randn(2, L, D)
    glimpse = attention(attention.precompute(regions), state(4))
    torch.testing.assert_close(glimpse.context, regions.mean(dim=1).repeat_interleave(2, dim=0))
    torch.testing.assert_close(glimpse.weights, torch.full((4, L), 1 / L))
