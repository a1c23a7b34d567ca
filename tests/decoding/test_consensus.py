import itertools
import math

import pytest
import torch
from random_models import EOS, SAYABLE, VOCABULARY, ended_captions, probabilities, random_captioner, random_regions
from slow_cases import slow_after

from showattendtell.decoding.beam_search import BeamSearch
from showattendtell.decoding.consensus import Consensus
from showattendtell.decoding.decoding import Ensemble
from showattendtell.errors import UserError
from showattendtell.metrics.ngrams import bleu4, count_ngrams

LONGEST = 3


@pytest.mark.parametrize("kind", [BeamSearch, Consensus])
def test_more_captions_than_beams_are_refused(kind: type[BeamSearch | Consensus]):
    with pytest.raises(UserError, match="num_captions=3 needs a beam as large; got beam_size=2"):
        kind(num_captions=3, beam_size=2)


def bleu(caption: str, other: str) -> float:
    return bleu4(count_ngrams(caption.split()), [count_ngrams(other.split())], smoothing=1)


def test_bleu_of_single_captions_by_hand():
    assert bleu("a dog runs on grass", "a dog runs on grass") == pytest.approx(1)
    assert bleu("the cat", "a dog") < 1e-3
    assert bleu("", "a dog") == 0
    # 3 of 4 words, 2 of 3 pairs, 1 of 2 triples, 0 of 1: with one more each 3/4, 2/3 and 1/2
    assert bleu("a dog runs home", "a dog runs") == pytest.approx((3 / 4 * 3 / 4 * 2 / 3 * 1 / 2) ** 0.25)
    # all that is said is right, but for two words of four
    assert bleu("a dog", "a dog runs home") == pytest.approx(math.exp(1 - 4 / 2))


@pytest.mark.parametrize("seed", slow_after(1, range(4)))
def test_the_caption_with_the_largest_expected_bleu_is_chosen(seed: int):
    """Against the expectation over every caption of at most three words, ended or still open then."""
    captioner, regions = random_captioner(seed), random_regions(seed, images=1)
    words = [word for word in SAYABLE if word != EOS]
    still_open = [list(said) for said in itertools.product(words, repeat=LONGEST)]
    p = probabilities(captioner, regions, [*ended_captions(LONGEST), *still_open])
    assert sum(p.values()) == pytest.approx(1)

    def expected_bleu(caption: list[int]) -> float:
        return sum(value * bleu4(counts(caption), [counts(other)], smoothing=1) for other, value in p.items())

    def counts(caption: tuple[int, ...] | list[int]) -> list:
        return count_ngrams([token for token in caption if token != EOS])

    ensemble, settings = Ensemble([captioner]), {"max_length": LONGEST, "beam_size": 6}
    [beam] = BeamSearch(**settings, num_captions=6).generate(ensemble, [regions], VOCABULARY)
    torch.manual_seed(0)
    decoding = Consensus(**settings, num_samples=5000, temperature=1.0, num_captions=6)
    [chosen] = decoding.generate(ensemble, [regions], VOCABULARY)
    assert sorted(caption.tokens for caption in chosen) == sorted(caption.tokens for caption in beam)
    worth = [expected_bleu(caption.tokens) for caption in chosen]
    assert all(first > second - 0.02 for first, second in itertools.pairwise(worth))
    assert worth[0] == pytest.approx(max(worth), abs=0.02)
    assert max(worth) - min(worth) > 0.1, "nothing to choose"
