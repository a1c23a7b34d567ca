"""The measured model and batch: the paper's soft attention with random weights, features and captions."""

from functools import partial
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from benchmarks.sampler import draw_lengths
from showattendtell.models.attention import SoftAttention
from showattendtell.models.captioner import Captioner
from showattendtell.models.decoder import LSTMDecoder
from showattendtell.models.hard_attention import HardAttention
from showattendtell.models.scores import AdditiveScore
from showattendtell.text.vocabulary import EOS, PAD, SPECIAL

STEPS = 12
"""Caption length with `<eos>` if all are equal: the mean of Flickr8k."""


class Batch(NamedTuple):
    """Features (I, L, D), the image of each caption (B,), and tokens (B, T)."""

    regions: Tensor
    image_index: Tensor
    tokens: Tensor


class Workload(NamedTuple):
    """Sizes of a batch and of the model.

    images              I
    captions_per_image  B / I
    mixed_lengths       caption lengths as in Flickr8k, instead of 12 for all
    regions             L
    region_dim          D
    vocabulary          V
    embedding           m
    hidden              n
    attention           A
    """

    images: int = 13
    captions_per_image: int = 5
    mixed_lengths: bool = True
    regions: int = 196
    region_dim: int = 512
    vocabulary: int = 10_000
    embedding: int = 512
    hidden: int = 512
    attention: int = 512

    @property
    def captions(self) -> int:
        return self.images * self.captions_per_image

    @property
    def lengths(self) -> list[int]:
        return draw_lengths(self.captions).tolist() if self.mixed_lengths else self.captions * [STEPS]

    def batch(self) -> Batch:
        regions = torch.rand(self.images, self.regions, self.region_dim)
        image_index = torch.arange(self.images).repeat_interleave(self.captions_per_image)
        return Batch(regions, image_index, self.tokens())

    def tokens(self) -> Tensor:
        """Return random captions whose word frequencies follow Zipf's law: that of rank r is proportional to 1 / r."""
        lengths = torch.tensor(self.lengths)
        frequencies = 1 / np.arange(1, self.vocabulary - len(SPECIAL) + 1)
        shape, rng = (self.captions, int(lengths.max())), np.random.default_rng(0)
        ranks = rng.choice(len(frequencies), shape, p=frequencies / frequencies.sum())
        position = torch.arange(shape[1])
        last = lengths.unsqueeze(1) - 1
        words = torch.from_numpy(ranks + len(SPECIAL))
        return torch.where(position < last, words, torch.where(position == last, EOS, PAD))

    def captioner(self, attention: type[SoftAttention | HardAttention] = SoftAttention) -> Captioner:
        """Return a captioner without dropout, so that all implementations compute the same."""
        torch.manual_seed(0)
        decoder = LSTMDecoder(self.vocabulary, self.region_dim, self.embedding, self.hidden, dropout=0.0)
        score = partial(AdditiveScore, width=self.attention)
        return Captioner(attention(self.region_dim, self.hidden, score), decoder)
