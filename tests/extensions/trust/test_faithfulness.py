"""Regions that are left out: what remains is an image of the others, and maps that lie are found out."""

import math
from collections.abc import Sequence

import numpy as np
import pytest
import torch
from scipy.stats import spearmanr
from small_models import KINDS, VOCABULARY, D, small_captioner
from torch import Tensor, nn

from showattendtell.decoding.beam_search import BeamSearch
from showattendtell.decoding.image_captioner import ImageCaptioner
from showattendtell.errors import UserError
from showattendtell.extensions.trust.faithfulness import (
    EFFECT,
    GRADIENT,
    INTEGRATED,
    CaptionedImage,
    WordFaithfulness,
    check_intervention,
    measure_faithfulness,
    num_deleted,
    rank_agreement,
    score_faithfulness,
)
from showattendtell.models.attention import SoftAttention
from showattendtell.models.captioner import Captioner
from showattendtell.models.decoder import LSTMDecoder
from showattendtell.models.interfaces import AttentionCache, AttentionOutput, DecoderState
from showattendtell.types import Caption, Example

TOKENS = torch.tensor([4, 5, 6, 2])
REGIONS = torch.randn(9, D, generator=torch.Generator().manual_seed(0))


class Grids(nn.Module):
    """In the place of an encoder, where the regions are there already."""

    grid, region_dim = (3, 3), D

    def prepare_regions(self, regions: Tensor) -> Tensor:
        return regions


def image_of(captioner: Captioner, regions: Tensor = REGIONS) -> CaptionedImage:
    return CaptionedImage(captioner, regions, TOKENS.tolist())


def model_of(captioner: Captioner) -> ImageCaptioner:
    return ImageCaptioner(Grids(), captioner, VOCABULARY, BeamSearch()).eval()  # type: ignore[arg-type]


@pytest.mark.parametrize(("attention", "decoder"), KINDS)
@torch.no_grad()
def test_an_effect_is_the_difference_to_an_image_without_the_region(attention: str, decoder: str):
    captioner = small_captioner(attention, decoder)
    _, log_p, effects = image_of(captioner).region_effects()
    for region in range(9):
        others = torch.cat([REGIONS[:region], REGIONS[region + 1 :]]).unsqueeze(0)
        trace = captioner(others, torch.tensor([0]), TOKENS.unsqueeze(0))
        expected = trace.at_steps(trace.logits.log_softmax(dim=1).gather(1, TOKENS[trace.indices].unsqueeze(1)))
        np.testing.assert_allclose(log_p - effects[:, region], expected[0, :, 0].numpy(), atol=1e-5)


@pytest.mark.parametrize(("attention", "decoder"), KINDS)
def test_every_kind_of_captioner_is_measured(attention: str, decoder: str):
    captioner = small_captioner(attention, decoder)
    for parameter in captioner.parameters():
        nn.init.normal_(parameter, std=0.5)
    maps = measured(captioner, images=3)
    assert maps.keys() == {"attention", "random", "center", EFFECT, GRADIENT, INTEGRATED}
    assert maps[EFFECT]["rank_correlation"] == pytest.approx(1)
    assert all(np.isfinite(list(one.values())).all() for one in maps.values())


def without_start(captioner: Captioner) -> Captioner:
    """Make the first state of a decoder the same for all images."""
    for parameter in captioner.decoder.first_state.parameters():  # type: ignore[union-attr]
        nn.init.zeros_(parameter)
    return captioner


@torch.no_grad()
def test_a_region_that_nothing_reads_has_no_effect():
    """The attention of a decoder without a start from the image, with all weight on the first region."""
    captioner = without_start(Captioner(FirstRegion(D, 8), LSTMDecoder(len(VOCABULARY), D, 5, 8))).eval()
    effects = image_of(captioner).region_effects()[2]
    np.testing.assert_allclose(effects[:, 1:], 0, atol=1e-6)


