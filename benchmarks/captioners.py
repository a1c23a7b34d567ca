"""Captioners with random weights whose captions resemble those of trained ones."""

import math

import torch
from torch import Tensor, nn

from benchmarks.workload import Workload
from showattendtell.models.captioner import Captioner
from showattendtell.models.decoder import FirstState, LSTMDecoder
from showattendtell.text.vocabulary import EOS, SPECIAL

COUNT, OPEN = 0.05, 10.0
"""Increment of the counting unit's cell per word, and the input at which a gate is open."""


@torch.no_grad()
def endless_captioner(workload: Workload, regions: Tensor) -> Captioner:
    """Return a captioner that never predicts `<eos>`."""
    captioner = workload.captioner().eval()
    captioner.decoder.word_scores.bias[EOS] = -1e4
    return captioner


@torch.no_grad()
def typical_captioner(workload: Workload, regions: Tensor) -> Captioner:
    """Return a captioner whose captions of the images (I, L, D) are as long as the references of Flickr8k: 12 words,
    with a standard deviation of 4.

    One LSTM unit counts the words, starting from a number that depends on the image. Only this unit scores `<eos>`. All
    other weights are random, scaled so that beam search has about the same work as with a model trained on Flickr8k:
    there, 100 open captions extend 65 different captions of the previous step and end in 21 different words; here, 72
    and 15.
    """
    captioner = workload.captioner().eval()
    decoder = captioner.decoder
    assert isinstance(decoder, LSTMDecoder)
    assert isinstance(decoder.first_state, FirstState)
    decoder.first_state.cell[0].weight *= 60
    decoder.embedding.weight *= 0.5
    decoder.hidden_output.weight *= 4
    decoder.word_scores.weight *= 24
    decoder.word_scores.bias[len(SPECIAL) :] = -0.5 * torch.arange(1, workload.vocabulary - len(SPECIAL) + 1).log()
    count_words(decoder)
    start_counting(decoder, regions.mean(dim=1), deviation=4)
    end_by_count(decoder, after=12.5)
    return captioner


def count_words(decoder: LSTMDecoder) -> None:
    """Set c' = c + COUNT in the first unit, for all words and images."""
    sums = (OPEN, OPEN, OPEN, math.atanh(COUNT))  # i, f, o, g
    for gate, value in enumerate(sums):
        row = gate * decoder.hidden_dim
        for reader in (decoder.read_word, decoder.hidden_gates, decoder.context_gates):
            reader.weight[row] = 0
        decoder.read_word.bias[row] = value


def start_counting(decoder: LSTMDecoder, mean: Tensor, deviation: float) -> None:
    """Start counting at numbers with mean 0 and this standard deviation over the images' mean regions (I, D)."""
    assert isinstance(decoder.first_state, FirstState)
    *layers, [last, _] = decoder.first_state.cell
    sums = nn.Sequential(*layers)(mean) @ last.weight[0]
    scale = COUNT * deviation / sums.std()
    last.weight[0] *= scale
    last.bias[0] = -scale * sums.mean()


def end_by_count(decoder: LSTMDecoder, after: float, slope: float = 60.0) -> None:
    """Copy the counting unit to the first deep output, which scores `<eos>` and nothing else."""
    for reader in (decoder.hidden_output, decoder.context_output):
        reader.weight[0] = 0
    decoder.hidden_output.weight[0, 0] = 1
    decoder.hidden_output.bias[0] = 0
    decoder.embedding.weight[:, 0] = 0
    decoder.word_scores.weight[:, 0] = 0
    decoder.word_scores.weight[EOS] = 0
    decoder.word_scores.weight[EOS, 0] = slope
    decoder.word_scores.bias[EOS] = 8 - slope * math.tanh(COUNT * after)


def varied_regions(workload: Workload) -> Tensor:
    """Return regions (I, L, D) of images that differ in the scale of each channel."""
    torch.manual_seed(1)
    shape = workload.images, workload.regions, workload.region_dim
    return 2 * torch.rand(*shape) * torch.rand(shape[0], 1, shape[2])
