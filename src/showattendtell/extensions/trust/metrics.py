"""Metrics of objects in captions and of the faithfulness of attention maps, as `torchmetrics.Metric` classes."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from torch import Tensor

from showattendtell.extensions.trust.grounding import (
    IOU,
    GroundedCaption,
    GroundedObject,
    score_grounding,
)
from showattendtell.extensions.trust.hallucination import HallucinationCounts, coco_names, measure_hallucination
from showattendtell.extensions.trust.map_faithfulness import (
    FaithfulnessScores,
    MapFaithfulness,
    WordFaithfulness,
    score_faithfulness,
)
from showattendtell.metrics.bootstrap import corpus_scores
from showattendtell.metrics.modular import GatheredMetric, scalars
from showattendtell.metrics.tokenizers import Caption, split_captions
from showattendtell.types import Box


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
        captions, references, objects = zip(*self.items(), strict=True) if self.items() else ((), (), ())
        return measure_hallucination(captions, references, objects, self._names)

    def compute(self) -> dict[str, Tensor]:
        """Return the rates so far; 0 without captions."""
        return scalars(corpus_scores([self.statistics()]))


class Grounding(GatheredMetric):
    """Grounding of generated captions in images (Zhou et al. 2019), in percent.

    `compute` returns `f1_all`, `precision_all`, `recall_all`, `f1_loc`, `precision_loc`, `recall_loc`, and the number
    of classes in the references, `classes`; see `metrics.grounding`.

    Args:
        iou: intersection over union above which a box is correct.
    """

    def __init__(self, iou: float = IOU, **kwargs: Any):
        super().__init__(**kwargs)
        self._iou = iou

    def update(
        self, generated: Sequence[Sequence[GroundedObject]], references: Sequence[Sequence[GroundedCaption]]
    ) -> None:
        """Add the images of a batch.

        Args:
            generated: the objects of each image's generated caption, with one box each.
            references: the reference captions of each image.

        Raises:
            ValueError: the numbers of images differ.
        """
        plain = [[(caption.objects, sorted(caption.others)) for caption in captions] for captions in references]
        self.append(zip([list(objects) for objects in generated], plain, strict=True))

    def compute(self) -> dict[str, Tensor]:
        """Return the scores of all images so far; 0 without images."""
        images = []
        for generated, references in self.items():
            captions = [GroundedCaption(_objects(objects), frozenset(others)) for objects, others in references]
            images.append((_objects(generated), captions))
        rates = score_grounding(images, self._iou)._asdict()
        classes = rates.pop("num_classes")
        return scalars({**{name: 100 * rate for name, rate in rates.items()}, "classes": classes})


def _objects(items: Iterable[Any]) -> tuple[GroundedObject, ...]:
    return tuple(GroundedObject(name, tuple(Box(*box) for box in boxes)) for name, boxes in items)


class Faithfulness(GatheredMetric):
    """Faithfulness of attention maps: whether large weights are on the regions that the words depend on.

    `compute` returns the mean over words of each field of `MapFaithfulness` for each map, as `attention_deletion`, and
    `largest_effect`, the median of the largest effect of any region on a word, in nats.
    """

    def update(self, words: Iterable[WordFaithfulness]) -> None:
        """Add words."""
        self.append((dict(word.maps), *word[1:]) for word in words)

    def scores(self) -> FaithfulnessScores:
        """Return the means over all words so far, and the differences to random maps."""
        with self.sync_context():
            return score_faithfulness(self._words())

    def compute(self) -> dict[str, Tensor]:
        """Return the means over all words so far; nan without words."""
        scores = score_faithfulness(self._words(), resamples=1)
        values = {"largest_effect": scores.largest_effect}
        for name, map_scores in scores.maps.items():
            for field, value in map_scores._asdict().items():
                if value is not None:
                    values[f"{name}_{field}"] = value
        return scalars(values)

    def _words(self) -> list[WordFaithfulness]:
        return [
            WordFaithfulness({name: MapFaithfulness(*fields) for name, fields in maps.items()}, *others)
            for maps, *others in self.items()
        ]
