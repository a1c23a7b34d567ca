"""What hard attention looks at; its learning rule stands in tests/test_hard_loss.py."""

from functools import partial

import pytest
import torch

from showattendtell.models.attention import SoftAttention
from showattendtell.models.hard_attention import HardAttention
from showattendtell.models.interfaces import DecoderState
from showattendtell.models.scores import MultiheadScore

D, N, L = 3, 4, 5
REGIONS = torch.randn(1, L, D, generator=torch.Generator().manual_seed(0))


def states(captions: int) -> DecoderState:
    """The same state for all."""
    return DecoderState(*torch.randn(2, 1, N, generator=torch.Generator().manual_seed(1)).expand(2, captions, N))


def hard(**settings: object) -> HardAttention:
    torch.manual_seed(2)
    attention = HardAttention(D, N, **settings)
    for parameter in attention.parameters():
        torch.nn.init.normal_(parameter)
    return attention


def look(attention: HardAttention, captions: int = 1, locations: torch.Tensor | None = None):
    cache = attention.precompute(REGIONS.expand(captions, L, D))
    return attention(cache, states(captions), locations)


@torch.no_grad()
def test_locations_are_drawn_as_often_as_alpha_says():
    glimpse = look(hard().eval(), captions=40_000)
    drawn = glimpse.sample.locations.flatten().bincount(minlength=L) / 40_000
    alpha = glimpse.weights[0]
    error = (alpha * (1 - alpha) / 40_000).sqrt()
    assert ((drawn - alpha).abs() < 4 * error).all()
    assert alpha.max() < 0.9


@pytest.mark.parametrize("training", [True, False])
def test_given_locations_are_looked_at_and_the_others_drawn(training: bool):
    attention = hard(expectation_prob=0.0).train(training)
    given = torch.tensor([[4], [-1], [2]]).repeat(30, 1)
    drawn = look(attention, captions=90, locations=given).sample.locations
    assert (drawn[given >= 0] == given[given >= 0]).all()
    assert len(drawn[given < 0].unique()) > 1


def test_the_expectation_is_soft_attention():
    attention = hard(inference_mode="expectation").eval()
    soft = SoftAttention(D, N, gate="none")
    soft.load_state_dict(attention.state_dict())
    expected = soft(soft.precompute(REGIONS), states(1))
    glimpse = look(attention)
    torch.testing.assert_close(glimpse.context, expected.context)
    torch.testing.assert_close(glimpse.weights, expected.weights)
    assert glimpse.sample.log_prob.item() == 0


def test_the_inverse_temperature_multiplies_the_scores():
    cold, warm = hard(inverse_temperature=2.0).eval(), hard().eval()
    squared = look(warm).weights.square()
    torch.testing.assert_close(look(cold).weights, squared / squared.sum())


def test_the_expectation_is_drawn_for_each_image_or_for_the_whole_batch():
    torch.manual_seed(0)
    images = torch.randn(400, L, D)
    of_images = hard(expectation_scope="image", expectation_prob=0.3).train().precompute(images).use_expectation
    assert 0.2 < of_images.float().mean() < 0.4
    attention = hard(expectation_scope="batch", expectation_prob=0.5).train()
    draws = [attention.precompute(images).use_expectation for _ in range(40)]
    assert all(draw.all() or not draw.any() for draw in draws)
    assert len({bool(draw[0]) for draw in draws}) == 2


def test_switched_images_see_the_expectation_and_the_others_one_region():
    attention = hard().train()
    cache = attention.precompute(REGIONS.expand(2, L, D))._replace(use_expectation=torch.tensor([True, False]))
    glimpse = attention(cache, states(2))
    torch.testing.assert_close(glimpse.context[0], glimpse.weights[0] @ REGIONS[0])
    torch.testing.assert_close(glimpse.context[1], REGIONS[0, glimpse.sample.locations[1, 0]])
    assert glimpse.sample.log_prob[0] == 0
    assert glimpse.sample.log_prob[1] < 0


def test_each_head_draws_its_own_location():
    attention = hard(score=partial(MultiheadScore, width=6, num_heads=3)).eval()
    glimpse = look(attention, captions=1000)
    locations = glimpse.sample.locations
    assert locations.shape == (1000, 3)
    seen = REGIONS[0, locations]  # (1000, H, D)
    expected = torch.einsum("bhd,hdv->bhv", seen, attention.values).flatten(1)
    torch.testing.assert_close(glimpse.context, expected)
    alone = [locations[:, head].bincount(minlength=L) for head in range(3)]
    assert not torch.equal(alone[0], alone[1])


def test_straight_through_looks_at_one_region_and_lets_the_gradient_pass_to_alpha():
    attention = hard(estimator="gumbel_st", expectation_prob=0.0).train()
    glimpse = look(attention)
    torch.testing.assert_close(glimpse.context, REGIONS[0, glimpse.sample.locations[0]])
    glimpse.context.sum().backward()
    assert attention.score.score.weight.grad.abs().sum() > 0


def test_leave_one_out_needs_others():
    with pytest.raises(ValueError, match="samples must be 2 or more, got 1"):
        HardAttention(D, N, estimator="rloo")
