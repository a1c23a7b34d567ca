"""Caption and attention metrics, and means over steps, as `torchmetrics.Metric` classes; and the table of the metrics
that commands name.

A caption is a list of words, `["a", "dog"]`, or a string that is split at white space. Rates are in percent. In
distributed training `compute` returns the score of the captions of all processes.
"""

import json
from abc import abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from itertools import chain
from pkgutil import resolve_name
from typing import Any, NamedTuple

import numpy as np
import torch
from pycocoevalcap.rouge.rouge import Rouge
from torch import Tensor
from torchmetrics import Metric
from torchmetrics.utilities import dim_zero_cat

from showattendtell.errors import UserError, did_you_mean
from showattendtell.metrics.attention import (
    GroundedWord,
    WordHits,
    compare_maps,
    score_attention,
)
from showattendtell.metrics.bootstrap import ImageMeans, SufficientStatistics, corpus_scores
from showattendtell.metrics.clip_score import Clip, load_clip, measure_clip_score
from showattendtell.metrics.diversity import diversity, ending_rates
from showattendtell.metrics.java import MetricError
from showattendtell.metrics.meteor import measure_meteor
from showattendtell.metrics.ngrams import measure_bleu, measure_cider
from showattendtell.metrics.tokenizers import Caption, CaptionPair, pair_up, split_captions
from showattendtell.runtime.distributed import gather, rank


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
    """METEOR 1.5 of a corpus (Denkowski and Lavie 2014), in percent; runs Java.

    Raises:
        MetricError: Java is missing, or the program fails.
    """

    measure = staticmethod(measure_meteor)


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


class CLIPScore(GatheredMetric):
    """CLIPScore (Hessel et al. 2021) without its weight: 100 max(cos(image, caption), 0), the mean over images.

    Args:
        clip: a folder or a hub id of a CLIP model, or what `load_clip` returned.

    Raises:
        UserError: the model cannot be loaded, or an image cannot be read.
    """

    def __init__(self, clip: str | Clip, **kwargs: Any):
        super().__init__(**kwargs)
        self._clip = load_clip(clip) if isinstance(clip, str) else clip

    def update(self, captions: Sequence[Caption], paths: Sequence[str]) -> None:
        """Add the captions of a batch and the files of their images."""
        self.append(measure_clip_score(captions, paths, self._clip, self.device).tolist())

    def compute(self) -> Tensor:
        """Return the mean over all images so far; nan without images."""
        return torch.tensor(self.items() or [torch.nan], dtype=torch.float64).mean()


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


class _AttentionScore(GatheredMetric):
    """Mean score of attention maps at words whose objects have ground-truth boxes, in percent.

    `compute` returns the score of the `model`, and of two baselines that ignore the image: `uniform` weights, and a
    Gaussian around the `center`.
    """

    _rate: str  # the name in `score_attention`

    def update(self, words: Iterable[GroundedWord]) -> None:
        """Add attention maps at words, with the boxes of the words' objects."""
        self.append(map(compare_maps, words))

    def scores(self) -> dict[str, Any]:
        """Return the means over all words so far, also by kind of object; see `score_attention`."""
        with self.sync_context():
            return score_attention([WordHits(*word) for word in self.items()])

    def compute(self) -> dict[str, Tensor]:
        """Return the means over all words so far; 0 without words."""
        scores = score_attention([WordHits(*word) for word in self.items()])
        maps = {"model": scores, **scores["attention_baselines"]}
        return scalars({name: means[self._rate] for name, means in maps.items()})


class PointingGame(_AttentionScore):
    """Pointing game (Zhang et al. 2016): rate of maps whose maximum lies in a box of the object.

    Of several equal maxima, the fraction that lies in a box counts.
    """

    _rate = "pointing_game"


class AttentionCorrectness(_AttentionScore):
    """Attention correctness (Liu et al. 2017): fraction of the attention inside the boxes of the object."""

    _rate = "attention_correctness"


NamedMeans = Mapping[str, Tensor | tuple[Tensor, Tensor | int]]
"""By name, pairs of the mean of some items, and their number."""


class Means(Metric):
    """Means of named values over steps, weighted by numbers of items, in double precision.

    The sums stay on the device of the values; `update` does not synchronize with it. Names need not be declared, and
    processes may have different names.
    """

    full_state_update = False

    def __init__(self, **kwargs: Any):
        super().__init__(**kwargs)
        self._sums: dict[str, tuple[Tensor, Tensor]] = {}  # of values times items, and of items

    def forward(self, values: NamedMeans) -> dict[str, Tensor]:
        """Add values, and return their means."""
        self.update(values)
        return {name: mean for name, (mean, _) in values.items()}

    def update(self, values: NamedMeans) -> None:
        """Add values by name; also what `merged_means` returned."""
        for name, (mean, items) in values.items():
            dtype = torch.float32 if mean.device.type == "mps" else torch.float64
            if name not in self._sums:
                self._sums[name] = (torch.zeros((), dtype=dtype), torch.zeros((), dtype=dtype))
            total, number = (part.to(mean.device, dtype) for part in self._sums[name])
            self._sums[name] = self._add(total, number, mean, items)

    def compute(self) -> dict[str, Tensor]:
        """Return the means over all processes so far, of all names that have items."""
        return {name: mean for name, (mean, items) in self.merged_means().items() if items}

    def merged_means(self) -> dict[str, Tensor]:
        """Return by name a tensor (2,): the mean over all processes, and the number of items."""
        own = {name: torch.stack(sums).cpu() for name, sums in self._sums.items()}
        parts = gather({str(rank()): own}).values()
        merged = {}
        for name in dict.fromkeys(chain.from_iterable(parts)):
            sums = torch.stack([part[name] for part in parts if name in part])  # (processes, 2)
            merged[name] = torch.stack([self._mean(sums), sums[:, 1].sum()])
        return merged

    def reset(self) -> None:
        """Forget all names."""
        super().reset()
        self._sums = {}

    def _add(self, total: Tensor, number: Tensor, mean: Tensor, items: Tensor | int) -> tuple[Tensor, Tensor]:
        """Return the sums with further items."""
        return total + mean.to(total) * items, number + items

    def _mean(self, sums: Tensor) -> Tensor:
        """Return the mean of all items of the processes' sums (processes, 2)."""
        total, items = sums.sum(dim=0)
        return total / items.clamp(min=1)


class RunningMeans(Means):
    """Means that are updated in single precision, m += (x - m) k / n for k further items of n in all.

    Training losses are logged with this metric, so that logs of different versions are comparable. Means of several
    processes are averaged in double precision.
    """

    # In place of the first sum stands the mean.

    def _add(self, total: Tensor, number: Tensor, mean: Tensor, items: Tensor | int) -> tuple[Tensor, Tensor]:
        number, previous = number + items, total.float()
        share = (items / number.clamp(min=1)).float()
        return (previous + (mean.float() - previous) * share).to(number), number

    def _mean(self, sums: Tensor) -> Tensor:
        if len(sums) == 1:
            return sums[0, 0]
        return super()._mean(torch.stack([sums.prod(dim=1), sums[:, 1]], dim=1))


def scalars(values: Mapping[str, float]) -> dict[str, Tensor]:
    return {name: torch.tensor(value, dtype=torch.float64) for name, value in values.items()}
