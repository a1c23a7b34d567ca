"""CHAIR as a `torchmetrics.Metric` class."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from torch import Tensor

from showattendtell.extensions.trust.hallucination import (
    HallucinationCounts,
    coco_names,
    count_mentions,
    find_hallucinations,
)
from showattendtell.metrics.bootstrap import corpus_scores
from showattendtell.metrics.modular import GatheredMetric, scalars
from showattendtell.metrics.tokenizers import Caption, split_captions


class CHAIR(GatheredMetric):
    """Rates of hallucinated objects in captions (Rohrbach et al. 2018).

    `compute` returns in percent `chair_i`, the hallucinated ones among all mentions of objects, and `chair_s`, the
    captions with a hallucinated object; and `chair_mentions`, the number of mentions.

    Args:
        names: the object of each name; by default names of COCO's 80 categories (`hallucination.coco_names`).
    """

    higher_is_better = False

    def __init__(self, names: Mapping[tuple[str, ...], str] | None = None, **kwargs: Any):
        super().__init__(**kwargs)
        self._names = coco_names() if names is None else dict(names)

    def update(
        self,
        hypotheses: Sequence[Caption],
        references: Sequence[Sequence[Caption]],
        objects: Sequence[Iterable[str]] | None = None,
    ) -> None:
        """Add the captions of a batch, in lower case without punctuation.

        Args:
            hypotheses: one caption per image.
            references: reference captions of each image; the objects that they mention are in the image.
            objects: annotated objects of each image; none by default.

        Raises:
            ValueError: the numbers of images differ, or a list of captions is a string.
        """
        captions = split_captions(hypotheses, "the hypotheses")
        reference_captions = [split_captions(each, "the references of an image") for each in references]
        annotated = [[] for _ in captions] if objects is None else list(map(list, objects))
        self.append(zip(captions, reference_captions, annotated, strict=True))

    def statistics(self) -> HallucinationCounts:
        """Return the counts of all captions so far, for `bootstrap.resample`."""
        return count_mentions(
            find_hallucinations(caption, references, objects, self._names)
            for caption, references, objects in self.items()
        )

    def compute(self) -> dict[str, Tensor]:
        """Return the rates so far; 0 without captions."""
        return scalars(corpus_scores([self.statistics()]))
