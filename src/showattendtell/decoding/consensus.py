"""Consensus (minimum Bayes risk) decoding."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, fields
from operator import itemgetter

from torch import Tensor

from showattendtell.data.tokenizers import ORDERS, Counts, count_ngrams
from showattendtell.data.vocabulary import EOS, Vocabulary
from showattendtell.decoding.beam_search import BeamSearch
from showattendtell.decoding.decoding import Captions, Decoding, Ensemble
from showattendtell.decoding.sampling import Sampling
from showattendtell.settings import PositiveFloat, PositiveInt
from showattendtell.types import CaptionOutput


@dataclass(frozen=True, kw_only=True)
class Consensus(Decoding):
    """Minimum Bayes risk decoding (Kumar and Byrne 2004): of the captions of a beam, return the one with the highest
    mean BLEU-4 against captions sampled from the model, instead of the one with the highest p.

        argmax_y 1/N sum_k BLEU-4(y, y_k)     y_k ~ p^(1/temperature)

    BLEU-4 is the smoothed sentence-level BLEU-4: counts of n-grams with n >= 2 are increased by 1 (Lin and Och 2004).

    beam_size: the beam size, which is the number of captions to choose from.
    samples: N, the number of sampled captions to compare them with.
    temperature: the sampling temperature; below 1 likely words are sampled more often, above 1 less often.
    """

    beam_size: PositiveInt = 20
    samples: PositiveInt = 50
    temperature: PositiveFloat = 0.5

    def __post_init__(self) -> None:
        if self.num_captions > self.beam_size:
            raise ValueError(f"num_captions={self.num_captions} needs a beam as large; got beam_size={self.beam_size}")

    def generate(self, ensemble: Ensemble, regions: Sequence[Tensor], vocabulary: Vocabulary) -> Captions:
        rules = {field.name: getattr(self, field.name) for field in fields(Decoding)}
        search = BeamSearch(**{**rules, "num_captions": self.beam_size}, beam_size=self.beam_size)
        sampling = Sampling(**{**rules, "num_captions": self.samples}, temperature=self.temperature)
        found = search.generate(ensemble, regions, vocabulary)
        drawn = sampling.generate(ensemble, regions, vocabulary)
        chosen = []
        for captions, others in zip(found, drawn, strict=True):
            said = [_count(other) for other in others]
            agreement = [sum(smoothed_bleu(own, other) for other in said) for own in map(_count, captions)]
            ranked = sorted(zip(captions, agreement, strict=True), key=itemgetter(1), reverse=True)
            chosen.append([caption for caption, _ in ranked[: self.num_captions]])
        return chosen


def _count(caption: CaptionOutput[Tensor]) -> Counts[int]:
    return count_ngrams([token for token in caption.tokens if token != EOS])


def smoothed_bleu(caption: Counts[int], other: Counts[int]) -> float:
    """Return the BLEU-4 of a caption against another one, between 0 and 1. For n >= 2 both counts of the n-gram
    precision are increased by 1 (Lin and Och 2004)."""
    length, wanted = caption[0].total(), other[0].total()
    if not length:
        return float(not wanted)
    product = 1.0
    for more, own, theirs in zip((0, 1, 1, 1), caption, other, strict=True):
        matched = sum(min(count, theirs[run]) for run, count in own.items())
        product *= (matched + more) / (own.total() + more)
    return product ** (1 / ORDERS) * math.exp(min(0.0, 1 - wanted / length))
