"""Each score against its equation, written out for one region and one state at a time."""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor
from torch.nn.functional import cosine_similarity

from showattendtell.models.scores import (
    AdditiveScore,
    CosineScore,
    DotScore,
    GeneralScore,
    MultiheadScore,
    ScoreFunction,
)

D, N, A, HEADS = 6, 4, 6, 3


def additive(score: AdditiveScore, region: Tensor, hidden: Tensor) -> Tensor:
    return score.score.weight @ torch.tanh(score.key.weight @ region + score.query.weight @ hidden + score.query.bias)


def dot(score: DotScore, region: Tensor, hidden: Tensor) -> Tensor:
    return (score.key.weight @ region) @ (score.query.weight @ hidden + score.query.bias)


def general(score: GeneralScore, region: Tensor, hidden: Tensor) -> Tensor:
    return hidden @ score.key.weight @ region


def cosine(score: CosineScore, region: Tensor, hidden: Tensor) -> Tensor:
    query = score.query.weight @ hidden + score.query.bias
    return score.scale * cosine_similarity(score.key.weight @ region, query, dim=0)


def multihead(score: MultiheadScore, region: Tensor, hidden: Tensor) -> Tensor:
    keys = (score.key.weight @ region).chunk(HEADS)
    queries = (score.query.weight @ hidden + score.query.bias).chunk(HEADS)
    return torch.stack([key @ query / (A / HEADS) ** 0.5 for key, query in zip(keys, queries, strict=True)])


SCORES: list[tuple[ScoreFunction, Callable[..., Tensor]]] = [
    (AdditiveScore(D, N, width=A), additive),
    (DotScore(D, N, width=A), dot),
    (GeneralScore(D, N), general),
    (CosineScore(D, N, width=A, scale=3.0), cosine),
    (MultiheadScore(D, N, width=A, num_heads=HEADS), multihead),
]


@pytest.mark.parametrize(("score", "equation"), SCORES, ids=lambda part: getattr(part, "__name__", ""))
def test_a_score_is_its_equation_for_every_region_and_caption(score: ScoreFunction, equation: Callable[..., Tensor]):
    torch.manual_seed(0)
    for parameter in score.parameters():
        torch.nn.init.normal_(parameter)
    regions, hidden = torch.randn(2, 5, D), torch.randn(2, 3, N)
    scores = score(score.precompute(regions), hidden)
    assert scores.shape == (2, 3, score.num_heads, 5)
    for image in range(2):
        for caption in range(3):
            for region in range(5):
                by_hand = equation(score, regions[image, region], hidden[image, caption]).reshape(-1)
                torch.testing.assert_close(scores[image, caption, :, region], by_hand, rtol=1e-4, atol=1e-5)


def test_layers_behind_the_first_are_tanh_of_linear_on_the_annotations_side():
    torch.manual_seed(0)
    score = AdditiveScore(D, N, width=A, depth=3)
    region, hidden = torch.randn(D), torch.randn(N)
    key = score.key.weight @ region
    for layer in score.deeper:
        key = torch.tanh(layer.weight @ key + layer.bias)
    by_hand = score.score.weight @ torch.tanh(key + score.query(hidden))
    torch.testing.assert_close(score(score.precompute(region.view(1, 1, D)), hidden.view(1, 1, N)).flatten(), by_hand)


@pytest.mark.parametrize("heads", [4, 5])
def test_heads_that_do_not_divide_the_width_are_refused(heads: int):
    with pytest.raises(ValueError, match=f"got num_heads={heads}"):
        MultiheadScore(D, N, width=A, num_heads=heads)
