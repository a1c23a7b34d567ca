"""Objects in generated captions: hallucination (CHAIR), and grounding in ground-truth boxes (Zhou et al. 2019).

A generated caption has objects: words of known classes, each with the box that the model attended to. A reference
caption has objects with ground-truth boxes. An object is correct if its class is in the reference and its box has an
intersection over union above 0.5 with a box of the first reference object of that class.

    precision  fraction of the generated objects that are correct
    recall     fraction of the reference objects whose class is generated with a correct box

Both are computed by class and averaged over the classes of the references; F1 is their harmonic mean. F1-all counts
objects of other classes as wrong. F1-loc ignores them, and so measures localization alone. The generated caption is
compared with each reference caption of its image. A generated word that a reference has without a box is ignored there.
"""

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Literal, NamedTuple

import numpy as np
import torch
from torchvision.ops import box_iou

from showattendtell.data.coco import Name
from showattendtell.data.tokenizers import PlainTokenizer
from showattendtell.datamodules.datasets import CaptionDataset, ImageSource
from showattendtell.decoding.image_captioner import ImageCaptioner
from showattendtell.extensions.trust.hallucination import (
    coco_names,
    find_hallucinations,
    find_nouns,
    hallucination_rates,
    merge_synonyms,
)
from showattendtell.inference.evaluator import Captions, EvaluationRun, RunScores, ask_for_boxes, lacks_boxes
from showattendtell.inference.predictions import maps_by_caption
from showattendtell.metrics.java import MetricError
from showattendtell.types import Box, Caption, Example, RegionBoxes
from showattendtell.visualization.tables import Labels

IOU = 0.5
"""Intersection over union above which a box is correct."""

PEAK = 0.5
"""Fraction of a map's maximum from which on a cell belongs to the attended box."""


class GroundedObject(NamedTuple):
    """An object of a caption: its class, and its boxes in fractions of the image; a generated one has one box."""

    name: str
    boxes: tuple[Box, ...]


class GroundedCaption(NamedTuple):
    """A reference caption: its objects with boxes in order, and the classes of its other words."""

    objects: tuple[GroundedObject, ...]
    others: frozenset[str] = frozenset()


def score_grounding(images: Iterable[tuple[Sequence[GroundedObject], Sequence[GroundedCaption]]]) -> dict[str, float]:
    """Score the objects of the generated caption of each image against those of its reference captions.

    Args:
        images: pairs of the generated objects and the reference captions.

    Returns:
        `f1_all`, `precision_all`, `recall_all`, `f1_loc`, `precision_loc` and `recall_loc` in percent, and the number
        of `classes` in the references.
    """
    of_generated, of_references = list[Match](), list[Match]()
    for generated, references in images:
        for reference in references:
            ignored = reference.others - {item.name for item in reference.objects}
            of_generated += _match([item for item in generated if item.name not in ignored], reference.objects)
            of_references += _match(reference.objects, generated)
    classes = {name for name, _ in of_references}

    def mean_rate(matches: Iterable[Match]) -> float:
        by_class = defaultdict[str, list[bool]](list)
        for name, is_correct in matches:
            by_class[name].append(bool(is_correct))
        rates = [sum(hits) / len(hits) for hits in by_class.values()]
        return 100 * sum(rates) / max(len(classes), 1)  # a class without an object in a caption counts 0

    scores: dict[str, float] = {}
    for variant, without in (("all", ()), ("loc", (None,))):
        both = [[match for match in matches if match[1] not in without] for matches in (of_generated, of_references)]
        precision, recall = map(mean_rate, both)
        f1 = 2 * precision * recall / (precision + recall) if precision + recall else 0.0
        scores |= {f"f1_{variant}": f1, f"precision_{variant}": precision, f"recall_{variant}": recall}
    return {**scores, "classes": len(classes)}


Match = tuple[str, bool | None]
"""The class of an object, and whether its box is correct; None without another object of the class."""


def _match(items: Iterable[GroundedObject], others: Sequence[GroundedObject]) -> Iterator[Match]:
    """Compare each object with the first of its class among the others; one of both has one box."""
    first = {other.name: other for other in reversed(others)}
    for item in items:
        is_correct = None
        if item.name in first:
            boxes = (torch.tensor(each.boxes, dtype=torch.float64) for each in (item, first[item.name]))
            is_correct = bool((box_iou(*boxes) > IOU).any())
        yield item.name, is_correct


def attended_box(weights: np.ndarray, seen: Box | RegionBoxes) -> Box:
    """Return the box that a model attends to, in fractions of the image.

    It is the bounding box of the cells around the maximum whose weight is at least `PEAK` times the maximum, and that
    are connected to it (as for class activation maps, Zhou et al. 2016). Of regions that are boxes, it is the box with
    the maximum (as Zhou et al. 2019).

    Args:
        weights: attention map (rows, columns), or (L,) of regions that are boxes.
        seen: the part of the image that the grid covers, or the boxes of the regions.
    """
    if isinstance(seen, RegionBoxes):
        return seen.boxes[int(weights.argmax())]
    from scipy.ndimage import find_objects, label  # here, so that tables of scores do not wait for it

    parts, _ = label(weights >= PEAK * weights.max())
    top = parts[np.unravel_index(weights.argmax(), weights.shape)]
    rows, columns = find_objects(parts)[top - 1]
    height, width = (seen.bottom - seen.top) / weights.shape[0], (seen.right - seen.left) / weights.shape[1]
    box = Box(columns.start, rows.start, columns.stop, rows.stop).scaled(width, height)
    return Box(box.left + seen.left, box.top + seen.top, box.right + seen.left, box.bottom + seen.top)


