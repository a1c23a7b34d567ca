"""Grounding of generated captions (Zhou et al. 2019): are the objects named correctly and attended to?

A generated caption has objects: words of known classes, each with the box that the model attended to. A reference
caption has objects with ground-truth boxes. An object is correct if its class is in the reference and its box has an
intersection over union above 0.5 with a box of the first reference object of that class.

    precision  fraction of the generated objects that are correct
    recall     fraction of the reference objects whose class is generated with a correct box

Both are computed by class and averaged over the classes of the references; F1 is their harmonic mean. F1-all counts
objects of other classes as wrong. F1-loc ignores them, and so measures localization alone. The generated caption is
compared with each reference caption of its image. A generated word that a reference has without a box is ignored there.
"""

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

import numpy as np

from showattendtell.types import Box, RegionBoxes

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


class GroundingScores(NamedTuple):
    """Scores of generated captions, 0 to 1, and the number of classes in the references."""

    f1_all: float
    precision_all: float
    recall_all: float
    f1_loc: float
    precision_loc: float
    recall_loc: float
    num_classes: int


def score_grounding(
    images: Iterable[tuple[Sequence[GroundedObject], Sequence[GroundedCaption]]], iou: float = IOU
) -> GroundingScores:
    """Score the objects of the generated caption of each image against those of its reference captions.

    Args:
        images: pairs of the generated objects and the reference captions.
        iou: intersection over union above which a box is correct.
    """
    classes = set[str]()
    # by class: whether the boxes of matched objects overlap, and the number of objects without a match
    correct, found = defaultdict[str, list[bool]](list), defaultdict[str, list[bool]](list)
    num_wrong, num_missed = Counter[str](), Counter[str]()
    for generated, references in images:
        generated_objects = {item.name: item for item in reversed(generated)}
        for reference in references:
            classes.update(item.name for item in reference.objects)
            reference_objects = {item.name: item for item in reversed(reference.objects)}
            for item in generated:
                if item.name in reference_objects:
                    correct[item.name].append(overlaps(item, reference_objects[item.name], iou))
                elif item.name not in reference.others:
                    num_wrong[item.name] += 1
            for item in reference.objects:
                if item.name in generated_objects:
                    found[item.name].append(overlaps(generated_objects[item.name], item, iou))
                else:
                    num_missed[item.name] += 1

    def mean(hits_by_class: dict[str, list[bool]], others: Mapping[str, int]) -> float:
        rates = [sum(hits) / (len(hits) + others.get(name, 0)) for name, hits in hits_by_class.items()]
        return sum(rates) / max(len(classes), 1)  # a class without an object in a caption counts 0

    def f1(precision: float, recall: float) -> float:
        return 2 * precision * recall / (precision + recall) if precision + recall else 0.0

    p_all, r_all = mean(correct, num_wrong), mean(found, num_missed)
    p_loc, r_loc = mean(correct, {}), mean(found, {})
    return GroundingScores(f1(p_all, r_all), p_all, r_all, f1(p_loc, r_loc), p_loc, r_loc, len(classes))


def overlaps(generated: GroundedObject, reference: GroundedObject, iou: float) -> bool:
    return any(intersection_over_union(generated.boxes[0], box) > iou for box in reference.boxes)


def intersection_over_union(a: Box, b: Box) -> float:
    """Return the area of the intersection of two boxes divided by that of their union, 0 to 1."""
    common = a.clipped(b).area
    union = a.area + b.area - common
    return common / union if union else 0.0


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
