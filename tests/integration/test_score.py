"""The score command on caption files of any origin."""

import json
from pathlib import Path

import pytest
from runs import Run, assert_done

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
    return tmp_path


def split(sentence: str) -> list[str]:
    return sentence.lower().replace(".", "").split()


def test_captions_get_the_scores_of_their_words_and_are_compared_with_the_first(run_forked: Run, user: Path):
    inputs = {path: path.read_bytes() for path in user.iterdir()}
    line = ["references=karpathy.json", "split=test", "hypotheses=[results.json,other.csv]", QUICK, "resamples=50"]
    done = assert_done(run_forked("score", *line, folder=user))
    assert_done(run_forked("score", *line, "output=deeper/again.json", folder=user))
    result, again = (json.loads((user / name).read_text()) for name in ("scores.json", "deeper/again.json"))
    assert result == again
    assert {path: path.read_bytes() for path in inputs} == inputs

    people = [[split(sentence) for sentence in said] for said in REFERENCES.values()]
    pairs = pair_up([split(caption) for caption in WRITTEN.values()], people)
    expected = corpus_scores([measure_bleu(pairs)])
    scores, others = result["scores"]["results.json"], result["scores"]["other.csv"]
    assert {name: scores[name] for name in expected} == pytest.approx(expected)
    assert scores["distinct_captions"] == 3
    for file, images in result["per_image"].items():
        assert list(images) == list(REFERENCES)
        for name in ("rouge_l", "cider"):
            mean = sum(scores[name] for scores in images.values()) / 3
            assert result["scores"][file][name] == pytest.approx(mean, abs=1e-3)

    assert (result["images"], result["reference_captions"]) == (3, 6)
    assert (result["tokenizer"], result["split"], result["metrics"]) == ("plain", "test", ["bleu", "rouge_l", "cider"])
    assert result["hypotheses"]["results.json"]["form"] == "COCO results"
    assert result["references"]["karpathy.json"]["form"] == "Karpathy's JSON"
    assert len(result["references"]["karpathy.json"]["sha256"]) == 64
    assert result["versions"]["pycocoevalcap"]

    [comparison] = result["comparisons"]
    assert (comparison["a"], comparison["b"]) == ("results.json", "other.csv")
    for name, found in comparison["differences"].items():
        assert found["difference"] == others[name] - scores[name]
        assert 0 <= found["higher"] <= 1
    assert comparison["differences"].keys() >= {"bleu1", "bleu4_with_penalty", "rouge_l", "cider"}
    assert done.out.splitlines()[1:3] == ["(1) results.json", "(2) other.csv"]
    assert "(2) minus (1), over 50 resamples of the images" in done.out


def test_a_result_file_gets_the_scores_that_evaluation_gave_it(run: Run, evaluated: Path, folder: Path):
    assert_done(run("score", f"hypotheses={evaluated}", QUICK, "output=scored-again.json"))
    result = json.loads(evaluated.read_text())
    [scored] = json.loads((folder / "scored-again.json").read_text())["scores"].values()
    assert scored.pop("missing") == {}
    assert {"bleu4", "cider", "rouge_l", "distinct_captions", "reference_words"} <= scored.keys()
    assert {name: result[name] for name in scored} == pytest.approx(scored)