LABELS: Labels = {
    "chair_i": ("CHAIR-i, % of mentioned objects", ".1f"),
    "chair_s": ("CHAIR-s, % of captions", ".1f"),
    "chair_mentions": ("mentioned objects", ",.0f"),
    "grounding_f1_all": ("F1-all of attended objects", ".1f"),
    "grounding_f1_loc": ("F1-loc", ".1f"),
}
"""Labels and number formats of scores of objects in captions."""


class ObjectMetric:
    """Score the objects that the best caption of each image names.

    Args:
        kind: `chair`, the hallucinated ones (Rohrbach et al. 2018), or `grounding`, whether attention is on them (Zhou
            et al. 2019).
    """

    labels: Labels = LABELS

    def __init__(self, kind: Literal["chair", "grounding"]):
        self._kind = kind

    def check(self, run: EvaluationRun) -> None:
        """Every model can be scored, or has a reason why not in the results."""

    def measure(self, run: EvaluationRun, captions: Captions, seed: int) -> RunScores:
        """Return the scores, or the reason why there are none."""
        score = _hallucination if self._kind == "chair" else _grounding
        try:
            if not isinstance(run.vocabulary.tokenizer, PlainTokenizer):
                raise MetricError("objects are found by their English names, in the words of tokenizer=plain")
            return RunScores(score(run, [image_captions[0] for image_captions in captions.values()]))
        except MetricError as error:
            return RunScores({}, {self._kind: str(error)})


def _hallucination(run: EvaluationRun, captions: Sequence[Sequence[str]]) -> dict[str, Any]:
    """Return the scores of CHAIR. With COCO's instances the objects are its categories, else the nouns of phrases with
    boxes."""
    names: Mapping[Name, str]
    annotated = [i for i, example in enumerate(run.examples) if example.objects is not None]
    if annotated:
        variant, names = "coco", coco_names()
    elif nouns := _nouns(run):
        variant, names = "nouns", merge_synonyms(nouns)
        annotated = list(range(len(run.examples)))
    else:
        raise MetricError(ask_for_boxes(run))
    mentions, hallucinations = [], {}
    for i in annotated:
        example, caption = run.examples[i], captions[i]
        references = [reference.words for reference in example.captions]
        found, hallucinated = find_hallucinations(caption, references, example.objects or (), names)
        mentions.append((found, hallucinated))
        if hallucinated:
            hallucinations[example.image] = [caption[word] for word, _ in hallucinated]
    scores = hallucination_rates(mentions)
    return {**scores, "chair_objects": variant, "chair_images": len(annotated), "hallucinations": hallucinations}


def _grounding(run: EvaluationRun, captions: Sequence[Sequence[str]]) -> dict[str, Any]:
    """Return F1-all and F1-loc with precision and recall."""
    if reason := lacks_boxes(run, "grounding"):
        raise MetricError(reason)
    classes = {word: noun for (word,), noun in _nouns(run).items()}
    images = []
    written = maps_of_captions(run.module, run.images[0], run.examples, captions)
    for example, words, (maps, seen) in zip(run.examples, captions, written, strict=True):
        generated = []
        for word, weights in zip(words, maps, strict=True):
            if word in classes:
                generated.append(GroundedObject(classes[word], (attended_box(weights, seen),)))
        images.append((generated, [_grounded(caption, classes) for caption in example.captions]))
    return {f"grounding_{name}": value for name, value in score_grounding(images).items()}


def _grounded(caption: Caption, classes: Mapping[str, str]) -> GroundedCaption:
    """Return a reference caption with the classes of its words; phrases of other classes are left out."""
    phrases = {phrase.noun: phrase.boxes for phrase in caption.phrases if caption.words[phrase.noun] in classes}
    objects = (GroundedObject(classes[caption.words[noun]], boxes) for noun, boxes in sorted(phrases.items()))
    others = {classes.get(word, word) for i, word in enumerate(caption.words) if i not in phrases}
    return GroundedCaption(tuple(objects), frozenset(others))


def _nouns(run: EvaluationRun) -> dict[Name, str]:
    return find_nouns(caption for example in run.dataset.examples() for caption in example.captions)


def maps_of_captions(
    module: ImageCaptioner, images: ImageSource, examples: Sequence[Example], written: Sequence[Sequence[str]]
) -> Iterator[tuple[np.ndarray, Box | RegionBoxes]]:
    """Yield for each image the attention maps at the T words of a caption, and their place (see `Encoder.arrange`).

    Args:
        written: a caption in words for each example.
    """
    captioned = []
    for example, words in zip(examples, written, strict=True):
        captioned.append(example._replace(captions=(Caption(tuple(words)),)))
    captions = CaptionDataset(captioned, module.vocabulary, images)
    for number, weights, regions in maps_by_caption(module, captions, range(len(captions)), "grounding"):
        seen = module.encoder.preprocessing.frame(examples[number].path).seen
        yield module.encoder.arrange(weights[: len(written[number])], regions, seen)
