"""Metrics of captions and attention maps as `torchmetrics.Metric` classes, and the table of those that commands name.

A caption is a list of words, `["a", "dog"]`, or a string that is split at white space. Rates are in percent. In
distributed training `compute` returns the score of the captions of all processes.
"""

import json
import os
from abc import abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from pkgutil import resolve_name
from typing import Any, Literal, NamedTuple
from unittest.mock import patch

import numpy as np
import torch
from pycocoevalcap.meteor.meteor import Meteor
from pycocoevalcap.rouge.rouge import Rouge
from torch import Tensor
from torchmetrics import Metric
from torchmetrics.utilities import dim_zero_cat

from showattendtell.errors import MetricError, UserError, did_you_mean
from showattendtell.metrics.attention import MAPS, GroundedWord, compare_maps
from showattendtell.metrics.bootstrap import ImageMeans, SufficientStatistics, corpus_scores
from showattendtell.metrics.diversity import diversity, ending_rates
from showattendtell.metrics.ngrams import measure_bleu, measure_cider
from showattendtell.metrics.tokenizers import (
    ENGLISH,
    Caption,
    CaptionPair,
    find_java,
    pair_up,
    split_captions,
)
from showattendtell.text.tokenizers import are_unspaced


class GatheredMetric(Metric):
    """A score that needs all items at once.

    torchmetrics exchanges tensors between processes, and no texts. The items are therefore stored as JSON lines, whose
    bytes are the state.
    """

    is_differentiable = False
    higher_is_better = True
    full_state_update = False
    lines: list[Tensor]

    def __init__(self, **kwargs: Any):
        super().__init__(**kwargs)
        self.add_state("lines", [], dist_reduce_fx="cat")

    def sync(self, *args: Any, **kwargs: Any) -> None:
        """Gather the lines of all processes."""
        if not len(self.lines):  # torchmetrics would send an empty tensor of floats, and the others bytes
            self.append([])
        super().sync(*args, **kwargs)

    def append(self, items: Iterable[Any]) -> None:
        text = "".join(json.dumps(item) + "\n" for item in items).encode()
        content = torch.frombuffer(bytearray(text), dtype=torch.uint8) if text else torch.empty(0, dtype=torch.uint8)
        self.lines.append(content.to(self.device))

    def items(self) -> list[Any]:
        text = bytes(dim_zero_cat(self.lines).cpu().numpy()) if len(self.lines) else b""
        return [json.loads(line) for line in text.splitlines()]


class CaptionScore(GatheredMetric):
    """Base class of scores of captions against reference captions. Subclasses implement `measure`."""

    @abstractmethod
    def measure(self, pairs: Sequence[CaptionPair]) -> SufficientStatistics:
        """Return the statistics of a corpus, from which its scores are computed."""

    def update(self, hypotheses: Sequence[Caption], references: Sequence[Sequence[Caption]]) -> None:
        """Add the captions of a batch.

        Args:
            hypotheses: one caption per image.
            references: the reference captions of each image, at least one.

        Raises:
            ValueError: the numbers of images differ, an image has no reference, or a list of captions is a string.
        """
        self.append(pair_up(hypotheses, references))

    def statistics(self) -> SufficientStatistics:
        """Return the statistics of all captions so far, for `bootstrap.resample`."""
        return self.measure([CaptionPair(*pair) for pair in self.items()])

    def per_caption(self) -> dict[str, Tensor]:
        """Return the scores (N,) of each caption so far, by name and in the order of `update`; empty without captions.

        In distributed training these are the captions of all processes.
        """
        with self.sync_context():
            scores = self.statistics().per_image() if self.items() else {}
        return {name: torch.from_numpy(values) for name, values in scores.items()}

    def compute(self) -> Any:
        """Return the score of all captions so far; nan without captions."""
        scores = corpus_scores([self.statistics()]) if self.items() else {"none": torch.nan}
        [score] = scalars(scores).values()
        return score


