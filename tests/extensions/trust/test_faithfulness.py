"""Regions that are left out: what remains is an image of the others, and maps that lie are found out."""

from collections.abc import Sequence

import numpy as np
import pytest
import torch
from small_models import ATTENTIONS, KINDS, VOCABULARY, D, small_captioner
from torch import Tensor, nn

from showattendtell.decoding.beam_search import BeamSearch
from showattendtell.decoding.image_captioner import ImageCaptioner
from showattendtell.errors import UserError
from showattendtell.extensions.trust.faithfulness import (
    EFFECT,
    GRADIENT,
    INTEGRATED,
    CaptionedImage,
    check_intervention,
    measure_faithfulness,
)
from showattendtell.inference.predictions import Predictor
from showattendtell.models.attention import SoftAttention
from showattendtell.models.captioner import Captioner
from showattendtell.models.decoder import LSTMDecoder
from showattendtell.models.encoder import Encoder
from showattendtell.models.interfaces import AttentionCache, AttentionOutput, DecoderState
from showattendtell.types import Caption, Example

TOKENS = torch.tensor([4, 5, 6, 2])
REGIONS = torch.randn(9, D, generator=torch.Generator().manual_seed(0))


class Grids(nn.Module):
    """In the place of an encoder, where the regions are there already."""

    grid, region_dim = (3, 3), D
    boxes_of = Encoder.boxes_of

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
    log_p, effects = image_of(captioner).region_effects()
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
    assert maps[EFFECT][0] == pytest.approx(1)
    assert all(value is not None and np.isfinite(value) for one in maps.values() for value in one)


def without_start(captioner: Captioner) -> Captioner:
    """Make the first state of a decoder the same for all images."""
    for parameter in captioner.decoder.first_state.parameters():  # type: ignore[union-attr]
        nn.init.zeros_(parameter)
    return captioner


@torch.no_grad()
def test_a_region_that_nothing_reads_has_no_effect():
    """The attention of a decoder without a start from the image, with all weight on the first region."""
    captioner = without_start(Captioner(FirstRegion(D, 8), LSTMDecoder(len(VOCABULARY), D, 5, 8))).eval()
    _, effects = image_of(captioner).region_effects()
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


def test_one_word_is_scored_as_in_the_whole_caption():
    captioner, kept = small_captioner(), torch.tensor([[0, 3, 8], [1, 2, 5]])
    with torch.no_grad():
        whole = image_of(captioner).log_probs_with(kept)
        for word in range(len(TOKENS)):
            one = image_of(captioner).log_probs_with(kept, word)
            np.testing.assert_allclose(one[:, 0], whole[:, word], atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("attention", sorted(ATTENTIONS.keys() & {"soft", "marginal", "marginal, step"}))
def test_integrated_gradients_sum_to_the_difference_to_an_image_of_zeros(attention: str):
    captioner = small_captioner(attention)
    for parameter in captioner.parameters():
        parameter.data *= 0.3  # nearly linear: a few steps are exact enough
    maps = image_of(captioner).gradient_maps(2)
    with torch.no_grad():
        places = torch.arange(9).unsqueeze(0)
        ends = [image_of(captioner, scale * REGIONS).log_probs_with(places, 2).item() for scale in (0, 1)]
    assert maps[INTEGRATED].sum() == pytest.approx(ends[1] - ends[0], abs=1e-3)


@pytest.mark.parametrize("attention", sorted(ATTENTIONS.keys() & {"soft", "marginal"}))
def test_gradient_times_input_is_that_of_finite_differences(attention: str):
    captioner, step = small_captioner(attention), 1e-2
    maps, places = image_of(captioner).gradient_maps(1), torch.arange(9).unsqueeze(0)
    for region in (0, 4):
        scaled = []
        for factor in (1 - step, 1 + step):
            changed = REGIONS.clone()
            changed[region] *= factor
            with torch.no_grad():
                scaled.append(image_of(captioner, changed).log_probs_with(places, 1).item())
        assert maps[GRADIENT][region] == pytest.approx((scaled[1] - scaled[0]) / (2 * step), abs=5e-3)


def test_curves_are_those_of_a_brute_force():
    captioner, word = small_captioner(), 2
    weights, rng = np.arange(9.0), np.random.default_rng(0)
    with torch.no_grad():

        def p(kept: Sequence[int]) -> float:
            return float(np.exp(image_of(captioner).log_probs_with(torch.tensor([kept]), word)).item())

        found = image_of(captioner).areas(word, {"map": weights}, p(range(9)), rng)["map"]
        order, removed = list(range(8, -1, -1)), [0, 2, 4, 5, 7]
        deletion = [p(order[number:]) for number in removed]
        insertion = [p(order[: 9 - number]) for number in reversed(removed)]
    assert found[0] == pytest.approx(np.trapezoid(deletion, removed) / 7, abs=1e-6)
    assert found[1] == pytest.approx(
        np.trapezoid(insertion, [9 - number for number in reversed(removed)]) / 7, abs=1e-6
    )


def measured(captioner: Captioner, images: int = 40) -> dict[str, tuple[float | None, ...]]:
    grids = torch.randn(images, 9, D, generator=torch.Generator().manual_seed(1))
    examples = [Example(str(number), "", (Caption(("a",)),)) for number in range(images)]
    captions = {one.image: ["a", "dog", "runs"] for one in examples}
    predictor = Predictor(model_of(captioner), lambda positions, draw=(0, 0): grids[list(positions)])
    return {name: tuple(one) for name, one in measure_faithfulness(predictor, examples, captions).maps.items()}


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
    assert (honest["attention"][1] or 0) > 0.7
    assert (lying["attention"][1] or 0) < 0.2
    assert honest[EFFECT] == pytest.approx(lying[EFFECT])


def test_the_map_of_no_attention_is_no_better_than_chance():
    maps = measured(small_captioner("none"))
    assert maps["attention"][0] == 0
    assert maps["attention"][3] == pytest.approx(maps["random"][3], abs=0.03)
    assert maps[EFFECT][3] < maps["random"][3]  # type: ignore[operator]


def test_attention_that_draws_and_a_single_region_are_refused():
    captioner = small_captioner("hard, argmax")
    captioner.attention.inference_mode = "sample"  # type: ignore[assignment]
    with pytest.raises(UserError, match=r"lost in the noise; set attention\.inference_mode=argmax"):
        check_intervention(model_of(captioner))
    model = model_of(small_captioner())
    model.encoder.grid = (1, 1)
    with pytest.raises(UserError, match="a single region per image, and nothing to leave out"):
        check_intervention(model)
