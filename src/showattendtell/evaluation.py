"""Captions and attention of a trained model over the images of a split."""

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import torch
from rich.console import Console
from rich.progress import track

from showattendtell.batches import CaptionBatches, ImageBatches, ImageSource
from showattendtell.data.images import image_size
from showattendtell.metrics.pointing import Look, Pointing, pointing_game
from showattendtell.module import CaptioningModule
from showattendtell.records import Example

IMAGES_AT_A_TIME = 50
CAPTIONS_AT_A_TIME = 64


class Written(NamedTuple):
    """What the model wrote for one image, and what people did."""

    image: str
    words: list[str]
    references: list[tuple[str, ...]]


def write_captions(module: CaptioningModule, examples: Sequence[Example], images: ImageSource) -> Iterator[Written]:
    """A caption for every image, written free-running, in order."""
    batches = ImageBatches(examples, images, IMAGES_AT_A_TIME)
    for index in track(range(len(batches)), "captioning", console=Console(stderr=True), transient=True):
        scene = batches[index]
        captions = module.write(scene.images.to(module.device))
        for name, caption, references in zip(scene.names, captions, scene.references, strict=True):
            yield Written(name, module.vocabulary.decode(caption.tokens), references)


def play_pointing_game(module: CaptioningModule, examples: Sequence[Example], images: ImageSource) -> Pointing | None:
    """How often attention peaks on what a noun of people's captions names; None for a data set without boxes."""
    if not any(caption.phrases for example in examples for caption in example.captions):
        return None
    return pointing_game(look_at_nouns(module, examples, images))


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
            size = image_size(examples[captions.owners[number]].path)
            seen = module.encoder.preprocessing.crop_box(*size)
            for phrase in phrases[number]:
                yield Look(alpha[phrase.noun].reshape(module.encoder.grid), seen, phrase.boxes)