class FirstRegion(SoftAttention):
    """All weight on one region; the map says so, or claims that it is on the last one."""

    honest = True

    def forward(self, cache: AttentionCache, state: DecoderState) -> AttentionOutput:
        output = super().forward(cache, state)
        weights = torch.zeros_like(output.weights)
        weights[:, 0 if self.honest else -1] = 1
        context = cache.regions[:, 0].repeat_interleave(len(weights) // len(cache.regions), dim=0)
        return output._replace(context=context, weights=weights)


def log_p_of(captioner: Captioner, regions: Tensor, word: int) -> float:
    with torch.no_grad():
        return -image_of(captioner).cross_entropy(regions.unsqueeze(0), word).nll.item()


def test_integrated_gradients_sum_to_the_difference_to_an_image_of_zeros():
    captioner = small_captioner()
    for parameter in captioner.parameters():
        parameter.data *= 0.3  # nearly linear: a few steps are exact enough
    maps = image_of(captioner).gradient_maps(2)
    ends = [log_p_of(captioner, scale * REGIONS, 2) for scale in (0, 1)]
    assert maps[INTEGRATED].sum() == pytest.approx(ends[1] - ends[0], abs=1e-3)


def test_gradient_times_input_is_that_of_finite_differences():
    captioner, step = small_captioner(), 1e-2
    maps = image_of(captioner).gradient_maps(1)
    for region in (0, 4):
        scaled = []
        for factor in (1 - step, 1 + step):
            changed = REGIONS.clone()
            changed[region] *= factor
            scaled.append(log_p_of(captioner, changed, 1))
        assert maps[GRADIENT][region] == pytest.approx((scaled[1] - scaled[0]) / (2 * step), abs=5e-3)


def test_curves_are_those_of_a_brute_force():
    captioner, word = small_captioner(), 2
    weights, rng = np.arange(9.0), np.random.default_rng(0)

    def p(kept: Sequence[int]) -> float:
        return float(np.exp(log_p_of(captioner, REGIONS[list(kept)], word)))

    found = image_of(captioner).areas(word, {"map": weights}, p(range(9)), rng)["map"]
    order, removed = list(range(8, -1, -1)), [0, 2, 4, 5, 7]
    deletion = [p(order[number:]) for number in removed]
    insertion = [p(order[: 9 - number]) for number in removed]
    expected = {"deletion": deletion, "insertion": insertion}
    assert found == pytest.approx({name: np.trapezoid(ps, removed) / 7 for name, ps in expected.items()}, abs=1e-6)


def measured(captioner: Captioner, images: int = 40) -> dict[str, dict[str, float]]:
    grids = torch.randn(images, 9, D, generator=torch.Generator().manual_seed(1))
    examples = [Example(str(number), "", (Caption(("a",)),)) for number in range(images)]
    captions = {one.image: ["a", "dog", "runs"] for one in examples}

    def read(positions: list[int], draw: tuple[int, int] = (0, 0)) -> torch.Tensor:
        return grids[list(positions)]

    return measure_faithfulness(model_of(captioner), read, examples, captions).maps


def planted(honest: bool) -> Captioner:
    """A model that reads the first region only."""
    torch.manual_seed(1)
    attention = FirstRegion(D, 8)
    attention.honest = honest
    captioner = Captioner(attention, LSTMDecoder(len(VOCABULARY), D, 5, 8))
    for parameter in captioner.parameters():
        nn.init.normal_(parameter, std=0.8)
    return without_start(captioner).eval()


def test_a_planted_unfaithful_map_is_exposed():
    honest, lying = (measured(planted(honest), images=15) for honest in (True, False))
    assert honest["attention"]["magnitude_correlation"] > 0.7
    assert lying["attention"]["magnitude_correlation"] < 0.2
    assert honest[EFFECT] == pytest.approx(lying[EFFECT])


def test_the_map_of_no_attention_is_no_better_than_chance():
    maps = measured(small_captioner("none"))
    deletion = {name: one["deletion"] for name, one in maps.items()}
    assert maps["attention"]["rank_correlation"] == 0
    assert deletion["attention"] == pytest.approx(deletion["random"], abs=0.03)
    assert deletion[EFFECT] < deletion["random"]


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
        expected = spearmanr(weights, effects).statistic
        found = rank_agreement(weights, effects)
        assert found["rank_correlation"] == pytest.approx(expected, abs=1e-12)
        assert found["magnitude_correlation"] == pytest.approx(spearmanr(weights, abs(effects)).statistic, abs=1e-12)


def test_a_constant_map_has_no_rank_and_hits_as_often_as_chance():
    found = rank_agreement(np.full(50, 0.02), np.arange(50.0))
    assert found["rank_correlation"] == 0
    assert found["top_tenth"] == pytest.approx(5 / 50)


@pytest.mark.parametrize(("place", "hit"), [(19, 1), (18, 1), (17, 0), (0, 0)])
def test_the_largest_weight_hits_the_tenth_with_the_largest_effects(place: int, hit: int):
    weights = np.zeros(20)
    weights[place] = 1
    assert rank_agreement(weights, np.arange(20.0))["top_tenth"] == hit


@pytest.mark.parametrize(("regions", "numbers"), [(10, [2, 4, 6, 8]), (81, [16, 32, 49, 65]), (2, [1]), (4, [1, 2, 3])])
def test_curves_leave_out_some_regions_and_keep_some(regions: int, numbers: list[int]):
    assert num_deleted(regions) == numbers


def compared(number: int, better: float) -> list[WordFaithfulness]:
    """Words of different images, at which attention has a smaller deletion area than random maps, by `better` on
    average."""
    rng = np.random.default_rng(1)
    words = []
    for image in range(number):
        chance = rng.random()
        maps = {
            "attention": {
                "rank_correlation": 0.5,
                "deletion": chance - better + rng.normal(scale=0.1),
                "insertion": 0.9,
            },
            "random": {"rank_correlation": 0.0, "deletion": chance, "insertion": 0.5},
        }
        words.append(WordFaithfulness(maps, rng.random(), str(image)))
    return words


def test_differences_to_random_maps_are_paired():
    scores = score_faithfulness(compared(200, 0.1))
    difference = scores.against_random["attention"]["deletion"]
    assert difference["difference"] == pytest.approx(-0.1, abs=0.02)
    assert difference["low"] < difference["difference"] < difference["high"] < 0
    assert difference["higher"] < 0.01
    chance = score_faithfulness(compared(200, 0.0)).against_random["attention"]["deletion"]
    assert chance["low"] < 0 < chance["high"]


def test_intervals_are_those_of_images_drawn_again():
    """Words of an image come together; an image with more words counts more."""
    rng = np.random.default_rng(2)
    by_image = [list(rng.normal(level, 0.1, size=rng.integers(1, 9))) for level in rng.normal(size=30)]
    words = [
        WordFaithfulness({"attention": {"rank_correlation": value}}, 0.0, str(image))
        for image, values in enumerate(by_image)
        for value in values
    ]
    low, high = score_faithfulness(words, resamples=4000).intervals["attention"]["rank_correlation"]
    drawn = [np.concatenate([by_image[image] for image in rng.integers(30, size=30)]).mean() for _ in range(4000)]
    np.testing.assert_allclose((low, high), np.percentile(drawn, (2.5, 97.5)), atol=0.04)
    mean = np.concatenate(by_image).mean()
    naive = 1.96 * np.concatenate(by_image).std() / len(words) ** 0.5
    assert low < mean < high
    assert high - low > 3 * naive, "words of an image are not independent"
    assert score_faithfulness(words).intervals["attention"].keys() == {"rank_correlation"}


def test_the_intervals_of_differences_are_those_of_images_drawn_again():
    """Each word of an image is given several times, which adds nothing to what is known."""
    once = compared(30, 0.1)
    repeated = [word for word in once for _ in range(9)]
    expected, found = (score_faithfulness(words).against_random["attention"] for words in (once, repeated))
    for field in ("deletion", "insertion"):
        assert found[field] == pytest.approx(expected[field])


def test_words_without_curves_count_for_the_ranks_alone():
    words = [*compared(3, 0.1), WordFaithfulness({"attention": {"rank_correlation": -1.0}}, 9.0)]
    scores = score_faithfulness(words)
    assert (scores.words, scores.curves) == (4, 3)
    assert scores.maps["attention"]["rank_correlation"] == pytest.approx((3 * 0.5 - 1) / 4)
    assert scores.maps["attention"]["insertion"] == pytest.approx(0.9)
    assert scores.largest_effect == np.median([word.largest_effect for word in words])


def test_without_words_there_are_no_scores():
    scores = score_faithfulness([])
    assert (scores.maps, scores.words) == ({}, 0)
    assert math.isnan(scores.largest_effect)
