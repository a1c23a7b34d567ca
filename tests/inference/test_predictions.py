"""Attention on reference captions, with a model whose maps are known."""

from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from PIL import Image
from torch import Tensor
from traces import trace_of

from showattendtell.images.reading import Preprocessing
from showattendtell.inference.predictions import maps_at_nouns, measure_attention, measure_maps
from showattendtell.text.vocabulary import Vocabulary
from showattendtell.types import Box, Caption, CaptionerOutput, Example, Phrase

GRID = (2, 3)
BALL, DOG = Phrase(1, (Box(0, 0, 0.55, 1),), "other"), Phrase(4, (Box(0.55, 0, 1, 1), Box(0, 0, 0.1, 0.1)), "animals")


class Reader:
    """A model that looks at one cell a step, and at the next step at the next; an image is the number of the first."""

    vocabulary = Vocabulary(["<pad>", "<start>", "<eos>", "<unk>", "a", "ball", "and", "dog"])
    encoder = SimpleNamespace(grid=GRID, preprocessing=Preprocessing(100, 80, (0.5,) * 3, (0.5,) * 3))
    device = torch.device("cpu")

    def __call__(self, images: Tensor, image_index: Tensor, tokens: Tensor) -> CaptionerOutput:
        steps = torch.arange(tokens.shape[1])
        cells = (images[image_index].long() + steps) % 6
        return trace_of(
            torch.zeros(*tokens.shape, 8), torch.nn.functional.one_hot(cells, 6).float(), torch.ones(tokens.shape)
        )


def images(positions: Sequence[int], draw: tuple[int, int] = (0, 0)) -> Tensor:
    return torch.tensor(positions)[:, None]


@pytest.fixture
def examples(tmp_path: Path) -> list[Example]:
    """Two images, one wide and one high, with captions of several lengths; one caption names nothing."""
    marked = Caption(("a", "ball", "and", "a", "dog"), (BALL, DOG))
    shorter = Caption(("a", "ball"), (BALL,))
    found = []
    for name, size in (("wide.png", (200, 100)), ("high.png", (50, 100))):
        Image.new("RGB", size).save(tmp_path / name)
        found.append(Example(name, str(tmp_path / name), (marked, Caption(("a", "dog")), shorter)))
    return found


def test_every_noun_is_looked_at_where_its_step_does(examples: list[Example]):
    looks = list(maps_at_nouns(Reader(), images, examples))
    cells = [int(look.weights.argmax()) for look in looks]
    assert [look.weights.shape for look in looks] == [GRID] * 6
    assert cells == [1, 4, 1, 2, 5, 2]
    assert [(look.boxes, look.kind) for look in looks] == [(p.boxes, p.kind) for p in (BALL, DOG, BALL)] * 2


def test_what_the_model_sees_is_reported_in_fractions_of_each_image(examples: list[Example]):
    """The middle square of 80 % of the shorter side."""
    looks = list(maps_at_nouns(Reader(), images, examples))
    assert [look.seen for look in looks[:3]] == [pytest.approx((0.3, 0.1, 0.7, 0.9))] * 3
    assert [look.seen for look in looks[3:]] == [pytest.approx((0.1, 0.3, 0.9, 0.7))] * 3


def test_scores_worked_by_hand(examples: list[Example]):
    """The ball ends at 0.55 of the width, where the dog begins.

    The wide image is seen from 0.3 to 0.7, looked at in the middle column, from 0.433 to 0.567: 7/8 of it are ball. The
    high one is seen from 0.1 to 0.9 and looked at in the last column, from 0.633 on: all dog.
    """
    scores = measure_attention(Reader(), images, examples)
    assert list(scores["attention_by_kind"]["other"].values()) == pytest.approx([50, 100 * 2 * 7 / 8 / 4, 4])
    assert list(scores["attention_by_kind"]["animals"].values()) == pytest.approx([50, 100 * (1 / 8 + 1) / 2, 2])
    wide, high = 0.25 / 0.4, 0.45 / 0.8
    assert list(scores["attention_baselines"]["uniform"].values()) == pytest.approx(
        [
            100 * (4 * 2 / 3 + 2 * 1 / 3) / 6,
            100 * (2 * wide + (1 - wide) + 2 * high + (1 - high)) / 6,
            6,
        ]
    )


def test_maps_of_one_region_that_is_another_at_each_step_are_sharp_and_move_whole(examples: list[Example]):
    """Of captions of 6, 3 and 3 words with the end, twice; in batches of two."""
    assert measure_maps(Reader(), images, examples) == {"entropy": 0.0, "movement": 1.0, "coverage": 1.0}


def test_a_data_set_without_boxes_has_no_such_score(examples: list[Example]):
    plain = [example._replace(captions=(Caption(("a", "dog")),)) for example in examples]
    assert measure_attention(Reader(), images, plain) == {}
