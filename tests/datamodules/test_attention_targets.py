"""Attention maps from ground-truth boxes: boxes are painted into photographs, and the pixels of a view are counted."""

import numpy as np
import pytest
import torch
from PIL import Image
from torch import Tensor

from showattendtell.datamodules.datamodule import CaptionDataModule
from showattendtell.datamodules.datasets import CaptionDataset, ImageSource, PixelSource, TargetMaker
from showattendtell.errors import UserError
from showattendtell.images.augmentation import Augmentation
from showattendtell.images.reading import Preprocessing
from showattendtell.text.vocabulary import Vocabulary
from showattendtell.types import Box, Caption, Dataset, Example, Phrase

ROWS, COLUMNS = 5, 4
PREPROCESSING = Preprocessing(resize=260, crop=240, mean=(0.5,) * 3, std=(0.5,) * 3)
SIZES = [(500, 300), (320, 400), (300, 300)]
BOXES = [
    (Box(0.3, 0.25, 0.55, 0.8),),
    (Box(0.1, 0.3, 0.5, 0.5), Box(0.4, 0.4, 0.9, 0.7), Box(0.6, 0.1, 0.7, 0.95)),
    (Box(0.0, 0.35, 0.6, 0.6), Box(0.2, 0.4, 0.5, 0.55)),
]


@pytest.fixture(scope="module")
def examples(tmp_path_factory: pytest.TempPathFactory) -> list[Example]:
    """Photographs that are white in their boxes and black elsewhere, with one caption each."""
    folder, found = tmp_path_factory.mktemp("painted"), []
    for number, ((width, height), boxes) in enumerate(zip(SIZES, BOXES, strict=True)):
        pixels = np.zeros((height, width, 3), dtype=np.uint8)
        for box in boxes:
            left, top, right, bottom = map(round, box.scaled(width, height))
            pixels[top:bottom, left:right] = 255
        Image.fromarray(pixels).save(folder / f"{number}.png")
        caption = Caption(("a", "white", "box"), (Phrase(2, boxes),))
        found.append(Example(f"{number}.png", str(folder / f"{number}.png"), (caption,)))
    return found


def vocabulary() -> Vocabulary:
    return Vocabulary.build([("a", "white", "box")], size=10)


def captions_of(examples: list[Example], source: ImageSource) -> CaptionDataset:
    captions = CaptionDataset(examples, vocabulary(), source)
    said = (caption for example in examples for caption in example.captions)
    captions.targets = TargetMaker(said, source.frames, (ROWS, COLUMNS))
    return captions


def painted(pixels: Tensor) -> Tensor:
    """The distribution of white over the grid, (I, L)."""
    cells = pixels[:, 0].double().unflatten(1, (ROWS, -1)).unflatten(3, (COLUMNS, -1)).sum(dim=(2, 4)).flatten(1)
    return cells / cells.sum(dim=1, keepdim=True)


AUGMENTATIONS = {
    "the crop of validation": {},
    "mirrored": {"flip": 1.0},
    "a part": {"crop": 0.6},
    "parts, mirrored or not": {"crop": 0.6, "flip": 0.5},
}


@pytest.mark.parametrize("settings", AUGMENTATIONS.values(), ids=AUGMENTATIONS)
def test_targets_are_where_the_boxes_are_in_the_view_of_the_batch(examples: list[Example], settings: dict[str, float]):
    captions = captions_of(examples, PixelSource(PREPROCESSING, examples, Augmentation(3, **settings)))
    for draw in (None, (0, 1), (2, 5)):
        batch = captions.batch([0, 1, 2], draw)
        assert batch.targets.indices.tolist() == [2, 6, 10]
        torch.testing.assert_close(batch.targets.masses.double(), painted(batch.images), atol=4e-3, rtol=0)


def test_words_without_boxes_and_boxes_outside_of_the_frame_have_no_target(examples: list[Example]):
    unseen, plain = Phrase(1, (Box(0.0, 0.0, 0.05, 1.0),)), ("a", "white", "box")
    captions = [Caption(plain), Caption(plain, (unseen, Phrase(2, BOXES[0]))), Caption(plain, (unseen,))]
    dataset = captions_of([examples[0]._replace(captions=tuple(captions))], PixelSource(PREPROCESSING, examples))
    assert dataset[[0, 2, 1]].targets.indices.tolist() == [10]
    nothing = dataset[[0, 2]].targets
    assert nothing.indices.shape == (0,)
    assert nothing.masses.shape == (0, ROWS * COLUMNS)
    assert (nothing.indices.dtype, nothing.masses.dtype) == (torch.long, torch.float32)


def test_a_data_set_without_boxes_is_reported(examples: list[Example]):
    bare = tuple(e._replace(captions=tuple(c._replace(phrases=()) for c in e.captions)) for e in examples)
    dataset = Dataset("bare", {"train": bare, "val": bare})
    data = CaptionDataModule(dataset, vocabulary(), lambda *_: PixelSource(PREPROCESSING, examples), 3, seed=0)
    with pytest.raises(UserError, match=r"the data set bare has none; give them as dataset\.entities=entities\.zip"):
        data.add_targets((ROWS, COLUMNS))
