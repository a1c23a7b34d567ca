"""F1 of grounded captions against counts by hand (Zhou et al. 2019)."""

import json
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from torch import Tensor
from traces import trace_of

from showattendtell.data.coco import mark_instances
from showattendtell.data.images import Preprocessing
from showattendtell.data.tokenizers import tokenize
from showattendtell.data.vocabulary import Vocabulary
from showattendtell.extensions.trust.objects import (
    GroundedCaption,
    GroundedObject,
    ObjectMetric,
    attended_box,
    score_grounding,
)
from showattendtell.inference.evaluator import EvaluationRun
from showattendtell.inference.loading import LoadedModel
from showattendtell.models.encoder import Encoder
from showattendtell.types import Box, Caption, CaptionerOutput, Dataset, Example, Phrase, RegionBoxes

LEFT, RIGHT, WHOLE = Box(0, 0, 0.5, 1), Box(0.5, 0, 1, 1), Box(0, 0, 1, 1)


def thing(name: str, *boxes: Box) -> GroundedObject:
    return GroundedObject(name, boxes or (LEFT,))


IMAGES = [
    (
        [thing("man"), thing("dog"), thing("ball"), thing("man", RIGHT)],
        [
            GroundedCaption((thing("man", RIGHT, LEFT), thing("dog", RIGHT)), frozenset({"ball"})),
            GroundedCaption((thing("man", RIGHT), thing("tree"))),
        ],
    ),
    ([thing("dog"), thing("cat")], [GroundedCaption((thing("dog"), thing("dog", RIGHT)))]),
]


def test_scores_worked_by_hand():
    """Classes of the references: man, dog, tree.

    Precision. man: 1 and 1 in the first reference, 0 and 1 in the second: 3/4. dog: 0, and wrong in the second
    reference; 1 in the second image: 1/3, or 1/2 of those that are in the reference. tree: 0. Ball and cat are of no
    class.
    Recall. man: 1, and 0, since its first box counts: 1/2. dog: 0; 1 and 0 in the second image: 1/3. tree: 0.
    """
    found = score_grounding(IMAGES)
    precision, recall = (3 / 4 + 1 / 3 + 0) / 3, (1 / 2 + 1 / 3 + 0) / 3
    precision_loc = (3 / 4 + 1 / 2 + 0) / 3
    assert (found["precision_all"], found["recall_all"]) == pytest.approx((100 * precision, 100 * recall))
    assert (found["precision_loc"], found["recall_loc"]) == pytest.approx((100 * precision_loc, 100 * recall))
    assert found["f1_all"] == pytest.approx(200 * precision * recall / (precision + recall))
    assert found["f1_loc"] == pytest.approx(200 * precision_loc * recall / (precision_loc + recall))
    assert found["classes"] == 3


def test_an_object_that_a_reference_names_without_a_box_is_ignored():
    with_box = GroundedCaption((thing("man"),))
    named = with_box._replace(others=frozenset({"dog"}))
    generated = [thing("man"), thing("dog")]
    dog = ([thing("dog")], [GroundedCaption((thing("dog"),))])
    assert score_grounding([(generated, [named]), dog])["precision_all"] == 100
    assert score_grounding([(generated, [with_box]), dog])["precision_all"] == pytest.approx(100 * (1 + 1 / 2) / 2)


def test_an_overlap_of_exactly_a_half_is_not_enough():
    assert score_grounding([([thing("man", LEFT)], [GroundedCaption((thing("man", WHOLE),))])])["f1_all"] == 0


def test_the_attended_box_is_around_the_maximum():
    weights = np.array(
        [
            [0.1, 0.0, 0.0, 0.9],
            [0.0, 0.5, 1.0, 0.0],
            [0.0, 0.4, 0.6, 0.0],
        ]
    )
    assert attended_box(weights, WHOLE) == pytest.approx((0.25, 1 / 3, 0.75, 1))
    seen = Box(0.2, 0, 0.6, 0.5)
    assert attended_box(weights, seen) == pytest.approx((0.3, 1 / 6, 0.5, 0.5))


def test_a_uniform_map_attends_to_all_that_is_seen():
    assert attended_box(np.full((3, 4), 1 / 12), RIGHT) == pytest.approx(RIGHT)


def test_of_boxes_a_model_attends_to_the_one_with_the_largest_weight():
    regions = RegionBoxes((Box(0, 0, 0.4, 0.4), Box(0.2, 0.2, 0.6, 0.6)))
    assert attended_box(np.array([0.4, 0.6]), regions) == regions.boxes[1]


SEEN = Box(0.3, 0.1, 0.7, 0.9)
"""What the model sees of a wide image; its grid has 2 rows and 3 columns."""


class Reader:
    """A model that looks at one cell of 2 x 3 a step, and at the next step at the next; an image is the first one's
    number."""

    vocabulary = Vocabulary(["<pad>", "<start>", "<eos>", "<unk>", "a", "dog"])
    encoder = SimpleNamespace(grid=(2, 3), preprocessing=Preprocessing(100, 80, (0.5,) * 3, (0.5,) * 3))
    encoder.arrange = partial(Encoder.arrange, encoder)
    device = torch.device("cpu")

    def __call__(self, images: Tensor, image_index: Tensor, tokens: Tensor) -> CaptionerOutput:
        cells = (images[image_index].long() + torch.arange(tokens.shape[1])) % 6
        weights = torch.nn.functional.one_hot(cells, 6).float()
        return trace_of(torch.zeros(*tokens.shape, 6), weights, torch.ones(tokens.shape))


