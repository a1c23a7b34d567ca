"""Scores of a run's captions."""

from typing import Any

import pytest
from small_models import small_model

from showattendtell.inference.evaluator import EvaluationRun, score
from showattendtell.loading.models import LoadedModel
from showattendtell.metrics.tokenizers import default_scoring_name
from showattendtell.text.tokenizers import CharacterTokenizer, Tokenizer
from showattendtell.text.vocabulary import Vocabulary
from showattendtell.types import Caption, Dataset, Example

CAPTIONS = {"a.jpg": [["a", "dog", "runs", "over", "grass"]], "b.jpg": [["a", "green", "dog"]]}
TEST = tuple(Example(image, "", (Caption(("a", "dog", "runs", "over", "grass")),)) for image in CAPTIONS)
TRAIN = (Example("c.jpg", "", (Caption(("a", "green", "dog")),)),)


def figures_of(
    splits: dict[str, tuple[Example, ...]],
    captions: dict[str, list[list[str]]] = CAPTIONS,
    tokenizer: Tokenizer | None = None,
) -> dict[str, float]:
    none: Any = None
    dataset, model = Dataset("made up", splits), small_model()
    model.vocabulary = Vocabulary(model.vocabulary.words, tokenizer)
    name = default_scoring_name(model.vocabulary.tokenizer)
    run = EvaluationRun(
        ["a.ckpt"], [], [LoadedModel(model, none, {})], [none], dataset, "test", none, ["bleu"], name, 1
    )
    return score(run, captions).figures


@pytest.mark.parametrize("others", [{}, {"train": ()}], ids=["no train split", "an empty one"])
def test_a_data_set_without_training_captions_is_scored_without_novelty(others: dict[str, tuple[Example, ...]]):
    figures = figures_of({"test": TEST, **others})
    expected = figures_of({"test": TEST, "train": TRAIN})
    assert expected.pop("novelty") == 50
    assert figures == expected


def test_words_are_counted_whatever_the_tokens_of_the_model():
    tokenizer = CharacterTokenizer()
    captions = {image: [list(tokenizer.tokenize(" ".join(words)))] for image, [words] in CAPTIONS.items()}
    assert figures_of({"test": TEST}, captions, tokenizer) == figures_of({"test": TEST})
