import itertools
from typing import Any

import pytest
import torch
from random_models import (
    CAT,
    DOG,
    SAYABLE,
    VOCABULARY,
    best,
    ended_captions,
    log_prob,
    random_captioner,
    random_regions,
    ranked,
    say,
)
from slow_cases import slow_after
from torch import Tensor

from showattendtell.decoding.beam_search import BeamSearch
from showattendtell.decoding.decoding import Ensemble
from showattendtell.models.captioner import Captioner
from showattendtell.models.interfaces import DecoderState
from showattendtell.text.vocabulary import EOS, START

MAX_LENGTH = 4
MERITS = {
    ("none", 1.0): lambda log_p, length: log_p,
    ("length", 1.0): lambda log_p, length: log_p / length,
    ("length", 0.6): lambda log_p, length: log_p / length**0.6,
    ("gnmt", 1.0): lambda log_p, length: log_p * 6 / (5 + length),
    ("gnmt", 0.7): lambda log_p, length: log_p * (6 / (5 + length)) ** 0.7,
}
"""What captions are compared by, as the papers write it."""


@pytest.mark.parametrize("seed", slow_after(2, range(4)))
@pytest.mark.parametrize(("normalization", "power"), MERITS)
@torch.no_grad()
def test_a_wide_beam_finds_the_best_three_of_all_captions(normalization: str, power: float, seed: int):
    captioner, regions = random_captioner(seed), random_regions(seed, images=3)
    decoding = BeamSearch(
        beam_size=128,
        max_length=MAX_LENGTH,
        length_normalization=normalization,
        length_penalty=power,
        num_captions=3,
    )
    for image, captions in enumerate(decoding.generate(Ensemble([captioner]), [regions], VOCABULARY)):
        expected = ranked(captioner, regions[image], ended_captions(MAX_LENGTH), MERITS[normalization, power])[:3]
        assert [caption.tokens for caption in captions] == expected
        for caption in captions:
            assert caption.log_prob == pytest.approx(log_prob(captioner, regions[image], caption.tokens))


@pytest.mark.parametrize(
    "settings",
    [
        {"beam_size": 1},
        {"beam_size": 4, "num_captions": 4},
        {"beam_size": 3, "shrink_beam": True, "min_length": 2},
    ],
    ids=str,
)
@torch.no_grad()
def test_every_word_has_the_log_probability_that_it_has_when_the_caption_is_given(settings: dict[str, Any]):
    captioner, regions = random_captioner(seed=8), random_regions(seed=8, images=3)
    decoding = BeamSearch(max_length=MAX_LENGTH, **settings)
    for image, captions in enumerate(decoding.generate(Ensemble([captioner]), [regions], VOCABULARY)):
        for caption in captions:
            given = torch.tensor([caption.tokens])
            trace = captioner(regions[image : image + 1], torch.tensor([0]), given)
            expected = trace.logits.log_softmax(dim=1).gather(1, given.T).squeeze(1)
            torch.testing.assert_close(caption.log_probs, expected)
            torch.testing.assert_close(caption.attention, trace.weights[0])
            torch.testing.assert_close(caption.gates, trace.gates[0])


@pytest.mark.parametrize(
    ("settings", "allowed"),
    [
        ({"forbidden": ["dog"]}, lambda tokens: DOG not in tokens),
        ({"prefix": "Dog, cat!"}, lambda tokens: tokens[:2] == [DOG, CAT]),
        ({"min_length": 2}, lambda tokens: len(tokens) > 2),
        ({"no_repeat_ngram_size": 1}, lambda tokens: len(set(tokens)) == len(tokens)),
        ({"allow_unk": False}, lambda tokens: VOCABULARY.encode(["?"])[0] not in tokens),
    ],
)
@torch.no_grad()
def test_a_wide_beam_finds_the_best_caption_that_keeps_the_rule(settings: dict[str, Any], allowed: Any):
    captions = [tokens for tokens in ended_captions(MAX_LENGTH) if allowed(tokens)]
    for seed in range(4):
        captioner, regions = random_captioner(seed), random_regions(seed, images=2)
        for image, caption in enumerate(best(captioner, regions, beam_size=128, max_length=MAX_LENGTH, **settings)):
            assert caption.tokens == ranked(captioner, regions[image], captions, MERITS["none", 1.0])[0]


@pytest.mark.parametrize("settings", [{}, {"beam_size": 3}, {"beam_size": 4, "num_captions": 2}])
@torch.no_grad()
def test_in_single_precision_the_compiled_loops_find_what_plain_torch_finds_in_double(settings: dict[str, Any]):
    for seed in range(4):
        captioner, regions = random_captioner(seed), random_regions(seed, images=10)
        decoding = BeamSearch(max_length=9, **settings)
        in_double = decoding.generate(Ensemble([captioner]), [regions], VOCABULARY)
        in_single = decoding.generate(Ensemble([captioner.float()]), [regions.float()], VOCABULARY)
        for found, expected in zip(itertools.chain(*in_single), itertools.chain(*in_double), strict=True):
            assert found.tokens == expected.tokens
            assert found.log_prob == pytest.approx(expected.log_prob, rel=1e-5, abs=1e-5)
            torch.testing.assert_close(found.attention.double(), expected.attention, atol=1e-5, rtol=1e-4)


@torch.no_grad()
def test_in_half_the_precision_captions_are_nearly_as_likely():
    captioner, regions = random_captioner(0).float(), random_regions(0, images=10).float()
    exact = BeamSearch(beam_size=3, max_length=6).generate(Ensemble([captioner]), [regions], VOCABULARY)
    rough = BeamSearch(beam_size=3, max_length=6).generate(Ensemble([captioner], "bfloat16"), [regions], VOCABULARY)
    for [ours], [theirs] in zip(rough, exact, strict=True):
        assert 0 < abs(ours.log_prob - theirs.log_prob) < 0.3


