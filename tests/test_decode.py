import itertools
from functools import partial

import pytest
import torch
from torch import Tensor

from showattendtell.decode import Decoding, generate
from showattendtell.model.attention import SoftAttention
from showattendtell.model.captioner import Captioner
from showattendtell.model.decoder import LSTMDecoder
from showattendtell.model.scores import AdditiveScore
from showattendtell.model.steps import State
from showattendtell.text.vocabulary import EOS, PAD, START

VOCABULARY_SIZE = 6
MAX_LENGTH = 4
SAYABLE = [word for word in range(VOCABULARY_SIZE) if word not in (PAD, START)]


def random_captioner(seed: int) -> Captioner:
    torch.manual_seed(seed)
    attention = SoftAttention(5, 4, partial(AdditiveScore, width=3))
    captioner = Captioner(attention, LSTMDecoder(VOCABULARY_SIZE, 5, embedding_dim=3, hidden_dim=4))
    for parameter in captioner.parameters():
        torch.nn.init.normal_(parameter, std=1.5)
    return captioner.double().eval()


def random_regions(seed: int, images: int) -> Tensor:
    return torch.randn(images, 6, 5, generator=torch.Generator().manual_seed(seed)).double()


def log_probability(captioner: Captioner, regions: Tensor, tokens: list[int]) -> float:
    batch = torch.tensor([tokens])
    log_p = captioner(regions.unsqueeze(0), torch.tensor([0]), batch).logits.log_softmax(dim=-1)
    return log_p.gather(2, batch.unsqueeze(2)).sum().item()


def best_of_all_captions(captioner: Captioner, regions: Tensor) -> tuple[list[int], float]:
    """The likeliest caption that ends within MAX_LENGTH words, by trying every one."""
    captions = [
        [*words, EOS]
        for length in range(MAX_LENGTH)
        for words in itertools.product([word for word in SAYABLE if word != EOS], repeat=length)
    ]
    scored = [(log_probability(captioner, regions, tokens), tokens) for tokens in captions]
    best, tokens = max(scored)
    return tokens, best


@pytest.mark.parametrize("seed", range(4))
@torch.no_grad()
def test_a_wide_beam_finds_the_best_of_all_captions(seed: int):
    captioner, regions = random_captioner(seed), random_regions(seed, images=3)
    found = generate(captioner, regions, Decoding(beam_size=64, max_length=MAX_LENGTH))
    for image, caption in enumerate(found):
        tokens, best = best_of_all_captions(captioner, regions[image])
        assert caption.tokens == tokens
        assert caption.log_probability == pytest.approx(best)


@pytest.mark.parametrize("seed", range(4))
@torch.no_grad()
def test_a_beam_of_one_takes_the_likeliest_word_at_every_step(seed: int):
    captioner, regions = random_captioner(seed), random_regions(seed, images=5)
    found = generate(captioner, regions, Decoding(beam_size=1, max_length=7))
    for image, caption in enumerate(found):
        memory, state = captioner.begin(regions[image : image + 1])
        tokens = [START]
        while tokens[-1] != EOS and len(tokens) <= 7:
            step = captioner.step(memory, state, torch.tensor(tokens[-1:]))
            state = step.state
            tokens.append(max(SAYABLE, key=lambda word: step.log_probabilities[0, word].item()))
        assert caption.tokens == tokens[1:]


@pytest.mark.parametrize("beam_size", [1, 2, 3, 5])
@torch.no_grad()
def test_a_batch_of_images_gives_what_each_image_gives_alone(beam_size: int):
    captioner, regions = random_captioner(7), random_regions(7, images=20)
    decoding = Decoding(beam_size, max_length=9)
    for image, together in enumerate(generate(captioner, regions, decoding)):
        [alone] = generate(captioner, regions[image : image + 1], decoding)
        assert together.tokens == alone.tokens
        torch.testing.assert_close(together.weights, alone.weights)


@pytest.mark.parametrize("beam_size", [1, 4])
@torch.no_grad()
def test_score_and_attention_are_those_of_the_returned_caption(beam_size: int):
    captioner, regions = random_captioner(3), random_regions(3, images=10)
    for image, caption in enumerate(generate(captioner, regions, Decoding(beam_size, max_length=8))):
        trace = captioner(regions[image : image + 1], torch.tensor([0]), torch.tensor([caption.tokens]))
        assert caption.log_probability == pytest.approx(log_probability(captioner, regions[image], caption.tokens))
        torch.testing.assert_close(caption.weights, trace.weights[0])
        torch.testing.assert_close(caption.gates, trace.gates[0])