def score_objects(run: EvaluationRun, written: Any, kinds: Sequence[Any]) -> tuple[dict[str, Any], dict[str, str]]:
    figures, missing = dict[str, Any](), dict[str, str]()
    for kind in kinds:
        scores = ObjectMetric(kind).measure(run, written, 0)
        figures |= scores.figures
        missing |= scores.missing
    return figures, missing


def images(positions: Sequence[int], draw: tuple[int, int] = (0, 0)) -> Tensor:
    return torch.tensor(positions)[:, None]


def make_run(examples: Sequence[Example], models: int = 1, dataset: Dataset | None = None) -> EvaluationRun:
    reader: Any = Reader()
    dataset = dataset or Dataset("made up", {"test": tuple(examples)})
    none: Any = None
    return EvaluationRun([], [], [LoadedModel(reader, none, {})] * models, [images] * models, dataset, "test", none)


@pytest.fixture
def file(tmp_path: Path) -> Path:
    Image.new("RGB", (200, 100)).save(tmp_path / "a.png")
    return tmp_path / "a.png"


def caption(sentence: str, **boxes: Box) -> Caption:
    words = tokenize(sentence)
    return Caption(words, tuple(Phrase(words.index(noun), (box,)) for noun, box in boxes.items()))


def cell(row: int, column: int) -> Box:
    width, height = (SEEN.right - SEEN.left) / 3, (SEEN.bottom - SEEN.top) / 2
    left, top = SEEN.left + column * width, SEEN.top + row * height
    return Box(left, top, left + width, top + height)


def annotated(file: Path) -> list[Example]:
    """Ten images; the model looks at the cell of image + step."""
    said = (caption("a dog and a ball", dog=cell(0, 1), ball=cell(1, 1)), caption("the dog", dog=cell(0, 1)))
    return [Example(f"{number}.png", str(file), said) for number in range(10)]


def test_objects_are_correct_where_the_model_looked(file: Path):
    """Step 1 of image n looks at cell n + 1. `dog` is in cell 1, `ball` in cell 4; each caption names the dog."""
    examples = annotated(file)
    written = {example.image: [["a", "dog", "runs"]] for example in examples}
    figures, missing = score_objects(make_run(examples), written, ["grounding"])
    assert missing == {}
    correct = sum((number + 1) % 6 == 1 for number in range(10)) / 10
    precision = (correct + 0) / 2
    assert correct == 0.2
    assert figures["grounding_precision_all"] == pytest.approx(100 * precision)
    assert figures["grounding_recall_all"] == pytest.approx(100 * precision)
    assert figures["grounding_f1_loc"] == pytest.approx(100 * precision)
    assert figures["grounding_classes"] == 2


def test_nouns_that_no_reference_names_are_hallucinated(file: Path):
    examples = annotated(file)
    train = tuple(example._replace(captions=(caption("a cat", cat=cell(0, 0)),)) for example in examples)
    dataset = Dataset("made up", {"train": train, "test": tuple(examples)})
    written = {example.image: [["a", "puppy", "and", "dogs"]] for example in examples}
    written |= {"3.png": [["a", "cat", "and", "a", "dog"]], "5.png": [["a", "dog", "on", "a", "kite"]]}
    figures, missing = score_objects(make_run(examples, dataset=dataset), written, ["chair"])
    assert missing == {}
    assert (figures["chair_objects"], figures["chair_images"]) == ("nouns", 10)
    assert figures["hallucinations"] == {"3.png": ["cat"]}
    assert (figures["chair_mentions"], figures["chair_i"], figures["chair_s"]) == (11, pytest.approx(100 / 11), 10)


def test_images_with_annotated_objects_are_scored_by_categories(file: Path, tmp_path: Path):
    """The second image is in no file of instances; the third shows a cat that no caption mentions."""
    content = {
        "images": [{"id": n, "file_name": f"{n}.png", "width": 200, "height": 100} for n in (0, 2)],
        "categories": [{"id": 17, "name": "cat"}, {"id": 18, "name": "dog"}],
        "annotations": [
            {"image_id": 0, "category_id": 18, "bbox": [0, 0, 9, 9], "iscrowd": 0},
            {"image_id": 2, "category_id": 17, "bbox": [0, 0, 9, 9], "iscrowd": 1},
        ],
    }
    (tmp_path / "instances.json").write_text(json.dumps(content))
    examples = [Example(f"{n}.png", str(file), (caption("a man"),)) for n in range(3)]
    dataset = mark_instances(Dataset("coco", {"test": tuple(examples)}), tmp_path / "instances.json")
    assert [example.objects for example in dataset.split("test")] == [("dog",), None, ("cat",)]
    written = {
        "0.png": [tokenize("a man with two puppies")],
        "1.png": [tokenize("a zebra")],
        "2.png": [tokenize("a kitten looks at a dog and a person")],
    }
    figures, missing = score_objects(make_run([], dataset=dataset), written, ["chair"])
    assert missing == {}
    assert (figures["chair_objects"], figures["chair_images"]) == ("coco", 2)
    assert figures["hallucinations"] == {"2.png": ["dog"]}
    assert (figures["chair_mentions"], figures["chair_i"], figures["chair_s"]) == (5, pytest.approx(20), 50)


def test_what_cannot_be_scored_has_a_reason(file: Path):
    bare = [Example("0.png", str(file), (caption("a dog"),))]
    written = {"0.png": [["a", "dog"]]}
    figures, missing = score_objects(make_run(bare), written, ["chair", "grounding"])
    assert figures == {}
    assert missing.keys() == {"chair", "grounding"}
    assert all("dataset.entities=entities.zip" in reason for reason in missing.values())
    several = score_objects(make_run(annotated(file), models=2), written, ["grounding"])
    assert "one model" in several[1]["grounding"]