class CorpusBLEU(CaptionScore):
    """BLEU-1 to BLEU-4 of a corpus (Papineni et al. 2002), with and without brevity penalty.

    `compute` returns `bleu1` to `bleu4` and `bleu1_with_penalty` to `bleu4_with_penalty` in percent, `brevity_penalty`,
    and the lengths `words` and `reference_words`. The reference length of a caption is that of the reference whose
    length is closest.
    """

    measure = staticmethod(measure_bleu)

    def compute(self) -> dict[str, Tensor]:
        return scalars(corpus_scores([self.statistics()]))


class METEOR(CaptionScore):
    """METEOR 1.5 of a corpus (Denkowski and Lavie 2014), in percent, by the Java program in pycocoevalcap.

    It is not the mean over the captions. That of a resample, which would need another run of the program, is taken to
    differ from it as the means do.

    Raises:
        MetricError: the captions are not in English, Java is missing, or the program fails.
    """

    def measure(self, pairs: Sequence[CaptionPair]) -> ImageMeans:
        if are_unspaced(pair.hypothesis.replace(" ", "") for pair in pairs):
            raise MetricError("METEOR has paraphrases of English only; these captions are in a script without spaces")
        java = find_java()
        # pycocoevalcap starts the `java` on PATH
        with patch.dict(os.environ, PATH=str(java.parent), JAVA_TOOL_OPTIONS=" ".join(ENGLISH)):
            meteor = Meteor()
        captions = {n: [_one_line(pair.hypothesis)] for n, pair in enumerate(pairs)}
        references = {n: list(map(_one_line, pair.references)) for n, pair in enumerate(pairs)}
        try:
            corpus, by_image = meteor.compute_score(references, captions)
        except (OSError, ValueError) as error:
            meteor.lock.release()  # held by compute_score, and awaited when `meteor` is deleted
            raise MetricError(f"METEOR ended without scores: {error}") from None
        return ImageMeans("meteor", 100 * np.array(by_image), offset=100 * (corpus - np.mean(by_image)))


def _one_line(caption: str) -> str:
    """Return a caption without line breaks and the separator of captions, which would shift all later answers, and with
    question marks for what UTF-8 cannot encode."""
    return " ".join(caption.encode(errors="replace").decode().replace("|||", "").split())


class ROUGEL(CaptionScore):
    """ROUGE-L (Lin 2004), the mean over images, in percent.

    The score of an image is the F-measure of the longest common subsequence, using the best reference.
    """

    def measure(self, pairs: Sequence[CaptionPair]) -> ImageMeans:
        rouge = Rouge()
        scores = [rouge.calc_score([pair.hypothesis], pair.references) for pair in pairs]
        return ImageMeans("rouge_l", 100 * np.array(scores))


class CIDErD(CaptionScore):
    """CIDEr-D (Vedantam et al. 2015) times 100: a published 0.94 is 94.

    The document frequencies are those of all given references.
    """

    measure = staticmethod(measure_cider)


METRICS: dict[str, type[CaptionScore]] = {
    "bleu": CorpusBLEU,
    "meteor": METEOR,
    "rouge_l": ROUGEL,
    "cider": CIDErD,
}
"""The classes by the names that `evaluate` and `score` take."""


class CaptionMetrics(NamedTuple):
    """Statistics of each metric, or the reason for a missing one, in one sentence."""

    measured: dict[str, SufficientStatistics]
    missing: dict[str, str]


def measure(
    hypotheses: Sequence[Caption],
    references: Sequence[Sequence[Caption]],
    metrics: Sequence[str],
) -> CaptionMetrics:
    """Return the statistics of a corpus for several metrics. A metric that fails does not prevent the others.

    Metrics of English are missing for captions in a script without spaces.

    Args:
        hypotheses, references: as for `CaptionScore.update`.
        metrics: names from `METRICS`, or import paths of subclasses of `CaptionScore`.

    Raises:
        UserError: a metric is unknown, or an import path has no such class.
        ValueError: as `CaptionScore.update`.
    """
    classes = {name: _find_metric(name) for name in metrics}
    pairs = pair_up(hypotheses, references)
    result = CaptionMetrics({}, {})
    for name, cls in classes.items():
        try:
            statistics = cls().measure(pairs)
            corpus_scores([statistics])  # may fail, too
            result.measured[name] = statistics
        except MetricError as error:
            result.missing[name] = str(error)
        except Exception as error:  # a failing scorer must not affect the others
            result.missing[name] = f"{type(error).__name__}: {error}"
    return result


