import numpy as np
import pytest
import torch
from PIL import Image
from torch import Tensor

from showattendtell.datamodules.datasets import PixelSource
from showattendtell.images.augmentation import ASPECTS, Augmentation, draw_views, mentions_sides
from showattendtell.images.reading import Preprocessing
from showattendtell.text.tokenizers import tokenize
from showattendtell.types import Caption, Example

PREPROCESSING = Preprocessing(40, 32, (0.5,) * 3, (0.5,) * 3)
PLACES = torch.stack(torch.meshgrid(torch.arange(120), torch.arange(160), indexing="ij"))
PIXELS = torch.cat([PLACES, torch.full((1, 120, 160), 50)]).to(torch.uint8)
"""A photograph whose red is the row and whose green is the column."""


def views(number: int, sided: bool = False, **settings: float) -> list[Tensor]:
    rng, augmentation = np.random.default_rng(0), Augmentation(seed=0, **settings)
    return [augmentation.view(PIXELS, PREPROCESSING, rng, sided) for _ in range(number)]


@pytest.mark.parametrize(
    ("probability", "sided", "share"), [(0.0, False, 0), (0.25, False, 0.25), (1.0, False, 1), (1.0, True, 0)]
)
def test_views_are_mirrored_as_often_as_requested(probability: float, sided: bool, share: float):
    plain, mirrored = PREPROCESSING(PIXELS), PREPROCESSING(PIXELS).flip(2)
    drawn = views(400, sided, flip=probability)
    assert all(torch.equal(view, plain) or torch.equal(view, mirrored) for view in drawn)
    assert np.mean([torch.equal(view, mirrored) for view in drawn]) == pytest.approx(share, abs=0.08)


@pytest.mark.parametrize("share", [0.1, 0.5, 0.9])
def test_a_cut_shows_at_least_the_share_required_anywhere_in_the_photograph(share: float):
    drawn = [view.float() for view in views(300, crop=share)]
    assert all(view.shape == (3, 32, 32) for view in drawn)
    high = np.array([(view[0, -1, 16] - view[0, 0, 16]).item() for view in drawn]) * 32 / 31
    wide = np.array([(view[1, 16, -1] - view[1, 16, 0]).item() for view in drawn]) * 32 / 31
    shares = wide * high / (120 * 160)
    assert (shares.min() > share - 0.07, shares.max() < 1.07) == (True, True)
    assert shares.std() > (1 - share) / 8
    assert (wide / high).min() > ASPECTS[0] * 0.9
    assert (wide / high).max() < ASPECTS[1] * 1.1
    corners = torch.stack([view[:2, 0, 0] for view in drawn])
    assert corners.std(dim=0).min() > 1


def test_colors_change_within_their_bounds_and_shapes_do_not():
    grey = torch.full((3, 40, 40), 100, dtype=torch.uint8)
    rng, augmentation = np.random.default_rng(0), Augmentation(seed=0, color=0.2)
    levels = np.array([augmentation.view(grey, PREPROCESSING, rng, False).unique().tolist() for _ in range(200)])
    assert levels.shape == (200, 1)
    assert (77 <= levels.min() < 85, 115 < levels.max() <= 121) == (True, True)


@pytest.mark.parametrize(
    ("written", "sided"),
    [
        (["a man on the left", "a man"], True),
        (["a dog turns right"], True),
        (["the leftmost of three"], True),
        (["Ein Mädchen links", "Eine Frau"], True),
        (["zur rechten Seite"], True),
        (["两个人在左边"], True),
        (["two girls are linked", "he holds bright lights"], False),
    ],
)
def test_captions_that_name_left_or_right_are_recognized(written: list[str], sided: bool):
    captions = tuple(Caption(tokenize(sentence)) for sentence in written)
    assert mentions_sides(Example("a.jpg", "a.jpg", captions)) == sided


@pytest.fixture(scope="module")
def examples(tmp_path_factory: pytest.TempPathFactory) -> list[Example]:
    """The second is sided."""
    folder = tmp_path_factory.mktemp("photographs")
    Image.fromarray(PIXELS.permute(1, 2, 0).numpy()).save(folder / "a.png")
    captions = (Caption(("a", "slope")), Caption(("dark", "on", "the", "left")))
    return [Example(str(number), str(folder / "a.png"), (caption,)) for number, caption in enumerate(captions)]


def files(examples: list[Example], seed: int = 0, **settings: float) -> PixelSource:
    """Eight times the examples."""
    return PixelSource(PREPROCESSING, examples * 8, Augmentation(seed, **settings))


def test_views_depend_on_seed_epoch_batch_and_image_and_not_on_what_else_was_drawn(examples: list[Example]):
    torch.manual_seed(1)
    expected = torch.rand(3)
    torch.manual_seed(1)
    read = files(examples, flip=0.5, crop=0.5)
    first = read([0, 1, 2], (3, 4))
    assert torch.equal(torch.rand(3), expected)  # nothing was drawn from torch's random numbers
    assert torch.equal(read([0, 1, 2], (3, 4)), first)
    assert torch.equal(read([2, 0], (3, 4)), first[[2, 0]])
    assert not any(torch.equal(read([0], draw)[0], first[0]) for draw in ((2, 4), (3, 5), (4, 3)))
    assert not torch.equal(files(examples, seed=1, flip=0.5, crop=0.5)([0, 1, 2], (3, 4)), first)


def test_every_view_is_drawn_equally_often_and_no_mirrored_one_if_captions_name_sides():
    sided = np.arange(20) >= 10
    batches = [draw_views(sided, 1, (epoch, number)) for epoch in range(5) for number in range(100)]
    counts = [torch.stack(batches)[:, images].flatten().bincount(minlength=2) / 5000 for images in (~sided, sided)]
    torch.testing.assert_close(counts[0], torch.full((2,), 0.5), rtol=0, atol=0.03)
    torch.testing.assert_close(counts[1], torch.tensor([1.0, 0.0]), rtol=0, atol=0.03)
