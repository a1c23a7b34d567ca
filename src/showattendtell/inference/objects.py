"""Objects in generated captions: hallucination (CHAIR), and grounding in ground-truth boxes."""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from showattendtell.data.coco import Name
from showattendtell.data.tokenizers import PlainTokenizer
from showattendtell.inference.evaluator import EvaluationRun
from showattendtell.inference.predictions import maps_of_captions
from showattendtell.metrics.grounding import GroundedCaption, GroundedObject, attended_box
from showattendtell.metrics.hallucination import coco_names, find_hallucinations, find_nouns, merge_synonyms
from showattendtell.types import Caption, Example

CHAIR, GROUNDING = "chair", "grounding"
"""Names of the metrics in the settings."""


class ObjectScores(NamedTuple):
    """Scores of objects by their names in result files, and the reason for each missing metric."""

    figures: dict[str, Any]
    missing: dict[str, str]


def score_objects(
    run: EvaluationRun, captions_by_image: Mapping[str, Sequence[Sequence[str]]], metrics: Sequence[str]
) -> ObjectScores:
    """Score the objects that the best caption of each image names.

    Args:
        captions_by_image: captions of each image in words, best first.
        metrics: `chair` and `grounding`, or one of them; other names are ignored.
    """
    scores = ObjectScores({}, {})
    if not isinstance(run.vocabulary.tokenizer, PlainTokenizer) or run.language not in ("", "en"):
        reason = "objects are found by their English names, among the words of a model with tokenizer=plain"
        return ObjectScores({}, {name: reason for name in (CHAIR, GROUNDING) if name in metrics})
    captions = [image_captions[0] for image_captions in captions_by_image.values()]
    for name, measure in ((CHAIR, _hallucination), (GROUNDING, _grounding)):
        if name in metrics:
            result = measure(run, captions)
            if isinstance(result, str):
                scores.missing[name] = result
            else:
                scores.figures.update(result)
    return scores


def _hallucination(run: EvaluationRun, captions: Sequence[Sequence[str]]) -> dict[str, Any] | str:
    """Return the scores of CHAIR, or the reason why there are none.

    With COCO's instances the objects are its categories, else the nouns of phrases with boxes.
    """
    from showattendtell import metrics  # torchmetrics takes seconds to import

    names: Mapping[Name, str]
    if any(example.objects is not None for example in run.examples):
        variant, names = "coco", coco_names()
        indices = [i for i, example in enumerate(run.examples) if example.objects is not None]
    elif nouns := find_nouns(_captions(run)):
        variant, names, indices = "nouns", merge_synonyms(nouns), list(range(len(run.examples)))
    else:
        return _lacks_boxes(run)
    examples, hypotheses = [run.examples[i] for i in indices], [captions[i] for i in indices]
    references = [[caption.words for caption in example.captions] for example in examples]
    objects = [example.objects or () for example in examples]
    metric = metrics.CHAIR(names)
    metric.update(hypotheses, references, objects)
    hallucinations = {}
    for example, caption, words, annotated in zip(examples, hypotheses, references, objects, strict=True):
        if hallucinated := find_hallucinations(caption, words, annotated, names)[1]:
            hallucinations[example.image] = [caption[mention.word] for mention in hallucinated]
    scores = {name: value.item() for name, value in metric.compute().items()}
    return {**scores, "chair_objects": variant, "chair_images": len(examples), "hallucinations": hallucinations}


def _grounding(run: EvaluationRun, captions: Sequence[Sequence[str]]) -> dict[str, Any] | str:
    """Return F1-all and F1-loc with precision and recall, or the reason why there are none."""
    from showattendtell.metrics import Grounding

    if len(run.predictors) > 1:
        return "grounding is scored for one model; give a single checkpoint, or leave grounding out of metrics"
    if not any(caption.phrases for example in run.examples for caption in example.captions):
        return _lacks_boxes(run)
    classes = find_nouns(_captions(run))
    generated = []
    for words, (maps, seen) in zip(captions, maps_of_captions(*run.predictors[0], run.examples, captions), strict=True):
        objects = ((i, classes[(word,)]) for i, word in enumerate(words) if (word,) in classes)
        generated.append([GroundedObject(thing, (attended_box(maps[i], seen),)) for i, thing in objects])
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


def _captions(run: EvaluationRun) -> list[Caption]:
    return [caption for example in run.dataset.examples() for caption in example.captions]


def _lacks_boxes(run: EvaluationRun) -> str:
    return (
        f"the data set {run.dataset.name} has no annotated objects; give them as dataset.entities=entities.zip "
        "(Flickr30k Entities) or, for COCO, as dataset.instances=instances_val2014.json"
    )
