"""The caption that the model's others agree with most."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import Any

from torch import Tensor

from showattendtell.arguments import PositiveFloat, PositiveInt
from showattendtell.decode.decoding import Decoding
from showattendtell.decode.sampling import Sampling
from showattendtell.decode.search import BeamSearch
from showattendtell.decode.speaker import Speaker
from showattendtell.records import Generated
from showattendtell.text.ngrams import ORDERS, Counts, count_ngrams
from showattendtell.text.vocabulary import EOS, Vocabulary


@dataclass(frozen=True, kw_only=True)
class Consensus(Decoding):
    """Of a beam's captions the one that is likest to what else the model says of the image: the least Bayes risk (Kumar
    and Byrne 2004) instead of the largest p.

        argmax_y 1/N sum_k BLEU-4(y, y_k)     y_k ~ p^(1/temperature)

    BLEU-4 is that of single captions, in which runs of two words and more count once more (Lin and Och 2004).

    beam_size: the number of captions to choose from, all of a beam.
    samples: N, the captions that are drawn to compare them with.
    temperature: below 1 likely words are drawn more often, above 1 less so.
    """

    beam_size: PositiveInt = 20
    samples: PositiveInt = 50
    temperature: PositiveFloat = 0.5

    def __post_init__(self) -> None:
        if self.num_captions > self.beam_size:
            raise ValueError(f"num_captions={self.num_captions} needs a beam as large; got beam_size={self.beam_size}")

    def write(self, speaker: Speaker, regions: Sequence[Tensor], vocabulary: Vocabulary) -> list[list[Generated]]:
        rules = self._rules()
        search = BeamSearch(**{**rules, "num_captions": self.beam_size}, beam_size=self.beam_size)
        sampling = Sampling(**{**rules, "num_captions": self.samples}, temperature=self.temperature)
        found = search.write(speaker, regions, vocabulary)
        drawn = sampling.write(speaker, regions, vocabulary)
        return [self._best(captions, others) for captions, others in zip(found, drawn, strict=True)]

    def _rules(self) -> dict[str, Any]:
        """The settings that every way of writing has."""
        return {field.name: getattr(self, field.name) for field in fields(Decoding)}

    def _best(self, captions: Sequence[Generated], others: Sequence[Generated]) -> list[Generated]:
        said = [_count(other) for other in others]
        ranked = sorted(captions, key=lambda caption: _agreement(_count(caption), said), reverse=True)
        return ranked[: self.num_captions]


def _count(caption: Generated) -> Counts[int]:
    return count_ngrams([token for token in caption.tokens if token != EOS])


def _agreement(caption: Counts[int], others: Sequence[Counts[int]]) -> float:
    return sum(smoothed_bleu(caption, other) for other in others)


def smoothed_bleu(caption: Counts[int], other: Counts[int]) -> float:
    """BLEU-4 of a caption before another one, between 0 and 1; precisions of runs of two words and more are those with
    one run more in both, which match (Lin and Och 2004)."""
    length, wanted = caption[0].total(), other[0].total()
    if not length:
        return float(not wanted)
    product = 1.0
    for more, own, theirs in zip((0, 1, 1, 1), caption, other, strict=True):
        matched = sum(min(count, theirs[run]) for run, count in own.items())
        product *= (matched + more) / (own.total() + more)
    return product ** (1 / ORDERS) * math.exp(min(0.0, 1 - wanted / length))