def is_caption_metric(name: str) -> bool:
    """Return whether `measure` takes the name: that of a metric of captions, or an import path."""
    return name in METRICS or "." in name


def _find_metric(name: str) -> type[CaptionScore]:
    """Return the class of a metric by its name or its import path."""
    if not is_caption_metric(name):
        raise UserError(f"there is no metric '{name}'{did_you_mean(name, METRICS)}")
    try:
        metric = METRICS.get(name) or resolve_name(name)
    except (ImportError, AttributeError, ValueError) as error:
        raise UserError(f"the metric {name} cannot be imported ({error}); give the import path of its class") from None
    if not (isinstance(metric, type) and issubclass(metric, CaptionScore)):
        raise UserError(f"{name} is not a metric; derive its class from showattendtell.metrics.CaptionScore")
    return metric


class Diversity(GatheredMetric):
    """Diversity of captions, relative to each other and to the training captions.

    `compute` returns what the function `diversity.diversity` returns.

    Args:
        training: captions that the model was trained on.

    Raises:
        ValueError: a string is given instead of a list of captions.
    """

    def __init__(self, training: Sequence[Caption] | None = None, **kwargs: Any):
        super().__init__(**kwargs)
        self._training = None if training is None else split_captions(training)

    def update(self, hypotheses: Sequence[Caption]) -> None:
        """Add the captions of a batch."""
        self.append(map(list, split_captions(hypotheses)))

    def compute(self) -> dict[str, Tensor]:
        """Return the scores of all captions so far."""
        return scalars(diversity(self.items(), self._training))


class Endings(GatheredMetric):
    """Endings of captions. `compute` returns what the function `diversity.ending_rates` returns."""

    higher_is_better = False

    def update(self, hypotheses: Sequence[Caption], ended: Sequence[bool]) -> None:
        """Add the captions of a batch without `<eos>`, and whether each had one."""
        self.append(zip(map(list, split_captions(hypotheses)), ended, strict=True))

    def compute(self) -> dict[str, Tensor]:
        """Return the scores of all captions so far."""
        items = self.items()
        return scalars(ending_rates([words for words, _ in items], [ended for _, ended in items]))


class _AttentionScore(Metric):
    """Mean score of attention maps at words whose objects have ground-truth boxes, in percent.

    `compute` returns the score of the `model`, and of two maps that ignore the image: `uniform` weights, and a Gaussian
    around the `center`.
    """

    is_differentiable = False
    higher_is_better = True
    full_state_update = False
    score: Literal["hit", "correctness"]
    """Of a map, in an `AttentionHit`."""
    sums: Tensor
    words: Tensor

    def __init__(self, **kwargs: Any):
        super().__init__(**kwargs)
        self.add_state("sums", torch.zeros(len(MAPS), dtype=torch.float64), dist_reduce_fx="sum")
        self.add_state("words", torch.zeros((), dtype=torch.long), dist_reduce_fx="sum")

    def update(self, words: Iterable[GroundedWord]) -> None:
        """Add attention maps at words, with the boxes of the words' objects."""
        for hits in map(compare_maps, words):
            self.sums += torch.tensor([getattr(hit, self.score) for hit in hits[1:]]).to(self.sums)
            self.words += 1

    def compute(self) -> dict[str, Tensor]:
        """Return the means over all words so far; 0 without words."""
        return dict(zip(MAPS, 100 * self.sums / self.words.clamp(min=1), strict=True))


class PointingGame(_AttentionScore):
    """Pointing game (Zhang et al. 2016): rate of maps whose maximum lies in a box of the object.

    Of several equal maxima, the fraction that lies in a box counts.
    """

    score = "hit"


class AttentionCorrectness(_AttentionScore):
    """Attention correctness (Liu et al. 2017): fraction of the attention inside the boxes of the object."""

    score = "correctness"


def scalars(values: Mapping[str, float]) -> dict[str, Tensor]:
    return {name: torch.tensor(value, dtype=torch.float64) for name, value in values.items()}
