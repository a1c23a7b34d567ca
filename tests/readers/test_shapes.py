import multiprocessing
import os
import signal
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
from PIL import Image, ImageColor

from showattendtell.errors import UserError
from showattendtell.readers.shapes import COLORS, SHAPES, SIDE, Scene, SceneObject, draw_scene, read_shapes
from showattendtell.types import Box, Caption, Dataset, Example, Phrase

RELATIONS = (("left", "of"), ("right", "of"), ("above",), ("below",), ("near",))


@pytest.fixture(scope="module")
def shapes(tmp_path_factory: pytest.TempPathFactory) -> Dataset:
    return read_shapes(str(tmp_path_factory.mktemp("shapes")), train=60, val=5, test=5)


def file_contents(dataset: Dataset) -> dict[str, bytes]:
    return {example.image: Path(example.path).read_bytes() for example in dataset.examples()}


def captions(dataset: Dataset) -> dict[str, tuple[Caption, ...]]:
    return {example.image: example.captions for example in dataset.examples()}


def pixels_of(example: Example) -> np.ndarray:
    with Image.open(example.path) as image:
        return np.asarray(image).astype(int)


def colored(pixels: np.ndarray, color: str) -> np.ndarray:
    """Where the image has exactly that color, but for rounding."""
    return (np.abs(pixels - np.array(ImageColor.getrgb(COLORS[color]))) <= 1).all(axis=-1)


def named(caption: Caption, phrase: Phrase) -> tuple[str, str, Box]:
    """Color, shape and box (in pixels) of a phrase."""
    [box] = phrase.boxes
    return caption.words[phrase.noun - 1], caption.words[phrase.noun], box.scaled(SIDE, SIDE)


def all_named(example: Example) -> set[tuple[str, str, Box]]:
    return {named(caption, phrase) for caption in example.captions for phrase in caption.phrases}


def test_an_image_depends_on_seed_split_and_number_but_not_on_the_sizes(shapes: Dataset, tmp_path: Path):
    smaller = read_shapes(str(tmp_path), train=7, val=2, test=1)
    assert file_contents(smaller).items() <= file_contents(shapes).items()
    assert captions(smaller).items() <= captions(shapes).items()
    assert smaller.name != shapes.name


def test_drawings_that_several_ask_for_at_once_are_made_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    drawn = []
    monkeypatch.setattr(
        "showattendtell.readers.shapes.draw_scene", lambda *scene: drawn.append(1) or draw_scene(*scene)
    )
    with ThreadPoolExecutor(4) as pool:
        datasets = list(pool.map(lambda _: read_shapes(str(tmp_path), train=20, val=2, test=2), range(4)))
    assert len(drawn) == 24
    assert all(file_contents(dataset) == file_contents(datasets[0]) for dataset in datasets)
    assert [folder.suffix for folder in tmp_path.iterdir()] == [""]


def test_every_image_has_five_different_captions(shapes: Dataset):
    for example in shapes.examples():
        assert len(example.captions) == 5
        assert len({caption.words for caption in example.captions}) == 5
        assert all(caption.written == " ".join(caption.words) for caption in example.captions)


def inside(boxes: list[Box]) -> np.ndarray:
    """Where the image is in one of the boxes."""
    rows, columns = np.mgrid[:SIDE, :SIDE] + 0.5
    parts = [(b.left <= columns) & (columns <= b.right) & (b.top <= rows) & (rows <= b.bottom) for b in boxes]
    return np.logical_or.reduce(parts)


def test_where_captions_name_three_things_their_colors_are_nowhere_else(shapes: Dataset):
    complete = [example for example in shapes.examples() if len(all_named(example)) == 3]
    assert len(complete) > 10
    for example in complete:
        for color in {color for color, _, _ in all_named(example)}:
            boxes = [box for other, _, box in all_named(example) if other == color]
            assert not colored(pixels_of(example), color)[~inside(boxes)].any(), example.image


def covered_by(thing: SceneObject) -> np.ndarray:
    """Where the drawing of a scene with the thing differs from that of its background alone."""
    with_thing, without = (
        np.asarray(draw_scene(Scene("checkered", things), np.random.default_rng(0))).astype(int)
        for things in ((thing,), ())
    )
    return np.abs(with_thing - without).max(axis=-1) > 40


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize(("x", "y", "diameter"), [(64.0, 64.0, 110.0), (20.3, 90.6, 30.0), (97.5, 30.2, 50.0)])
def test_the_boxes_are_tight(shape: str, x: float, y: float, diameter: float):
    thing = SceneObject(shape, "blue", x, y, diameter)
    rows, columns = covered_by(thing).nonzero()
    np.testing.assert_allclose((columns.min(), rows.min(), columns.max() + 1, rows.max() + 1), thing.box, atol=2)


def relations_said(caption: Caption) -> Iterator[tuple[str, Box, Box]]:
    """(relation, first box, second box) where the words between two nouns are a relation."""
    for first, second in zip(caption.phrases, caption.phrases[1:], strict=False):
        between = tuple(word for word in caption.words[first.noun + 1 : second.noun - 2] if word != "is")
        if between in RELATIONS:
            yield between[0], first.boxes[0], second.boxes[0]


def test_relations_agree_with_the_centers_of_the_boxes(shapes: Dataset):
    said = [
        relation
        for example in shapes.examples()
        for caption in example.captions
        for relation in relations_said(caption)
    ]
    assert {word for word, _, _ in said} == {"left", "right", "above", "below", "near"}
    for word, first, second in said:
        dx, dy = (np.add(first[:2], first[2:]) - np.add(second[:2], second[2:])) / 2
        expected = {"left": -dx, "right": dx, "above": -dy, "below": dy}
        if word == "near":
            assert 0.5 < abs(dx) / abs(dy) < 2
        else:
            assert expected[word] == max(abs(dx), abs(dy))


def test_a_killed_drawing_leaves_nothing_half_filled(shapes: Dataset, tmp_path: Path):
    process = multiprocessing.get_context("fork").Process(target=read_shapes, args=(str(tmp_path), 60, 5, 5))
    process.start()
    while len(list(tmp_path.rglob("*.png"))) < 3:
        assert process.is_alive()
        time.sleep(0.002)
    os.kill(process.pid, signal.SIGKILL)
    process.join()
    assert [path.name for path in tmp_path.iterdir()] == [f"{shapes.name}.part"]

    assert file_contents(read_shapes(str(tmp_path), train=60, val=5, test=5)) == file_contents(shapes)
    assert [path.name for path in tmp_path.iterdir()] == [shapes.name]


def test_a_folder_with_other_files_is_left_as_it_is(tmp_path: Path):
    (tmp_path / "images").mkdir()
    with pytest.raises(UserError, match=r"has other files \(images\)"):
        read_shapes(str(tmp_path), train=1, val=1, test=1)
    assert [file.name for file in tmp_path.iterdir()] == ["images"]
