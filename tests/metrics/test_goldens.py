"""Captions of others get the scores of the reference implementations."""

import json
from functools import cache
from itertools import product

import pytest
from repository import SHARED

from showattendtell.metrics.bootstrap import corpus_scores
from showattendtell.metrics.classes import measure
from showattendtell.metrics.tokenizers import split_sentences

GOLDENS = SHARED / "goldens" / "coco-test"
METRICS = ["bleu", "rouge_l", "cider", "meteor"]
CASES = [*product("cba", ("ptb", "whitespace"))]


@cache
def words(file: str, tokenizer: str) -> list[list[str]]:
    return split_sentences((GOLDENS / file).read_text().splitlines(), tokenizer)


@pytest.mark.slow
@pytest.mark.skipif(not GOLDENS.is_dir(), reason="needs SHOWATTENDTELL_SHARED")
@pytest.mark.parametrize(("name", "tokenizer"), CASES)
def test_captions_of_others_get_the_scores_of_the_reference_implementations(name: str, tokenizer: str):
    golden = json.loads((GOLDENS / "scores.json").read_text())[f"{name}/{tokenizer}"]
    references = list(zip(*(words(f"reference{n}", tokenizer) for n in range(5)), strict=True))
    measured, missing = measure(words(f"hypotheses-{name}.txt", tokenizer), references, METRICS)
    assert missing == {}
    figures = corpus_scores(measured.values())
    expected = {
        **{f"bleu{n}": 100 * score for n, score in enumerate(golden["bleu_without_brevity_penalty"], start=1)},
        **{f"bleu{n}_with_penalty": 100 * score for n, score in enumerate(golden["bleu"], start=1)},
        "rouge_l": 100 * golden["rouge_l"],
        "cider": 100 * golden["cider"],
        "meteor": 100 * golden["meteor"],
        "words": golden["hypothesis_length"],
        "reference_words": golden["reference_length"],
    }
    assert {name: figures[name] for name in expected} == pytest.approx(expected, abs=1e-4, rel=0)
    assert figures["brevity_penalty"] == pytest.approx(golden["brevity_penalty"], abs=1e-9)
