import json
import math
from pathlib import Path

import pytest
from torchmetrics.functional.text import bleu_score

from showattendtell.metrics.bleu import bleu

GOLDENS = Path(__file__).parents[2].parent / "shared" / "goldens" / "coco-test"

HYPOTHESES = ["a dog runs on the grass", "two men play", "a red car is parked near a tree"]
REFERENCES = [
    ["a dog is running on the grass", "the brown dog runs over the grass"],
    ["two men are playing football", "two men play a game on a field"],
    ["a red car stands near a tall tree", "the red car is parked near a house"],
]


def split(lines):
    return [line.split() for line in lines]


def test_one_sentence_worked_by_hand():
    scores = bleu([["a", "b", "c", "x"]], [[["a", "b", "c", "d", "e"]]])
    penalty = math.exp(1 - 5 / 4)
    precisions = [3 / 4, 2 / 3, 1 / 2]
    for n in range(1, 4):
        without = math.prod(precisions[:n]) ** (1 / n)
        assert scores.without_penalty[n - 1] == pytest.approx(without, abs=1e-6)
        assert scores.with_penalty[n - 1] == pytest.approx(without * penalty, abs=1e-6)
    assert (scores.length, scores.reference_length) == (4, 5)


@pytest.mark.parametrize("n", [1, 2, 3, 4])
def test_torchmetrics_gives_the_same_with_the_penalty(n: int):
    ours = bleu(split(HYPOTHESES), [split(lines) for lines in REFERENCES]).with_penalty[n - 1]
    assert ours == pytest.approx(bleu_score(HYPOTHESES, REFERENCES, n_gram=n).item(), abs=1e-6)


def test_there_is_no_penalty_for_long_captions():
    scores = bleu([["a", "b", "c", "d", "e", "f"]], [[["a", "b", "c", "d"]]])
    assert scores.brevity_penalty == 1
    assert scores.with_penalty == scores.without_penalty


def test_an_empty_caption_scores_nothing_and_breaks_nothing():
    assert bleu([[]], [[["a", "b"]]]).with_penalty[0] == pytest.approx(0, abs=1e-6)


def test_captions_and_images_must_be_as_many():
    with pytest.raises(ValueError, match="got 2 for 1"):
        bleu([["a"], ["b"]], [[["a"]]])


@pytest.mark.skipif(not GOLDENS.is_dir(), reason="the golden scores are not beside this checkout")
@pytest.mark.parametrize("name", ["a", "b", "c"])
def test_captions_of_others_get_the_scores_of_the_reference_implementations(name: str):
    golden = json.loads((GOLDENS / "scores.json").read_text())[f"{name}/whitespace"]
    files = sorted(GOLDENS.glob("reference*"))
    references = list(zip(*(split(file.read_text().splitlines()) for file in files), strict=True))
    scores = bleu(split((GOLDENS / f"hypotheses-{name}.txt").read_text().splitlines()), references)
    assert scores.with_penalty == pytest.approx(golden["bleu"], abs=1e-6)
    assert scores.without_penalty == pytest.approx(golden["bleu_without_brevity_penalty"], abs=1e-6)
    assert scores.brevity_penalty == pytest.approx(golden["brevity_penalty"], abs=1e-9)
    assert (scores.length, scores.reference_length) == (golden["hypothesis_length"], golden["reference_length"])
