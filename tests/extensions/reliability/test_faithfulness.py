"""Regions that are left out: what remains is an image of the others, and maps that lie are found out."""

from collections.abc import Sequence

import numpy as np
import pytest
import torch
from scipy.stats import spearmanr
from small_models import KINDS, VOCABULARY, D, Grids, small_captioner
from torch import nn

from showattendtell.decoding.beam_search import BeamSearch
from showattendtell.decoding.image_captioner import ImageCaptioner
from showattendtell.errors import UserError
from showattendtell.extensions.reliability.faithfulness import (
    check_intervention,
    compare_with_random,
    curve_areas,
    measure_faithfulness,
    num_deleted,
    rank_agreement,
    region_effects,
    score_words,
)
from showattendtell.models.attention import SoftAttention
from showattendtell.models.captioner import Captioner
from showattendtell.models.decoder import LSTMDecoder
from showattendtell.models.interfaces import AttentionCache, AttentionOutput, DecoderState
from showattendtell.types import Caption, Example

TOKENS = torch.tensor([4, 5, 6, 2])
REGIONS = torch.randn(9, D, generator=torch.Generator().manual_seed(0))


def model_of(captioner: Captioner) -> ImageCaptioner:
    return ImageCaptioner(Grids(), captioner, VOCABULARY, BeamSearch()).eval()  # type: ignore[arg-type]


@pytest.mark.parametrize(("attention", "decoder"), KINDS)
@torch.no_grad()
def test_an_effect_is_the_difference_to_an_image_without_the_region(attention: str, decoder: str):
    captioner = small_captioner(attention, decoder)
    [log_p] = score_words(captioner, REGIONS.unsqueeze(0), TOKENS)[1]
    _, effects = region_effects(captioner, REGIONS, TOKENS)
    for region in range(9):
        others = torch.cat([REGIONS[:region], REGIONS[region + 1 :]]).unsqueeze(0)
        trace = captioner(others, torch.tensor([0]), TOKENS.unsqueeze(0))
        expected = trace.at_steps(trace.logits.log_softmax(dim=1).gather(1, TOKENS[trace.indices].unsqueeze(1)))
        np.testing.assert_allclose(log_p - effects[:, region], expected[0, :, 0].numpy(), atol=1e-5)


class FirstRegion(SoftAttention):
    """All weight on one region; the map says so, or claims that it is on the last one."""

    honest = True

    def forward(self, cache: AttentionCache, state: DecoderState) -> AttentionOutput:
        output = super().forward(cache, state)
        weights = torch.zeros_like(output.weights)
        weights[:, 0 if self.honest else -1] = 1
        context = cache.regions[:, 0].repeat_interleave(len(weights) // len(cache.regions), dim=0)
        return output._replace(context=context, weights=weights)


@torch.no_grad()
def test_curves_are_those_of_a_brute_force():
    captioner, words = small_captioner(), TOKENS[:3]
    weights, rng = np.arange(9.0), np.random.default_rng(0)

    def p(kept: Sequence[int]) -> float:
        trace = captioner(REGIONS[list(kept)].unsqueeze(0), torch.tensor([0]), words.unsqueeze(0))
        log_p = trace.logits.log_softmax(dim=1).gather(1, words[trace.indices].unsqueeze(1))
        return trace.at_steps(log_p).exp()[0, -1].item()

    [found] = curve_areas(captioner, REGIONS, words, weights[np.newaxis], rng)
    order, removed = list(range(8, -1, -1)), [0, 2, 4, 5, 7]
    deletion = [p(order[number:]) for number in removed]
    insertion = [p(order[: 9 - number]) for number in removed]
    assert found == pytest.approx([np.trapezoid(ps, removed) / 7 for ps in (deletion, insertion)], abs=1e-6)


def measured(captioner: Captioner) -> dict[str, dict[str, float]]:
    grids = torch.randn(15, 9, D, generator=torch.Generator().manual_seed(1))
    examples = [Example(str(number), "", (Caption(("a",)),)) for number in range(15)]
    captions = {one.image: ["a", "dog", "runs"] for one in examples}
    given = model_of(captioner), lambda positions, draw=None: grids[list(positions)], examples, captions
    return measure_faithfulness(*given)["maps"]


def planted(honest: bool) -> Captioner:
    """A model that reads the first region only, and begins alike for all images."""
    torch.manual_seed(1)
    attention = FirstRegion(D, 8)
    attention.honest = honest
    captioner = Captioner(attention, LSTMDecoder(len(VOCABULARY), D, 5, 8))
    for parameter in captioner.parameters():
        nn.init.normal_(parameter, std=0.8)
    for parameter in captioner.decoder.first_state.parameters():  # type: ignore[union-attr]
        nn.init.zeros_(parameter)
    return captioner.eval()


def test_a_planted_unfaithful_map_is_exposed():
    honest, lying = (measured(planted(honest)) for honest in (True, False))
    assert honest["attention"]["magnitude_correlation"] > 0.7
    assert lying["attention"]["magnitude_correlation"] < 0.2


def test_attention_that_draws_and_a_single_region_are_refused():
    captioner = small_captioner("hard, argmax")
    captioner.attention.inference_mode = "sample"  # type: ignore[assignment]
    with pytest.raises(UserError, match=r"lost in the noise; set attention\.inference_mode=argmax"):
        check_intervention(model_of(captioner))
    model = model_of(small_captioner())
    model.encoder.grid = (1, 1)
    with pytest.raises(UserError, match="a single region per image, and nothing to leave out"):
        check_intervention(model)


# scores of maps against effects


@pytest.mark.parametrize("ties", [False, True])
def test_rank_correlation_is_scipys(ties: bool):
    rng = np.random.default_rng(0)
    for _ in range(20):
        weights, effects = rng.random(49), rng.normal(size=49)
        if ties:
            weights, effects = weights.round(1), effects.round()
        expected = [spearmanr(weights, sizes).statistic for sizes in (effects, abs(effects))]
        constant = np.full(49, 0.02)  # has no rank
        assert rank_agreement(np.stack([weights, constant]), effects) == pytest.approx(np.array([expected, [0, 0]]))


@pytest.mark.parametrize(("regions", "numbers"), [(10, [2, 4, 6, 8]), (81, [16, 32, 49, 65]), (2, [1]), (4, [1, 2, 3])])
def test_curves_leave_out_some_regions_and_keep_some(regions: int, numbers: list[int]):
    assert num_deleted(regions) == numbers


def test_differences_to_random_maps_are_paired():
    """The areas of random maps differ by more than the intervals are wide."""
    rng = np.random.default_rng(1)
    chance = rng.random(200)
    deletion = [chance - 0.1 + rng.normal(scale=0.1, size=200), chance, np.zeros(200)]
    areas = np.stack([deletion, np.ones((3, 200))], axis=2).swapaxes(0, 1)
    difference = compare_with_random(areas)["deletion"]
    assert difference["difference"] == pytest.approx(-0.1, abs=0.02)
    assert difference["high"] - difference["low"] == pytest.approx(2 * 1.96 * 0.1 / 200**0.5, rel=0.2)
    assert difference["high"] < 0
    assert difference["higher"] < 0.01
