"""The work that is measured: the paper's soft attention on batches of captions, by random weights and grids."""

from functools import partial
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from benchmarks.sampler import draw_lengths
from showattendtell.data.vocabulary import EOS, PAD, SPECIAL
from showattendtell.models.attention import SoftAttention
from showattendtell.models.captioner import Captioner
from showattendtell.models.decoder import LSTMDecoder
from showattendtell.models.scores import AdditiveScore

STEPS = 12
"""The length of captions of one length, `<eos>` included: the mean of Flickr8k's."""


class Batch(NamedTuple):
    """Regions (I, L, D), the image of each caption (B,), and tokens (B, T)."""

    regions: Tensor
    image_index: Tensor
    tokens: Tensor


class Work(NamedTuple):
    """Sizes of a batch and of the model.

    images       I
    each         captions of an image
    mixed        whether captions are as long as Flickr8k's are, or all of 12 steps
    regions      L
    region_dim   D
    vocabulary   V
    embedding    m
    hidden       n
    attention    A
    """

    images: int = 13
    each: int = 5
    mixed: bool = True
    regions: int = 196
    region_dim: int = 512
    vocabulary: int = 10_000
    embedding: int = 512
    hidden: int = 512
    attention: int = 512

    @property
    def captions(self) -> int:
        return self.images * self.each

    @property
    def lengths(self) -> list[int]:
        return draw_lengths(self.captions).tolist() if self.mixed else self.captions * [STEPS]

    def batch(self) -> Batch:
        regions = torch.rand(self.images, self.regions, self.region_dim)
        image_index = torch.arange(self.images).repeat_interleave(self.each)
        return Batch(regions, image_index, self.tokens())

    def tokens(self) -> Tensor:
        """Words as often as in a language (Zipf: the r-th commonest 1/r as often as the commonest)."""
        lengths = torch.tensor(self.lengths)
        frequencies = 1 / np.arange(1, self.vocabulary - len(SPECIAL) + 1)
        shape, rng = (self.captions, int(lengths.max())), np.random.default_rng(0)
        ranks = rng.choice(len(frequencies), shape, p=frequencies / frequencies.sum())
        place = torch.arange(shape[1])
        last = lengths.unsqueeze(1) - 1
        words = torch.from_numpy(ranks + len(SPECIAL))
        return torch.where(place < last, words, torch.where(place == last, EOS, PAD))

    def captioner(self) -> Captioner:
        """Without dropout, so that all ways compute the same."""
        torch.manual_seed(0)
        decoder = LSTMDecoder(self.vocabulary, self.region_dim, self.embedding, self.hidden, dropout=0.0)
        attention = SoftAttention(self.region_dim, self.hidden, partial(AdditiveScore, width=self.attention))
        return Captioner(attention, decoder)
