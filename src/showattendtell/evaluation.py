"""Captions and attention of a trained model over the images of a split."""

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import torch
from rich.console import Console
from rich.progress import track

from showattendtell.batches import CaptionBatches, ImageBatches, ImageSource
from showattendtell.data.images import image_size
from showattendtell.metrics.gaze import Gaze, Look, score_gaze
from showattendtell.module import CaptioningModule
from showattendtell.records import Caption, Example

IMAGES_AT_A_TIME = 50
CAPTIONS_AT_A_TIME = 64


class Written(NamedTuple):
    """What the model wrote for one image."""

    image: str
    words: list[str]


def write_captions(module: CaptioningModule, examples: Sequence[Example], images: ImageSource) -> Iterator[Written]:
    """A caption for every image, written free-running, in order."""
    batches = ImageBatches(examples, images, IMAGES_AT_A_TIME)
    for index in track(range(len(batches)), "captioning", console=Console(stderr=True), transient=True):
        scene = batches[index]
        captions = module.write(scene.images.to(module.device))
        for name, caption in zip(scene.names, captions, strict=True):
            yield Written(name, module.vocabulary.decode(caption.tokens))


def references(examples: Sequence[Example], as_written: bool) -> list[list[Sequence[str]]]:
    """What people said of each image: in words like the model's; or as they wrote it, split at white space, where the
    data set has kept that."""

    def split(caption: Caption) -> Sequence[str]:
        return (as_written and caption.written.split()) or caption.words

    return [[split(caption) for caption in example.captions] for example in examples]


def measure_gaze(module: CaptioningModule, examples: Sequence[Example], images: ImageSource) -> Gaze | None:
    """How well attention finds what the nouns of people's captions name; None for a data set without boxes."""
    if not any(caption.phrases for example in examples for caption in example.captions):
        return None
    return score_gaze(look_at_nouns(module, examples, images))


@torch.no_grad()
def look_at_nouns(module: CaptioningModule, examples: Sequence[Example], images: ImageSource) -> Iterator[Look]:
    """Where the model looks at each noun that has a box, given the words that people wrote before it."""
    captions = CaptionBatches(examples, module.vocabulary, images)
    phrases = [caption.phrases for example in examples for caption in example.captions]
    told = [number for number, nouns in enumerate(phrases) if nouns]
    for start in track(
        range(0, len(told), CAPTIONS_AT_A_TIME), "looking", console=Console(stderr=True), transient=True
    ):
        numbers = told[start : start + CAPTIONS_AT_A_TIME]
        batch = captions[numbers]
        weights = module.trace(*(part.to(module.device) for part in batch)).weights.cpu().numpy()
        for number, alpha in zip(numbers, weights, strict=True):
            width, height = image_size(examples[captions.owners[number]].path)
            seen = module.encoder.preprocessing.crop_box(width, height).scaled(1 / width, 1 / height)
            for phrase in phrases[number]:
                yield Look(alpha[phrase.noun].reshape(module.encoder.grid), seen, phrase.boxes, phrase.kind)
