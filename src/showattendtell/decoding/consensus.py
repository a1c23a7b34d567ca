"""Consensus decoding (minimum Bayes risk)."""

from collections.abc import Sequence
from dataclasses import dataclass, fields
from functools import partial

from torch import Tensor

from showattendtell.decoding.beam_search import BeamSearch
from showattendtell.decoding.decoding import Captions, Decoding, Ensemble
from showattendtell.decoding.sampling import Sampling
from showattendtell.errors import UserError
from showattendtell.metrics.ngrams import Counts, bleu4, count_ngrams
from showattendtell.settings import Count, Temperature
from showattendtell.text.vocabulary import EOS, Vocabulary
from showattendtell.types import CaptionOutput


@dataclass(frozen=True, kw_only=True)
class Consensus(Decoding):
    """Minimum Bayes risk decoding (Kumar and Byrne 2004): return the caption of a beam that agrees best with captions
    sampled from the model, instead of the one with the highest p.

        argmax_y 1/N sum_k BLEU-4(y, y_k)     y_k ~ p^(1 / temperature)

    BLEU-4 is the smoothed sentence-level BLEU-4: counts of n-grams with n >= 2 are increased by 1 (Lin and Och 2004).

    Args:
        beam_size: the beam size, which is the number of captions to choose from.
        num_samples: N, the number of sampled captions to compare them with.
        temperature: the sampling temperature; below 1 likely words are sampled more often, above 1 less often.
    """

    beam_size: Count = 20
    num_samples: Count = 50
    temperature: Temperature = 0.5

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.num_captions > self.beam_size:
            raise UserError(f"num_captions={self.num_captions} needs a beam as large; got beam_size={self.beam_size}")

    def generate(self, ensemble: Ensemble, regions: Sequence[Tensor], vocabulary: Vocabulary) -> Captions:
        shared = {field.name: getattr(self, field.name) for field in fields(Decoding)}
        search = BeamSearch(**{**shared, "num_captions": self.beam_size}, beam_size=self.beam_size)
        sampling = Sampling(**{**shared, "num_captions": self.num_samples}, temperature=self.temperature)
        candidates = search.generate(ensemble, regions, vocabulary)
        sampled = sampling.generate(ensemble, regions, vocabulary)
        chosen = []
        for captions, samples in zip(candidates, sampled, strict=True):
            agreement = partial(_agreement, [_count(sample) for sample in samples])
            chosen.append(sorted(captions, key=agreement, reverse=True)[: self.num_captions])
        return chosen


def _agreement(samples: Sequence[Counts[int]], caption: CaptionOutput[Tensor]) -> float:
    own = _count(caption)
    return sum(bleu4(own, [sample], smoothing=1) for sample in samples)


def _count(caption: CaptionOutput[Tensor]) -> Counts[int]:
    return count_ngrams([token for token in caption.tokens if token != EOS])
