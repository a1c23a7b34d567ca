"""Objects in generated captions: hallucination (CHAIR), and grounding in ground-truth boxes."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Literal

import numpy as np

from showattendtell.data.coco import Name
from showattendtell.data.tokenizers import PlainTokenizer
from showattendtell.datamodules.datasets import CaptionDataset, ImageSource
from showattendtell.decoding.image_captioner import ImageCaptioner
from showattendtell.extensions.trust.grounding import GroundedCaption, GroundedObject, attended_box
from showattendtell.extensions.trust.hallucination import coco_names, find_hallucinations, find_nouns, merge_synonyms
from showattendtell.inference.evaluator import Captions, EvaluationRun, RunScores
from showattendtell.inference.predictions import maps_by_caption
from showattendtell.metrics.java import MetricError
from showattendtell.types import Box, Caption, Example, RegionBoxes
from showattendtell.visualization.tables import Labels

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
            if not isinstance(run.vocabulary.tokenizer, PlainTokenizer) or run.language not in ("", "en"):
                raise MetricError("objects are found by their English names, in the words of tokenizer=plain")
            return RunScores(score(run, [image_captions[0] for image_captions in captions.values()]))
        except MetricError as error:
            return RunScores({}, {self._kind: str(error)})


def _hallucination(run: EvaluationRun, captions: Sequence[Sequence[str]]) -> dict[str, Any]:
    """Return the scores of CHAIR. With COCO's instances the objects are its categories, else the nouns of phrases with
    boxes."""
    from showattendtell.extensions.trust.metrics import CHAIR  # torchmetrics takes seconds to import

    names: Mapping[Name, str]
    annotated = [i for i, example in enumerate(run.examples) if example.objects is not None]
    if annotated:
        variant, names = "coco", coco_names()
    elif nouns := _nouns(run):
        variant, names = "nouns", merge_synonyms(nouns)
        annotated = list(range(len(run.examples)))
    else:
        raise _lacks_boxes(run)
    examples, hypotheses = [run.examples[i] for i in annotated], [captions[i] for i in annotated]
    references = [[caption.words for caption in example.captions] for example in examples]
    objects = [example.objects or () for example in examples]
    metric = CHAIR(names)
    metric.update(hypotheses, references, objects)
    hallucinations = {}
    for example, caption, words, present in zip(examples, hypotheses, references, objects, strict=True):
        _, hallucinated = find_hallucinations(caption, words, present, names)
        if hallucinated:
            hallucinations[example.image] = [caption[mention.word] for mention in hallucinated]
    scores = {name: value.item() for name, value in metric.compute().items()}
    return {**scores, "chair_objects": variant, "chair_images": len(examples), "hallucinations": hallucinations}


def _grounding(run: EvaluationRun, captions: Sequence[Sequence[str]]) -> dict[str, Any]:
    """Return F1-all and F1-loc with precision and recall."""
    from showattendtell.extensions.trust.metrics import Grounding

    if len(run.predictors) > 1:
        raise MetricError("grounding is scored for one model; give a single checkpoint, or leave it out of metrics")
    if not any(caption.phrases for example in run.examples for caption in example.captions):
        raise _lacks_boxes(run)
    classes = _nouns(run)
    generated = []
    for words, (maps, seen) in zip(captions, maps_of_captions(*run.predictors[0], run.examples, captions), strict=True):
        objects = []
        for i, word in enumerate(words):
            if (word,) in classes:
                objects.append(GroundedObject(classes[(word,)], (attended_box(maps[i], seen),)))
        generated.append(objects)
    metric = Grounding()
    metric.update(generated, [_grounded(example, classes) for example in run.examples])
    return {f"grounding_{name}": value.item() for name, value in metric.compute().items()}


def _grounded(example: Example, classes: Mapping[Name, str]) -> list[GroundedCaption]:
    """Return the reference captions with the classes of their words; phrases of other classes are left out."""
    captions = []
    for caption in example.captions:
        phrases = {phrase.noun: phrase.boxes for phrase in caption.phrases if (caption.words[phrase.noun],) in classes}
        objects = (GroundedObject(classes[(caption.words[noun],)], boxes) for noun, boxes in sorted(phrases.items()))
        others = {classes.get((word,), word) for i, word in enumerate(caption.words) if i not in phrases}
        captions.append(GroundedCaption(tuple(objects), frozenset(others)))
    return captions


def _nouns(run: EvaluationRun) -> dict[Name, str]:
    return find_nouns(caption for example in run.dataset.examples() for caption in example.captions)


def _lacks_boxes(run: EvaluationRun) -> MetricError:
    return MetricError(
        f"the data set {run.dataset.name} has no annotated objects; give them as dataset.entities=entities.zip "
        "(Flickr30k Entities) or, for COCO, as dataset.instances=instances_val2014.json"
    )


def maps_of_captions(
    module: ImageCaptioner, images: ImageSource, examples: Sequence[Example], written: Sequence[Sequence[str]]
) -> Iterator[tuple[np.ndarray, Box | RegionBoxes]]:
    """Yield for each image the attention maps at the T words of a caption, and their place (see `Encoder.arrange`).

    Args:
        written: a caption in words for each example.
    """
    captioned = []
    for example, words in zip(examples, written, strict=True):
        captioned.append(example._replace(captions=(Caption(tuple(words), language=module.language or ""),)))
    captions, offset = CaptionDataset(captioned, module.vocabulary, images), module.vocabulary.offset
    for number, weights, regions in maps_by_caption(module, captions, range(len(captions)), "grounding"):
        seen = module.encoder.preprocessing.frame(examples[number].path).seen
        yield module.encoder.arrange(weights[offset : offset + len(written[number])], regions, seen)
