from collections import Counter

import pytest
import torch
from random_models import EOS, VOCABULARY, ended_captions, log_prob, probabilities, random_captioner, random_regions
from scipy.stats import chisquare

from showattendtell.decoding.beam_search import BeamSearch
from showattendtell.decoding.decoding import Ensemble
from showattendtell.decoding.sampling import Sampling, multinomial


def test_captions_are_drawn_as_often_as_the_model_finds_them_likely():
    """Against the probability of every caption of at most three words, those that are still open then together."""
    captioner, regions = random_captioner(2), random_regions(2, images=1)
    torch.manual_seed(0)
    draws = 10_000
    [captions] = Sampling(num_captions=draws, max_length=3).generate(Ensemble([captioner]), [regions], VOCABULARY)
    counts = Counter(tuple(caption.tokens) if caption.tokens[-1] == EOS else () for caption in captions)
    sayable = probabilities(captioner, regions, ended_captions(3))
    expected = {caption: draws * value for caption, value in sayable.items() if draws * value >= 5}
    rest = draws - sum(expected.values())
    observed = [counts[caption] for caption in expected]
    assert chisquare([*observed, draws - sum(observed)], [*expected.values(), rest]).pvalue > 0.001


def test_each_row_is_drawn_from_by_itself_and_never_what_cannot_be():
    torch.manual_seed(0)
    p = torch.tensor([[0.0, 0.5, 0.0, 0.3, 0.2, 0.0], [0.0, 0.0, 1e-9, 0.0, 1.0, 0.0]])
    drawn = multinomial(p.repeat(20_000, 1)).view(-1, 2)
    counts = drawn[:, 0].bincount(minlength=6)
    assert counts[[0, 2, 5]].sum() == 0
    assert chisquare(counts[[1, 3, 4]], [10_000, 6_000, 4_000]).pvalue > 0.001
    assert set(drawn[:, 1].tolist()) <= {2, 4}


@pytest.mark.parametrize("greedy", [{"top_k": 1}, {"top_p": 1e-6}, {"temperature": 1e-4}])
def test_the_sharpest_draw_is_the_greedy_caption(greedy: dict[str, float]):
    for seed in range(4):
        ensemble, regions = Ensemble([random_captioner(seed)]), [random_regions(seed, images=5)]
        drawn = Sampling(max_length=6, **greedy).generate(ensemble, regions, VOCABULARY)
        found = BeamSearch(max_length=6).generate(ensemble, regions, VOCABULARY)
        assert [caption.tokens for [caption] in drawn] == [caption.tokens for [caption] in found]


def test_temperature_and_cuts_by_hand():
    log_p = torch.tensor([[0.5, 0.3, 0.15, 0.05]]).log()
    sharp = torch.tensor([[0.25, 0.09, 0.0225, 0.0025]])
    torch.testing.assert_close(Sampling(temperature=0.5).warp(log_p).exp(), sharp / sharp.sum())
    torch.testing.assert_close(Sampling(top_k=2).warp(log_p).exp(), torch.tensor([[0.625, 0.375, 0.0, 0.0]]))
    for top_p, kept in ((0.4, 1), (0.51, 2), (0.79, 2), (0.81, 3), (0.96, 4)):
        assert int((Sampling(top_p=top_p).warp(log_p) > -torch.inf).sum()) == kept


def test_draws_come_likeliest_first_with_the_models_own_log_p():
    captioner, regions = random_captioner(1), random_regions(1, images=3)
    torch.manual_seed(0)
    decoding = Sampling(num_captions=4, max_length=5, temperature=2.0, top_k=3)
    for image, captions in enumerate(decoding.generate(Ensemble([captioner]), [regions], VOCABULARY)):
        log_p = [caption.log_prob for caption in captions]
        assert log_p == sorted(log_p, reverse=True)
        with torch.no_grad():
            for caption in captions:
                expected = log_prob(captioner, regions[image], caption.tokens)
                assert caption.log_prob == pytest.approx(expected)
                assert len(caption.attention) == len(caption.gates) == len(caption.tokens)
