"""Models with random weights that write captions like those of trained ones."""

import math

import torch
from torch import Tensor, nn

from benchmarks.workload import Work
from showattendtell.data.vocabulary import EOS, SPECIAL
from showattendtell.models.captioner import Captioner
from showattendtell.models.decoder import LSTMDecoder, SeparateStart

COUNT, OPEN = 0.05, 10.0
"""What the counting unit's cell grows by at each word, and the sum at which a gate stands open."""


@torch.no_grad()
def endless_writer(work: Work, regions: Tensor) -> Captioner:
    """None of its captions ends by itself."""
    captioner = work.captioner().eval()
    captioner.decoder.word_scores.bias[EOS] = -1e4
    return captioner


@torch.no_grad()
def usual_writer(work: Work, regions: Tensor) -> Captioner:
    """Its captions of the images (I, L, D) are as long as the references of Flickr8k: 12 words, with a deviation of 4.

    One unit of the LSTM counts the words, from a number on that the image gives; `<eos>` is scored by that unit alone.
    All other weights are random, but scaled so that a beam of 5 has about as much to do as that of a model trained on
    Flickr8k: there, 100 open captions continue 65 different ones of the step before and end in 21 different words; here
    it is 72 and 15.
    """
    captioner = work.captioner().eval()
    decoder = captioner.decoder
    assert isinstance(decoder, LSTMDecoder)
    assert isinstance(decoder.first_state, SeparateStart)
    decoder.first_state.cell[0].weight *= 60
    decoder.embedding.weight *= 0.5
    decoder.hidden_output.weight *= 4
    decoder.word_scores.weight *= 24
    decoder.word_scores.bias[len(SPECIAL) :] = -0.5 * torch.arange(1, work.vocabulary - len(SPECIAL) + 1).log()
    count_words(decoder)
    start_counting(decoder, regions.mean(dim=1), deviation=4)
    end_by_count(decoder, after=12.5)
    return captioner


def count_words(decoder: LSTMDecoder) -> None:
    """c' = c + COUNT in the first unit, whatever is read and seen."""
    sums = (OPEN, OPEN, OPEN, math.atanh(COUNT))  # i, f, o, g
    for gate, value in enumerate(sums):
        row = gate * decoder.hidden_dim
        for reader in (decoder.read_word, decoder.hidden_gates, decoder.context_gates):
            reader.weight[row] = 0
        decoder.read_word.bias[row] = value


def start_counting(decoder: LSTMDecoder, mean: Tensor, deviation: float) -> None:
    """Images with the mean regions (I, D) count from numbers with mean 0 and that standard deviation."""
    assert isinstance(decoder.first_state, SeparateStart)
    *layers, [last, _] = decoder.first_state.cell
    sums = nn.Sequential(*layers)(mean) @ last.weight[0]
    scale = COUNT * deviation / sums.std()
    last.weight[0] *= scale
    last.bias[0] = -scale * sums.mean()


def end_by_count(decoder: LSTMDecoder, after: float, slope: float = 60.0) -> None:
    """The deep output's first number is the counting unit, which scores `<eos>` and nothing else."""
    for reader in (decoder.hidden_output, decoder.context_output):
        reader.weight[0] = 0
    decoder.hidden_output.weight[0, 0] = 1
    decoder.hidden_output.bias[0] = 0
    decoder.embedding.weight[:, 0] = 0
    decoder.word_scores.weight[:, 0] = 0
    decoder.word_scores.weight[EOS] = 0
    decoder.word_scores.weight[EOS, 0] = slope
    decoder.word_scores.bias[EOS] = 8 - slope * math.tanh(COUNT * after)


def varied_regions(work: Work) -> Tensor:
    """(I, L, D) of images that differ in how strong each channel is."""
    torch.manual_seed(1)
    return 2 * torch.rand(work.images, work.regions, work.region_dim) * torch.rand(work.images, 1, work.region_dim)