@pytest.mark.parametrize(
    "settings",
    [
        *({"beam_size": size} for size in (1, 2, 3, 5)),
        {"beam_size": 4, "num_captions": 2, "no_repeat_ngram_size": 2},
    ],
)
@torch.no_grad()
def test_a_batch_of_images_gives_what_each_image_gives_alone(settings: dict[str, Any]):
    captioner, regions = random_captioner(7), random_regions(7, images=20)
    decoding, ensemble = BeamSearch(max_length=9, **settings), Ensemble([captioner])
    for image, together in enumerate(decoding.generate(ensemble, [regions], VOCABULARY)):
        [alone] = decoding.generate(ensemble, [regions[image : image + 1]], VOCABULARY)
        assert [caption.tokens for caption in together] == [caption.tokens for caption in alone]
        for caption, expected in zip(together, alone, strict=True):
            torch.testing.assert_close(caption.attention, expected.attention)


@pytest.mark.parametrize("num_images", [0, 2])
@torch.no_grad()
def test_images_without_a_likely_word_get_no_caption(num_images: int):
    """As those of a model whose training diverged; the pipeline reports them."""
    regions = torch.full_like(random_regions(0, images=num_images), torch.nan)
    captions = BeamSearch(num_captions=2, beam_size=2).generate(Ensemble([random_captioner(0)]), [regions], VOCABULARY)
    assert captions == [[]] * num_images


def searched_one_by_one(captioner: Captioner, regions: Tensor, decoding: BeamSearch) -> list[int]:
    """The caption of one image, from a search in lists that runs to the end.

    Shrinking, it is the released code's: of the best candidates of a step, as many as the beam has places, those that
    end take their places with them; at the end all are compared, ended or not.
    """
    cache, state = captioner.init_state(regions.unsqueeze(0))
    still_open: list[tuple[float, list[int], DecoderState]] = [(0.0, [], state)]
    ended: list[tuple[float, list[int], DecoderState]] = []
    for _ in range(decoding.max_length):
        candidates = []
        for log_p, words, state in still_open:
            next_log_p, after = say(captioner, cache, state, words[-1] if words else START)
            candidates += [(log_p + next_log_p[word].item(), [*words, word], after) for word in SAYABLE]
        candidates.sort(key=lambda candidate: candidate[0], reverse=True)
        places = decoding.beam_size - (len(ended) if decoding.shrink_beam else 0)
        ended += [candidate for candidate in candidates[:places] if candidate[1][-1] == EOS]
        followed = candidates[:places] if decoding.shrink_beam else candidates
        still_open = [candidate for candidate in followed if candidate[1][-1] != EOS][: decoding.beam_size]
    compared = ended + still_open if decoding.shrink_beam else ended or still_open
    merit = MERITS[decoding.length_normalization, 1.0]
    return max(compared, key=lambda candidate: merit(candidate[0], len(candidate[1])))[1]


@pytest.mark.parametrize("normalization", slow_after(1, ["length", "none", "gnmt"]))
@pytest.mark.parametrize("shrink_beam", [False, True])
@pytest.mark.parametrize("beam_size", slow_after(3, [1, 3, 10, 2, 5]))
@torch.no_grad()
def test_batched_search_writes_what_a_search_one_by_one_does(beam_size: int, shrink_beam: bool, normalization: Any):
    for seed in range(4):
        captioner, regions = random_captioner(seed), random_regions(seed, images=5)
        decoding = BeamSearch(
            beam_size=beam_size, max_length=6, shrink_beam=shrink_beam, length_normalization=normalization
        )
        for image, [caption] in enumerate(decoding.generate(Ensemble([captioner]), [regions], VOCABULARY)):
            assert caption.tokens == searched_one_by_one(captioner, regions[image], decoding)
            assert caption.log_prob == pytest.approx(log_prob(captioner, regions[image], caption.tokens))


def word_probabilities(captioner: Captioner, regions: Tensor, tokens: list[int]) -> Tensor:
    """p of each of the caption's words, (T,)."""
    batch = torch.tensor([tokens])
    p = captioner(regions.unsqueeze(0), torch.tensor([0]), batch).logits.softmax(dim=1)
    return p.gather(1, batch.T).flatten()


@pytest.mark.parametrize("seed", range(4))
@torch.no_grad()
def test_several_models_find_the_caption_that_the_mean_of_their_p_makes_likeliest(seed: int):
    captioners = [random_captioner(seed), random_captioner(seed + 100), random_captioner(seed + 200)]
    seen = [
        random_regions(seed, images=2),
        random_regions(seed + 1, images=2)[:, :4],
        random_regions(seed + 2, images=2),
    ]
    found = BeamSearch(beam_size=128, max_length=3).generate(Ensemble(captioners), seen, VOCABULARY)
    for image, [caption] in enumerate(found):
        worth = {}
        for tokens in ended_captions(3):
            pairs = zip(captioners, seen, strict=True)
            together = [word_probabilities(captioner, regions[image], tokens) for captioner, regions in pairs]
            worth[tuple(tokens)] = torch.stack(together).mean(dim=0).log().sum().item()
        expected = max(worth, key=worth.__getitem__)
        assert tuple(caption.tokens) == expected
        assert caption.log_prob == pytest.approx(worth[expected])
        assert caption.attention.shape == (len(expected), seen[0].shape[1])
