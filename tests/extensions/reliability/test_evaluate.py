"""`evaluate` with the objects that captions name and the scores of baselines."""

import json
from pathlib import Path

import pytest
from runs import SIZES, Run, assert_done, held_out

from showattendtell.readers.shapes import read_shapes


def test_evaluation_scores_objects_and_baselines(run: Run, checkpoint: Path, folder: Path):
    metrics = "metrics=[bleu,rouge_l,cider,chair,baselines]"
    line = ["evaluate", f"checkpoint={checkpoint}", metrics, "output=baselines/results-test.json"]
    done = assert_done(run(*line))
    result = json.loads((folder / "baselines/results-test.json").read_text())
    examples = held_out(folder)
    assert (result["chair_objects"], result["chair_images"]) == ("nouns", len(examples))
    invented = sum(map(len, result["hallucinations"].values()))
    assert result["chair_i"] == pytest.approx(100 * invented / max(result["chair_mentions"], 1))
    assert result["chair_s"] == pytest.approx(100 * len(result["hallucinations"]) / len(examples))

    assert list(result["baselines"]) == ["constant", "nearest"]
    training = read_shapes(str(folder / "cache/shapes"), **SIZES).split("train")
    said = {" ".join(caption.words) for example in training for caption in example.captions}
    assert result["baselines"]["constant"]["caption"] in said
    for scores in result["baselines"].values():
        assert scores.keys() >= {"bleu4", "rouge_l", "cider"}
    assert "(2) best constant caption" in done.out
