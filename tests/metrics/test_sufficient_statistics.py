import numpy as np
import pytest

from showattendtell.metrics.sufficient_statistics import ImageMeans, corpus_figures, pair_up


def test_means_are_weighted_by_copies():
    means = ImageMeans("cider", np.array([10.0, 40.0, 70.0]))
    figures = means.figures(np.array([[1.0, 1.0, 1.0], [3.0, 0.0, 1.0], [0.0, 2.0, 0.0]]))
    np.testing.assert_allclose(figures["cider"], [40, 25, 40])


def test_the_corpus_itself_has_every_image_once():
    figures = corpus_figures([ImageMeans("cider", np.array([10.0, 40.0])), ImageMeans("spice", np.array([5.0]))])
    assert figures == {"cider": 25.0, "spice": 5.0}
    assert {type(figure) for figure in figures.values()} == {float}


def test_pairs_are_sentences():
    [(hypothesis, references)] = pair_up([["a", "dog"]], [[["the", "dog"], ["dogs"]]])
    assert (hypothesis, references) == ("a dog", ["the dog", "dogs"])


@pytest.mark.parametrize(
    ("hypotheses", "references", "fault"),
    [
        ([["a"], ["b"]], [[["a"]]], "got 2 for 1"),
        ([], [], "got 0 for 0"),
        ([["a"], ["b"]], [[["a"]], []], "number 1 has none"),
    ],
)
def test_every_image_needs_a_caption_and_a_reference(hypotheses, references, fault: str):
    with pytest.raises(ValueError, match=fault):
        pair_up(hypotheses, references)