@pytest.mark.parametrize("beam_size", [1, 3])
def test_a_caption_is_returned_though_nothing_ends(beam_size: int):
    captioner = random_captioner(0)
    torch.nn.init.constant_(captioner.decoder.word_scores.bias[EOS : EOS + 1].data, -1e4)
    captions = generate(captioner, random_regions(0, images=3), Decoding(beam_size, max_length=5))
    assert [len(caption.tokens) for caption in captions] == [5, 5, 5]
    assert all(token in SAYABLE for caption in captions for token in caption.tokens)


def test_a_beam_wider_than_the_vocabulary_still_writes_captions():
    captions = generate(random_captioner(1), random_regions(1, images=2), Decoding(beam_size=10, max_length=3))
    assert all(0 < len(caption.tokens) <= 3 for caption in captions)


def searched_one_by_one(captioner: Captioner, regions: Tensor, decoding: Decoding) -> list[int]:
    """The caption of one image, from a search in lists that goes on to the end.

    Shrinking, it is the released code's: of the best candidates of a step, as many as the beam has places, those that
    end take their places with them; at the end all are compared, ended or not.
    """
    memory, state = captioner.begin(regions.unsqueeze(0))
    still_open: list[tuple[float, list[int], State]] = [(0.0, [], state)]
    ended: list[tuple[float, list[int], State]] = []
    for _ in range(decoding.max_length):
        candidates = []
        for log_p, words, state in still_open:
            step = captioner.step(memory, state, torch.tensor([words[-1] if words else START]))
            candidates += [
                (log_p + step.log_probabilities[0, word].item(), [*words, word], step.state) for word in SAYABLE
            ]
        candidates.sort(key=lambda candidate: candidate[0], reverse=True)
        places = decoding.beam_size - (len(ended) if decoding.shrinking else 0)
        ended += [candidate for candidate in candidates[:places] if candidate[1][-1] == EOS]
        followed = candidates[:places] if decoding.shrinking else candidates
        still_open = [candidate for candidate in followed if candidate[1][-1] != EOS][: decoding.beam_size]
    compared = ended + still_open if decoding.shrinking else ended or still_open
    return max(compared, key=lambda c: c[0] / len(c[1]) if decoding.divide_by_length else c[0])[1]


@pytest.mark.parametrize("divide_by_length", [False, True])
@pytest.mark.parametrize("shrinking", [False, True])
@pytest.mark.parametrize("beam_size", [1, 2, 3, 5, 10])
@torch.no_grad()
def test_batched_search_writes_what_a_search_one_by_one_does(beam_size: int, shrinking: bool, divide_by_length: bool):
    for seed in range(4):
        captioner, regions = random_captioner(seed), random_regions(seed, images=5)
        decoding = Decoding(beam_size, 6, shrinking, divide_by_length)
        for image, caption in enumerate(generate(captioner, regions, decoding)):
            assert caption.tokens == searched_one_by_one(captioner, regions[image], decoding)
            assert caption.log_probability == pytest.approx(log_probability(captioner, regions[image], caption.tokens))


def written(**settings: bool) -> list[list[int]]:
    """Captions of many random models."""
    decoding = Decoding(beam_size=3, max_length=8, **settings)
    models = [(random_captioner(seed), random_regions(seed, images=5)) for seed in range(6)]
    return [caption.tokens for captioner, regions in models for caption in generate(captioner, regions, decoding)]


def test_a_shrinking_beam_writes_other_captions():
    assert written(shrinking=True) != written()


def test_division_by_length_writes_longer_captions():
    assert sum(map(len, written(divide_by_length=True))) > sum(map(len, written()))


def test_a_shrinking_beam_compares_open_captions_with_ended_ones():
    """Word 3 is likelier than <eos>, at every step; after one word both are in the beam."""
    captioner = random_captioner(0)
    torch.nn.init.zeros_(captioner.decoder.word_scores.weight)
    captioner.decoder.word_scores.bias.data = torch.tensor([0.0, 0.0, 1.0, 2.0, -9.0, -9.0]).double()
    regions = random_regions(0, images=1)
    [kept] = generate(captioner, regions, Decoding(beam_size=2, max_length=1))
    [shrunk] = generate(captioner, regions, Decoding(beam_size=2, max_length=1, shrinking=True))
    assert (kept.tokens, shrunk.tokens) == ([EOS], [3])
